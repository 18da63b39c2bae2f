"""What a row must draw, from the float64 reference and the row's own noise: the race, run by hand."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ascend_sample.sampling.draws.noise import Purpose, exponential_noise
from ascend_sample.sampling.draws.segmented import SEGMENT, lanes_of
from ascend_sample.sampling.reference.distribution import (
    MOST_RANKED,
    drawn_id,
    is_ranked,
    keep_range,
    kept_ids,
    process_row,
)
from ascend_sample.sampling.requests.params import SamplingParams

NEAR_TIE = 1e-5  # relative: docs/semantics.md, section 7
NEAR_BOUNDARY = 2e-5


class Expectation(NamedTuple):
    """The id that wins the race, and those that rounding may let win in its stead."""

    token_id: int
    acceptable: set[int]


def signed(seed: int) -> int:
    """The int64 with the bits of an unsigned seed."""
    return seed - 2**64 if seed >= 2**63 else seed


def expected(
    logits: npt.ArrayLike,
    params: SamplingParams,
    position: int,
    prompt_ids: tuple[int, ...] = (),
    output_ids: tuple[int, ...] = (),
    keep_ties: bool = False,
    near_tie: float | None = NEAR_TIE,
) -> Expectation:
    """Runs the race of one row.

    An id is acceptable beside the winner where its score comes within `near_tie` of the winner's, and, where the end of
    the nucleus is within `NEAR_BOUNDARY` of top_p, what a nucleus that is one longer or one shorter draws; so it is
    with the ends of ranges. With None the winner alone is looked for, which is quick.
    """
    edited = process_row(logits, params, prompt_ids, output_ids)
    if np.isneginf(edited).all():
        return Expectation(0, {0})
    is_excluding = excludes(params, position)
    processed = keep_range(edited, params, is_excluding)
    kept = kept_ids(processed, params, keep_ties)
    noise = _noise(params, position, len(processed))
    drawn = drawn_id(processed, kept, params, noise, keep_ties)
    if near_tie is None:
        return Expectation(drawn, {drawn})
    acceptable: set[int] = set()
    for within in [processed, *near_ranges(edited, processed, params, is_excluding)]:
        kept = kept_ids(within, params, keep_ties)
        for each in [kept, *near_sets(within, params, kept, keep_ties)]:
            acceptable |= _near_winners(within, each, params, noise, keep_ties, near_tie)
    return Expectation(drawn, acceptable)


def excludes(params: SamplingParams, position: int) -> bool:
    """Whether the coin of the request falls at a position: a uniform number below the probability."""
    if params.xtc_probability == 0:
        return False
    assert params.seed is not None
    key = torch.tensor([signed(params.seed)]), torch.tensor([position])
    exponential = float(exponential_noise(*key, 1, purpose=Purpose.EXCLUSION))
    return bool(np.exp(-exponential) <= np.float64(np.float32(params.xtc_probability)))


def near_ranges(
    edited: npt.NDArray[np.float64],
    processed: npt.NDArray[np.float64],
    params: SamplingParams,
    is_excluding: bool,
    near: float = NEAR_TIE,
) -> list[npt.NDArray[np.float64]]:
    """What ranges keep whose ends rounding could choose as well, of a row of which `processed` is kept."""
    rows = []
    for name in ("typical_p", "epsilon_cutoff", "eta_cutoff", "top_a", "top_n_sigma", "xtc_threshold"):
        number = getattr(params, name)
        if number == (1.0 if name == "typical_p" else 0.0):
            continue
        for factor in (1 - near, 1 + near):
            changed = number * factor if name == "top_n_sigma" else min(number * factor, 1.0)
            other = keep_range(edited, _with(params, **{name: changed}), is_excluding)
            if not np.array_equal(other, processed):
                rows.append(other)
    return rows


def near_entropy(
    edited: npt.NDArray[np.float64], stays: npt.NDArray[np.bool_], params: SamplingParams, near: float
) -> npt.NDArray[np.bool_]:
    """The ids at a distance from the entropy that rounding of it may bring to the other side of the last typical one.

    `near` is relative to the entropy; nothing is near where `typical_p` is off.
    """
    if params.typical_p == 1:
        return np.zeros_like(stays)
    weights = np.exp((edited - edited.max()) / np.float64(np.float32(params.temperature)))
    p = weights / weights.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        information = -np.log(p)
        entropy = float(np.where(p > 0, p * information, 0).sum())
    distance = np.abs(information - entropy)
    is_near: npt.NDArray[np.bool_] = np.abs(distance - distance[stays].max()) <= near * max(entropy, 1.0)
    return is_near


def _noise(params: SamplingParams, position: int, vocab_size: int) -> npt.NDArray[np.float64]:
    """All lanes that a row of the request may read."""
    assert params.seed is not None
    lanes = max(MOST_RANKED, lanes_of(vocab_size))
    seed, at = torch.tensor([signed(params.seed)]), torch.tensor([position])
    noise: npt.NDArray[np.float64] = exponential_noise(seed, at, lanes, purpose=Purpose.DRAW)[0].double().numpy()
    return noise


def _near_winners(
    processed: npt.NDArray[np.float64],
    kept: list[int],
    params: SamplingParams,
    noise: npt.NDArray[np.float64],
    keep_ties: bool,
    near_tie: float,
) -> set[int]:
    """The ids whose races end within `near_tie` of the winners'."""
    if params.temperature == 0 or params.top_k == 1:
        return {kept[0]}
    ids = np.array(kept)
    with np.errstate(invalid="ignore"):
        weights = np.exp((processed[ids] - processed[kept[0]]) / float(np.float32(params.temperature)))
    if np.isposinf(processed[kept[0]]):
        weights = np.isposinf(processed[ids]).astype(np.float64)
    if is_ranked(params, len(processed), keep_ties):
        return set(ids[_are_near(weights / noise[: len(kept)], near_tie)].tolist())
    sums = np.bincount(ids // SEGMENT, weights)
    winners: set[int] = set()
    for segment in np.flatnonzero(_are_near(sums / noise[SEGMENT : SEGMENT + len(sums)], near_tie)):
        inside = ids // SEGMENT == segment
        scores = weights[inside] / noise[ids[inside] % SEGMENT]
        winners |= set(ids[inside][_are_near(scores, near_tie)].tolist())
    return winners


def _are_near(scores: npt.NDArray[np.float64], near_tie: float) -> npt.NDArray[np.bool_]:
    near: npt.NDArray[np.bool_] = (scores >= scores.max() * (1 - near_tie)) & (scores > 0)
    return near


def near_sets(
    processed: npt.NDArray[np.float64], params: SamplingParams, kept: list[int], keep_ties: bool
) -> list[list[int]]:
    """Nuclei whose ends rounding could choose as well."""
    sets = []
    if params.top_p < 1 and params.temperature > 0:
        for top_p in (params.top_p - NEAR_BOUNDARY, params.top_p + NEAR_BOUNDARY):
            if 0 < top_p < 1:
                near = kept_ids(processed, _with(params, top_p=top_p), keep_ties)
                if near != kept:
                    shorter, longer = sorted((near, kept), key=len)
                    sets += [longer[:count] for count in range(len(shorter), len(longer) + 1)]
    if 0 < params.min_p < 1 and params.temperature > 0:
        for factor in (1 - NEAR_TIE, 1 + NEAR_TIE):
            near = kept_ids(processed, _with(params, min_p=min(params.min_p * factor, 1.0)), keep_ties)
            if near != kept:
                sets.append(near)
    return [each for each in sets if each]


def _with(params: SamplingParams, **changes: float) -> SamplingParams:
    return SamplingParams.from_mapping(params.to_mapping() | changes)
