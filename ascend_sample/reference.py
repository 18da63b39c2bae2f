"""The operator's specification in code: pure PyTorch, any device, one row after the other.

Written to be checked against ``docs/semantics.md`` line by line, not to be fast: it reads values back from the device
and loops over rows. The numbers in the comments are that document's sections.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ascend_sample._contract import MAX_TOP_K, TopKTopPSample
from ascend_sample._validate import convert_arguments

SEGMENT_LENGTH = 8 * 1024
"""The length v of the segments over which the first entries of a row are rolled."""


@dataclass(frozen=True)
class DrawnRow:
    """What happened to one row, told of both operators alike."""

    use_k: bool  # whether top-k was on
    use_p: bool  # whether top-p was on
    use_q: bool  # whether the row was drawn with q
    # with top-p alone, whether top_k_guess entries sufficed (else the row was sorted in full); None elsewhere
    guess_hit: bool | None
    # int64 [n], the ids that survived: in the total order with top-k or top-p, else in vocabulary order
    kept: torch.Tensor
    weights: torch.Tensor  # float32 [n], their weights
    scores: torch.Tensor  # float32 [n], the weights divided by (|q| + eps); the weights themselves without q
    selected: int  # the drawn id

    @property
    def n_kept(self) -> int:
        """Returns the number of ids that survived."""
        return self.kept.numel()


@dataclass(frozen=True, kw_only=True)
class RowTrace(DrawnRow):
    """What happened to one row, and in which branch: A (top-k, then perhaps top-p), B (top-p alone) or C (neither)."""

    branch: str

    @property
    def scenario(self) -> str:
        """Returns the branch, with "p" and "q" where they are on: A, Ap, Aq, Apq, Bp, Bpq, C or Cq."""
        return self.branch + "p" * self.use_p + "q" * self.use_q


def top_k_top_p_sample_reference(
    logits: torch.Tensor,
    k: int | torch.Tensor | None,
    p: float | torch.Tensor | None,
    q: torch.Tensor | None = None,
    eps: float = 1e-8,
    is_need_logits: bool = False,
    top_k_guess: int = 32,
) -> TopKTopPSample:
    """Samples one id a row exactly as the specification says.

    Arguments, results and errors are those of :func:`ascend_sample.top_k_top_p_sample`.

    Example:
        >>> logits = torch.tensor([[1.0, 3.0, 2.0]])
        >>> top_k_top_p_sample_reference(logits, k=2, p=1.0).logits_select_idx
        tensor([1])

    Source: aclnnTopKTopPSample, CANN's operator documentation.
    """
    rows = top_k_top_p_sample_trace(logits, k, p, q, eps, is_need_logits, top_k_guess)
    selected = torch.tensor([row.selected for row in rows], dtype=torch.int64, device=logits.device)
    if not is_need_logits:
        return TopKTopPSample(selected, None)
    select = torch.full(logits.shape, -math.inf, dtype=torch.float32, device=logits.device)
    for b, row in enumerate(rows):
        select[b, row.kept] = as_values(logits[b])[row.kept]
    return TopKTopPSample(selected, select)


def top_k_top_p_sample_trace(
    logits: torch.Tensor,
    k: int | torch.Tensor | None,
    p: float | torch.Tensor | None,
    q: torch.Tensor | None = None,
    eps: float = 1e-8,
    is_need_logits: bool = False,
    top_k_guess: int = 32,
) -> list[RowTrace]:
    """Tells for every row which branch it took and why it drew its id.

    Arguments and errors are those of `top_k_top_p_sample_reference`.

    Returns:
        One :class:`RowTrace` a row.

    Example:
        >>> row, = top_k_top_p_sample_trace(torch.tensor([[1.0, 3.0, 2.0]]), k=2, p=None)
        >>> row.branch, row.n_kept, row.kept.tolist()
        ('A', 2, [1, 2])

    Source: aclnnTopKTopPSample, CANN's operator documentation.
    """
    k, p = convert_arguments(logits, k, p, q, eps, is_need_logits, top_k_guess)
    return [
        _sample_row(logits[b], int(k[b]), float(p[b]), None if q is None else q[b], eps, top_k_guess)
        for b in range(logits.shape[0])
    ]


def _sample_row(
    logits: torch.Tensor, k: int, p: float, q: torch.Tensor | None, eps: float, top_k_guess: int
) -> RowTrace:
    vocab_size = logits.numel()
    x = as_values(logits)
    # 2. Enabling
    use_k = 1 <= k <= min(vocab_size, MAX_TOP_K)
    use_p = 0 < p < 1
    guess_hit = None
    # 3. The three branches
    if use_k:
        branch = "A"
        kept = first_of_total_order(x, k)
        if use_p:
            n = count_until_exceeding(softmax(x[kept]), p)
            kept = kept[:n]
        weights = softmax(x[kept])
    elif use_p:
        branch = "B"
        probabilities = softmax(x)
        kept = first_of_total_order(x, min(top_k_guess, MAX_TOP_K, vocab_size))
        guess_hit = bool(probabilities[kept].sum(dtype=torch.float64) > p)
        if not guess_hit:
            kept = total_order(x)
        n = count_until_exceeding(probabilities[kept], p)
        kept = kept[:n]
        weights = softmax(probabilities[kept], masked=has_no_mass(x)[kept])  # the second softmax
    else:
        branch = "C"
        kept = torch.arange(vocab_size, device=x.device)
        weights = softmax(x)
    # 4. Draw
    if q is None:
        scores = weights
        selected = int(kept[0]) if branch != "C" else int(first_of_total_order(x, 1))
    else:
        noise = q if branch == "C" else q[: kept.numel()]  # by id in C, by rank in A and B
        scores = draw_scores(weights, noise, eps, masked=x[kept] == -math.inf)
        selected = int(kept[first_maximum(scores)])
    return RowTrace(use_k, use_p, q is not None, guess_hit, kept, weights, scores, selected, branch=branch)


def as_values(logits: torch.Tensor) -> torch.Tensor:
    """Returns the row in float32, NaN as -inf (5)."""
    x = logits.to(torch.float32)
    return torch.where(torch.isnan(x), -math.inf, x)


def total_order(x: torch.Tensor) -> torch.Tensor:
    """Returns the places of all entries by value descending, then by place ascending; +0 and -0 are equal (2)."""
    return torch.sort(x, descending=True, stable=True).indices


def first_of_total_order(x: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the ids of the first ``count`` entries of the total order, rolled over segments (3.A.1).

    The candidates of a segment are listed by id behind what earlier segments left, so their places are in the order
    of ids wherever values are equal.
    """
    kept = torch.arange(0, device=x.device)
    for start in range(0, x.numel(), SEGMENT_LENGTH):
        segment = x[start : start + SEGMENT_LENGTH]
        if kept.numel() < count:
            candidates = torch.arange(segment.numel(), device=x.device)
        else:
            candidates = torch.nonzero(segment > x[kept[-1]]).flatten()  # the pre-filter
        merged = torch.cat([kept, candidates + start])
        kept = merged[total_order(x[merged])[:count]]
    return kept


