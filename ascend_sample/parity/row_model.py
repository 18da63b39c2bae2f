"""One row of an operator in float64: the yardstick by which a mismatch is judged.

Written from docs/semantics.md and docs/semantics_v2.md alone, in NumPy, so that it shares neither code nor numerical
kernels with anything that it judges. It is slow (a full sort per row) and used only on rows where two implementations
disagree. Whatever the filters, what they keep is a prefix of the total order; so a result is explained by how many
entries were kept, and by which of them was drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

MAX_TOP_K = 1024
KS_MAX_MULTIPLE = 8
FLOAT32_EXPONENTIAL_UNDERFLOW = -104.0  # exp of anything below is 0 in float32

CUT_TOLERANCE = 2e-5
"""How far a float32 cumulative sum may be from the float64 one at a disputed cut."""

DRAW_TOLERANCE = 1e-5
"""By how much, relatively, the score of a drawn entry may fall short of the best one's."""

MIN_P_TOLERANCE = 1e-5
"""How far, relatively, a weight may be from the one that min-p asks for at a disputed cut."""

FloatArray = NDArray[np.float64]
IdArray = NDArray[np.int64]


@dataclass(frozen=True)
class Rules:
    """What the two operators do differently with the same row."""

    must_exceed_p: bool  # entries are kept until their sum exceeds p; otherwise until it reaches it
    skips_p_of_zero: bool  # a p of 0 or less skips top-p; otherwise it keeps one entry
    softmaxes_twice: bool  # with top-p alone the probabilities are softmaxed again before the draw


V1: Final = Rules(must_exceed_p=True, skips_p_of_zero=True, softmaxes_twice=True)
"""`top_k_top_p_sample`."""
V2: Final = Rules(must_exceed_p=False, skips_p_of_zero=False, softmaxes_twice=False)
"""`top_k_top_p_sample_v2`."""


