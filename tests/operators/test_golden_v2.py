"""The golden rows of the second operator, as in `test_golden`: ids and kept sets must be equal, with no tolerance."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch

import ascend_sample
from ascend_sample.reference_v2 import top_k_top_p_sample_v2_trace
from tests.operators.golden import DTYPES, ON_DEVICES, Case
from tests.operators.golden import V2 as GOLDEN

ROWS = 633


def inputs(case: Case) -> tuple[tuple[torch.Tensor | None, ...], dict[str, Any]]:
    """Logits, k, p, q and min_p, and the options."""
    tensors = (
        GOLDEN.floats(case, "logits"),
        GOLDEN.tensor(case, "k"),
        GOLDEN.floats(case, "p"),
        GOLDEN.tensor(case, "q") if case["has_q"] else None,
        GOLDEN.floats(case, "min_p") if case["has_min_p"] else None,
    )
    return tensors, {name: case[name] for name in ("eps", "ks_max", "input_is_logits")}


def check_sample_result(case: Case, kept: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
    """Densely the kept ids, in the order of the row or of the vocabulary, and the weights that define that order."""
    (logits, *_), _ = inputs(case)
    assert logits is not None
    values = logits.double()
    for b, scenario in enumerate(case["scenario"]):
        members = torch.nonzero(kept[b]).flatten()
        is_ranked = scenario[0] in "A1" or "p" in scenario
        if is_ranked:
            members = members[torch.sort(values[b, members], descending=True, stable=True).indices]
        n = len(members)
        assert ids[b, :n].tolist() == members.tolist()
        assert not weights[b, n:].any()
        if not case["input_is_logits"]:
            assert torch.equal(weights[b, :n].double(), values[b, members])
            continue
        k = int(GOLDEN.tensor(case, "k")[b])
        among = torch.sort(values[b], descending=True).values[:k] if scenario[0] == "A" else values[b]
        if scenario[0] == "1":  # which says nothing of top-k
            assert float(weights[b, 0]) == 1.0
        else:
            expected = (values[b, members] - among.logsumexp(0)).exp()
            assert torch.allclose(weights[b, :n].double(), expected, rtol=1e-6, atol=1e-38)


def check(case: Case, device: str, backend: str | None) -> None:
    """Runs one case by one backend and compares everything that the operator returns."""
    tensors, options = inputs(case)
    on_device = [None if tensor is None else tensor.to(device) for tensor in tensors]
    kept = GOLDEN.kept(case)
    logits = tensors[0]
    assert logits is not None
    expected_select = logits.float().masked_fill(~kept, -math.inf if case["input_is_logits"] else 0.0)
    expected_ids = GOLDEN.ids(case)
    with ascend_sample.use_backend(backend):
        sample = functools.partial(ascend_sample.top_k_top_p_sample_v2, *on_device, **options)
        full = sample(is_need_logits=True, is_need_sample_result=not case["has_q"])
        alone = sample(top_k_guess=1)
    assert full.logits_select_idx.tolist() == expected_ids
    assert torch.equal(full.logits_top_kp_select.cpu().view(torch.int32), expected_select.view(torch.int32))
    assert alone.logits_select_idx.tolist() == expected_ids
    assert alone[1:] == (None, None, None)
    if not case["has_q"]:
        check_sample_result(case, kept, full.logits_idx.cpu(), full.logits_sort_masked.cpu())


def test_file_is_complete() -> None:
    assert sum(case["rows"] for case in GOLDEN.cases) == ROWS
    filters = {scenario.removesuffix("q") for case in GOLDEN.cases for scenario in case["scenario"]}
    assert filters == {"-", "-m", "-p", "-pm", "1", "A", "Am", "Ap", "Apm"}
    assert {case["dtype"] for case in GOLDEN.cases} == set(DTYPES)
    assert {case["input_is_logits"] for case in GOLDEN.cases} == {True, False}


@ON_DEVICES
def test_rows(device: str, backend: str | None, subtests: pytest.Subtests) -> None:
    for case in GOLDEN.cases:
        with subtests.test(case["name"]):
            check(case, device, backend)


def test_cffi(npu: str, subtests: pytest.Subtests) -> None:
    for case in GOLDEN.cases:
        with subtests.test(case["name"]):
            check(case, npu, "cffi")


def test_reference(subtests: pytest.Subtests) -> None:
    for case in GOLDEN.cases:
        with subtests.test(case["name"]):
            check(case, "cpu", "reference")


def test_scenarios_of_the_trace(subtests: pytest.Subtests) -> None:
    for case in GOLDEN.cases:
        with subtests.test(case["name"]):
            tensors, options = inputs(case)
            assert [row.scenario for row in top_k_top_p_sample_v2_trace(*tensors, **options)] == case["scenario"]
