"""The golden rows: computed in float64 by an implementation that this project shares nothing with.

Every row is unambiguous (no near tie, no near boundary), so ids and kept sets must be equal, with no tolerance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ascend_sample
from tests.operators.golden import CASES, arrays, floats

ROWS = 710


def check(case: dict[str, Any], device: str, backend: str | None) -> None:
    """Runs one case by one backend and compares ids and kept logits, bit for bit."""
    index = case["case"]
    logits = floats(f"{index}.logits_bits", case["dtype"])
    p = floats(f"{index}.p_bits", case["dtype"])
    k = torch.from_numpy(arrays()[f"{index}.k"])
    q = torch.from_numpy(arrays()[f"{index}.q"]).to(device) if case["has_q"] else None
    expected_ids = arrays()[f"{index}.ids"].tolist()
    packed = arrays()[f"{index}.kept_packed"]
    kept = torch.from_numpy(np.unpackbits(packed, axis=1)[:, : case["vocab"]].astype(bool))
    expected_select = logits.float().masked_fill(~kept, -float("inf"))
    inputs = (logits.to(device), k.to(device), p.to(device), q, case["eps"])
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


def name(case: dict[str, Any]) -> str:
    return f"{case['case']}-{case['name']}"


def test_file_is_complete() -> None:
    assert sum(case["rows"] for case in CASES) == ROWS
    scenarios = {scenario for case in CASES for scenario in case["scenario"]}
    assert scenarios == {"A", "Ap", "Aq", "Apq", "Bp", "Bpq", "C", "Cq"}


@pytest.mark.parametrize("case", CASES, ids=name)
def test_device(case: dict[str, Any], device: str) -> None:
    check(case, device, None)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_composite(case: dict[str, Any], device: str) -> None:
    check(case, device, "composite")


@pytest.mark.parametrize("case", CASES, ids=name)
def test_reference(case: dict[str, Any]) -> None:
    check(case, "cpu", "reference")
