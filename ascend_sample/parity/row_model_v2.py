"""One row of `top_k_top_p_sample_v2` in float64: the yardstick by which a mismatch is judged.

Written from docs/semantics_v2.md alone, in NumPy. Whatever the filters, what they keep is a prefix of the total order;
so a result is explained by how many entries were kept, and by which of them was drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .row_model import (
    CUT_TOLERANCE,
    DRAW_TOLERANCE,
    MAX_TOP_K,
    FloatArray,
    IdArray,
    clean,
    exponentials,
    has_exact_sums,
    order_by_logit,
)

KS_MAX_MULTIPLE = 8

MIN_P_TOLERANCE = 1e-5
"""How far, relatively, a weight may be from the one that min-p asks for at a disputed cut."""


@dataclass(frozen=True)
class RowV2:
    """One row of inputs, as the operator sees them.

    Attributes:
        logits: float32 `[V]`, the logits or probabilities as rounded to their dtype.
        k: top-k as given.
        p: top-p as rounded to the logits' dtype.
        min_p: min-p as rounded to it; 0 where there is none.
        q: float32 `[V]`, or None where nothing is drawn.
        eps: added to |q|.
        ks_max: bounds k.
        input_is_logits: whether the row is no distribution yet.
    """

    logits: NDArray[np.float32]
    k: int
    p: float
    min_p: float
    q: NDArray[np.float32] | None
    eps: float
    ks_max: int
    input_is_logits: bool

    @property
    def uses_top_k(self) -> bool:
        """Whether k is in its effective range."""
        rounded = -(-self.ks_max // KS_MAX_MULTIPLE) * KS_MAX_MULTIPLE
        return 1 <= self.k <= min(len(self.logits), rounded, MAX_TOP_K)

    @property
    def is_ranked(self) -> bool:
        """Whether top-k or top-p sorts the row; NaN is no p."""
        return self.uses_top_k or self.p < 1.0

    @property
    def filler(self) -> float:
        """What an entry that weighs nothing counts as, and what filtered logits are."""
        return -np.inf if self.input_is_logits else 0.0


@dataclass(frozen=True)
class RowModelV2:
    """What the operator may do with one row.

    Attributes:
        row: its inputs.
        order: the ids of the candidates in the total order.
        values: by id, with what NaN and negative probabilities count as.
        weights: by rank.
        sums: cumulative weights, or None where top-p cuts nothing.
        least: the fewest entries that a correct implementation may keep.
        strict: how many it keeps when it computes without error.
        most: the most entries that a correct implementation may keep.
    """

    row: RowV2
    order: IdArray
    values: FloatArray
    weights: FloatArray
    sums: FloatArray | None
    least: int
    strict: int
    most: int

    def arranged(self, count: int) -> tuple[IdArray, FloatArray]:
        """The ids and weights of the first `count` of the order, in the order in which q is read."""
        places = np.arange(count) if self.row.is_ranked else np.argsort(self.order[:count])
        return self.order[places], self.weights[places]

    def scores(self, count: int) -> tuple[IdArray, FloatArray]:
        """The kept ids and their scores; -1 where an entry loses to every number, -inf where it weighs nothing."""
        ids, weights = self.arranged(count)
        scores = weights.copy()
        if self.row.q is not None:
            q = self.row.q[:count].astype(np.float64)
            with np.errstate(divide="ignore", invalid="ignore"):
                scores = np.where(weights > 0.0, weights / (np.abs(q) + self.row.eps), 0.0)
            scores[np.isnan(q)] = -1.0
        scores[self.values[ids] == self.row.filler] = -np.inf
        return ids, scores

    def is_winner(self, token: int, count: int) -> bool:
        """Whether an id wins the draw among the first `count`, up to the tolerance of a score."""
        ids, scores = self.scores(count)
        places = np.flatnonzero(ids == token)
        if len(places) == 0:
            return False
        best = float(scores.max())
        if best <= 0.0:  # nothing has a weight and a number for q: the first of the best takes it
            first = self.order[0] if self.row.q is None else ids[scores.argmax()]
            return bool(token == first)
        return bool(scores[places[0]] >= best * (1.0 - DRAW_TOLERANCE))

    def counts(self, preferred: int) -> Iterator[int]:
        """The admissible counts, the preferred one first; entries of one value are kept together by min-p."""
        if self.least <= preferred <= self.most:
            yield preferred
        values = self.values[self.order]
        for count in range(self.least, self.most + 1):
            cuts_ties = count < len(values) and values[count - 1] == values[count]
            if count != preferred and (self.row.is_ranked or not cuts_ties):
                yield count


def model_row_v2(row: RowV2, order: IdArray | None = None) -> RowModelV2:
    """Works a row out in float64.

    Args:
        row: the inputs.
        order: the order of the whole vocabulary; the total order unless given.

    Returns:
        What a correct implementation may keep and draw.
    """
    values = clean(row.logits) if row.input_is_logits else np.where(row.logits > 0, row.logits, 0.0).astype(np.float64)
    order = order_by_logit(values) if order is None else order
    if row.uses_top_k:
        order = order[: row.k]
    weights = _weights(values[order], row.input_is_logits)
    least, strict, most, sums = _top_p_cuts(row, weights)
    cuts = _min_p_cuts(row, weights)
    return RowModelV2(
        row=row,
        order=order,
        values=values,
        weights=weights,
        sums=sums if strict <= cuts[1] else None,
        least=min(least, cuts[0]),
        strict=min(strict, cuts[1]),
        most=min(most, cuts[2]),
    )


def _weights(values: FloatArray, input_is_logits: bool) -> FloatArray:
    if not input_is_logits and not np.isinf(values).any():
        return values
    weights = exponentials(values) if input_is_logits else np.isinf(values).astype(np.float64)
    return weights / (weights.sum() or 1.0)  # 0 for a row of -inf


def _top_p_cuts(row: RowV2, weights: FloatArray) -> tuple[int, int, int, FloatArray | None]:
    """The least, strict and greatest counts that top-p may keep."""
    size = len(weights)
    if row.p <= 0.0:
        return 1, 1, 1, None
    if not row.p < 1.0 or not weights.any():
        return size, size, size, None
    sums = np.cumsum(weights)

    def count(p: float) -> int:
        return min(int(np.searchsorted(sums, p, side="left")) + 1, size)

    strict = count(row.p)
    # Equal weights whose number or whose value is a power of two: every partial sum is exact in binary.
    if has_exact_sums(weights) and (row.input_is_logits or np.frexp(weights[0])[0] == 0.5):
        return strict, strict, strict, sums
    return count(row.p - CUT_TOLERANCE), strict, count(row.p + CUT_TOLERANCE), sums


def _min_p_cuts(row: RowV2, weights: FloatArray) -> tuple[int, int, int]:
    """The least, strict and greatest counts that min-p may keep."""
    size = len(weights)
    if not row.min_p > 0.0:
        return size, size, size
    if row.min_p >= 1.0:
        return 1, 1, 1
    least = row.min_p * float(weights[0])
    strict = int((weights >= least).sum())
    if not row.input_is_logits and float(np.float32(least)) == least:  # the product is exact in float32
        return strict, strict, strict
    fewest = int((weights >= least * (1.0 + MIN_P_TOLERANCE)).sum())
    return max(fewest, 1), strict, int((weights >= least * (1.0 - MIN_P_TOLERANCE)).sum())
