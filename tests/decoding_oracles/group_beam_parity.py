"""Group beam search finds what transformers 4.49 finds: the same sequences, and scores within 1e-4."""

from __future__ import annotations

import random

import pytest
from transformers_449 import STOP_TOKENS_OR_NONE, Parity449, assert_all_endings

from ascend_sample.decoding.beams.group_beam import group_beam_search
from tests.decoding.generate_parity import MODELS, Configuration, choose_common, scores_of_beams

CONFIGURATIONS = 300


def configuration(number: int) -> Configuration:
    """A random one, but every model, early stopping and length penalty comes equally often."""
    choice = random.Random(number)
    num_beam_groups = choice.choice([2, 2, 3, 4])
    num_beams = num_beam_groups * choice.choice([1, 2, 3])
    own = {
        "num_beams": num_beams,
        "num_beam_groups": num_beam_groups,
        "diversity_penalty": choice.choice([0.3, 1.0, 2.5]),
        "num_return_sequences": choice.choice([1, num_beams // 2, num_beams]),
        "early_stopping": [False, True, "never"][number // 5 % 3],
        "length_penalty": [1.0, 0.0, 2.0, -0.5][number // 15 % 4],
    }
    common = choose_common(number, choice, lengths=[1, 4, 7, 11], stop_tokens=STOP_TOKENS_OR_NONE)
    return common._replace(own=own)


def with_first_stop_token(sequences: list[list[int]], stop_tokens: list[int]) -> list[list[int]]:
    """transformers 4.49 writes the first of the stop tokens, whichever of them it found."""
    return [[*row[:-1], stop_tokens[0] if row[-1] in stop_tokens else row[-1]] for row in sequences]


PARITY = Parity449(group_beam_search, configuration, scores_of_beams, with_first_stop_token)


@pytest.mark.parametrize("first", range(len(MODELS)), ids=MODELS)
def test_sequences_and_scores_are_those_of_generate(first: int) -> None:
    assert_all_endings(PARITY.check(range(first, CONFIGURATIONS, len(MODELS))), at_least=5)
