"""The loop of the strategies: what it costs on a device, and what it promises of finished rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ascend_sample import hostcann
from ascend_sample.decoding.models.module_model import ModuleModel, TokenHistory
from ascend_sample.decoding.strategies.contrastive import contrastive_search
from ascend_sample.decoding.strategies.greedy import greedy_search
from ascend_sample.decoding.strategies.sampled import sample
from ascend_sample.sampling import SamplingParams
from tests.decoding.table_models import random_table

STRATEGIES: dict[str, Callable[..., Any]] = {
    "greedy": greedy_search,
    "sample": lambda *inputs, **options: sample(*inputs, SamplingParams(top_k=3, seed=1), **options),
    "contrastive": contrastive_search,
}


def counted(strategy: Callable[..., Any], npu: str, steps: int, **options: Any) -> hostcann.Profile:
    """What a run of so many steps did."""
    table, states = random_table(16).to(npu), random_table(16, seed=1).to(npu)
    model = ModuleModel(lambda input_ids: (table[input_ids], states[input_ids]))
    prompts = torch.ones(4, 3, dtype=torch.int64, device=npu)
    with hostcann.profile() as counters:
        output = strategy(model, prompts, max_new_tokens=steps, **options)
    assert output.sequences.shape[1] == steps
    return counters


def waits_of_one_read(npu: str) -> int:
    value = torch.ones(1, device=npu)
    with hostcann.profile() as counters:
        value.item()
    return sum(counters.synchronizations.values())


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_step_reads_from_the_device_at_most_once(counting: None, npu: str, name: str) -> None:
    """Whether all rows are done must be read where a stop token may come, and nowhere else."""
    for options, reads in (({}, 0), ({"eos_token_id": 99}, 1)):
        few, many = (counted(STRATEGIES[name], npu, steps, **options) for steps in (3, 9))
        waits = [sum(counters.synchronizations.values()) for counters in (few, many)]
        assert waits[1] - waits[0] == 6 * reads * waits_of_one_read(npu)
        assert many.copies.get("d2h", 0) - few.copies.get("d2h", 0) == 6 * reads


def test_a_step_sends_nothing_to_the_device(counting: None, npu: str) -> None:
    sent = [counted(greedy_search, npu, steps, eos_token_id=99).copies.get("h2d", 0) for steps in (3, 9)]
    assert sent[0] == sent[1]


@pytest.mark.parametrize("name", STRATEGIES)
def test_rows_end_each_at_their_own_step(name: str) -> None:
    """Every row of a batch in which another row ends at each step has the text that it has alone."""
    table, states = random_table(), random_table(seed=1)
    model = ModuleModel(lambda input_ids: (table[input_ids], states[input_ids]))
    prompts, limits = torch.arange(6)[:, None], [4, 1, 6, 3, 2, 5]
    together = STRATEGIES[name](model, prompts, max_new_tokens=limits).to_lists()
    for row, limit in enumerate(limits):
        assert STRATEGIES[name](model, prompts[row : row + 1], max_new_tokens=limit).to_lists() == [together[row]]


class CountingReorders(ModuleModel):
    """Counts how often its cache's rows are taken."""

    reorders = 0

    def reorder(self, cache: TokenHistory, index: torch.Tensor) -> TokenHistory:
        self.reorders += 1
        return super().reorder(cache, index)


@pytest.mark.parametrize("name", ["greedy", "sample"])
def test_a_cache_moves_where_rows_end_and_nowhere_else(name: str) -> None:
    table = random_table()
    model = CountingReorders(lambda input_ids: table[input_ids])
    STRATEGIES[name](model, torch.arange(4)[:, None], max_new_tokens=[2, 1, 7, 2])
    assert model.reorders == 2  # after the first step and the second


@pytest.mark.parametrize("name", STRATEGIES)
def test_processors_never_see_nan(name: str, device: str) -> None:
    table, states = random_table().to(device), random_table(seed=1).to(device)
    table[:, 3] = torch.nan
    seen = []

    def look(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(scores[:, 3].tolist())
        return scores

    model = ModuleModel(lambda input_ids: (table[input_ids], states[input_ids]))
    STRATEGIES[name](model, torch.tensor([[1]], device=device), max_new_tokens=3, logits_processor=[look])
    assert seen == [[-torch.inf]] * 3


@pytest.mark.parametrize("name", STRATEGIES)
def test_processors_see_padding_behind_the_end_of_a_row(name: str) -> None:
    table, states = random_table(), random_table(seed=1)
    model = ModuleModel(lambda input_ids: (table[input_ids], states[input_ids]))
    seen = []

    def look(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(input_ids[0, 2:].tolist())
        return scores

    STRATEGIES[name](model, torch.arange(2)[:, None], max_new_tokens=[1, 4], pad_token_id=77, logits_processor=[look])
    assert seen == [[], [], [77], [77, 77]]


@pytest.mark.parametrize("name", STRATEGIES)
def test_infinite_logits_have_scores_also_where_each_step_is_read(name: str, device: str) -> None:
    table = torch.zeros(5, 5, device=device)
    table[:, :2] = torch.inf
    model = ModuleModel(lambda input_ids: (table[input_ids], table[:, 2:][input_ids]))
    found = STRATEGIES[name](model, torch.tensor([[1]], device=device), max_new_tokens=3, eos_token_id=4)
    torch.testing.assert_close(found.sequences_scores.exp().cpu(), torch.tensor([1 / 8]))


def test_a_row_that_has_ended_is_not_impossible_because_another_is() -> None:
    table = random_table()

    def forbid_later(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores if input_ids.shape[1] == 1 else torch.full_like(scores, -torch.inf)

    with pytest.warns(RuntimeWarning, match=r"in the rows \[1\]"):
        found = STRATEGIES["sample"](
            ModuleModel(lambda input_ids: table[input_ids]),
            torch.arange(2)[:, None],
            max_new_tokens=[1, 3],
            logits_processor=[forbid_later],
        )
    assert found.sequences_scores.isfinite().tolist() == [True, False]
