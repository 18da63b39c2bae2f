"""Greedy search: worked by hand, and beside transformers' generate."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MaxLengthCriteria

from ascend_sample.decoding.strategies.greedy import greedy_search
from tests.decoding.generate_parity import MODELS, Parity, choose_common, log_probabilities
from tests.decoding.table_models import probability_table, table_model
from tests.decoding.tiny_transformers import step_model

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
    options: dict[str, Any] = {"attention_mask": mask, "logits_processor": [forbid_one], "return_scores": True}
    output = greedy_search(table_model(CHAIN), prompts, max_new_tokens=2, **options)
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


def test_padding_follows_the_end_and_has_no_score() -> None:
    output = greedy_search(table_model(CHAIN), PROMPTS, max_new_tokens=3, eos_token_id=2, pad_token_id=0)
    assert output.sequences.tolist() == [[1, 2, 0], [2, 0, 0], [3, 3, 3]]
    torch.testing.assert_close(output.sequences_scores.exp(), torch.tensor([0.42, 0.6, 0.343]))


def test_id_0_is_a_token() -> None:
    assert greedy_search(table_model(CHAIN), torch.tensor([[2]]), max_new_tokens=2).to_lists() == [[0, 1]]


PARITY = Parity(
    greedy_search,
    lambda number: choose_common(number, random.Random(number), lengths=[5]),
    log_probabilities,
    step_model=step_model,
)


@pytest.mark.parametrize("numbers", [range(40), pytest.param(range(40, 160), marks=pytest.mark.long)], ids=len)
@pytest.mark.parametrize("first", range(len(MODELS)), ids=MODELS)
def test_the_sequences_and_scores_of_generate(first: int, numbers: range) -> None:
    compared = PARITY.check(numbers[first :: len(MODELS)])
    assert len({length for *_, found in compared for length in found.lengths.tolist()}) > 1