@dataclass(frozen=True)
class Row:
    """One row of inputs, as the operator sees them."""

    logits: NDArray[np.float32]  # float32 `[V]`, the logits or probabilities as rounded to their dtype
    k: int  # top-k as given
    p: float  # top-p as rounded to the logits' dtype
    q: NDArray[np.float32] | None  # float32 `[V]`, or None where nothing is drawn
    eps: float  # added to |q|
    rules: Rules = V1  # of the operator
    min_p: float = 0.0  # min-p as rounded to the logits' dtype; 0 where there is none
    ks_max: int = MAX_TOP_K  # bounds k
    input_is_logits: bool = True  # whether the row is no distribution yet

    @property
    def uses_top_k(self) -> bool:
        """Tells whether k is in its effective range."""
        rounded = -(-self.ks_max // KS_MAX_MULTIPLE) * KS_MAX_MULTIPLE
        return 1 <= self.k <= min(len(self.logits), rounded, MAX_TOP_K)

    @property
    def uses_top_p(self) -> bool:
        """Tells whether p is in its effective range; NaN is not."""
        return self.p < 1.0 and not (self.p <= 0.0 and self.rules.skips_p_of_zero)

    @property
    def is_ranked(self) -> bool:
        """Tells whether top-k or top-p sorts the row."""
        return self.uses_top_k or self.uses_top_p

    @property
    def filler(self) -> float:
        """Returns the value that an entry without weight counts as, which is also that of filtered logits."""
        return -np.inf if self.input_is_logits else 0.0


@dataclass(frozen=True)
class RowModel:
    """What the operator may do with one row."""

    row: Row  # its inputs
    order: IdArray  # the ids of the candidates in the total order
    values: FloatArray  # by id, with what NaN and negative probabilities count as
    weights: FloatArray  # by rank
    sums: FloatArray | None  # cumulative probabilities by rank, or None where top-p cuts nothing
    least: int  # the fewest entries that a correct implementation may keep
    strict: int  # how many it keeps when it computes without error
    most: int  # the most entries that a correct implementation may keep

    def arranged(self, count: int) -> tuple[IdArray, FloatArray]:
        """Returns the ids and weights of the first `count` of the order, in the order in which q is read."""
        places = np.arange(count) if self.row.is_ranked else np.argsort(self.order[:count])
        return self.order[places], self.weights[places]

    def scores(self, count: int) -> tuple[IdArray, FloatArray]:
        """Returns the kept ids and their scores.

        A score is -1 where an entry loses to every number, -inf where it weighs nothing.
        """
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
        """Tells whether an id wins the draw among the first `count`, up to the tolerance of a score."""
        ids, scores = self.scores(count)
        places = np.flatnonzero(ids == token)
        if len(places) == 0:
            return False
        best = float(scores.max())
        if best <= 0.0:  # nothing has a weight and a number for q: the first of the best takes it
            first = self.order[0] if self.row.q is None else ids[scores.argmax()]
            return bool(token == first)
        return bool(scores[places[0]] >= best * (1.0 - DRAW_TOLERANCE))

    def cuts_ties(self, count: int) -> bool:
        """Tells whether the first `count` part entries of one value, which min-p alone keeps together."""
        values = self.values[self.order]
        return not self.row.is_ranked and count < len(values) and values[count - 1] == values[count]

    def distance_to_cut(self, count: int) -> float:
        """Returns how far from p the float64 sums are that decide between `count` and the strict number of entries."""
        if self.sums is None or count == self.strict:
            return 0.0
        # Keeping fewer claims a sum of the last one at p; keeping more denies that of every sum before it.
        last = count - 1 if count < self.strict else count - 2
        return abs((float(self.sums[last]) if last >= 0 else 0.0) - self.row.p)


def clean(logits: NDArray[np.float32]) -> FloatArray:
    """Returns the logits in float64, NaN replaced by -inf."""
    values = logits.astype(np.float64)
    values[np.isnan(values)] = -np.inf
    return values


def exponentials(values: FloatArray) -> FloatArray:
    """Returns `exp(values - max)`; entries of +inf share the whole mass, and a row of -inf has none."""
    top = values.max()
    if np.isinf(top):
        values = np.where(values == np.inf, 0.0, -np.inf)
        top = 0.0
    result: FloatArray = np.exp(values - top)
    return result


def order_by_logit(values: FloatArray) -> IdArray:
    """Returns the total order: value descending, then id ascending; +0 and -0 are equal."""
    order: IdArray = np.argsort(-values, kind="stable").astype(np.int64)
    return order


def order_by_probability(logits: NDArray[np.float32]) -> IdArray:
    """Returns the order of top-p alone on a device that sorts float32 probabilities.

    Unequal logits may share one of them: logits that differ by less than float32 can hold of their distance to the
    maximum have bit-equal exponentials in any implementation, and below -104 that exponential is 0.
    """
    values = clean(logits).astype(np.float32)
    top = values.max()
    if np.isinf(top):
        return order_by_logit(exponentials(values.astype(np.float64)))
    distance = (values - top).astype(np.float64)  # the subtraction rounds to float32
    weights = np.where(distance < FLOAT32_EXPONENTIAL_UNDERFLOW, 0.0, np.exp(distance))
    return order_by_logit(weights.astype(np.float32).astype(np.float64))


def has_exact_sums(weights: FloatArray) -> bool:
    """Tells whether the weights are 2^m equal ones and zeros.

    Then every probability and partial sum is exact in binary.
    """
    positive = weights[weights > 0.0]
    count = len(positive)
    return count > 0 and count & (count - 1) == 0 and bool((positive == positive[0]).all())


def model_row(row: Row, order: IdArray | None = None) -> RowModel:
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
    if row.rules.softmaxes_twice and row.is_ranked and not row.uses_top_k:
        massless = weights == 0.0 if values[order[0]] == np.inf else values[order] == row.filler
        weights = np.where(massless, 0.0, np.exp(weights))
    return RowModel(
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


def _top_p_cuts(row: Row, weights: FloatArray) -> tuple[int, int, int, FloatArray | None]:
    """Returns the least, strict and greatest counts that top-p may keep, and the sums by which it cuts, or None."""
    size = len(weights)
    if row.uses_top_p and row.p <= 0.0:
        return 1, 1, 1, None
    if not row.uses_top_p or not weights.any():
        return size, size, size, None
    sums = np.cumsum(weights)

    def count(p: float, must_exceed: bool) -> int:
        return min(int(np.searchsorted(sums, p, side="right" if must_exceed else "left")) + 1, size)

    strict = count(row.p, row.rules.must_exceed_p)
    # Equal weights whose number or whose value is a power of two: every partial sum is exact in binary.
    if has_exact_sums(weights) and (row.input_is_logits or np.frexp(weights[0])[0] == 0.5):
        return strict, strict, strict, sums
    most = count(row.p + CUT_TOLERANCE, row.rules.must_exceed_p)
    return count(row.p - CUT_TOLERANCE, must_exceed=False), strict, most, sums


def _min_p_cuts(row: Row, weights: FloatArray) -> tuple[int, int, int]:
    """Returns the least, strict and greatest counts that min-p may keep."""
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
