"""The golden rows of the second operator."""

from __future__ import annotations

import pytest

from ascend_sample.reference_v2 import top_k_top_p_sample_v2_trace
from tests.operators.golden import DTYPES, ON_DEVICES
from tests.operators.golden import V2 as GOLDEN

ROWS = 633


def test_file_is_complete() -> None:
    assert sum(case["rows"] for case in GOLDEN.cases) == ROWS
    filters = {scenario.removesuffix("q") for case in GOLDEN.cases for scenario in case["scenario"]}
    assert filters == {"-", "-m", "-p", "-pm", "1", "A", "Am", "Ap", "Apm"}
    assert {case["dtype"] for case in GOLDEN.cases} == set(DTYPES)
    assert {case["input_is_logits"] for case in GOLDEN.cases} == {True, False}


@ON_DEVICES
def test_rows(device: str, backend: str | None, subtests: pytest.Subtests) -> None:
    GOLDEN.check(device, backend, subtests)


def test_cffi(npu: str, subtests: pytest.Subtests) -> None:
    GOLDEN.check(npu, "cffi", subtests)


def test_reference(subtests: pytest.Subtests) -> None:
    GOLDEN.check("cpu", "reference", subtests)
    for case in GOLDEN.cases:
        tensors, options = GOLDEN.inputs(case)
        with subtests.test(f"scenarios of {case['name']}"):
            assert [row.scenario for row in top_k_top_p_sample_v2_trace(**tensors, **options)] == case["scenario"]
