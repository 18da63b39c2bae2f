"""Contrastive search finds what transformers 4.49 finds: the same sequences, and the log-probabilities of its scores."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
import torch
import transformers
import transformers_models as tiny
from old_generate import END_TOKENS, generate_449, generated_tokens, processors
from planting import Trap, assert_caught
from torch import Tensor

from ascend_sample.decoding import contrastive as module
from ascend_sample.decoding.contrastive import contrastive_search
from ascend_sample.decoding.module_model import ModuleModel

CONFIGURATIONS = 300
SCORES_WITHIN = 1e-4


class Configuration(NamedTuple):
    """A search, by transformers' names."""

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
    """A random one, but every model and weight of the penalty comes equally often."""
    choice = random.Random(number)
    max_new_tokens = choice.choice([1, 6, 12, 20])
    return Configuration(
        model=tiny.ALL[number % 5],
        batch=choice.choice([1, 2, 3]),
        top_k=choice.choice([2, 3, 4, 8, tiny.VOCAB_SIZE]),
        penalty_alpha=[0.1, 0.3, 0.6, 0.9, 1.0][number // 5 % 5],
        max_new_tokens=max_new_tokens,
        eos_token_id=choice.choice(END_TOKENS),
        repetition_penalty=choice.choice([1.0, 1.0, 1.5]),
        no_repeat_ngram_size=choice.choice([0, 0, 2]),
        min_new_tokens=choice.choice([0, 0, max_new_tokens // 2]),
    )


def step_model(name: str) -> ModuleModel:
    """The same model, computed anew at every step, with the hidden states of the last layer."""
    model = tiny.make(name)

    def logits_and_hidden(input_ids: Tensor, **encoder: Tensor) -> tuple[Tensor, Tensor]:
        if not encoder:
            output = model(input_ids=input_ids, output_hidden_states=True)
            return output.logits, output.hidden_states[-1]
        inputs = {key.removeprefix("encoder_"): value for key, value in encoder.items()}
        output = model(decoder_input_ids=input_ids, output_hidden_states=True, **inputs)
        return output.logits, output.decoder_hidden_states[-1]

    return ModuleModel(logits_and_hidden)


def check(numbers: range) -> list[tuple[Configuration, list[list[int]]]]:
    """Search with both; sequences and scores are the same. Returns what was found."""
    checked = []
    for number in numbers:
        asked = configuration(number)
        given = tiny.prompts(asked.model, asked.batch, torch.Generator().manual_seed(number))
        output = generate_449(
            asked.model, given, **{k: v for k, v in asked._asdict().items() if k not in ("model", "batch")}
        )
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
            logits_processor=processors(asked, given),
        )
        expected = generated_tokens(output.sequences, given, asked.eos_token_id)
        assert found.to_lists() == expected, asked
        expected_scores = log_probabilities(output.scores, expected)
        torch.testing.assert_close(found.sequences_scores, expected_scores, atol=SCORES_WITHIN, rtol=0)
        checked.append((asked, expected))
    return checked


def log_probabilities(step_scores: tuple[Tensor, ...], sequences: list[list[int]]) -> Tensor:
    """Of the tokens of each row, summed; what transformers calls scores are processed logits."""
    log_probs = torch.stack(step_scores).log_softmax(dim=2)
    return torch.stack(
        [log_probs[torch.arange(len(tokens)), row, tokens].sum() for row, tokens in enumerate(sequences)]
    )


def test_transformers_is_the_one_with_contrastive_search() -> None:
    assert transformers.__version__ == "4.49.0"


@pytest.mark.parametrize("first", range(5), ids=tiny.ALL)
def test_sequences_and_scores_are_those_of_generate(first: int) -> None:
    endings = dict.fromkeys(("first", "second", "length"), 0)
    for asked, found in check(range(first, CONFIGURATIONS, 5)):
        ends = asked.eos_token_id or []
        for row in found:
            endings[("first", "second")[ends.index(row[-1])] if row[-1] in ends else "length"] += 1
    assert min(endings.values()) > 5, f"sequences must end in all ways, often: {endings}"
