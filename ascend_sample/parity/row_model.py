"""One row of `top_k_top_p_sample` in float64: the yardstick by which a mismatch is judged.

Written from docs/semantics.md alone, in NumPy, so that it shares neither code nor numerical kernels with anything
that it judges. It is slow (a full sort per row) and used only on rows where two implementations disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_TOP_K = 1024
FLOAT32_EXPONENTIAL_UNDERFLOW = -104.0  # exp of anything below is 0 in float32

CUT_TOLERANCE = 2e-5
"""How far a float32 cumulative sum may be from the float64 one at a disputed cut."""

DRAW_TOLERANCE = 1e-5
"""By how much, relatively, the score of a drawn entry may fall short of the best one's."""

FloatArray = NDArray[np.float64]
IdArray = NDArray[np.int64]


@dataclass(frozen=True)
class Row:
    """One row of inputs, as the operator sees them.

    Attributes:
        logits: float32 `[V]`, the logits as rounded to their dtype.
        k: top-k as given.
        p: top-p as rounded to the logits' dtype.
        q: float32 `[V]`, or None where nothing is drawn.
        eps: added to |q|.
    """

    logits: NDArray[np.float32]
    k: int
    p: float
    q: NDArray[np.float32] | None
    eps: float

    @property
    def uses_top_k(self) -> bool:
        """Whether k is in its effective range."""
        return 1 <= self.k <= min(len(self.logits), MAX_TOP_K)

    @property
    def uses_top_p(self) -> bool:
        """Whether p is in its effective range; NaN is not."""
        return 0.0 < self.p < 1.0

    @property
    def branch(self) -> str:
        """A (top-k), B (top-p alone) or C (neither)."""
        if self.uses_top_k:
            return "A"
        return "B" if self.uses_top_p else "C"


@dataclass(frozen=True)
class RowModel:
    """What the operator may do with one row.

    Attributes:
        ids: the vocabulary id at each place: the candidates in the total order (A, B), or every id in turn (C).
        values: their logits, NaN replaced by -inf.
        scores: their scores in the draw (unnormalised: only ratios matter); -1 where an entry can never be drawn
            while another can, -inf where its logit is -inf.
        sums: cumulative probabilities in the total order, or None where top-p is off.
        least: the fewest entries that a correct implementation may keep.
        strict: how many it keeps when it adds without error.
        most: the most entries that a correct implementation may keep.
        exact_sums: whether every cumulative sum is exact in binary, so that no tolerance is due at the cut.
    """

    ids: IdArray
    values: FloatArray
    scores: FloatArray
    sums: FloatArray | None
    least: int
    strict: int
    most: int
    exact_sums: bool

    def place_of(self, token: int) -> int | None:
        """The place of a vocabulary id among the candidates; None for an id that is no candidate."""
        places = np.flatnonzero(self.ids == token)
        return int(places[0]) if len(places) else None

    def is_winner(self, place: int, count: int) -> bool:
        """Whether the entry at a place wins the draw among the first `count`, up to the tolerance of a score."""
        best = float(self.scores[:count].max())
        if best <= 0.0:  # nothing has a weight and a number for q: ties, and the first place takes it
            return place == int(self.scores[:count].argmax())
        return bool(place < count and self.scores[place] >= best * (1.0 - DRAW_TOLERANCE))

    def distance_to_cut(self, count: int, p: float) -> float:
        """How far from p the float64 sums are that decide between `count` entries and the strict number of them."""
        if self.sums is None or count == self.strict:
            return 0.0
        # Keeping fewer claims sums[count - 1] > p; keeping more denies that of every sum before the last entry.
        last = count - 1 if count < self.strict else count - 2
        return abs((float(self.sums[last]) if last >= 0 else 0.0) - p)


def clean(logits: NDArray[np.float32]) -> FloatArray:
    """The logits in float64, NaN replaced by -inf."""
    values = logits.astype(np.float64)
    values[np.isnan(values)] = -np.inf
    return values


