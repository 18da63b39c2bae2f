"""Sees that contestants do the same work before their times are compared.

The operator must agree with the reference. A peer draws from the same kept tokens by the same race, but by its own
conventions: its noise may belong to ids, it draws from softmax(logits) after top-p alone, it may keep more of the
logits that equal the k-th, and it sums in float32. So its ids are compared with what those conventions give, computed
here in float64, and a few rows may differ.
"""

from __future__ import annotations

import torch

from ascend_sample.parity import Kind, Result, compare
from ascend_sample.reference import top_k_top_p_sample_reference
from benchmarks import cases
from benchmarks.cases import Case
from benchmarks.contestants import CONTESTANTS, EPS, Batch, Noise

REFERENCE_ROWS = 4
PEER_ROWS = 32
LARGEST_DIFFERENCE = 0.1
_NEAR = 1e-4


def check_operator(batch: Batch, case: Case) -> float:
    """Compares the operator's first rows with the reference; returns the share that is exactly equal.

    Raises:
        RuntimeError: a row differs, and no tie or rounding explains it.
    """
    logits, k, p, q = (tensor[:REFERENCE_ROWS] for tensor in batch)
    expected = Result(top_k_top_p_sample_reference(logits, k, p, q).logits_select_idx, None)
    actual = Result(CONTESTANTS[cases.OPERATOR].prepare(case)(logits, k, p, q), None)
    comparison = compare(logits, k, p, q, EPS, expected, actual)
    if Kind.FAILED in comparison.kinds:
        reasons = "; ".join(verdict.reason for verdict in comparison.verdicts.values())
        raise RuntimeError(f"benchmarks: the operator differs from the reference in {case.name}: {reasons}")
    return comparison.kinds.count(Kind.EXACT) / len(comparison.kinds)


def check_peer(name: str, batch: Batch, case: Case) -> float:
    """Tells in what share of the rows the ids are those that a contestant's conventions give.

    Raises:
        RuntimeError: it is too small: the contestant does not do the work that it is compared by.
    """
    contestant = CONTESTANTS[name]
    torch.manual_seed(0)
    ids = contestant.prepare(case)(*batch)
    share = share_that_agrees(ids, batch, case, contestant.noise, contestant.min_p)
    rows = batch.logits.shape[0]
    if rows - share * rows > max(1.0, rows * LARGEST_DIFFERENCE):
        raise RuntimeError(f"benchmarks: only {share:.0%} of the ids of {name} are right in {case.name}")
    return share


def share_that_agrees(ids: torch.Tensor, batch: Batch, case: Case, noise: Noise, min_p: float = 0.0) -> float:
    """The share of rows whose drawn id wins the race under a convention.

    Args:
        ids: int64 [B], what was drawn.
        batch: the inputs.
        case: the parameters.
        noise: to what q belongs; with `Noise.OWN` any kept token is right.
        min_p: tokens of less than this share of the best one's weight are not kept.

    Returns:
        A number from 0 to 1.
    """
    values, order = batch.logits.double().sort(dim=1, descending=True, stable=True)
    kept = torch.arange(values.shape[1]) < (case.k or values.shape[1])
    weights = values.masked_fill(~kept, -torch.inf).softmax(dim=1)
    if case.p is not None:
        weights = weights.where(weights.cumsum(dim=1) - weights <= batch.p.double()[:, None], 0.0)
    weights = weights.where(weights >= min_p * weights[:, :1], 0.0)
    place = (order == ids[:, None]).int().argmax(dim=1, keepdim=True)
    if noise is Noise.OWN:
        return float((weights.gather(1, place) > 0).double().mean())
    by_id = noise is Noise.ID or case.branch == "C"
    places = order
    if case.branch == "C" and min_p > 0:  # q belongs to the place among the kept, in the order of ids
        is_kept = torch.zeros_like(order).scatter(1, order, (weights > 0).long())
        places = (is_kept.cumsum(dim=1) - 1).clamp(min=0).gather(1, order)
    scores = weights / (batch.q.gather(1, places) if by_id else batch.q).double()
    best, winner = scores.max(dim=1, keepdim=True)
    agrees = scores.gather(1, place) >= best * (1 - _NEAR)
    if not by_id:  # equal logits may come in any order, and then another id has the rank that wins
        agrees |= values.gather(1, place) == values.gather(1, winner)
    return float(agrees.double().mean())
