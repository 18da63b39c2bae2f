"""What every strategy promises: rows of their own, each device, whatever logits there are, and whom it calls."""

from __future__ import annotations

import linecache
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.decoding import sample, sample_and_rank
from ascend_sample.decoding.model import StepOutput
from ascend_sample.decoding.models.module_model import ModuleModel, TokenHistory
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.sampling import SamplingParams
from tests.decoding.every_strategy import EACH, OF_BEAMS, PROCESSED, STEP_BY_STEP, STRATEGIES, names
from tests.decoding.table_models import IMPOSSIBLE, UNCALLED, random_table, table_model, tiny_model

INF, NAN = math.inf, math.nan
VOCAB_SIZE = 7
PROMPTS = torch.tensor([[9, 3, 1], [4, 9, 2], [5, 6, 7], [9, 9, 0], [1, 9, 9]])
MASK = torch.tensor([[0, 1, 1], [1, 0, 1], [1, 1, 1], [0, 0, 1], [1, 0, 0]])
ROOM = [6, 2, 9, 5, 7]
MIXED = [
    SamplingParams(temperature=0.7, top_k=5, seed=11),
    SamplingParams(top_p=0.9, seed=2**64 - 1),
    SamplingParams(min_p=0.05, seed=0),
    SamplingParams(temperature=0.01, seed=3),
    SamplingParams(temperature=1.5, seed=11),
]
PENALISED = [
    replace(MIXED[0], frequency_penalty=0.4, min_tokens=3, stop_token_ids=[0, 5]),
    replace(MIXED[1], repetition_penalty=1.3),
    replace(MIXED[2], suppress_token_ids=[3]),
    SamplingParams(temperature=0),
    MIXED[4],
]
"""Beams have no penalties."""


def with_column(value: float, *columns: int) -> Tensor:
    table = random_table(VOCAB_SIZE)
    table[:, columns] = value
    return table


def spoilt_table(value: float) -> Tensor:
    """Random logits, of which each row has one that is spoilt, at another place."""
    table, places = random_table(9), torch.arange(9)
    table[places, places * 2 % 9] = value
    return table


def column(*tokens: int, device: str = "cpu") -> Tensor:
    """Prompts of a token each."""
    return torch.tensor(tokens, device=device)[:, None]


@EACH
def test_a_row_has_its_texts_and_scores_in_any_batch(name: str) -> None:
    """Padding anywhere, lengths, stop tokens and requests of its own; the last row ends long after the others."""
    strategy, model = STRATEGIES[name], tiny_model(vocab_size=11, sharpness=1.0)
    options: dict[str, Any] = {"eos_token_id": [0, 5], **strategy.several}
    options |= strategy.drafted_by(tiny_model(vocab_size=11, sharpness=0.7))
    options |= {"return_scores": True} if strategy.has_beams else {}

    def search(rows: list[int], input_ids: Tensor, **given: Any) -> DecodeOutput:
        params = MIXED if strategy.has_beams else PENALISED
        own: dict[str, Any] = {"params": [params[row] for row in rows]} if strategy.is_drawn else {}
        room = [ROOM[row] for row in rows]
        return strategy.search(model, input_ids, max_new_tokens=room, **options, **own, **given)

    order = [3, 1, 4, 0, 2]
    together = search(order, PROMPTS[order], attention_mask=MASK[order])
    copies = len(together.lengths) // len(order)
    for place, row in enumerate(order):
        alone = search([row], PROMPTS[row : row + 1, MASK[row].bool()])
        here = slice(copies * place, copies * (place + 1))
        assert alone.to_lists() == together.to_lists()[here]
        torch.testing.assert_close(alone.sequences_scores, together.sequences_scores[here])
        if alone.scores is not None and together.scores is not None:
            torch.testing.assert_close(alone.scores[1], together.scores[1][here])
    assert len(set(together.lengths.tolist())) > 2, "texts must end early"


@EACH
def test_each_device_and_type_finds_the_same(name: str, device: str) -> None:
    """The logits have the same bits in all of these types; torch's default and a drafter may have another."""
    strategy, table = STRATEGIES[name], random_table(30, spread=4.0).round()
    prompts, options = PROMPTS[:3], {"attention_mask": MASK[:3], "max_new_tokens": [5, 3, 4], "eos_token_id": [2, 9]}
    expected = strategy.search(table_model(table), prompts, **strategy.drafted_by(table_model(table)), **options)
    options["attention_mask"] = MASK[:3].to(device)
    types = (torch.float32, torch.bfloat16, torch.float64, torch.int32)
    for dtype in types if device == "cpu" else types[:2]:
        model, drafter = table_model(table.to(dtype), device), table_model(table, device)
        torch.set_default_dtype(torch.bfloat16)
        try:
            found = strategy.search(model, prompts.to(device), **strategy.drafted_by(drafter), **options)
        finally:
            torch.set_default_dtype(torch.float32)
        assert found.sequences.device.type == device
        assert found.to_lists() == expected.to_lists()
        torch.testing.assert_close(found.sequences_scores.cpu(), expected.sequences_scores)


