"""What all beam searches promise of a step: few looks at the device, rows that do not outgrow the model, no NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample import hostcann
from ascend_sample.decoding.beams.beam import beam_search
from ascend_sample.decoding.beams.group_beam import group_beam_search
from ascend_sample.decoding.beams.sampled_beam import beam_sample
from ascend_sample.decoding.model import StepOutput
from ascend_sample.decoding.models.module_model import ModuleModel, TokenHistory
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.sampling import SamplingParams
from ascend_sample.sampling.draws.best_tokens import best_tokens
from tests.decoding.beams.probability_models import EOS, START, A, random_table, table_model
from tests.decoding.table_models import UNCALLED

SEARCHES: dict[str, Callable[..., DecodeOutput]] = {
    "pool": beam_search,
    "in_beam": lambda *inputs, **options: beam_search(*inputs, finished="in_beam", **options),
    "sample": lambda *inputs, **options: beam_sample(*inputs, SamplingParams(seed=1, top_k=3), **options),
    "groups": lambda *inputs, **options: group_beam_search(
        *inputs, num_beam_groups=2, diversity_penalty=0.5, **options
    ),
}
EACH = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)


def counted(search: Callable[..., DecodeOutput], npu: str, steps: int, **options: Any) -> hostcann.Profile:
    """What a search of so many steps did."""
    model = table_model(random_table(16, seed=0, sharpness=0.3), npu)
    prompts = torch.ones(3, 2, dtype=torch.int64, device=npu)
    with hostcann.profile() as counters:
        output = search(model, prompts, max_new_tokens=steps, num_beams=4, **options)
    assert output.lengths.tolist() == [steps] * 3
    return counters


@EACH
def test_a_step_reads_from_the_device_at_most_once(
    counting: None, npu: str, search: Callable[..., DecodeOutput]
) -> None:
    for options, reads in (({}, 0), ({"eos_token_id": 99}, 1)):
        few, many = (counted(search, npu, steps, **options) for steps in (3, 9))
        assert many.copies.get("d2h", 0) - few.copies.get("d2h", 0) == 6 * reads
        assert many.totals.waits - few.totals.waits == 6 * 2 * reads, "a read waits for the stream and for itself"
        noise = 1 if search is SEARCHES["sample"] else 0
        assert many.copies.get("h2d", 0) - few.copies.get("h2d", 0) == 6 * noise, "one copy, which nobody waits for"


@EACH
def test_prompts_that_are_done_do_not_grow(search: Callable[..., DecodeOutput]) -> None:
    class EightPositions(ModuleModel):
        def decode(self, tokens: Tensor, cache: TokenHistory) -> StepOutput:
            assert int(cache.lengths.max()) < 8, "a row has outgrown the model"
            return super().decode(tokens, cache)

    table = random_table(9, seed=1).log()
    # Together a prompt of 6 tokens and one of 1: 6 + 2 and 1 + 7 are 8, but 6 + 6 is more.
    prompts = torch.tensor([[1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 7]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1]])
    found = search(
        EightPositions(lambda input_ids: table[input_ids]),
        prompts,
        attention_mask=mask,
        max_new_tokens=[2, 7],
        num_beams=2,
    )
    assert found.lengths.tolist() == [2, 7]


def spoilt_table(spoilt: float, dtype: torch.dtype, seed: int) -> Tensor:
    """Random logits [9, 9], of which each row has one that is spoilt, at another place."""
    table = torch.randn(9, 9, generator=torch.Generator().manual_seed(seed)) * 2
    places = torch.arange(9)
    table[places, places * 2 % 9] = spoilt
    return table.to(dtype)


def of_table(table: Tensor) -> ModuleModel:
    return ModuleModel(lambda input_ids: torch.nn.functional.embedding(input_ids, table))


@EACH
def test_nan_is_a_token_that_cannot_be(search: Callable[..., DecodeOutput], device: str) -> None:
    prompts = torch.tensor([[1], [2]], device=device)
    for seed in range(2):
        options: dict[str, Any] = {"max_new_tokens": 4, "num_beams": 2, "num_return_sequences": 2, "eos_token_id": 0}
        spoilt, forbidden = (
            search(of_table(spoilt_table(value, torch.float32, seed).to(device)), prompts, **options)
            for value in (torch.nan, -torch.inf)
        )
        assert spoilt.sequences_scores.isfinite().all()
        assert spoilt.to_lists() == forbidden.to_lists()
        assert torch.equal(spoilt.sequences_scores, forbidden.sequences_scores)


@EACH
def test_infinities_share_the_mass(search: Callable[..., DecodeOutput], device: str) -> None:
    logits = torch.zeros(7, device=device)
    logits[3] = torch.inf
    model = ModuleModel(lambda input_ids: logits.expand(*input_ids.shape, 7))
    options: dict[str, Any] = {"max_new_tokens": 1, "num_beams": 2, "num_return_sequences": 2}
    if search is not SEARCHES["groups"]:
        found = search(model, torch.tensor([[1]], device=device), **options)
        assert found.to_lists() == [[3], []]
        assert found.sequences_scores.tolist() == [0.0, -torch.inf]
    logits[5] = torch.inf
    found = search(model, torch.tensor([[1]], device=device), **options)
    assert sorted(found.to_lists()) == [[3], [5]]
    assert found.sequences_scores.exp().tolist() == pytest.approx([0.5, 0.5])


@EACH
@pytest.mark.parametrize("spoilt", [0.5, torch.nan, torch.inf])
def test_whoever_looks_at_scores_changes_nothing(
    search: Callable[..., DecodeOutput], device: str, spoilt: float
) -> None:
    prompts = torch.tensor([[1], [2], [3]], device=device)
    options: dict[str, Any] = {"max_new_tokens": 4, "num_beams": 4, "num_return_sequences": 4, "eos_token_id": 0}
    for seed, dtype in enumerate((torch.float32, torch.bfloat16)):
        table = spoilt_table(spoilt, dtype, seed)
        table[4:] = table[4:].round()  # many equals
        model = of_table(table.to(device))
        found = search(model, prompts, **options)
        for looked in (
            {"return_scores": True},
            {"stopping_criteria": [lambda ids, scores: bool(scores[-1].isnan().any())]},
        ):
            again = search(model, prompts, **options, **looked)
            assert torch.equal(again.sequences, found.sequences)
            assert torch.equal(again.sequences_scores, found.sequences_scores)
            assert torch.equal(again.beam_indices, found.beam_indices)


@EACH
def test_a_processor_that_changes_nothing_finds_the_same(search: Callable[..., DecodeOutput], device: str) -> None:
    prompts = torch.tensor([[1], [2], [3]], device=device)
    options: dict[str, Any] = {"max_new_tokens": 5, "num_beams": 4, "num_return_sequences": 4, "eos_token_id": 0}
    for seed, dtype in enumerate((torch.float32, torch.bfloat16)):
        model = of_table(spoilt_table(torch.nan, dtype, seed).to(device))
        found = search(model, prompts, **options)
        again = search(model, prompts, logits_processor=[lambda input_ids, scores: scores], **options)
        assert again.to_lists() == found.to_lists()
        assert torch.equal(again.sequences_scores, found.sequences_scores)


def test_where_sums_are_equal_devices_find_the_same_bits(npu: str) -> None:
    # What a device computes otherwise is a row's largest log-probability; here are only rows where that is no other.
    rows = torch.randn(900, 60, generator=torch.Generator().manual_seed(0)) * 2
    for dtype in (torch.float32, torch.bfloat16):
        logits = rows.to(dtype)
        differs = (best_tokens(logits, 1, 1.0)[0] != best_tokens(logits.to(npu), 1, 1.0)[0].cpu()).flatten()
        tables = logits[~differs]
        assert len(tables) >= 300, "equal ones are what is usual"
        for start in range(0, 300, 60):
            table = tables[start : start + 60]
            for name in ("pool", "in_beam", "groups"):
                options: dict[str, Any] = {
                    "max_new_tokens": 5,
                    "num_beams": 4,
                    "num_return_sequences": 4,
                    "eos_token_id": 0,
                }
                prompts = torch.arange(8)[:, None]
                expected = SEARCHES[name](of_table(table), prompts, **options)
                found = SEARCHES[name](of_table(table.to(npu)), prompts.to(npu), **options)
                assert torch.equal(found.sequences.cpu(), expected.sequences)
                assert torch.equal(found.sequences_scores.cpu(), expected.sequences_scores)


@EACH
def test_padding_may_be_beyond_the_vocabulary(search: Callable[..., DecodeOutput], device: str) -> None:
    prompts = torch.tensor([[1], [2], [3]], device=device)
    padded = 0
    for seed in range(2):
        table = random_table(7, seed)
        options: dict[str, Any] = {
            "max_new_tokens": 7,
            "num_beams": 4,
            "num_return_sequences": 4,
            "eos_token_id": [5, 6],
        }
        found = search(table_model(table, device), prompts, pad_token_id=7, **options)
        padded += int((found.sequences == 7).sum())
        if search is SEARCHES["groups"]:  # a padding token inside of the vocabulary is penalised: here one without hope
            table = torch.nn.functional.pad(table, (0, 1, 0, 1))
            expected = search(table_model(table, device), prompts, pad_token_id=7, **options)
            tolerance = 1e-6  # a device's float32 sum over one more token may round otherwise
        else:
            expected = search(table_model(table, device), prompts, pad_token_id=0, **options)
            tolerance = 0.0
        assert found.to_lists() == expected.to_lists()
        torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, rtol=0, atol=tolerance)
    assert padded > 0


def test_a_stop_token_beyond_the_vocabulary_is_never_said(device: str) -> None:
    prompts = torch.tensor([[1], [2]], device=device)
    model = table_model(random_table(7, seed=1), device)
    for finished in ("pool", "in_beam"):
        options: dict[str, Any] = {"max_new_tokens": 4, "num_beams": 2, "finished": finished, "eos_penalty": 0.5}
        found = beam_search(model, prompts, eos_token_id=[7, 0, 99], **options)
        expected = beam_search(model, prompts, eos_token_id=0, **options)
        assert torch.equal(found.sequences, expected.sequences)
        assert torch.equal(found.sequences_scores, expected.sequences_scores)


@EACH
def test_a_criterion_sees_the_scores_of_its_step(search: Callable[..., DecodeOutput]) -> None:
    model, prompt = table_model(random_table(9, seed=1)), torch.tensor([[1]])
    for return_scores in (False, True):
        seen = []

        def look(input_ids: Tensor, scores: tuple[Tensor, ...]) -> bool:
            seen.append((input_ids.shape[1] - 1, len(scores), scores[-1].shape, scores[-1].clone()))  # noqa: B023
            return False

        options: dict[str, Any] = {"max_new_tokens": 3, "num_beams": 2, "stopping_criteria": [look]}
        found = search(model, prompt, return_scores=return_scores, **options)
        assert {length for length, *_ in seen} == {1, 2, 3}
        assert all(count == (length if return_scores else 1) for length, count, *_ in seen)
        assert all(shape == (2, 9) for _, _, shape, _ in seen)
        assert (found.scores is not None) == return_scores
        if found.scores is not None:
            for length, _, _, last in seen[1::2] if search is SEARCHES["groups"] else seen:
                assert torch.equal(last, found.scores[length - 1])


@EACH
def test_no_gradient_is_kept(search: Callable[..., DecodeOutput]) -> None:
    class Learning(ModuleModel):
        def _run(self, history: TokenHistory) -> tuple[Tensor, Tensor | None]:
            return table[history.tokens], None

    table = torch.nn.Parameter(torch.randn(9, 9))
    model = Learning(torch.nn.Identity())
    assert model.prefill(torch.tensor([[1]])).logits.requires_grad
    found = search(model, torch.tensor([[1]]), max_new_tokens=3, num_beams=2, return_scores=True)
    assert not found.sequences_scores.requires_grad
    assert not any(scores.requires_grad for scores in found.scores or ())


@EACH
def test_a_length_penalty_leaves_the_range_of_float32(search: Callable[..., DecodeOutput]) -> None:
    model, prompt = table_model(random_table(9, seed=1)), torch.tensor([[1]])
    for penalty in (12.0, -12.0):
        found = search(model, prompt, max_new_tokens=40, num_beams=2, num_return_sequences=2, length_penalty=penalty)
        assert found.sequences_scores.isfinite().all()
        assert (found.sequences_scores < 0).all()
        assert (found.lengths > 0).all()
    for penalty in (200, -200, 1e300):
        with pytest.raises(
            ValueError, match=r"length_penalty must be in \[-.*\] with that many new tokens, got .*\. [A-Z]"
        ):
            search(UNCALLED, prompt, max_new_tokens=40, num_beams=2, length_penalty=penalty)
    assert search(model, prompt, max_new_tokens=1, num_beams=2, length_penalty=1e300).lengths.tolist() == [1]


@EACH
def test_a_processor_that_makes_nan_forbids(search: Callable[..., DecodeOutput]) -> None:
    def spoil(input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.index_fill(1, torch.tensor([2, 3]), torch.nan)

    model = table_model(random_table(9, seed=1))
    found = search(model, torch.tensor([[1]]), max_new_tokens=6, num_beams=2, logits_processor=[spoil])
    assert not {2, 3} & set(found.to_lists()[0])
    assert found.sequences_scores.isfinite().all()


@EACH
@pytest.mark.filterwarnings("ignore:.*some step had no token left:RuntimeWarning")
def test_where_nothing_is_allowed_nothing_is_found(search: Callable[..., DecodeOutput]) -> None:
    def forbid(input_ids: Tensor, scores: Tensor) -> Tensor:
        return torch.full_like(scores, -torch.inf)

    options: dict[str, Any] = {"logits_processor": [forbid], "eos_token_id": 0, "return_scores": True}
    found = search(table_model(random_table(9, seed=1)), torch.tensor([[1]]), max_new_tokens=6, num_beams=2, **options)
    assert len(found.scores or ()) == 1, "the search must not go on"
    assert found.to_lists() == [[]]
    assert found.sequences_scores.tolist() == [-torch.inf]
    assert found.sequences.shape == (1, 0)


def test_of_equal_scores_in_a_pool_the_one_that_ended_first_comes_first() -> None:
    table = [[0.0, 0.5, 0.0, 0.5], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]]
    options: dict[str, Any] = {"max_new_tokens": 3, "num_beams": 2, "num_return_sequences": 2, "length_penalty": 0.0}
    found = beam_search(table_model(table), torch.tensor([[START]]), eos_token_id=EOS, **options)
    assert found.to_lists() == [[EOS], [A, EOS]]
    assert found.sequences_scores[0] == found.sequences_scores[1]
