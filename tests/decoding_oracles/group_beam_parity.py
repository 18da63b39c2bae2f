"""Group beam search finds what transformers 4.49 finds: the same sequences, scores within 1e-4."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import transformers
import transformers_models as tiny
from old_generate import END_TOKENS, generate_449, generated_tokens, processors
from planting import Trap, assert_caught

from ascend_sample.decoding import beam_pool, group_beam_search as module
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
        eos_token_id=choice.choice(END_TOKENS),
        repetition_penalty=choice.choice([1.0, 1.0, 1.5]),
        no_repeat_ngram_size=choice.choice([0, 0, 2]),
        min_new_tokens=choice.choice([0, 0, max_new_tokens // 2]),
    )


class Comparison(NamedTuple):
    """What was found with a configuration, by transformers and here."""

    expected: list[list[int]]
    expected_scores: torch.Tensor
    found: list[list[int]]
    found_scores: torch.Tensor

    def check(self, asked: Configuration) -> None:
        """Sequences and scores are the same."""
        # transformers writes the first of the end tokens in place of the one that was found.
        ends = asked.eos_token_id or []
        found = [[*row[:-1], ends[0] if row[-1] in ends else row[-1]] for row in self.found]
        assert found == self.expected, asked
        torch.testing.assert_close(self.found_scores, self.expected_scores, atol=SCORES_WITHIN, rtol=0, msg=str)


def compare(number: int) -> Comparison:
    """Search with both."""
    asked = configuration(number)
    given = tiny.prompts(asked.model, asked.batch, torch.Generator().manual_seed(number))
    output = generate_449(asked.model, given, **{k: v for k, v in asked._asdict().items() if k not in ("model", "batch")})
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
        logits_processor=processors(asked, given),
    )
    expected = generated_tokens(output.sequences, given, asked.eos_token_id)
    return Comparison(expected, output.sequences_scores, found.to_lists(), found.sequences_scores)


def check(numbers: range) -> list[tuple[Configuration, list[list[int]]]]:
    """All of these configurations; returns what was found."""
    checked = []
    for number in numbers:
        comparison = compare(number)
        comparison.check(configuration(number))
        checked.append((configuration(number), comparison.found))
    return checked


def test_transformers_is_the_one_with_group_beam_search() -> None:
    assert transformers.__version__ == "4.49.0"


@pytest.mark.parametrize("first", range(5), ids=tiny.ALL)
def test_sequences_and_scores_are_those_of_generate(first: int) -> None:
    endings = dict.fromkeys(("first", "second", "length"), 0)
    for asked, found in check(range(first, CONFIGURATIONS, 5)):
        ends = asked.eos_token_id or []
        for row in found:
            endings[("first", "second")[ends.index(row[-1])] if row[-1] in ends else "length"] += 1
    assert min(endings.values()) > 10, f"sequences must end in all ways, often: {endings}"


TRAPS = [
    ("the diversity penalty is ignored", module, "seen, diversity_penalty)", "seen, 0.0 * diversity_penalty)"),
]


@pytest.mark.parametrize(("name", "where", "right", "wrong"), TRAPS, ids=[trap[0] for trap in TRAPS])
def test_the_comparison_notices(name: str, where: Any, right: str, wrong: str) -> None:
    assert_caught(Trap(name, where, right, wrong, lambda: check(range(60))))