@pytest.mark.parametrize("name", names(is_drawn=True))
def test_rows_without_a_seed_follow_the_generator_each_by_itself(name: str) -> None:
    def draw(seed: int) -> list[list[int]]:
        options: dict[str, Any] = {"params": SamplingParams(), "generator": torch.Generator().manual_seed(seed)}
        model = table_model(torch.zeros(11, 11))
        return STRATEGIES[name].search(model, PROMPTS[[0, 0]], max_new_tokens=9, **options).to_lists()

    first = draw(0)
    assert first == draw(0)
    assert first != draw(1)
    assert first[0] != first[1]


@pytest.mark.filterwarnings("error::RuntimeWarning")
@EACH
def test_entries_of_plus_infinity_share_the_mass(name: str, device: str) -> None:
    strategy, prompts = STRATEGIES[name], column(1, 2, device=device)
    model, two = (table_model(with_column(INF, *columns), device) for columns in ([3], [3, 5]))
    for ends in ((), (0,)):  # log-probabilities come at the end, or with each step where one can be the last
        alone = strategy.search(model, prompts, max_new_tokens=4, eos_token_id=ends, **strategy.drafted_by(model))
        assert alone.to_lists() == [[3] * 4] * 2
        assert alone.sequences_scores.tolist() == [0.0, 0.0]
        shared = strategy.search(two, prompts, max_new_tokens=1, eos_token_id=ends)
        assert {text[0] for text in shared.to_lists()} <= {3, 5}
        assert shared.sequences_scores.tolist() == [pytest.approx(-math.log(2))] * 2


@pytest.mark.filterwarnings("error::RuntimeWarning")
@EACH
def test_nan_counts_as_minus_infinity(name: str, device: str) -> None:
    strategy = STRATEGIES[name]
    found, expected = (
        strategy.search(
            model, column(1, 2, device=device), max_new_tokens=4, **strategy.drafted_by(model), **strategy.several
        )
        for model in (table_model(spoilt_table(value), device) for value in (NAN, -INF))
    )
    assert found.to_lists() == expected.to_lists()
    assert found.sequences_scores.isfinite().all()
    assert found.sequences_scores.equal(expected.sequences_scores)


@EACH
@pytest.mark.parametrize("value", [NAN, -INF])
def test_rows_with_nothing_to_choose_are_named_at_the_callers_line(name: str, value: float) -> None:
    """After token 2 there is nothing; token 2 is never generated."""
    table = with_column(-INF, 2)
    table[2] = value
    message = rf"^{name.split()[0]}: in the {STRATEGIES[name].warns_of} \[1\] some step had no token left to choose, ev"
    with pytest.warns(RuntimeWarning, match=message) as caught:
        output = STRATEGIES[name].search(table_model(table), column(1, 2, 4), max_new_tokens=1)
    assert output.sequences_scores.isneginf().tolist() == [False, True, False]
    assert [warning.filename for warning in caught] == [__file__]
    assert "STRATEGIES[name].search(" in linecache.getline(__file__, caught[0].lineno)


@OF_BEAMS
def test_prompts_whose_beams_find_nothing_later_are_named(name: str, device: str) -> None:
    """After token 5 there is nothing but 2, and after token 2 nothing."""
    table = with_column(-INF, 2)
    table[5, :], table[2] = -INF, NAN
    table[5, 2] = 0.0
    with pytest.warns(RuntimeWarning, match=r"in the prompts \[1\] some step had no token left to choose"):
        output = STRATEGIES[name].search(table_model(table, device), column(1, 5, 4, device=device), max_new_tokens=3)
    assert output.sequences_scores.isneginf().tolist() == [False, True, False]
    assert output.lengths.tolist() == [3, 0, 3]


def test_masks_leave_nan_alone() -> None:
    """The only finite logits are those of tokens that are not allowed, the token of an empty row among them."""
    model = table_model(torch.tensor([[1.0, NAN, NAN, 2.0]]).expand(4, -1))
    with pytest.warns(RuntimeWarning, match=r"sample: in the rows \[0\] some step had no token left"):
        output = sample(model, column(0), SamplingParams(allowed_token_ids=[1, 2], seed=1), max_new_tokens=1)
    assert output.sequences_scores.tolist() == [-INF]


