"""Greedy search: worked by hand, beside transformers' generate, and on both devices."""

from __future__ import annotations

import functools
import itertools
import math
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

from ascend_sample.decoding import request as request_module
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.strategies import loop
from ascend_sample.decoding.strategies.greedy import greedy_search
from tests.decoding.generate_parity import MODELS, generate, log_probabilities, make_prompts
from tests.decoding.planting import Trap, noticed
from tests.decoding.table_models import probability_table, random_table, table_model
from tests.decoding.tiny_models import tiny_model
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


@pytest.mark.parametrize("is_kept", [True, False])
def test_criteria_see_all_scores_where_they_are_kept(is_kept: bool) -> None:
    seen = []

    def look(input_ids: Tensor, scores: tuple[Tensor, ...]) -> bool:
        seen.append([step.dtype for step in scores])
        return False

    output = greedy_search(
        table_model(CHAIN.half()), PROMPTS, max_new_tokens=3, stopping_criteria=[look], return_scores=is_kept
    )
    assert seen == [[torch.float32] * (step if is_kept else 1) for step in (1, 2, 3)]
    assert (output.scores is not None) == is_kept


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


def test_progress_shows_the_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    greedy_search(table_model(CHAIN), PROMPTS, max_new_tokens=3, progress=True)
    assert "greedy_search" in capsys.readouterr().err
    greedy_search(table_model(CHAIN), PROMPTS, max_new_tokens=3)
    assert not capsys.readouterr().err


