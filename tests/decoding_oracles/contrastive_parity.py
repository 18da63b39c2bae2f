"""Contrastive search finds what transformers 4.49 finds: the same sequences, and log-probabilities within 1e-4."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
import torch
import transformers_449
import transformers_models as tiny
from planting import planted
from torch import Tensor

from ascend_sample.decoding import contrastive as strategy
from ascend_sample.decoding.contrastive import contrastive_search
from ascend_sample.decoding.module_model import ModuleModel

CONFIGURATIONS = 300
SCORES_WITHIN = 1e-4


class Configuration(NamedTuple):
    """A search, by transformers' names. With top_k of 1 or penalty_alpha of 0, generate() is greedy."""

    model: str
    batch: int
    top_k: int
    penalty_alpha: float
    max_new_tokens: int
    eos_token_id: list[int] | None
    repetition_penalty: float
    no_repeat_ngram_size: int
    min_new_tokens: int


def configuration(number: int) -> Configuration:
    """A random one, but every model and every weight of the penalty comes equally often."""
    choice = random.Random(number)
    max_new_tokens = choice.choice([1, 6, 12, 20])
    no_repeat_ngram_size = choice.choice([0, 0, 2])
    min_new_tokens = choice.choice([0, 0, max_new_tokens // 2])
    forbids_tokens = no_repeat_ngram_size > 0 or min_new_tokens > 0
    return Configuration(
        model=tiny.ALL[number % 5],
        batch=choice.choice([1, 2, 3]),
        # See `test_a_forbidden_token_is_taken_by_transformers_alone`.
        top_k=choice.choice([1, 2, 3, 4, 5 if forbids_tokens else tiny.VOCAB_SIZE]),
        # Not 1: tokens with nearly equal states would be chosen between by rounding.
        penalty_alpha=[0.0, 0.1, 0.3, 0.6, 0.9, 0.97][number // 5 % 6],
        max_new_tokens=max_new_tokens,
        eos_token_id=choice.choice(transformers_449.STOP_TOKENS),
        repetition_penalty=choice.choice([1.0, 1.0, 1.5]),
        no_repeat_ngram_size=no_repeat_ngram_size,
        min_new_tokens=min_new_tokens,
    )


def step_model(name: str) -> ModuleModel:
    """A tiny model with the hidden states of its last layer."""
    model = tiny.make(name)

    def logits_and_states(input_ids: Tensor, **encoder: Tensor) -> tuple[Tensor, Tensor]:
        if not encoder:
            output = model(input_ids=input_ids, output_hidden_states=True)
            return output.logits, output.hidden_states[-1]
        inputs = {key.removeprefix("encoder_"): value for key, value in encoder.items()}
        output = model(decoder_input_ids=input_ids, output_hidden_states=True, **inputs)
        return output.logits, output.decoder_hidden_states[-1]

    return ModuleModel(logits_and_states)


def check(numbers: range) -> list[tuple[Configuration, list[list[int]]]]:
    """Search with both and compare; returns what was found."""
    checked = []
    for number in numbers:
        asked = configuration(number)
        given = tiny.prompts(asked.model, asked.batch, torch.Generator().manual_seed(number))
        options = {name: value for name, value in asked._asdict().items() if name not in ("model", "batch")}
        expected = transformers_449.generate(asked.model, given, **options)
        found = contrastive_search(
            step_model(asked.model),
            given.input_ids,
            attention_mask=given.attention_mask,
            encoder=given.encoder,
            max_new_tokens=asked.max_new_tokens,
            top_k=asked.top_k,
            penalty_alpha=asked.penalty_alpha,
            eos_token_id=asked.eos_token_id,
            pad_token_id=tiny.PAD,
            logits_processor=transformers_449.processors(asked, given),
        )
        assert found.to_lists() == expected.sequences, asked
        differences = (found.sequences_scores - log_probabilities(expected)).abs()
        assert differences.max() <= SCORES_WITHIN, asked
        checked.append((asked, expected.sequences))
    return checked


def log_probabilities(found: transformers_449.Found) -> Tensor:
    """Of each row's tokens, summed. What generate() calls scores are the logits after the processors."""
    log_probs = torch.stack(found.output.scores).log_softmax(dim=2)
    rows = enumerate(found.sequences)
    return torch.stack([log_probs[torch.arange(len(tokens)), row, tokens].sum() for row, tokens in rows])


@pytest.mark.parametrize("first", range(5), ids=tiny.ALL)
def test_sequences_and_scores_are_those_of_generate(first: int) -> None:
    transformers_449.assert_all_endings(check(range(first, CONFIGURATIONS, 5)), at_least=5)


def test_a_forbidden_token_is_taken_by_transformers_alone() -> None:
    """Where fewer than top_k tokens are allowed, those of probability 0 are candidates of transformers, too."""
    forbidden = list(range(3, tiny.VOCAB_SIZE))
    given = tiny.prompts("gpt2", 3, torch.Generator().manual_seed(0))
    common = {"top_k": 6, "penalty_alpha": 0.9, "max_new_tokens": 6}
    theirs = transformers_449.generate("gpt2", given, eos_token_id=None, suppress_tokens=forbidden, **common)
    processor = transformers_449.transformers.SuppressTokensLogitsProcessor(forbidden)
    ours = contrastive_search(
        step_model("gpt2"),
        given.input_ids,
        attention_mask=given.attention_mask,
        logits_processor=[processor],
        **common,
    )
    assert set(forbidden) & {token for row in theirs.sequences for token in row}
    assert not set(forbidden) & set(ours.sequences.flatten().tolist())


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        pytest.param("- penalty_alpha * context.largest_cosines(hidden_states)", "", id="no penalty"),
        pytest.param("(1 - penalty_alpha) * probabilities", "probabilities", id="the probability is not weighed"),
        pytest.param(
            "cosines.masked_fill(self._is_padding[:, None, : self._length], -torch.inf)", "cosines", id="padding counts"
        ),
        pytest.param("context.append(hidden_states.flatten(0, 1)[rows])", "", id="only the prompt counts"),
    ],
)
def test_the_comparison_notices(right: str, wrong: str) -> None:
    with planted(strategy, right, wrong), pytest.raises(AssertionError, match="Configuration"):
        check(range(CONFIGURATIONS))
