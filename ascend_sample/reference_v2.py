"""The specification of the second operator in code: pure PyTorch, any device, one row after the other.

Written to be checked against ``docs/semantics_v2.md`` line by line, not to be fast. What both operators do alike is
that of `ascend_sample.reference`. The numbers in the comments are the document's sections.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ascend_sample._contract import MAX_TOP_K, TopKTopPSampleV2
from ascend_sample._validate import convert_arguments_v2
from ascend_sample.reference import (
    DrawnRow,
    as_values,
    draw_scores,
    first_maximum,
    first_of_total_order,
    softmax,
    total_order,
)

KS_MAX_MULTIPLE = 8
"""ks_max is rounded up to a multiple of it."""


@dataclass(frozen=True, kw_only=True)
class RowTraceV2(DrawnRow):
    """What happened to one row."""

    keeps_one: bool  # whether p <= 0 kept the best entry alone
    use_min_p: bool  # whether min-p was on

    @property
    def scenario(self) -> str:
        """Returns what was on: 1 where p keeps one entry, else A (top-k) or -, then p and m; then q if it is given."""
        filters = ("A" if self.use_k else "-") + "p" * self.use_p + "m" * self.use_min_p
        return ("1" if self.keeps_one else filters) + "q" * self.use_q


def top_k_top_p_sample_v2_reference(
    logits: torch.Tensor,
    k: int | torch.Tensor | None = None,
    p: float | torch.Tensor | None = None,
    q: torch.Tensor | None = None,
    min_p: float | torch.Tensor | None = None,
    eps: float = 1e-8,
    is_need_logits: bool = False,
    top_k_guess: int = 32,
    ks_max: int = 1024,
    input_is_logits: bool = True,
    is_need_sample_result: bool = False,
) -> TopKTopPSampleV2:
    """Samples one id a row exactly as the specification says.

    Arguments, results and errors are those of :func:`ascend_sample.top_k_top_p_sample_v2`.

    Example:
        >>> logits = torch.tensor([[1.0, 3.0, 2.0]])
        >>> top_k_top_p_sample_v2_reference(logits, k=2).logits_select_idx
        tensor([1])

    Source: aclnnTopKTopPSampleV2; docs/semantics_v2.md.
    """
    options = (eps, is_need_logits, top_k_guess, ks_max, input_is_logits, is_need_sample_result)
    rows = top_k_top_p_sample_v2_trace(logits, k, p, q, min_p, *options)
    device = logits.device
    selected = torch.tensor([row.selected for row in rows], dtype=torch.int64, device=device)
    select = dense_ids = dense_weights = None
    if is_need_logits:
        filler = -math.inf if input_is_logits else 0.0
        select = torch.full(logits.shape, filler, dtype=torch.float32, device=device)
        for b, row in enumerate(rows):
            select[b, row.kept] = _as_values(logits[b], input_is_logits)[row.kept]
    if is_need_sample_result:
        dense_ids = torch.zeros(logits.shape, dtype=torch.int64, device=device)
        dense_weights = torch.zeros(logits.shape, dtype=torch.float32, device=device)
        for b, row in enumerate(rows):
            dense_ids[b, : row.n_kept] = row.kept
            dense_weights[b, : row.n_kept] = row.weights
    return TopKTopPSampleV2(selected, select, dense_ids, dense_weights)


def top_k_top_p_sample_v2_trace(
    logits: torch.Tensor,
    k: int | torch.Tensor | None = None,
    p: float | torch.Tensor | None = None,
    q: torch.Tensor | None = None,
    min_p: float | torch.Tensor | None = None,
    eps: float = 1e-8,
    is_need_logits: bool = False,
    top_k_guess: int = 32,
    ks_max: int = 1024,
    input_is_logits: bool = True,
    is_need_sample_result: bool = False,
) -> list[RowTraceV2]:
    """Tells for every row what was on and why it drew its id.

    Arguments and errors are those of `top_k_top_p_sample_v2_reference`.

    Returns:
        One :class:`RowTraceV2` a row.

    Example:
        >>> row, = top_k_top_p_sample_v2_trace(torch.tensor([[1.0, 3.0, 2.0]]), min_p=0.3)
        >>> row.scenario, row.n_kept, row.kept.tolist()
        ('-m', 2, [1, 2])

    Source: aclnnTopKTopPSampleV2; docs/semantics_v2.md.
    """
    options = (eps, is_need_logits, top_k_guess, ks_max, input_is_logits, is_need_sample_result)
    k, p, min_p = convert_arguments_v2(logits, k, p, q, min_p, *options)
    return [
        _sample_row(
            _as_values(logits[b], input_is_logits),
            int(k[b]),
            float(p[b]),
            None if q is None else q[b],
            0.0 if min_p is None else float(min_p[b]),
            eps,
            top_k_guess,
            ks_max,
            input_is_logits,
        )
        for b in range(logits.shape[0])
    ]


def _sample_row(
    x: torch.Tensor,
    k: int,
    p: float,
    q: torch.Tensor | None,
    min_p: float,
    eps: float,
    top_k_guess: int,
    ks_max: int,
    input_is_logits: bool,
) -> RowTraceV2:
    vocab_size = x.numel()
    # 2. Enabling
    use_k = 1 <= k <= min(vocab_size, _rounded_up(ks_max), MAX_TOP_K)
    use_p = 0 < p < 1
    keeps_one = p <= 0
    use_min_p = min_p > 0  # false for NaN, as the two before
    guess_hit = None
    # 3. Candidates, weights and filters
    if use_k:
        kept = first_of_total_order(x, k)
        weights = _weights(x[kept], input_is_logits)
    else:
        kept = torch.arange(vocab_size, device=x.device)
        weights = _weights(x, input_is_logits)
        if use_p:
            kept = first_of_total_order(x, min(top_k_guess, MAX_TOP_K, vocab_size))
            guess_hit = bool(weights[kept].sum(dtype=torch.float64) >= p)
            kept = kept if guess_hit else total_order(x)
        elif keeps_one:
            kept = first_of_total_order(x, 1)
        weights = weights[kept]
    if use_p or keeps_one:
        n = count_until_reaching(weights, p) if use_p else 1
        kept, weights = kept[:n], weights[:n]
    if use_min_p:
        stays = _reach(weights, min_p) if min_p < 1 else kept == first_of_total_order(x, 1)
        kept, weights = kept[stays], weights[stays]
    # 4. Draw
    if q is None:
        scores = weights
        selected = int(first_of_total_order(x, 1))  # which no filter removes
    else:
        # By rank where top-k or top-p sorted the row, else by place among the kept, which is the id if all are.
        masked = x[kept] == (-math.inf if input_is_logits else 0.0)
        scores = draw_scores(weights, q[: kept.numel()], eps, masked)
        selected = int(kept[first_maximum(scores)])
    filters = {"keeps_one": keeps_one, "use_min_p": use_min_p}
    return RowTraceV2(use_k, use_p, q is not None, guess_hit, kept, weights, scores, selected, **filters)


def _rounded_up(ks_max: int) -> int:
    return -(-ks_max // KS_MAX_MULTIPLE) * KS_MAX_MULTIPLE


def _as_values(row: torch.Tensor, input_is_logits: bool) -> torch.Tensor:
    """Returns the row in float32: a logit of NaN is -inf; a probability that is NaN or below 0 is 0 (5)."""
    if input_is_logits:
        return as_values(row)
    x = row.to(torch.float32)
    return torch.where(x > 0, x, 0.0)


def _weights(x: torch.Tensor, input_is_logits: bool) -> torch.Tensor:
    """Returns the softmax of logits, or probabilities as they are, but for +inf, which takes the whole mass (3.2)."""
    if input_is_logits:
        return softmax(x)
    infinite = x == math.inf
    return infinite.to(torch.float32) / infinite.sum() if bool(infinite.any()) else x


def count_until_reaching(weights: torch.Tensor, p: float) -> int:
    """Returns the least n with weights[0] + ... + weights[n-1] >= p; all if there is none (3.3)."""
    sums = torch.cumsum(weights.to(torch.float64), dim=0)
    return 1 + int((sums[:-1] < p).sum())  # an entry stays iff the sum before it is below p


def _reach(weights: torch.Tensor, min_p: float) -> torch.Tensor:
    """Tells which weights are at least min_p times the largest, compared without rounding (3.4)."""
    wide = weights.to(torch.float64)
    return wide >= min_p * wide.max()
