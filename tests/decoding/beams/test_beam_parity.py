"""With models of transformers and their caches: the beam search with a pool finds what generate() finds."""

from __future__ import annotations

import random

import pytest

from ascend_sample.decoding.beams.beam import beam_search
from tests.decoding.generate_parity import (
    MODELS,
    Configuration,
    Parity,
    choose_common,
    scores_of_beams,
)
from tests.decoding.tiny_transformers import step_model


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
@pytest.mark.parametrize("configurations", [range(60), pytest.param(range(60, 220), marks=pytest.mark.long)], ids=len)
def test_sequences_scores_and_beams_are_those_of_generate(configurations: range, first: int) -> None:
    """A quarter of them without a cache."""
    numbers = configurations[first :: len(MODELS)]
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
