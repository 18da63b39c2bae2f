"""What all beam searches promise of a step: few looks at the device, rows that do not outgrow the model, no NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from probability_models import random_table, table_model
from torch import Tensor

from ascend_sample import hostcann
from ascend_sample.decoding.beam_sample import beam_sample
from ascend_sample.decoding.beam_search import beam_search
from ascend_sample.decoding.group_beam_search import group_beam_search
from ascend_sample.decoding.model import StepOutput
from ascend_sample.decoding.module_model import ModuleModel, TokenHistory
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.sampling import SamplingParams

SEARCHES: dict[str, Callable[..., DecodeOutput]] = {
    "pool": beam_search,
    "in_beam": lambda *inputs, **options: beam_search(*inputs, finished="in_beam", **options),
    "sample": lambda *inputs, **options: beam_sample(*inputs, SamplingParams(seed=1, top_k=3), **options),
    "groups": lambda *inputs, **options: group_beam_search(
        *inputs, num_beam_groups=2, diversity_penalty=0.5, **options
    ),
}
EACH = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)


def counted(search: Callable[..., DecodeOutput], npu: str, steps: int, **options: Any) -> hostcann.Counters:
    """What a search of so many steps did."""
    model = table_model(random_table(16, seed=0, sharpness=0.3), npu)
    prompts = torch.ones(3, 2, dtype=torch.int64, device=npu)
    torch.npu.synchronize()
    hostcann.reset_counters()
    output = search(model, prompts, max_new_tokens=steps, num_beams=4, **options)
    counters = hostcann.counters()
    assert output.lengths.tolist() == [steps] * 3
    return counters


@EACH
def test_a_step_reads_from_the_device_at_most_once(npu: str, search: Callable[..., DecodeOutput]) -> None:
    if not hostcann.is_active():
        pytest.skip("hostcann counts; a real CANN does not")
    for options, reads in (({}, 0), ({"eos_token_id": 99}, 1)):
        few, many = (counted(search, npu, steps, **options) for steps in (3, 9))
        assert many.copies.get("d2h", 0) - few.copies.get("d2h", 0) == 6 * reads
        assert many.copies.get("h2d", 0) == few.copies.get("h2d", 0)


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


@EACH
def test_a_processor_that_makes_nan_forbids(search: Callable[..., DecodeOutput]) -> None:
    def spoil(input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.index_fill(1, torch.tensor([2, 3]), torch.nan)

    model = table_model(random_table(9, seed=1))
    found = search(model, torch.tensor([[1]]), max_new_tokens=6, num_beams=2, logits_processor=[spoil])
    assert not {2, 3} & set(found.to_lists()[0])
    assert found.sequences_scores.isfinite().all()


@EACH
def test_where_nothing_is_allowed_nothing_is_found(search: Callable[..., DecodeOutput]) -> None:
    def forbid(input_ids: Tensor, scores: Tensor) -> Tensor:
        return torch.full_like(scores, -torch.inf)

    model = table_model(random_table(9, seed=1))
    found = search(model, torch.tensor([[1]]), max_new_tokens=6, num_beams=2, logits_processor=[forbid])
    assert found.to_lists() == [[]]
    assert found.sequences_scores.tolist() == [-torch.inf]
    assert found.sequences.shape == (1, 0)