def exponentials(values: FloatArray) -> FloatArray:
    """`exp(values - max)`; entries of +inf share the whole mass, and a row of -inf has none."""
    top = values.max()
    if np.isinf(top):
        values = np.where(values == np.inf, 0.0, -np.inf)
        top = 0.0
    result: FloatArray = np.exp(values - top)
    return result


def order_by_logit(values: FloatArray) -> IdArray:
    """The total order: value descending, then id ascending; +0 and -0 are equal."""
    order: IdArray = np.argsort(-values, kind="stable").astype(np.int64)
    return order


def order_by_probability(logits: NDArray[np.float32]) -> IdArray:
    """The order of branch B on a device that sorts float32 probabilities: unequal logits may share one of them.

    Logits that differ by less than float32 can hold of their distance to the maximum have bit-equal exponentials in
    any implementation, and below -104 that exponential is 0.
    """
    values = clean(logits).astype(np.float32)
    top = values.max()
    if np.isinf(top):
        return order_by_logit(exponentials(values.astype(np.float64)))
    distance = (values - top).astype(np.float64)  # the subtraction rounds to float32
    weights = np.where(distance < FLOAT32_EXPONENTIAL_UNDERFLOW, 0.0, np.exp(distance))
    return order_by_logit(weights.astype(np.float32).astype(np.float64))


def has_exact_sums(weights: FloatArray) -> bool:
    """Whether the weights are 2^m equal ones and zeros: then every probability and partial sum is exact in binary."""
    positive = weights[weights > 0.0]
    count = len(positive)
    return count > 0 and count & (count - 1) == 0 and bool((positive == positive[0]).all())


def draw_scores(row: Row, weights: FloatArray, values: FloatArray, ids: IdArray) -> FloatArray:
    """Score of each place: q is read by rank in branches A and B, by vocabulary id in C (where both are the same)."""
    scores = weights.copy()
    if row.q is not None:
        q = row.q[: len(ids)].astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = np.where(weights > 0.0, weights / (np.abs(q) + row.eps), 0.0)
        scores[np.isnan(q)] = -1.0
    scores[values == -np.inf] = -np.inf
    return scores


def model_row(row: Row, order: IdArray | None = None) -> RowModel:
    """Works a row out in float64.

    Args:
        row: the inputs.
        order: the order of the whole vocabulary; the total order unless given.

    Returns:
        What a correct implementation may keep and draw.
    """
    logits = clean(row.logits)
    if row.branch == "C":
        size = len(logits)
        ids = np.arange(size, dtype=np.int64)
        scores = draw_scores(row, exponentials(logits), logits, ids)
        return RowModel(ids, logits, scores, None, size, size, size, False)
    ids = order_by_logit(logits) if order is None else order
    if row.uses_top_k:
        ids = ids[: row.k]
    values = logits[ids]
    size = len(ids)
    weights = exponentials(values)
    total = float(weights.sum()) or 1.0  # 0 for a row of -inf
    exact = has_exact_sums(weights)
    sums: FloatArray | None = None
    least = strict = most = size
    if row.uses_top_p and weights.any():
        sums = np.cumsum(weights / total)
        strict = min(int(np.searchsorted(sums, row.p, side="right")) + 1, size)
        # n entries are kept iff sums[n-1] > p (or nothing follows) and sums[n-2] <= p, each up to the tolerance.
        least = strict if exact else min(int(np.searchsorted(sums, row.p - CUT_TOLERANCE, side="left")) + 1, size)
        most = strict if exact else min(int(np.searchsorted(sums, row.p + CUT_TOLERANCE, side="right")) + 1, size)
    if row.branch == "B":  # the operator softmaxes the probabilities again
        massless = weights == 0.0 if values[0] == np.inf else values == -np.inf
        weights = np.where(massless, 0.0, np.exp(weights / total))
    return RowModel(ids, values, draw_scores(row, weights, values, ids), sums, least, strict, most, exact)
