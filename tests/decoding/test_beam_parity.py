"""The beam search with a pool finds what transformers' generate() finds: sequences, scores and beams."""

from __future__ import annotations

import random

import pytest
from generate_parity import MODELS, Configuration, Parity, choose_common, scores_of_beams

from ascend_sample.decoding.beam import beam_search

CONFIGURATIONS = 220


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
    parity = Parity(beam_search, configuration, scores_of_beams)
    lengths: set[int] = set()
    for asked, expected, found in parity.check(range(first, CONFIGURATIONS, len(MODELS))):
        assert found.beam_indices is not None
        beams = [[beam for beam in row if beam >= 0] for row in expected.output.beam_indices.tolist()]
        assert [row[row >= 0].tolist() for row in found.beam_indices] == beams, asked
        lengths |= set(found.lengths.tolist())
    assert len(lengths) > 4, "the configurations must have hypotheses that end early"