def softmax(x: torch.Tensor, masked: torch.Tensor | None = None) -> torch.Tensor:
    """Returns the float32 softmax, correctly rounded from float64, with the special values of (5).

    Entries of +inf share the whole mass equally. -inf and ``masked`` entries have weight 0, also where nothing else
    is left.
    """
    masked = has_no_mass(x) if masked is None else masked
    if bool(masked.all()):
        return torch.zeros_like(x)
    x = x.masked_fill(x == math.inf, 0.0).to(torch.float64).masked_fill(masked, -math.inf)
    return torch.softmax(x, dim=0).to(torch.float32)


def has_no_mass(x: torch.Tensor) -> torch.Tensor:
    """Tells which entries have weight 0 by rule (5): -inf, and beside a +inf everything else."""
    return (x == -math.inf) | (bool((x == math.inf).any()) & (x != math.inf))


def count_until_exceeding(probabilities: torch.Tensor, p: float) -> int:
    """Returns the least n with probabilities[0] + ... + probabilities[n-1] > p; all if there is none (3.A.3)."""
    sums = torch.cumsum(probabilities.to(torch.float64), dim=0)
    return 1 + int((sums[:-1] <= p).sum())  # an entry stays iff the sum before it is <= p


def draw_scores(weights: torch.Tensor, q: torch.Tensor, eps: float, masked: torch.Tensor) -> torch.Tensor:
    """Returns weights / (|q| + eps) in float32 (4).

    An entry of NaN noise loses against every other, a masked logit against all (5).
    """
    scores = weights / (q.abs() + torch.tensor(eps, dtype=torch.float32, device=q.device))
    scores = torch.where(weights == 0, 0.0, scores)  # 0 / 0, where q and eps are both 0
    scores = torch.where(torch.isnan(q), -1.0, scores)
    return torch.where(masked, -math.inf, scores)


def first_maximum(scores: torch.Tensor) -> int:
    """Returns the lowest index that holds the maximum."""
    return int(torch.nonzero(scores == scores.max())[0])
