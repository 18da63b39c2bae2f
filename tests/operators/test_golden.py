"""The golden rows of the first operator."""

from __future__ import annotations

import pytest

from tests.operators.golden import ON_DEVICES
from tests.operators.golden import V1 as GOLDEN

ROWS = 710


def test_file_is_complete() -> None:
    assert sum(case["rows"] for case in GOLDEN.cases) == ROWS
    scenarios = {scenario for case in GOLDEN.cases for scenario in case["scenario"]}
    assert scenarios == {"A", "Ap", "Aq", "Apq", "Bp", "Bpq", "C", "Cq"}


@ON_DEVICES
def test_rows(device: str, backend: str | None, subtests: pytest.Subtests) -> None:
    GOLDEN.check(device, backend, subtests)


def test_reference(subtests: pytest.Subtests) -> None:
    GOLDEN.check("cpu", "reference", subtests)
