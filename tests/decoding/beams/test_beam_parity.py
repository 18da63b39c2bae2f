"""With models of transformers and their caches: the beam search with a pool finds what generate() finds."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from ascend_sample.decoding.beams.beam import beam_search
from ascend_sample.decoding.beams.group_beam import group_beam_search
from ascend_sample.decoding.beams.sampled_beam import beam_sample
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.sampling import SamplingParams
from tests.decoding.generate_parity import (
    MODELS,
    SPREAD,
    Configuration,
    Parity,
    choose_common,
    make_prompts,
    scores_of_beams,
)
from tests.decoding.tiny_transformers import PAD, recomputing_model, step_model

CONFIGURATIONS = 220
"""A quarter of them without a cache."""
CACHED = 4
"""Models of a kind, of the searches that are compared with and without a cache."""


def configuration(number: int) -> Configuration:
    """A random one, but every model, early stopping and length penalty comes equally often."""
    choice = random.Random(number)
    num_beams = choice.choice([2, 3, 4])
    own = {
        "num_beams": num_beams,
        "num_return_sequences": choice.randint(1, num_beams),
        "early_stopping": [False, True, "never"][number // 5 % 3],
        "length_penalty": [1.0, 0.0, 2.0, -0.5][number // 15 % 4],
    }
    return choose_common(number, choice, lengths=[3, 5, 8])._replace(own=own)


@pytest.mark.parametrize("first", range(len(MODELS)), ids=MODELS)
def test_sequences_scores_and_beams_are_those_of_generate(first: int) -> None:
    numbers = range(first, CONFIGURATIONS, len(MODELS))
    recomputed = Parity(beam_search, configuration, scores_of_beams)
    cached = Parity(beam_search, configuration, scores_of_beams, step_model=step_model)
    lengths: set[int] = set()
    compared = recomputed.check(numbers[::4]) + cached.check(n for n in numbers if n not in numbers[::4])
    for asked, expected, found in compared:
        assert found.beam_indices is not None
        beams = [[beam for beam in row if beam >= 0] for row in expected.output.beam_indices.tolist()]
        assert [row[row >= 0].tolist() for row in found.beam_indices] == beams, asked
        lengths |= set(found.lengths.tolist())
    assert len(lengths) > 4, "the configurations must have hypotheses that end early"


SEARCHES: dict[str, Callable[..., DecodeOutput]] = {
    "in_beam": lambda *inputs, **options: beam_search(*inputs, finished="in_beam", **options),
    "sample": lambda *inputs, **options: beam_sample(*inputs, SamplingParams(seed=1, top_k=6), **options),
    "groups": lambda *inputs, **options: group_beam_search(
        *inputs, num_beam_groups=2, diversity_penalty=0.5, **options
    ),
}
"""What generate() of transformers 5 does not have."""


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("model", MODELS)
def test_other_beams_find_with_a_cache_what_they_find_without(model: str, search: Callable[..., DecodeOutput]) -> None:
    lengths: set[int] = set()
    for seed in range(CACHED):
        given = make_prompts(model, 3, seed)
        found, expected = (
            search(
                adapted(model, seed=seed, spread=SPREAD),
                given.input_ids,
                attention_mask=given.attention_mask,
                encoder=given.encoder,
                max_new_tokens=[3, 8, 5],
                num_beams=4,
                num_return_sequences=4,
                eos_token_id=[2, 5],
                pad_token_id=PAD,
            )
            for adapted in (step_model, recomputing_model)
        )
        assert found.to_lists() == expected.to_lists()
        assert torch.equal(found.beam_indices, expected.beam_indices)
        torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, atol=1e-4, rtol=0)
        lengths |= set(found.lengths.tolist())
    assert len(lengths) > 4, "hypotheses must end early"
