"""What lives from call to call works inside and outside of inference mode, in any order; and no longer than it must."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from ascend_sample import top_k_top_p_sample_v2, use_backend
from ascend_sample.npu import scratch
from ascend_sample.sampling import (
    Sampler,
    SamplerOutput,
    SamplingBatch,
    SamplingParams,
    StaticStep,
    StaticVerification,
    verify_drafts,
)

VOCAB_SIZE = 12
REQUESTS = (
    SamplingParams(seed=1, repetition_penalty=1.5, frequency_penalty=0.5, logprobs=2),
    SamplingParams(seed=2, logit_bias={3: 1.0}, top_k=4),
    SamplingParams(seed=3, stop_token_ids=[1], min_tokens=2, presence_penalty=0.5),
    SamplingParams(seed=4, top_p=0.8, temperature=0.7, logprobs=1),
)
PROMPTS = [[1, 2], [3], [4, 5], []]


def logits_of(batch: SamplingBatch) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(len(batch), VOCAB_SIZE, generator=generator).to(batch.device)


def tokens_of(batch: SamplingBatch) -> torch.Tensor:
    return torch.arange(len(batch), device=batch.device) % VOCAB_SIZE


METHODS: dict[str, Callable[[SamplingBatch], object]] = {
    "add": lambda batch: batch.add(REQUESTS[0], [7]),
    "extend beyond the capacity": lambda batch: batch.extend([*REQUESTS] * 2, [*PROMPTS] * 2),
    "remove": lambda batch: batch.remove(0),
    "swap": lambda batch: batch.swap(0, 2),
    "reorder": lambda batch: batch.reorder([*range(1, len(batch)), 0]),
    "append": lambda batch: batch.append(tokens_of(batch)),
    "append to rows": lambda batch: batch.append(tokens_of(batch)[:2], rows=[0, 0]),
    "flush": lambda batch: batch.flush(),
    "process": lambda batch: batch.process(logits_of(batch)),
    "position": lambda batch: batch.position,
    "step": lambda batch: Sampler()(logits_of(batch), batch),
}


def run(names: tuple[str, ...], are_inside: tuple[bool, ...], device: str) -> SamplerOutput:
    """Make a batch, call the methods, and step: each inside or outside of inference mode."""
    modes = iter(are_inside)
    with torch.inference_mode(next(modes)):
        batch = SamplingBatch(VOCAB_SIZE, device, capacity=4)
        batch.extend(REQUESTS, PROMPTS)
    for name in names:
        with torch.inference_mode(next(modes)):
            METHODS[name](batch)
    sampler = Sampler()
    for is_inside in modes:
        with torch.inference_mode(is_inside):
            output = sampler(logits_of(batch), batch)
    return output


def assert_same(found: SamplerOutput, wanted: SamplerOutput) -> None:
    assert found.logprobs is not None
    assert wanted.logprobs is not None
    for one, other in zip((*found[:2], *found.logprobs[1:]), (*wanted[:2], *wanted.logprobs[1:]), strict=True):
        assert torch.equal(one, other)


def test_all_methods_in_turns(device: str) -> None:
    names = tuple(METHODS) * 2
    wanted = run(names, (False,) * (len(names) + 3), device)
    for seed in range(8 if device == "cpu" else 3):  # the emulation is slow
        drawn = torch.rand(len(names) + 3, generator=torch.Generator().manual_seed(seed)) < 0.5
        assert_same(run(names, tuple(drawn.tolist()), device), wanted)


def test_what_a_step_returns_can_be_written_in_either_mode(device: str) -> None:
    output = run((), (True, True, True), device)
    assert output.logprobs is not None
    for tensor in (*output[:2], *output.logprobs[1:]):
        tensor.add_(1)
        with torch.inference_mode():
            tensor.add_(1)


def test_no_gradients_in_any_mode(device: str) -> None:
    batch = SamplingBatch(VOCAB_SIZE, device)
    batch.extend(REQUESTS, PROMPTS)
    logits = logits_of(batch).requires_grad_()
    for mode in (torch.no_grad(), torch.enable_grad()):
        with mode:
            output = Sampler()(logits, batch)
            processed = batch.process(logits)
        assert output.logprobs is not None
        assert processed is not None
        assert not output.logprobs.values.requires_grad
        assert not processed.logits.requires_grad


@pytest.mark.parametrize("rule", ["match", "standard"])
def test_nobody_keeps_a_batch(device: str, rule: Any) -> None:
    """It goes at once, with its tensors, whoever has drawn from it or verified its drafts."""
    sampler, count = Sampler(), len(REQUESTS)
    step = StaticStep(count, VOCAB_SIZE, torch.float32, device, addends=9, history=9, logprobs=2)
    verification = StaticVerification(count, 1, VOCAB_SIZE, torch.float32, device, rule=rule, history=9, addends=9)
    batch = SamplingBatch(VOCAB_SIZE, device)
    batch.extend([replace(one, logprobs=None) for one in REQUESTS], PROMPTS)
    sampler(logits_of(batch), batch)
    step.prepare(batch)
    drafts = torch.arange(count).to(device)
    verify_drafts(logits_of(batch).repeat(2, 1), drafts, batch, counts=[1] * count, rule=rule).append_to(batch)
    verification.prepare(batch)
    tensors = batch._table._tensors["int64"], batch.row_edits.penalties.occurrences
    gone = [weakref.ref(each) for each in (batch, *tensors)]
    del tensors
    gc.collect()
    gc.disable()  # which would find a batch and its places that keep one another, some time
    try:
        del batch
        assert [each() for each in gone] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize("backend", ["aclnn", "cffi"])
def test_scratch_that_is_taken_inside_serves_outside(npu: str, backend: str) -> None:
    logits, k, p = torch.randn(3, 50).to(npu), torch.full((3,), 5, dtype=torch.int32).to(npu), torch.ones(3).to(npu)
    found = []
    scratch.release()
    with use_backend(backend):
        for is_inside in (True, False, True):
            with torch.inference_mode(is_inside):
                found.append(top_k_top_p_sample_v2(logits, k, p).logits_select_idx.tolist())
    assert found[0] == found[1] == found[2]
