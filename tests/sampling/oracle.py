"""What a row must draw, from the float64 reference and the row's own noise: the race, run by hand."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ascend_sample.sampling.noise import Purpose, exponential_noise
from ascend_sample.sampling.params import SamplingParams
from ascend_sample.sampling.reference import kept_ids, process_row

NEAR_TIE = 1e-5  # relative: docs/semantics.md, section 7
NEAR_BOUNDARY = 2e-5


class Expectation(NamedTuple):
    """The id that wins the race, and those that rounding may let win in its stead."""

    token_id: int
    acceptable: set[int]


def signed(seed: int) -> int:
    """The int64 with the bits of an unsigned seed."""
    return seed - 2**64 if seed >= 2**63 else seed


def lanes_of(kept: list[int], vocab_size: int, params: SamplingParams, keep_ties: bool) -> list[int]:
    """The lane of the noise that each kept id reads: docs/seeds.md, "Lanes"."""
    is_greedy = params.temperature == 0 or params.top_k == 1
    has_top_k = params.top_k is not None and params.top_k < vocab_size and params.top_k <= 1024 and not keep_ties
    if is_greedy or has_top_k or params.top_p < 1:
        return list(range(len(kept)))
    if params.min_p > 0:
        places = {token_id: place for place, token_id in enumerate(sorted(kept))}
        return [places[token_id] for token_id in kept]
    return kept


def expected(
    logits: npt.ArrayLike,
    params: SamplingParams,
    position: int,
    prompt_ids: tuple[int, ...] = (),
    output_ids: tuple[int, ...] = (),
    keep_ties: bool = False,
) -> Expectation:
    """Run the race of one row.

    An id is acceptable beside the winner where its score comes within `NEAR_TIE` of the winner's, and, where the end of
    the nucleus is within `NEAR_BOUNDARY` of top_p, what a nucleus that is one longer or one shorter draws.
    """
    assert params.seed is not None
    processed = process_row(logits, params, prompt_ids, output_ids)
    if np.isneginf(processed).all():
        return Expectation(0, {0})
    kept = kept_ids(processed, params, keep_ties)
    noise = exponential_noise(
        torch.tensor([signed(params.seed)]), torch.tensor([position]), len(processed), purpose=Purpose.DRAW
    )[0].double()
    winners = []
    acceptable: set[int] = set()
    for each in [kept, *_near_sets(processed, params, kept, keep_ties)]:
        scores = [
            _weight(processed, token_id, each[0], params) / float(noise[lane])
            for token_id, lane in zip(each, lanes_of(each, len(processed), params, keep_ties), strict=True)
        ]
        best = int(np.argmax(scores))
        winners.append(each[best])
        acceptable |= {
            token_id
            for token_id, score in zip(each, scores, strict=True)
            if score >= scores[best] * (1 - NEAR_TIE) and score > 0
        } | {each[best]}
    return Expectation(winners[0], acceptable)


def _weight(processed: npt.NDArray[np.float64], token_id: int, best: int, params: SamplingParams) -> float:
    """Up to a common factor; also for an id beyond the kept ones."""
    if np.isposinf(processed[best]):
        return float(np.isposinf(processed[token_id]))
    temperature = 1.0 if params.temperature == 0 else float(np.float32(params.temperature))
    return float(np.exp((processed[token_id] - processed[best]) / temperature))


def _near_sets(
    processed: npt.NDArray[np.float64], params: SamplingParams, kept: list[int], keep_ties: bool
) -> list[list[int]]:
    """Nuclei whose ends rounding could choose as well."""
    sets = []
    if params.top_p < 1 and params.temperature > 0:
        for top_p in (params.top_p - NEAR_BOUNDARY, params.top_p + NEAR_BOUNDARY):
            if 0 < top_p < 1:
                near = kept_ids(processed, _with(params, top_p=top_p), keep_ties)
                if near != kept:
                    sets += [near[:count] for count in range(min(len(near), len(kept)), max(len(near), len(kept)) + 1)]
    if 0 < params.min_p < 1 and params.temperature > 0:
        for factor in (1 - NEAR_TIE, 1 + NEAR_TIE):
            near = kept_ids(processed, _with(params, min_p=min(params.min_p * factor, 1.0)), keep_ties)
            if near != kept:
                sets.append(near)
    return [each for each in sets if each]


def _with(params: SamplingParams, **changes: float) -> SamplingParams:
    return SamplingParams.from_mapping(params.to_mapping() | changes)
