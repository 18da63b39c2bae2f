"""Greedy search: worked by hand, and beside transformers' generate."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    MaxLengthCriteria,
    MinNewTokensLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.strategies.greedy import greedy_search
from tests.decoding.generate_parity import MODELS, generate, log_probabilities, make_prompts
from tests.decoding.table_models import probability_table, table_model
from tests.decoding.tiny_transformers import PAD, step_model, tiny_transformer

# 0 -> 1 (0.7), 1 -> 2 (0.6), 2 -> 3 (0.5) or 0 (0.5), 3 -> 3.
CHAIN = probability_table([[0.1, 0.7, 0.1, 0.1], [0.2, 0.1, 0.6, 0.1], [0.5, 0.0, 0.0, 0.5], [0.1, 0.1, 0.1, 0.7]])
PROMPTS = torch.tensor([[0], [1], [3]])


def test_the_chain_by_hand() -> None:
    output = greedy_search(table_model(CHAIN), PROMPTS, max_new_tokens=3)
    assert output.to_lists() == [[1, 2, 0], [2, 0, 1], [3, 3, 3]]  # after 2, of 0 and 3 the lower one
    expected = [0.7 * 0.6 * 0.5, 0.6 * 0.5 * 0.7, 0.7**3]
    torch.testing.assert_close(output.sequences_scores.exp(), torch.tensor(expected))
    assert output.lengths.tolist() == [3, 3, 3]
    assert (output.beam_indices, output.scores, output.stats) == (None, None, None)


def test_rows_end_with_any_stop_token_or_at_their_own_length() -> None:
    output = greedy_search(table_model(CHAIN), PROMPTS, max_new_tokens=[5, 5, 2], eos_token_id=[2, 1], pad_token_id=9)
    assert output.sequences.tolist() == [[1, 9], [2, 9], [3, 3]]
    assert output.lengths.tolist() == [1, 1, 2]
    torch.testing.assert_close(output.sequences_scores.exp(), torch.tensor([0.7, 0.6, 0.49]))


def test_a_stop_token_in_the_prompt_ends_nothing() -> None:
    output = greedy_search(table_model(CHAIN), torch.tensor([[2, 0]]), max_new_tokens=4, eos_token_id=(0, 2))
    assert output.to_lists() == [[1, 2]]


def test_processors_see_the_prompt_as_given_and_what_was_appended() -> None:
    seen = []

    def forbid_one(input_ids: Tensor, scores: Tensor) -> Tensor:
        seen.append(input_ids.tolist())
        return scores.index_fill(1, torch.tensor([1]), -torch.inf)

    prompts, mask = torch.tensor([[7, 0], [1, 7]]), torch.tensor([[0, 1], [1, 0]])
    output = greedy_search(
        table_model(CHAIN), prompts, max_new_tokens=2, attention_mask=mask, logits_processor=[forbid_one],
        return_scores=True,
    )  # fmt: skip
    assert seen == [[[7, 0], [1, 7]], [[7, 0, 0], [1, 7, 2]]]
    assert output.to_lists() == [[0, 0], [2, 0]]
    # Of 0 without 1, a third is left to each of 0, 2 and 3; of 1 without 1, 0.6 of 0.9.
    torch.testing.assert_close(output.sequences_scores.exp(), torch.tensor([1 / 9, 0.6 / 0.9 * 0.5]))
    assert output.scores is not None
    assert output.scores[0].isneginf().tolist() == [[False, True, False, False]] * 2


def test_stopping_criteria_end_rows_or_all_of_them() -> None:
    def ends_with_two(input_ids: Tensor, scores: tuple[Tensor, ...]) -> Tensor:
        assert scores[-1].shape == (3, 4)
        return input_ids[:, -1] == 2

    output = greedy_search(table_model(CHAIN), PROMPTS, max_new_tokens=4, stopping_criteria=[ends_with_two])
    assert output.to_lists() == [[1, 2], [2], [3, 3, 3, 3]]
    output = greedy_search(table_model(CHAIN), PROMPTS, max_new_tokens=9, stopping_criteria=[MaxLengthCriteria(3)])
    assert output.lengths.tolist() == [2, 2, 2]
    output = greedy_search(table_model(CHAIN), PROMPTS, max_new_tokens=9, stopping_criteria=[lambda ids, scores: True])
    assert output.lengths.tolist() == [1, 1, 1]


def test_streaming_gives_each_row_its_tokens_once() -> None:
    streamed: list[list[int]] = [[], [], []]
    calls = []

    def take(tokens: Tensor, counts: Tensor) -> None:
        calls.append(counts.tolist())
        for row, (new, count) in enumerate(zip(tokens.tolist(), counts.tolist(), strict=True)):
            streamed[row] += new[:count]

    output = greedy_search(table_model(CHAIN), PROMPTS, max_new_tokens=4, eos_token_id=2, on_tokens=take)
    assert streamed == output.to_lists() == [[1, 2], [2], [3, 3, 3, 3]]
    assert calls == [[1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 0, 1]]


def test_padding_follows_the_end_and_has_no_score() -> None:
    output = greedy_search(table_model(CHAIN), PROMPTS, max_new_tokens=3, eos_token_id=2, pad_token_id=0)
    assert output.sequences.tolist() == [[1, 2, 0], [2, 0, 0], [3, 3, 3]]
    torch.testing.assert_close(output.sequences_scores.exp(), torch.tensor([0.42, 0.6, 0.343]))


def test_id_0_is_a_token() -> None:
    assert greedy_search(table_model(CHAIN), torch.tensor([[2]]), max_new_tokens=2).to_lists() == [[0, 1]]


def test_a_finished_row_needs_no_position() -> None:
    """The model has 96 positions; all rows need fewer, but not the long prompts with the longest text."""
    prompts, mask = torch.ones(3, 90, dtype=torch.int64), torch.ones(3, 90, dtype=torch.int64)
    mask[1, 2:] = 0
    output = greedy_search(step_model("gpt2"), prompts, max_new_tokens=[2, 12, 4], attention_mask=mask)
    alone = greedy_search(step_model("gpt2"), prompts[1:2, :2], max_new_tokens=12)
    assert output.lengths.tolist() == [2, 12, 4]
    assert output.to_lists()[1] == alone.to_lists()[0]


NEW_TOKENS = 5


def penalty_of_generate(mask: Tensor) -> RepetitionPenaltyLogitsProcessor:
    """As generate makes it: padding is no repetition, but for the transformers of Python 3.10, where it is one."""
    try:
        return RepetitionPenaltyLogitsProcessor(1.4, prompt_ignore_length=mask.argmax(dim=1))
    except ValueError:  # it takes one length for all rows
        return RepetitionPenaltyLogitsProcessor(1.4)


PROCESSORS: dict[str, tuple[dict[str, Any], Any]] = {
    "none": ({}, lambda mask, eos: []),
    "min length": ({"min_new_tokens": 2}, lambda mask, eos: [MinNewTokensLengthLogitsProcessor(mask.shape[1], 2, eos)]),
    "repetition": ({"repetition_penalty": 1.4}, lambda mask, eos: [penalty_of_generate(mask)]),
    "n-gram": ({"no_repeat_ngram_size": 2}, lambda mask, eos: [NoRepeatNGramLogitsProcessor(2)]),
}


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 4), marks=pytest.mark.long)], ids=len)
@pytest.mark.parametrize("kind", MODELS)
def test_the_sequences_and_scores_of_generate(kind: str, seeds: range) -> None:
    """With each processor, and one and two stop ids."""
    lengths = set()
    for seed, (asked, made) in itertools.product(seeds, PROCESSORS.values()):
        given = make_prompts(kind, 3, seed)
        search: Callable[..., DecodeOutput] = functools.partial(
            greedy_search,
            step_model(kind, seed % 2),
            given.input_ids,
            max_new_tokens=NEW_TOKENS,
            attention_mask=given.attention_mask,
            encoder=given.encoder,
        )
        # Tokens that do come make rows stop at several lengths.
        endless = search(logits_processor=made(given.attention_mask, [0])).sequences
        for stops in (1, 2):
            eos = [int(endless[0, 2]), int(endless[1, 3])][:stops]
            output = search(eos_token_id=eos, pad_token_id=PAD, logits_processor=made(given.attention_mask, eos))
            expected = generate(tiny_transformer(kind, seed % 2), given, eos, max_new_tokens=NEW_TOKENS, **asked)
            tokens = expected.output.sequences[:, given.input_ids.shape[1] :]
            assert output.sequences.tolist() == tokens.tolist()
            assert output.to_lists() == expected.sequences
            torch.testing.assert_close(output.sequences_scores, log_probabilities(expected), atol=1e-4, rtol=0)
            lengths |= set(output.lengths.tolist())
    assert len(lengths) > 1
