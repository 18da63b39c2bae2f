"""Strategies beside transformers' generate(): what both are given and asked for, and whether they find the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from ascend_sample.decoding.model import StepModel
from ascend_sample.decoding.output import DecodeOutput
from tests.decoding.tiny_transformers import (
    KINDS,
    PAD,
    START,
    VOCAB_SIZE,
    Prompts,
    encoder_inputs,
    recomputing_model,
    tiny_transformer,
)

MODELS = ("gpt2", "llama", "t5", "bart", "marian")
SEEDS, SPREAD = 8, 0.7
"""Of the weights. One model of a kind may hardly ever say a stop token; of eight, some do."""
LONGEST_PROMPT = 5
SCORES_WITHIN = 1e-4
STOP_TOKENS: Sequence[list[int] | None] = ([2], [5, 2], [7, 3])
"""What there is to choose from as eos_token_id."""


def make_prompts(model: str, batch: int, seed: int) -> Prompts:
    """Random ones, padded on the left, as generate() wants it; with an encoder, the start token alone."""
    if KINDS[model].has_encoder:
        start = torch.full((batch, 1), START)
        return Prompts(start, torch.ones_like(start), encoder_inputs(model, batch, seed))
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, LONGEST_PROMPT + 1, (batch, 1), generator=generator)
    mask = (torch.arange(LONGEST_PROMPT) >= LONGEST_PROMPT - lengths).long()
    tokens = torch.randint(1, VOCAB_SIZE, mask.shape, generator=generator)
    return Prompts(tokens.where(mask.bool(), PAD), mask, {})


class Found(NamedTuple):
    """What generate() returns: what was generated, row by row, up to the first stop token; and all of it."""

    sequences: list[list[int]]
    output: Any


def up_to_stop(row: list[int], stop_tokens: Sequence[int]) -> list[int]:
    """A text without what follows its first stop token."""
    ends = [place + 1 for place, token in enumerate(row) if token in stop_tokens]
    return row[: ends[0]] if ends else row


def scores_of_beams(found: Found) -> Tensor:
    """Of a beam search."""
    return found.output.sequences_scores


def log_probabilities(found: Found) -> Tensor:
    """Of each row's tokens, summed, without beams. What generate() calls scores are the logits after the processors."""
    log_probs = torch.stack(found.output.scores).log_softmax(dim=2)
    rows = enumerate(found.sequences)
    return torch.stack([log_probs[torch.arange(len(tokens)), row, tokens].sum() for row, tokens in rows])


class Configuration(NamedTuple):
    """A search, by transformers' names; own is what the strategy takes and others do not."""

    model: str
    batch: int
    own: dict[str, Any]
    max_new_tokens: int
    eos_token_id: list[int] | None
    repetition_penalty: float
    no_repeat_ngram_size: int
    min_new_tokens: int


def choose_common(
    number: int, choice: random.Random, lengths: Sequence[int], stop_tokens: Sequence[list[int] | None] = STOP_TOKENS
) -> Configuration:
    """What every strategy is asked for: random, but every model comes equally often."""
    max_new_tokens = choice.choice(lengths)
    return Configuration(
        model=MODELS[number % len(MODELS)],
        batch=choice.choice([1, 2, 3]),
        own={},
        max_new_tokens=max_new_tokens,
        eos_token_id=choice.choice(stop_tokens),
        repetition_penalty=choice.choice([1.0, 1.0, 1.5]),
        no_repeat_ngram_size=choice.choice([0, 0, 2]),
        min_new_tokens=choice.choice([0, 0, max_new_tokens // 2]),
    )


class Comparison(NamedTuple):
    """A search by both, which agree."""

    asked: Configuration
    expected: Found
    found: DecodeOutput


@dataclass(frozen=True)
class Parity:
    """A strategy beside generate(): what is asked for by a number, and how what both find is compared.

    Attributes:
        scores: what the strategy gives as `sequences_scores`, of what generate() found.
        as_generated: the strategy's sequences as generate() writes them, with these stop tokens.
    """

    search: Callable[..., DecodeOutput]
    configuration: Callable[[int], Configuration]
    scores: Callable[[Found], Tensor]
    as_generated: Callable[[list[list[int]], list[int]], list[list[int]]] = lambda sequences, stop_tokens: sequences
    step_model: Callable[..., StepModel] = recomputing_model

    def check(self, numbers: Iterable[int]) -> list[Comparison]:
        """Search with both and compare; returns what was found."""
        return [self._compare(self.configuration(number), number) for number in numbers]

    def _compare(self, asked: Configuration, seed: int) -> Comparison:
        given = make_prompts(asked.model, asked.batch, seed)
        weights = {"seed": seed % SEEDS, "spread": SPREAD}
        options = {"max_new_tokens": asked.max_new_tokens, "eos_token_id": asked.eos_token_id, **asked.own}
        expected = self.generate(
            tiny_transformer(asked.model, **weights),
            given,
            repetition_penalty=asked.repetition_penalty,
            no_repeat_ngram_size=asked.no_repeat_ngram_size,
            min_new_tokens=asked.min_new_tokens,
            **options,
        )
        found = self.search(
            self.step_model(asked.model, **weights),
            given.input_ids,
            attention_mask=given.attention_mask,
            encoder=given.encoder,
            pad_token_id=PAD,
            logits_processor=self._processors(asked, given),
            **options,
        )
        assert self.as_generated(found.to_lists(), asked.eos_token_id or []) == expected.sequences, asked
        differences = (found.sequences_scores - self.scores(expected)).abs()
        assert differences.max() <= SCORES_WITHIN, asked
        return Comparison(asked, expected, found)

    def _processors(self, asked: Configuration, given: Prompts) -> list[Any]:
        """Those that generate() makes, in its order."""
        found: list[Any] = []
        if asked.repetition_penalty != 1.0:
            found.append(self.repetition_penalty(asked, given))
        if asked.no_repeat_ngram_size:
            found.append(NoRepeatNGramLogitsProcessor(asked.no_repeat_ngram_size))
        if asked.min_new_tokens and asked.eos_token_id:
            start = given.input_ids.shape[1]
            found.append(MinNewTokensLengthLogitsProcessor(start, asked.min_new_tokens, asked.eos_token_id))
        return found

    def generate(self, model: Any, given: Prompts, *, eos_token_id: list[int] | None, **options: Any) -> Found:
        """What a model of transformers finds without drawing."""
        encoder = {name.removeprefix("encoder_"): value for name, value in given.encoder.items()}
        output = model.generate(
            **(encoder or {"input_ids": given.input_ids, "attention_mask": given.attention_mask}),
            eos_token_id=eos_token_id,
            pad_token_id=PAD,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
        rows = output.sequences[:, given.input_ids.shape[1] :].tolist()
        return Found([up_to_stop(row, eos_token_id or []) for row in rows], output)

    def repetition_penalty(self, asked: Configuration, given: Prompts) -> RepetitionPenaltyLogitsProcessor:
        """Padding is no repetition."""
        padding = (given.attention_mask == 0).sum(dim=1).repeat_interleave(asked.own.get("num_beams", 1))
        try:
            return RepetitionPenaltyLogitsProcessor(asked.repetition_penalty, prompt_ignore_length=padding)
        except ValueError:  # the transformers of Python 3.10 takes one length for all rows, and counts padding itself
            return RepetitionPenaltyLogitsProcessor(asked.repetition_penalty)