def test_the_prompts_of_ranked_texts_are_named() -> None:
    table = with_column(-INF, 2)
    table[2] = NAN
    options: dict[str, Any] = {"max_new_tokens": 1, "num_samples": 5, "num_return_sequences": 2}
    with pytest.warns(RuntimeWarning, match=r"sample_and_rank: in the prompts \[2\] some step had no token left"):
        output = sample_and_rank(table_model(table), column(1, 4, 2), SamplingParams(seed=1), **options)
    assert output.sequences_scores.isneginf().tolist() == [False, False, False, False, True, True]


@pytest.mark.parametrize("name", STEP_BY_STEP)
def test_a_row_that_is_done_needs_no_token(name: str) -> None:
    """Nor is it impossible where another one is."""

    def forbid_later(input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores if input_ids.shape[1] == 1 else torch.full_like(scores, -INF)

    options: dict[str, Any] = {"max_new_tokens": [1, 3], "logits_processor": [forbid_later]}
    with pytest.warns(RuntimeWarning, match=r"in the rows \[1\]"):
        found = STRATEGIES[name].search(table_model(random_table()), column(0, 1), **options)
    assert found.sequences_scores.isfinite().tolist() == [True, False]


class EightPositions(ModuleModel):
    """A model whose rows must not grow beyond eight tokens, and that leaves gradients to its caller."""

    def _run(self, history: TokenHistory) -> tuple[Tensor, Tensor | None]:
        assert not torch.is_grad_enabled()
        return super()._run(history)

    def decode(self, tokens: Tensor, cache: TokenHistory) -> StepOutput:
        assert int(cache.lengths.max()) < 8, "a row has outgrown the model"
        return super().decode(tokens, cache)


@PROCESSED
def test_rows_that_are_done_do_not_grow(name: str) -> None:
    """Together a prompt of 6 tokens and one of 1: 6 + 2 and 1 + 7 are 8, but 6 + 6 is more."""
    prompts = torch.tensor([[1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 7]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1]])
    model = EightPositions(table_model(random_table(9, seed=1)).module)
    found = STRATEGIES[name].search(model, prompts, attention_mask=mask, max_new_tokens=[2, 7])
    assert found.lengths.tolist() == [2, 7]


class CountingReorders(ModuleModel):
    """Counts how often its cache's rows are taken."""

    reorders = 0

    def reorder(self, cache: TokenHistory, index: Tensor) -> TokenHistory:
        self.reorders += 1
        return super().reorder(cache, index)


@pytest.mark.parametrize("name", ["greedy_search", "sample"])
def test_a_cache_moves_where_rows_end_and_nowhere_else(name: str) -> None:
    model = CountingReorders(table_model(random_table()).module)
    STRATEGIES[name].search(model, column(0, 1, 2, 3), max_new_tokens=[2, 1, 7, 2])
    assert model.reorders == 2  # after the first step and the second


@PROCESSED
def test_processors_see_no_nan_and_padding_behind_the_end_of_a_row(name: str, device: str) -> None:
    """What they make NaN is forbidden."""
    table, seen = random_table(), []
    table[:, 3] = NAN

    def look(input_ids: Tensor, scores: Tensor) -> Tensor:
        seen.append(input_ids[0, 2:].tolist())
        assert scores[:, 3].isneginf().all()
        return scores.index_fill(1, torch.tensor([2], device=device), NAN)

    options: dict[str, Any] = {"max_new_tokens": [1, 4], "pad_token_id": 77, "logits_processor": [look]}
    found = STRATEGIES[name].search(table_model(table, device), column(0, 1, device=device), **options)
    assert found.sequences_scores.isfinite().all()
    assert not {2, 3} & set(found.sequences.flatten().tolist())
    if name in STEP_BY_STEP:
        assert seen == [[], [], [77], [77, 77]]


@PROCESSED
def test_whoever_looks_changes_nothing(name: str, device: str) -> None:
    strategy = STRATEGIES[name]
    looks: list[dict[str, Any]] = [
        {"return_scores": True},
        {"stopping_criteria": [lambda ids, scores: bool(scores[-1].isnan().any())]},
        {"logits_processor": [lambda ids, scores: scores]},
    ]
    for spoilt, dtype in ((0.5, torch.float32), (NAN, torch.bfloat16), (INF, torch.float32)):
        table = spoilt_table(spoilt)
        # Of equals a processor makes others the first.
        tables = table, torch.cat((table[:4], table[4:].round()))
        options: dict[str, Any] = {"max_new_tokens": 4, "eos_token_id": 0, **strategy.several}
        for rows, looked in ((tables[1], looks[:2]), (tables[0], looks[2:])):
            model = table_model(rows.to(dtype), device)
            found = strategy.search(model, column(1, 2, 3, device=device), **options)
            for look in looked:
                again = strategy.search(model, column(1, 2, 3, device=device), **options, **look)
                assert torch.equal(again.sequences, found.sequences)
                assert torch.equal(again.sequences_scores, found.sequences_scores)
                assert not strategy.has_beams or torch.equal(again.beam_indices, found.beam_indices)


