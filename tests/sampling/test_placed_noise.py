"""The noise of a step on a device: the same numbers from the host as from there, in one copy that nothing overtakes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from oracle import expected
from torch import Tensor

from ascend_sample import hostcann
from ascend_sample.sampling import Purpose, Sampler, SamplingBatch, SamplingParams, exponential_noise
from ascend_sample.sampling.draws import placed_noise
from ascend_sample.sampling.draws.placed_noise import DrawKeys, NoiseOfRows, noise_of_groups
from tests.support.emulation import keep_busy

VOCAB_SIZE = 300
STEPS = 12
PARAMS = [
    SamplingParams(temperature=0),
    *(SamplingParams(seed=seed) for seed in range(3)),
    *(SamplingParams(seed=seed, top_k=20, temperature=0.5 + seed / 10) for seed in range(3, 6)),
    SamplingParams(seed=6, top_p=0.9, min_p=0.01),
]


def groups(device: str) -> tuple[list[NoiseOfRows], DrawKeys, Tensor]:
    seed, position = np.array([-1, 7, 2**62, 5]), np.array([3, 0, 2**40, 9])
    parts = ((np.array([2, 0]), 5), (np.array([1]), 0), (np.array([3]), 11))
    made = [
        NoiseOfRows(rows, torch.from_numpy(rows).to(device), torch.from_numpy(seed).to(device), lanes)
        for rows, lanes in parts
    ]
    return made, DrawKeys(seed, position), torch.from_numpy(position).to(device)


@pytest.mark.parametrize("purpose", [Purpose.DRAW, Purpose.RESAMPLING])
@pytest.mark.parametrize("is_known", [True, False])
def test_each_group_gets_its_own(device: str, is_known: bool, purpose: Purpose) -> None:
    made, keys, position = groups(device)
    found = noise_of_groups(made, position, keys if is_known else None, purpose)
    for group, noise in zip(made, found, strict=True):
        if group.lanes == 0:
            assert noise is None
            continue
        assert noise is not None
        seeds, positions = (torch.from_numpy(of_batch[group.rows]) for of_batch in keys)
        assert torch.equal(noise.cpu(), exponential_noise(seeds, positions, group.lanes, purpose=purpose))


def test_on_an_npu_it_is_one_copy_and_no_launch(counting: None, npu: str) -> None:
    made, keys, _ = groups(npu)
    with hostcann.profile() as counted:
        noise_of_groups(made, None, keys, Purpose.DRAW)
    assert not counted.synchronizations
    assert not counted.launches
    assert counted.copies == {"h2d": 1}
    greedy = [group for group in made if group.lanes == 0]
    assert noise_of_groups(greedy, None, keys, Purpose.DRAW) == [None]


def stepped(accelerator: str, logits: Tensor) -> list[list[int]]:
    """The tokens of some steps, which are read when all have been asked for."""
    batch = SamplingBatch(VOCAB_SIZE, accelerator)
    batch.extend(PARAMS)
    sampler, there = Sampler(), logits.to(accelerator)  # which a GPU waits for
    keep_busy(accelerator)
    return [ids.tolist() for ids in [sampler(step, batch).token_ids for step in there]]


def of_the_reference(logits: Tensor) -> list[list[set[int]]]:
    return [
        [
            expected(
                row.numpy(), params if params.seed is not None else SamplingParams(temperature=0, seed=0), step
            ).acceptable
            for row, params in zip(rows, PARAMS, strict=True)
        ]
        for step, rows in enumerate(logits)
    ]


def test_a_step_does_not_overwrite_what_a_copy_still_reads(late: str) -> None:
    logits = torch.randn(STEPS, len(PARAMS), VOCAB_SIZE) * 2
    tokens = stepped(late, logits)
    for ids, acceptable in zip(tokens, of_the_reference(logits), strict=True):
        assert all(token_id in near for token_id, near in zip(ids, acceptable, strict=True))


def test_memory_that_is_used_again_too_early_is_noticed(late: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: all steps write their noise into one buffer."""
    staged: dict[int, Tensor] = {}
    new: Callable[[int], Tensor] = placed_noise._pinned
    monkeypatch.setattr(placed_noise, "_pinned", lambda count: staged.setdefault(count, new(count)))
    logits = torch.randn(STEPS, len(PARAMS), VOCAB_SIZE) * 2
    tokens = stepped(late, logits)
    wrong = [
        token_id not in near
        for ids, acceptable in zip(tokens, of_the_reference(logits), strict=True)
        for token_id, near in zip(ids, acceptable, strict=True)
    ]
    assert sum(wrong) > STEPS
