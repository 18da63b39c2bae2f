"""Contrastive search finds what transformers 4.49 finds: the same sequences, and log-probabilities within 1e-4."""

from __future__ import annotations

import random

import pytest
from transformers import SuppressTokensLogitsProcessor
from transformers_449 import STOP_TOKENS_OR_NONE, Parity449, assert_all_endings

from ascend_sample.decoding.strategies.contrastive import contrastive_search
from tests.decoding.generate_parity import MODELS, Configuration, choose_common, log_probabilities, make_prompts
from tests.decoding.tiny_transformers import VOCAB_SIZE, recomputing_model, tiny_transformer

CONFIGURATIONS = 300


def configuration(number: int) -> Configuration:
    """A random one, but every model and every weight of the penalty comes equally often."""
    choice = random.Random(number)
    common = choose_common(number, choice, lengths=[1, 6, 12, 20], stop_tokens=STOP_TOKENS_OR_NONE)
    forbids_tokens = common.no_repeat_ngram_size > 0 or common.min_new_tokens > 0
    own = {
        # With top_k of 1 or penalty_alpha of 0, generate() is greedy. How many there may be, see
        # `test_a_forbidden_token_is_taken_by_transformers_alone`.
        "top_k": choice.choice([1, 2, 3, 4, 5 if forbids_tokens else VOCAB_SIZE]),
        # Not 1: tokens with nearly equal states would be chosen between by rounding.
        "penalty_alpha": [0.0, 0.1, 0.3, 0.6, 0.9, 0.97][number // 5 % 6],
    }
    return common._replace(own=own)


PARITY = Parity449(contrastive_search, configuration, log_probabilities)


@pytest.mark.parametrize("first", range(len(MODELS)), ids=MODELS)
def test_sequences_and_scores_are_those_of_generate(first: int) -> None:
    assert_all_endings(PARITY.check(range(first, CONFIGURATIONS, len(MODELS))), at_least=5)


def test_a_forbidden_token_is_taken_by_transformers_alone() -> None:
    """Where fewer than top_k tokens are allowed, those of probability 0 are candidates of transformers, too."""
    forbidden = list(range(3, VOCAB_SIZE))
    given = make_prompts("gpt2", 3, seed=0)
    options = {"top_k": 6, "penalty_alpha": 0.9, "max_new_tokens": 6, "eos_token_id": None}
    theirs = PARITY.generate(tiny_transformer("gpt2"), given, suppress_tokens=forbidden, **options)
    ours = contrastive_search(
        recomputing_model("gpt2"),
        given.input_ids,
        attention_mask=given.attention_mask,
        logits_processor=[SuppressTokensLogitsProcessor(forbidden)],
        **options,
    )
    assert set(forbidden) & {token for row in theirs.sequences for token in row}
    assert not set(forbidden) & set(ours.sequences.flatten().tolist())
