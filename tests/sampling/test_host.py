"""The host as the sampler of a device's logits: the tokens of the CPU, from a copy."""

from __future__ import annotations

import pytest
import torch

import hostcann
from ascend_sample.sampling import Sampler, SamplerOutput, SamplingBatch, SamplingParams

VOCAB_SIZE, ROWS, STEPS = 700, 10, 6
PARAMS = [
    SamplingParams(temperature=0),
    SamplingParams(seed=1, top_k=20, top_p=0.9, logprobs=3),
    SamplingParams(seed=2),
    SamplingParams(seed=3, top_p=0.8, temperature=0.7),
    SamplingParams(seed=4, top_k=5, repetition_penalty=1.3, presence_penalty=0.5),
    SamplingParams(seed=5, suppress_token_ids=[1, 2], logit_bias={7: 3.0}),
    SamplingParams(seed=6, allowed_token_ids=list(range(50, 90))),
    SamplingParams(seed=7, min_p=0.05, logprobs=0),
    SamplingParams(seed=8, top_k=2000, frequency_penalty=0.4),
    SamplingParams(seed=9, min_tokens=3, stop_token_ids=[5], return_sampling_mask=True, top_p=0.9),
]
BITMASK_ROWS = [2, 9]
SOON_OR_LATE = pytest.mark.parametrize("late", ["normal", "delayed", "lazy"], indirect=True)
"""A device whose copies are made as soon as can be, too."""


def make_batch(device: str = "cpu") -> SamplingBatch:
    batch = SamplingBatch(VOCAB_SIZE, device)
    batch.extend(PARAMS, [[3, 4]] * ROWS)
    return batch


def check_equal(found: SamplerOutput, expected: SamplerOutput, device: str) -> None:
    assert found.token_ids.device.type == found.status.device.type == torch.device(device).type
    for tensors in ((found[:2], expected[:2]), (found.logprobs[1:], expected.logprobs[1:])):
        for one, other in zip(*tensors, strict=True):
            assert torch.equal(one.cpu(), other)
    assert found.logprobs.rows == expected.logprobs.rows
    assert found.kept.ids.device.type == found.token_ids.device.type
    for one, other in zip(found.kept, expected.kept, strict=True):
        assert torch.equal(one.cpu(), other)


@SOON_OR_LATE
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_tokens_are_those_of_the_cpu(late: str, mode: str) -> None:
    logits = (torch.randn(STEPS, ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 2).bfloat16()
    bitmask = torch.randint(-(2**31), 2**31, (2, 22), generator=torch.Generator().manual_seed(1)).int()
    sampler, batch, expected_batch = Sampler(mode, host=True), make_batch(), make_batch()
    there = logits.to(late)
    for step, rows in enumerate(logits):
        given = {"bitmask": bitmask, "bitmask_rows": BITMASK_ROWS} if step % 2 else {}
        found = sampler((there[step] * 2) / 2, batch, **given)  # what is queued comes first
        check_equal(found, Sampler(mode)(rows, expected_batch, **given), late)
    assert batch.position.tolist() == [2 + STEPS] * ROWS


def test_logits_on_the_cpu_are_sampled_where_they_are() -> None:
    logits = torch.randn(ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))
    check_equal(Sampler(host=True)(logits, make_batch()), Sampler()(logits, make_batch()), "cpu")


def test_it_launches_nothing_and_waits_for_one_copy(counting: None, npu: str) -> None:
    batch, sampler = SamplingBatch(VOCAB_SIZE), Sampler(host=True)
    batch.extend([SamplingParams(seed=row) for row in range(ROWS)])
    logits = torch.zeros(ROWS, VOCAB_SIZE, dtype=torch.bfloat16, device=npu)
    sampler(logits, batch)
    with hostcann.profile() as counted:
        sampler(logits, batch)
    assert not counted.launches
    assert counted.copies == {"d2h": 1, "h2d": 2}, "logits; ids and statuses"
    assert counted.totals.waits == 2, "of the stream, and of the copy"


def test_batches_are_on_the_cpu(accelerator: str) -> None:
    with pytest.raises(ValueError, match=f"Sampler: batch must be on the CPU .* host=True, got {accelerator}:0"):
        Sampler(host=True)(torch.zeros(ROWS, VOCAB_SIZE), make_batch(accelerator))
    with pytest.raises(TypeError, match="Sampler: host must be True or False, got int 1"):
        Sampler(host=1)  # type: ignore[arg-type]
