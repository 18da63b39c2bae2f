"""The golden rows of the first operator.

Every row is unambiguous (no near tie, no near boundary), so ids and kept sets must be equal, with no tolerance.
"""

from __future__ import annotations

import pytest
import torch

import ascend_sample
from tests.operators.golden import ON_DEVICES, Case
from tests.operators.golden import V1 as GOLDEN

ROWS = 710


def check(case: Case, device: str, backend: str | None) -> None:
    """Runs one case by one backend and compares ids and kept logits, bit for bit."""
    logits, p = (GOLDEN.floats(case, f"{name}_bits") for name in ("logits", "p"))
    q = GOLDEN.tensor(case, "q").to(device) if case["has_q"] else None
    expected_ids = GOLDEN.ids(case)
    expected_select = logits.float().masked_fill(~GOLDEN.kept(case), -float("inf"))
    inputs = (logits.to(device), GOLDEN.tensor(case, "k").to(device), p.to(device), q, case["eps"])
    with ascend_sample.use_backend(backend):
        ids, select = ascend_sample.top_k_top_p_sample(*inputs, is_need_logits=True)
        ids_alone, nothing = ascend_sample.top_k_top_p_sample(*inputs)
        ids_of_one_guess, _ = ascend_sample.top_k_top_p_sample(*inputs, top_k_guess=1)
    assert select is not None
    assert ids.tolist() == expected_ids
    assert torch.equal(select.cpu().view(torch.int32), expected_select.view(torch.int32))
    assert nothing is None
    assert ids_alone.tolist() == expected_ids
    assert ids_of_one_guess.tolist() == expected_ids


def test_file_is_complete() -> None:
    assert sum(case["rows"] for case in GOLDEN.cases) == ROWS
    scenarios = {scenario for case in GOLDEN.cases for scenario in case["scenario"]}
    assert scenarios == {"A", "Ap", "Aq", "Apq", "Bp", "Bpq", "C", "Cq"}


@ON_DEVICES
def test_rows(device: str, backend: str | None, subtests: pytest.Subtests) -> None:
    for case in GOLDEN.cases:
        with subtests.test(case["name"]):
            check(case, device, backend)


def test_reference(subtests: pytest.Subtests) -> None:
    for case in GOLDEN.cases:
        with subtests.test(case["name"]):
            check(case, "cpu", "reference")
