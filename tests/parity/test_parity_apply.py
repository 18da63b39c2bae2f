"""The judge of the operator that filters alone, and its stream: what must be seen, and what is near."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample import apply_top_k_top_p
from ascend_sample.parity import Kind, verify
from ascend_sample.parity.cases import stream
from ascend_sample.parity.filtering import PROBES_OF_FILTER, FilterBatch, compare_filtered, make_filter_batch
from ascend_sample.parity.operands import Layout, Operand
from ascend_sample.parity.subjects import APPLY
from tests.parity.parity_helpers import HALVES

INF = math.inf
Filter = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]


def changed(change_k: Callable[[Tensor], Tensor | None], change_p: Callable[[Tensor], Tensor | None]) -> Filter:
    """The operator, given another k and p; the logits as they are where it is given neither."""

    def call(logits: Tensor, k: Tensor | None, p: Tensor | None) -> Tensor:
        k, p = None if k is None else change_k(k), None if p is None else change_p(p)
        return apply_top_k_top_p(logits, 0 if k is None and p is None else k, p)

    return call


def same(values: Tensor) -> Tensor:
    return values


def without_ties(logits: Tensor, k: Tensor | None, p: Tensor | None) -> Tensor:
    filtered = apply_top_k_top_p(logits, k, p)
    if k is None:
        return filtered
    ranks = filtered.float().sort(dim=1, descending=True, stable=True).indices.argsort(dim=1)
    bounds = torch.where((k >= 1) & (k < logits.shape[1]), k, logits.shape[1]).unsqueeze(1)
    return filtered.masked_fill(ranks >= bounds, -INF)


def without_the_last(logits: Tensor, k: Tensor | None, p: Tensor | None) -> Tensor:
    """One kept entry fewer, where several are."""
    filtered = apply_top_k_top_p(logits, k, p)
    least = filtered.masked_fill(filtered == -INF, INF).argmin(1, keepdim=True)
    is_one = (filtered != -INF).sum(1, keepdim=True) == 1
    return torch.where(is_one, filtered, filtered.scatter(1, least, -INF))


WRONG: dict[str, Filter] = {
    "the lowest ids stay": lambda logits, k, p: apply_top_k_top_p(logits.flip(1), k, p).flip(1),
    "exactly k": without_ties,
    "one too few": without_the_last,
    "k above 1024 skips top-k": changed(lambda k: k.masked_fill(k > 1024, 0), same),
    "k is capped at 1024": changed(lambda k: k.clamp(max=1024), same),
    "k <= 0 keeps one": changed(lambda k: k.clamp(min=1), same),
    "k is not passed on": changed(lambda k: None, same),
    "p is not passed on": changed(same, lambda p: None),
    "p <= 0 skips top-p": changed(same, lambda p: p.masked_fill(p <= 0, 2)),
    "p = 1 skips top-p": changed(same, lambda p: p.masked_fill(p == 1, 2)),
    "a sum of 1 - p stays": changed(same, lambda p: torch.where(p < 1, p * (1 + torch.finfo(p.dtype).eps), p)),
    "p is 0.001 too large": changed(same, lambda p: torch.where(p < 0.9, p + 0.01, p)),
    "values are altered": lambda logits, k, p: apply_top_k_top_p(logits, k, p) + 0.5,
    "float32 comes back": lambda logits, k, p: apply_top_k_top_p(logits, k, p).float(),
    "0 elsewhere": lambda logits, k, p: apply_top_k_top_p(logits, k, p).nan_to_num(neginf=0.0),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_operators_fail(name: str) -> None:
    report = verify("cpu", 1500, subject=APPLY, operator=WRONG[name])
    assert report.tally.total(Kind.FAILED) > 0
    assert report.problems()


@pytest.mark.parametrize(
    ("values", "p", "kept", "verdict"),
    [
        # Of 0.2, 0.3 and 0.5: which sums are near 1 - p.
        (HALVES, 0.8 + 5e-6, [0, 1], Kind.NEAR_BOUNDARY),
        (HALVES, 0.8 - 5e-6, [0, 1, 2], Kind.NEAR_BOUNDARY),
        (HALVES, 0.8 + 1e-4, [0, 1], Kind.FAILED),
        (HALVES, 0.8 - 1e-4, [0, 1, 2], Kind.FAILED),
        # Sums that are exact in binary have no tolerance.
        ([0.0] * 4, 0.5, [1, 2, 3], Kind.FAILED),
        # Not the end of the order.
        (HALVES, 0.8 + 5e-6, [0, 2], Kind.FAILED),
        # What weighs less than a normal number may be 0 on a device; what weighs nothing is dropped.
        ([0.0, -95.0], 1.0, [0], Kind.NEAR_BOUNDARY),
        ([0.0, -80.0], 1.0, [0], Kind.FAILED),
        ([0.0, -200.0], 1.0, [0, 1], Kind.FAILED),
        # Entries of -inf do not show.
        ([0.0, -INF, 0.0, -INF], 0.5, [0, 2], Kind.FAILED),
    ],
)
def test_verdicts(values: list[float], p: float, kept: list[int], verdict: Kind) -> None:
    logits = torch.tensor([values])
    actual = torch.full_like(logits, -INF)
    actual[0, kept] = logits[0, kept]
    numbers: dict[str, Any] = {"k": torch.zeros(1, dtype=torch.int32), "p": torch.tensor([p]), "logits": logits}
    operands = {name: Operand.arrange(value, Layout.CONTIGUOUS, 0) for name, value in numbers.items()}
    batch = replace(make_filter_batch(0, 0, (torch.float32,)), given="p", **operands)
    judged = compare_filtered(batch, apply_top_k_top_p(logits, p=p), actual)
    assert judged.kinds == [verdict]


def test_a_row_that_is_exact_is_not_looked_at_again() -> None:
    for batch in stream(1, 300, (torch.float32, torch.bfloat16), make_filter_batch):
        assert isinstance(batch, FilterBatch)
        expected = APPLY.result(APPLY.reference(*batch.tensors("cpu")))
        assert set(compare_filtered(batch, expected, expected.clone()).kinds) == {Kind.EXACT}


def test_probes(device: str, subtests: pytest.Subtests) -> None:
    for probe in PROBES_OF_FILTER:
        with subtests.test(probe.question):
            for dtype in (torch.float16, torch.float32):
                finding = probe.run(apply_top_k_top_p, device, dtype)
                assert finding.as_contract, finding.reading
            assert len({each.kept for each in probe.outcomes}) == len(probe.outcomes)
