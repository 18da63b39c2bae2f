"""Group beam search finds what transformers 4.49 finds: the same sequences, and scores within 1e-4."""

from __future__ import annotations

import random
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
import transformers_449
import transformers_models as tiny
from planting import planted

from ascend_sample.decoding import group_beam_search as strategy
from ascend_sample.decoding import processors as diversity
from ascend_sample.decoding.group_beam_search import group_beam_search

CONFIGURATIONS = 300
SCORES_WITHIN = 1e-4


class Configuration(NamedTuple):
    """A search, by transformers' names."""

    model: str
    batch: int
    num_beams: int
    num_beam_groups: int
    diversity_penalty: float
    num_return_sequences: int
    max_new_tokens: int
    early_stopping: bool | str
    length_penalty: float
    eos_token_id: list[int] | None
    repetition_penalty: float
    no_repeat_ngram_size: int
    min_new_tokens: int


def configuration(number: int) -> Configuration:
    """A random one, but every model, early stopping and length penalty comes equally often."""
    choice = random.Random(number)
    num_beam_groups = choice.choice([2, 2, 3, 4])
    num_beams = num_beam_groups * choice.choice([1, 2, 3])
    max_new_tokens = choice.choice([1, 4, 7, 11])
    return Configuration(
        model=tiny.ALL[number % 5],
        batch=choice.choice([1, 2, 3]),
        num_beams=num_beams,
        num_beam_groups=num_beam_groups,
        diversity_penalty=choice.choice([0.3, 1.0, 2.5]),
        num_return_sequences=choice.choice([1, num_beams // 2, num_beams]),
        max_new_tokens=max_new_tokens,
        early_stopping=[False, True, "never"][number // 5 % 3],
        length_penalty=[1.0, 0.0, 2.0, -0.5][number // 15 % 4],
        eos_token_id=choice.choice(transformers_449.STOP_TOKENS),
        repetition_penalty=choice.choice([1.0, 1.0, 1.5]),
        no_repeat_ngram_size=choice.choice([0, 0, 2]),
        min_new_tokens=choice.choice([0, 0, max_new_tokens // 2]),
    )


def check(numbers: range) -> list[tuple[Configuration, list[list[int]]]]:
    """Search with both and compare; returns what was found."""
    checked = []
    for number in numbers:
        asked = configuration(number)
        given = tiny.prompts(asked.model, asked.batch, torch.Generator().manual_seed(number))
        options = {name: value for name, value in asked._asdict().items() if name not in ("model", "batch")}
        expected = transformers_449.generate(asked.model, given, **options)
        found = group_beam_search(
            tiny.step_model(asked.model),
            given.input_ids,
            attention_mask=given.attention_mask,
            encoder=given.encoder,
            max_new_tokens=asked.max_new_tokens,
            num_beams=asked.num_beams,
            num_beam_groups=asked.num_beam_groups,
            diversity_penalty=asked.diversity_penalty,
            num_return_sequences=asked.num_return_sequences,
            length_penalty=asked.length_penalty,
            early_stopping=asked.early_stopping,
            eos_token_id=asked.eos_token_id,
            pad_token_id=tiny.PAD,
            logits_processor=transformers_449.processors(asked, given),
        )
        sequences = found.to_lists()
        assert with_first_stop_token(sequences, asked.eos_token_id or []) == expected.sequences, asked
        differences = (found.sequences_scores - expected.output.sequences_scores).abs()
        assert differences.max() <= SCORES_WITHIN, asked
        checked.append((asked, sequences))
    return checked


def with_first_stop_token(sequences: list[list[int]], stop_tokens: list[int]) -> list[list[int]]:
    """transformers 4.49 writes the first of the stop tokens, whichever of them it found."""
    return [[*row[:-1], stop_tokens[0] if row[-1] in stop_tokens else row[-1]] for row in sequences]


@pytest.mark.parametrize("first", range(5), ids=tiny.ALL)
def test_sequences_and_scores_are_those_of_generate(first: int) -> None:
    transformers_449.assert_all_endings(check(range(first, CONFIGURATIONS, 5)), at_least=5)


@pytest.mark.parametrize(
    ("module", "right", "wrong"),
    [
        pytest.param(strategy, "seen, diversity_penalty)", "seen, 0.0)", id="no diversity penalty"),
        pytest.param(diversity, "scatter_add_(", "scatter_(", id="a token that was chosen twice counts once"),
        pytest.param(
            strategy,
            "early_stopping) for _ in range(num_beam_groups)]",
            "early_stopping)] * num_beam_groups",
            id="all groups share a pool",
        ),
        pytest.param(
            strategy,
            "running.tokens.where(~had_ended, request.pad_token_id)",
            "running.tokens",
            id="a group that is done counts with what it would have chosen",
        ),
        pytest.param(
            strategy,
            "pool.update_done(candidates.scores[:, 0], length)",
            "pool.update_done(running.scores[:, 0], length)",
            id="a continuation that ends is no chance to get better",
        ),
    ],
)
def test_the_comparison_notices(module: ModuleType, right: str, wrong: str) -> None:
    with planted(module, right, wrong), pytest.raises(AssertionError, match="Configuration"):
        check(range(CONFIGURATIONS))
