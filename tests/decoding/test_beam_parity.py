"""The beam search with a pool finds what transformers' generate() finds: sequences, scores and beams."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
import torch
import transformers_models as tiny
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from ascend_sample.decoding.beam_search import beam_search

CONFIGURATIONS = 220


class Configuration(NamedTuple):
    """A search, by transformers' names."""

    model: str
    batch: int
    num_beams: int
    num_return_sequences: int
    max_new_tokens: int
    early_stopping: Any
    length_penalty: float
    eos_token_id: list[int]
    repetition_penalty: float
    no_repeat_ngram_size: int
    min_new_tokens: int


def configuration(number: int) -> Configuration:
    """A random one, but every model, early stopping and length penalty comes equally often."""
    choice = random.Random(number)
    num_beams = choice.choice([2, 3, 4])
    max_new_tokens = choice.choice([3, 5, 8])
    return Configuration(
        model=tiny.ALL[number % 5],
        batch=choice.choice([1, 2, 3]),
        num_beams=num_beams,
        num_return_sequences=choice.randint(1, num_beams),
        max_new_tokens=max_new_tokens,
        early_stopping=[False, True, "never"][number // 5 % 3],
        length_penalty=[1.0, 0.0, 2.0, -0.5][number // 15 % 4],
        eos_token_id=choice.choice([[2], [5, 2], [7, 3]]),
        repetition_penalty=choice.choice([1.0, 1.0, 1.5]),
        no_repeat_ngram_size=choice.choice([0, 0, 2]),
        min_new_tokens=choice.choice([0, 0, max_new_tokens // 2]),
    )


def processors(asked: Configuration, given: tiny.Prompts) -> list[Any]:
    """Those that generate() makes, in its order."""
    found: list[Any] = []
    if asked.repetition_penalty != 1.0:
        padding = (~given.attention_mask.bool()).sum(dim=1).repeat_interleave(asked.num_beams)
        found.append(RepetitionPenaltyLogitsProcessor(asked.repetition_penalty, padding))
    if asked.no_repeat_ngram_size:
        found.append(NoRepeatNGramLogitsProcessor(asked.no_repeat_ngram_size))
    if asked.min_new_tokens:
        start = given.input_ids.shape[1]
        found.append(MinNewTokensLengthLogitsProcessor(start, asked.min_new_tokens, asked.eos_token_id))
    return found


def both(number: int) -> tuple[tiny.Found, tiny.Found]:
    """What transformers finds, and what is found here."""
    asked = configuration(number)
    given = tiny.prompts(asked.model, asked.batch, torch.Generator().manual_seed(number))
    expected = tiny.generate(
        asked.model, given, **{k: v for k, v in asked._asdict().items() if k not in ("model", "batch")}
    )
    output = beam_search(
        tiny.step_model(asked.model),
        given.input_ids,
        attention_mask=given.attention_mask,
        encoder=given.encoder,
        max_new_tokens=asked.max_new_tokens,
        num_beams=asked.num_beams,
        num_return_sequences=asked.num_return_sequences,
        length_penalty=asked.length_penalty,
        early_stopping=asked.early_stopping,
        eos_token_id=asked.eos_token_id,
        pad_token_id=tiny.PAD,
        logits_processor=processors(asked, given),
    )
    assert output.beam_indices is not None
    beams = [row[row >= 0].tolist() for row in output.beam_indices]
    return expected, tiny.Found(output.to_lists(), output.sequences_scores, beams)


@pytest.mark.parametrize("numbers", [range(start, CONFIGURATIONS, 5) for start in range(5)], ids=tiny.ALL)
def test_sequences_scores_and_beams_are_those_of_generate(numbers: range) -> None:
    lengths = set()
    for number in numbers:
        expected, found = both(number)
        assert found.sequences == expected.sequences, configuration(number)
        assert found.beam_indices == expected.beam_indices, configuration(number)
        torch.testing.assert_close(found.scores, expected.scores, atol=1e-4, rtol=0)
        lengths |= set(map(len, found.sequences))
    assert len(lengths) > 4, "the configurations must have hypotheses that end early"