def test_a_row_without_a_token_is_named() -> None:
    def forbid_all_in_row_1(input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.index_fill(0, torch.tensor([1]), -torch.inf)

    with pytest.warns(RuntimeWarning, match=r"greedy_search: in the rows \[1\] some step had no token left"):
        output = greedy_search(table_model(CHAIN), PROMPTS, max_new_tokens=2, logits_processor=[forbid_all_in_row_1])
    assert output.sequences_scores.isneginf().tolist() == [False, True, False]


def test_a_row_that_is_done_needs_no_token(recwarn: pytest.WarningsRecorder) -> None:
    def forbid_all_in_row_0_later(input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores if input_ids.shape[1] == 1 else scores.index_fill(0, torch.tensor([0]), -torch.inf)

    output = greedy_search(
        table_model(CHAIN), PROMPTS, max_new_tokens=[1, 3, 3], logits_processor=[forbid_all_in_row_0_later]
    )
    assert not [one for one in recwarn if one.category is RuntimeWarning]
    assert not output.sequences_scores.isinf().any()


def test_nan_is_never_chosen() -> None:
    table = CHAIN.clone()
    table[0, 1] = math.nan
    output = greedy_search(table_model(table), PROMPTS[:1], max_new_tokens=1)
    assert output.to_lists() == [[0]]
    torch.testing.assert_close(output.sequences_scores.exp(), torch.tensor([1 / 3]))


def test_16_bit_logits_are_searched_as_they_are(device: str) -> None:
    table = random_table(spread=3.0).round()  # small integers, the same in every dtype, with ties
    expected = greedy_search(table_model(table), PROMPTS, max_new_tokens=6)
    found = greedy_search(table_model(table.bfloat16().to(device)), PROMPTS.to(device), max_new_tokens=6)
    assert found.to_lists() == expected.to_lists()
    torch.testing.assert_close(found.sequences_scores.cpu(), expected.sequences_scores)


def test_a_row_has_the_same_tokens_in_any_batch() -> None:
    model = tiny_model(seed=3)
    prompts, mask = torch.tensor([[9, 3, 1], [4, 9, 2], [5, 6, 7]]), torch.tensor([[0, 1, 1], [1, 0, 1], [1, 1, 1]])
    together = greedy_search(model, prompts, max_new_tokens=[6, 2, 9], attention_mask=mask, eos_token_id=[0, 5])
    for row, limit in enumerate((6, 2, 9)):
        alone = greedy_search(model, prompts[row : row + 1, mask[row].bool()], max_new_tokens=limit,
                              eos_token_id=[0, 5])  # fmt: skip
        assert alone.to_lists()[0] == together.to_lists()[row]
        torch.testing.assert_close(alone.sequences_scores[0], together.sequences_scores[row])


def test_the_same_tokens_on_both_devices(device: str) -> None:
    table = random_table()
    prompts, mask = torch.tensor([[0, 3], [4, 7], [5, 0]]), torch.tensor([[0, 1], [1, 1], [1, 0]])
    options: dict[str, Any] = {"max_new_tokens": [6, 3, 5], "eos_token_id": [2, 9]}
    expected = greedy_search(table_model(table), prompts, attention_mask=mask, **options)
    found = greedy_search(table_model(table.to(device)), prompts.to(device), attention_mask=mask.to(device), **options)
    assert found.sequences.device.type == device
    assert found.to_lists() == expected.to_lists()
    torch.testing.assert_close(found.sequences_scores.cpu(), expected.sequences_scores)


def stops_at_either_id() -> None:
    output = greedy_search(table_model(CHAIN), PROMPTS, max_new_tokens=4, eos_token_id=[2, 3])
    assert output.to_lists() == [[1, 2], [2], [3]]


def ends_exactly_at_the_limit() -> None:
    assert greedy_search(table_model(CHAIN), PROMPTS, max_new_tokens=[1, 3, 2]).lengths.tolist() == [1, 3, 2]


def id_0_is_a_token() -> None:
    assert greedy_search(table_model(CHAIN), torch.tensor([[2]]), max_new_tokens=2).to_lists() == [[0, 1]]


def a_finished_row_gets_padding_alone() -> None:
    output = greedy_search(table_model(CHAIN), PROMPTS, max_new_tokens=3, eos_token_id=2, pad_token_id=0)
    assert output.sequences.tolist() == [[1, 2, 0], [2, 0, 0], [3, 3, 3]]
    torch.testing.assert_close(output.sequences_scores.exp(), torch.tensor([0.42, 0.6, 0.343]))


def a_finished_row_does_not_grow() -> None:
    """The model has 96 positions; all rows need fewer, but not the long prompts with the longest text."""
    prompts, mask = torch.ones(3, 90, dtype=torch.int64), torch.ones(3, 90, dtype=torch.int64)
    mask[1, 2:] = 0
    output = greedy_search(step_model("gpt2"), prompts, max_new_tokens=[2, 12, 4], attention_mask=mask)
    alone = greedy_search(step_model("gpt2"), prompts[1:2, :2], max_new_tokens=12)
    assert output.lengths.tolist() == [2, 12, 4]
    assert output.to_lists()[1] == alone.to_lists()[0]


TRAPS = [
    Trap(
        "two stop ids never finish (001)",
        request_module,
        "torch.isin(tokens, self.eos_token_ids)",
        "(tokens[..., None] == self.eos_token_ids).all(dim=-1)",
        stops_at_either_id,
    ),
    Trap(
        "a start token that is a stop token ends the row (000)",
        loop,
        'self.is_done = torch.zeros(rows, dtype=torch.bool, device="cpu")',
        "self.is_done = request.is_eos(prompts[:, -1])",
        test_a_stop_token_in_the_prompt_ends_nothing,
    ),
    Trap(
        "rows overshoot their length (003)",
        loop,
        "(self._lengths >= self._max_new_tokens)",
        "(self._lengths > self._max_new_tokens)",
        ends_exactly_at_the_limit,
    ),
    Trap(
        "id 0 is taken for nothing (003)",
        loop,
        "self._lengths += ~was_done",
        "self._lengths += ~was_done & tokens.cpu().bool()",
        id_0_is_a_token,
    ),
    Trap(
        "finished rows run out of positions",
        loop,
        "if texts.stand_in is not None:",
        "if texts.stand_in is texts:",
        a_finished_row_does_not_grow,
    ),
    Trap(
        "a finished row is still scored",
        loop,
        "log_probs.masked_fill(was_done, 0.0)",
        "log_probs",
        a_finished_row_gets_padding_alone,
    ),
]

test_trap = noticed(TRAPS)


PARITY_SEEDS = 4
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
STOPS = (1, 2)
"""How many stop ids there are."""


@pytest.mark.parametrize(("kind", "processor"), list(itertools.product(MODELS, PROCESSORS)))
def test_the_sequences_and_scores_of_generate(kind: str, processor: str) -> None:
    """8 configurations each: one and two stop ids, and several seeds."""
    asked, made = PROCESSORS[processor]
    lengths = set()
    for seed in range(PARITY_SEEDS):
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
        for stops in STOPS:
            eos = [int(endless[0, 2]), int(endless[1, 3])][:stops]
            output = search(eos_token_id=eos, pad_token_id=PAD, logits_processor=made(given.attention_mask, eos))
            expected = generate(tiny_transformer(kind, seed % 2), given, eos, max_new_tokens=NEW_TOKENS, **asked)
            tokens = expected.output.sequences[:, given.input_ids.shape[1] :]
            assert output.sequences.tolist() == tokens.tolist()
            assert output.to_lists() == expected.sequences
            torch.testing.assert_close(output.sequences_scores, log_probabilities(expected), atol=1e-4, rtol=0)
            lengths |= set(output.lengths.tolist())
    assert len(lengths) > 1


def test_there_are_enough_configurations() -> None:
    assert len(MODELS) * len(PROCESSORS) * len(STOPS) * PARITY_SEEDS >= 150
