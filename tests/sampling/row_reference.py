"""One row of the sampling layer in float64, written for being read; and which ids it may draw.

It shares no code with the package. The noise is an argument: every lane that the row reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST_K = 1024
SEGMENT = 256
OK, ALL_MASKED, NAN_SEEN, INF_SEEN = range(4)
BOUNDARY = 2e-5  # of a sum of probabilities: docs/semantics.md, section 7
NEAR_DRAW = 1e-5  # of a score, relative


@dataclass(frozen=True)
class Request:
    """What a row is sampled with, as it arrives."""

    temperature: float
    k: int
    p: float
    min_p: float


@dataclass(frozen=True)
class Expected:
    """The id, those that rounding may make of it, and the status."""

    token_id: int
    allowed: frozenset[int]
    status: int


def status_of(logits: np.ndarray) -> int:
    if np.isnan(logits).any():
        return NAN_SEEN
    if np.isposinf(logits).any():
        return INF_SEEN
    return ALL_MASKED if np.isneginf(logits).all() else OK


def sample(logits: np.ndarray, request: Request, noise: np.ndarray, keep_ties: bool = False) -> Expected:
    """Args: logits float32 [vocab_size]; noise float32, the ranks' or at least 256 + the number of segments."""
    status = status_of(logits)
    x = np.where(np.isnan(logits), np.float32(-np.inf), logits)
    maximum = x.max()
    best = int(x.argmax())
    is_ranked = 1 <= request.k <= min(x.size, MOST_K) and not keep_ties
    uses_k = 1 <= request.k <= x.size
    if status == ALL_MASKED or maximum == -np.inf:
        return Expected(0, frozenset({0}), status)
    if not request.temperature > 0 or request.k == 1:
        return Expected(best, frozenset({best}), status)
    with np.errstate(all="ignore"):
        if maximum == np.inf:
            divided = np.where(x == np.inf, np.float32(0), np.float32(-np.inf))
        elif request.temperature == 1:
            divided = x
        else:
            divided = ((x - maximum) / np.float32(request.temperature)).astype(np.float32)
            divided[x == -np.inf] = -np.inf
    uses_p = request.p < 1
    ids = np.arange(x.size)
    if uses_k:
        ids = np.lexsort((ids, -x))
        ids = ids[x[ids] >= x[ids[request.k - 1]]] if keep_ties else ids[: request.k]
    if not is_ranked:  # what division has made equal, by id
        ids = ids[np.lexsort((ids, -divided[ids]))]
    scaled = divided[ids].astype(np.float64)
    weights = np.exp(scaled - scaled.max())
    probabilities = weights / weights.sum()
    kept = [
        _stays(probabilities, int(scaled.argmax()), request, uses_p, delta, factor)
        for delta, factor in ((0, 1), (-BOUNDARY, 1), (BOUNDARY, 1), (0, 1 - 1e-5), (0, 1 + 1e-5))
    ]
    distinct = {stays.tobytes(): ids[stays] for stays in kept}  # in order; mostly one
    by_id = np.zeros(x.size)
    by_id[ids] = weights
    winners = [(_draw if is_ranked else _draw_by_segments)(each, by_id, noise) for each in distinct.values()]
    return Expected(winners[0][0], frozenset().union(*(near for _, near in winners)), status)


def _stays(
    probabilities: np.ndarray, best: int, request: Request, uses_p: bool, delta: float, factor: float
) -> np.ndarray:
    """Which entries p and min_p keep."""
    stays = np.ones(probabilities.size, bool)
    if uses_p:
        before = np.concatenate([[0], probabilities.cumsum()[:-1]])
        stays &= before <= float(np.float32(request.p)) + delta
        stays[0] = True
    if request.min_p > 0:
        largest = probabilities.max()
        stays &= probabilities >= min(float(np.float32(request.min_p)), 1.0) * largest * factor
        if request.min_p >= 1:
            stays[:] = False
        stays[best] = True
    return stays


def _draw(ids: np.ndarray, weights: np.ndarray, noise: np.ndarray) -> tuple[int, set[int]]:
    """The id with the largest score, the first on ties; and those whose scores are as good as equal."""
    scores = weights[ids] / noise[: ids.size].astype(np.float64)
    near = ids[scores >= scores.max() * (1 - NEAR_DRAW)]
    return int(ids[scores.argmax()]), set(near.tolist())


def _draw_by_segments(ids: np.ndarray, weights: np.ndarray, noise: np.ndarray) -> tuple[int, set[int]]:
    """First a segment by the sum of its weights, then a place in it; and what else the two races may come to."""
    q = noise.astype(np.float64)
    sums = np.bincount(ids // SEGMENT, weights[ids])
    scores = sums / q[SEGMENT : SEGMENT + sums.size]
    drawn, near = -1, set[int]()
    for segment in np.argsort(-scores, kind="stable"):
        if scores[segment] < scores.max() * (1 - NEAR_DRAW):
            break
        inside = np.sort(ids[ids // SEGMENT == segment])
        winner, close = _draw(inside, weights, q[inside % SEGMENT])
        drawn = winner if drawn < 0 else drawn
        near |= close
    return drawn, near
