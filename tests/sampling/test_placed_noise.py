"""The noise of a step on a device: the same numbers from the host as from there, in one copy that nothing overtakes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracle import expected
from torch import Tensor

import hostcann
from ascend_sample.sampling import Purpose, Sampler, SamplingBatch, SamplingParams, exponential_noise
from ascend_sample.sampling.draws.placed_noise import DrawKeys, NoiseOfRows, noise_of_groups
from ascend_sample.sampling.rows.row_set import RowSet
from tests.support.emulation import keep_busy

VOCAB_SIZE = 300
STEPS = 12
PARAMS = [
    SamplingParams(temperature=0, seed=0),
    *(SamplingParams(seed=seed) for seed in range(3)),
    *(SamplingParams(seed=seed, top_k=20, temperature=0.5 + seed / 10) for seed in range(3, 6)),
    SamplingParams(seed=6, top_p=0.9, min_p=0.01),
]


def groups(device: str) -> tuple[list[NoiseOfRows], DrawKeys, Tensor]:
    seed, position = np.array([-1, 7, 2**62, 5]), np.array([3, 0, 2**40, 9])
    parts = ((np.array([2, 0]), 5), (np.array([1]), 0), (np.array([3]), 11))
    made = [
        NoiseOfRows(RowSet(rows, torch.from_numpy(rows).to(device)), torch.from_numpy(seed).to(device), lanes)
        for rows, lanes in parts
    ]
    return made, DrawKeys(seed, position), torch.from_numpy(position).to(device)


@pytest.mark.parametrize(("is_known", "purpose"), [(True, Purpose.DRAW), (False, Purpose.RESAMPLING)])
def test_each_group_gets_its_own(device: str, is_known: bool, purpose: Purpose) -> None:
    made, keys, position = groups(device)
    found = noise_of_groups(made, position, keys if is_known else None, purpose)
    for group, noise in zip(made, found, strict=True):
        if group.lanes == 0:
            assert noise is None
            continue
        assert noise is not None
        seeds, positions = (torch.from_numpy(of_batch[group.rows.host]) for of_batch in keys)
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


def test_a_step_does_not_overwrite_what_a_copy_still_reads(late: str) -> None:
    """The tokens of some steps are read when all have been asked for."""
    logits = torch.randn(STEPS, len(PARAMS), VOCAB_SIZE) * 2
    batch = SamplingBatch(VOCAB_SIZE, late)
    batch.extend(PARAMS)
    sampler, there = Sampler(), logits.to(late)  # which a GPU waits for
    keep_busy(late)
    drawn = [output.tolist() for output in [sampler(step, batch).token_ids for step in there]]
    for step, (rows, tokens) in enumerate(zip(logits, drawn, strict=True)):
        for row, params, token_id in zip(rows, PARAMS, tokens, strict=True):
            assert token_id in expected(row.numpy(), params, step).acceptable