@PROCESSED
def test_a_criterion_sees_the_scores_of_its_step_and_may_speak_for_all_rows(name: str) -> None:
    for is_kept in (False, True):
        seen: list[tuple[int, tuple[Tensor, ...]]] = []

        def look(input_ids: Tensor, scores: tuple[Tensor, ...], seen: Any = seen) -> bool:
            seen.append((input_ids.shape[1] - 1, tuple(step.clone() for step in scores)))
            return False

        options: dict[str, Any] = {"max_new_tokens": 3, "stopping_criteria": [look], "return_scores": is_kept}
        found = STRATEGIES[name].search(table_model(random_table(9).half()), column(1), **options)
        assert {length for length, _ in seen} == {1, 2, 3}
        assert all(len(scores) == (length if is_kept else 1) for length, scores in seen)
        assert {(step.dtype, step.shape[1]) for _, scores in seen for step in scores} == {(torch.float32, 9)}
        assert (found.scores is not None) == is_kept
        for length, scores in (seen[1::2] if name == "group_beam_search" else seen) if is_kept else ():
            assert torch.equal(scores[-1], (found.scores or ())[length - 1])
    for answer in (True, torch.tensor(True), (torch.ones(1) > 0).numpy()[0]):
        options = {"max_new_tokens": 3, "stopping_criteria": [lambda ids, scores, it=answer: it]}
        found = STRATEGIES[name].search(table_model(random_table()), PROMPTS, **options)
        assert set(found.lengths.tolist()) == {1}


@EACH
def test_progress_names_the_strategy(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    STRATEGIES[name].search(table_model(random_table()), PROMPTS, max_new_tokens=3, progress=True)
    assert name.split()[0] in (shown := capsys.readouterr().err)
    assert "3/3" in shown
    STRATEGIES[name].search(table_model(random_table()), PROMPTS, max_new_tokens=3)
    assert not capsys.readouterr().err


@OF_BEAMS
def test_padding_may_be_beyond_the_vocabulary(name: str, device: str) -> None:
    prompts = torch.tensor([[1], [2], [3]], device=device)
    padded, tolerance = 0, 0.0
    for seed in range(2):
        table = random_table(7, seed)
        options: dict[str, Any] = {"max_new_tokens": 7, "eos_token_id": [5, 6], **STRATEGIES[name].several}
        found = STRATEGIES[name].search(table_model(table, device), prompts, pad_token_id=7, **options)
        padded += int((found.sequences == 7).sum())
        padding = 0
        if name == "group_beam_search":  # which penalises a padding token of the vocabulary: here one without hope
            table, padding = torch.nn.functional.pad(table, (0, 1, 0, 1), value=IMPOSSIBLE), 7
            tolerance = 1e-6  # a device's float32 sum over one more token may round otherwise
        expected = STRATEGIES[name].search(table_model(table, device), prompts, pad_token_id=padding, **options)
        assert found.to_lists() == expected.to_lists()
        torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, rtol=0, atol=tolerance)
    assert padded > 0


@OF_BEAMS
def test_a_length_penalty_stays_within_the_range_of_float32(name: str) -> None:
    model, prompt = table_model(random_table(9, seed=1)), torch.tensor([[1]])
    for penalty in (12.0, -12.0):
        options: dict[str, Any] = {"max_new_tokens": 40, "length_penalty": penalty, **STRATEGIES[name].several}
        found = STRATEGIES[name].search(model, prompt, **options)
        assert found.sequences_scores.isfinite().all()
        assert (found.sequences_scores < 0).all()
        assert (found.lengths > 0).all()
    message = r"length_penalty must be in \[-.*\] with that many new tokens, got .*\. [A-Z]"
    for penalty in (200, -200, 1e300):
        with pytest.raises(ValueError, match=message):
            STRATEGIES[name].search(UNCALLED, prompt, max_new_tokens=40, length_penalty=penalty)
    assert STRATEGIES[name].search(model, prompt, max_new_tokens=1, length_penalty=1e300).lengths.tolist() == [1]
