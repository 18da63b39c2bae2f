"""What lives from call to call works inside and outside of inference mode, in any order; and no longer than it must."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ascend_sample import top_k_top_p_sample_v2, use_backend
from ascend_sample.integrations._rows import UniformRows
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
    SamplingParams(seed=3, stop_ids=[1], min_tokens=2, presence_penalty=0.5),
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


@pytest.mark.parametrize("name", METHODS)
def test_each_method_in_each_mode_and_steps_after_it(device: str, name: str) -> None:
    wanted = run((name,), (False,) * 3, device)
    some = ((True, False, False), (False, True, False), (False, False, True))  # the emulation is slow
    for are_inside in itertools.product((False, True), repeat=3) if device == "cpu" else some:
        assert_same(run((name,), are_inside, device), wanted)


def test_all_methods_in_turns(device: str) -> None:
    names = tuple(METHODS) * 2
    wanted = run(names, (False,) * (len(names) + 3), device)
    for seed in range(5 if device == "cpu" else 2):
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


def test_rows_of_adapters(device: str) -> None:
    rows = UniformRows(temperature=0.7, top_k=5, top_p=0.9, min_p=0.01)
    logits = torch.randn(3, VOCAB_SIZE).to(device)
    seed, position = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    drawn = []
    for is_inside in (True, False, True):
        with torch.inference_mode(is_inside):
            drawn.append(rows.draw(logits, seed, position).tolist())
            rows.filter(logits)
    assert drawn[0] == drawn[1] == drawn[2]


def test_a_sampler_keeps_no_batch(device: str) -> None:
    sampler = Sampler()
    batch = SamplingBatch(VOCAB_SIZE, device)
    batch.extend(REQUESTS, PROMPTS)
    sampler(logits_of(batch), batch)
    gone = weakref.ref(batch)
    tensors = [
        weakref.ref(tensor) for tensor in (batch._table._tensors["int64"], batch.row_edits.penalties.occurrences)
    ]
    del batch
    gc.collect()
    assert gone() is None
    assert [tensor() for tensor in tensors] == [None, None]


@pytest.mark.parametrize("rule", ["match", "standard"])
def test_a_batch_whose_drafts_were_verified_goes_at_once(device: str, rule: Any) -> None:
    batch = SamplingBatch(VOCAB_SIZE, device)
    batch.extend([SamplingParams(presence_penalty=0.5)] * 2)
    drafts, logits = torch.tensor([1, 2]).to(device), torch.zeros(4, VOCAB_SIZE, device=device)
    verify_drafts(logits, drafts, batch, counts=[1, 1], rule=rule).append_to(batch)
    step = StaticVerification(2, 1, VOCAB_SIZE, torch.float32, device, rule=rule, history=9)
    step.prepare(batch)
    gone, table = weakref.ref(batch), weakref.ref(batch._table._tensors["int64"])
    gc.collect()
    gc.disable()  # which would find a batch and its places that keep one another, some time
    try:
        del batch
        assert gone() is None
        assert table() is None
    finally:
        gc.enable()


def test_a_step_in_a_graph_keeps_no_batch(device: str) -> None:
    batch = SamplingBatch(VOCAB_SIZE, device)
    batch.add(SamplingParams(logit_bias={1: 2.0}))
    step = StaticStep(1, VOCAB_SIZE, torch.float32, device, addends=1)
    step.prepare(batch)
    gone = weakref.ref(batch)
    del batch
    gc.collect()
    assert gone() is None


def test_the_memory_of_a_batch_is_given_back(counting: None, npu: str) -> None:

    def memory() -> int:
        torch.npu.synchronize()
        return torch.npu.memory_allocated()

    sampler, vocab_size = Sampler(), 20_000
    logits = torch.zeros(4, vocab_size, device=npu)
    for number in range(2):  # the first one leaves scratch of the stream behind
        before = memory()
        batch = SamplingBatch(vocab_size, npu)
        batch.extend(REQUESTS, PROMPTS)
        sampler(logits, batch)
        assert memory() >= before + batch.slot_bytes
        del batch
        gc.collect()
        assert number == 0 or memory() == before


@pytest.mark.parametrize("backend", ["aclnn", "cffi"])
def test_scratch_that_is_taken_inside_serves_outside(npu: str, backend: str) -> None:
    logits, k, p = torch.randn(3, 50).to(npu), torch.full((3,), 5, dtype=torch.int32).to(npu), torch.ones(3).to(npu)
    found = []
    with use_backend(backend):
        for is_inside in (True, False, True):
            if not found:
                scratch.release()
            with torch.inference_mode(is_inside):
                found.append(top_k_top_p_sample_v2(logits, k, p).logits_select_idx.tolist())
    assert found[0] == found[1] == found[2]
