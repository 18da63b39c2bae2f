"""What the batch refuses: the message names the argument, its rule, the value and a remedy, and nothing has changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.requests.params import SamplingParams


def example(device: str = "cpu") -> SamplingBatch:
    batch = SamplingBatch(10, device)
    batch.extend([SamplingParams(seed=1), SamplingParams(seed=2, frequency_penalty=1.0)])
    return batch


PENALISED = SamplingParams(repetition_penalty=2.0)
STOPPING = SamplingParams(stop_sequences=[[1, 2]])
ANY = SamplingParams()
IDS = torch.tensor([1, 2, 3])
CALLS: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda b: b.add({"top_k": 5}), TypeError, "params must be SamplingParams, got dict."),
    (lambda b: b.extend(ANY), TypeError, "params must be a list, got SamplingParams()."),
    (lambda b: b.add(ANY, 5), TypeError, "prompt_ids must be a list of ints, got 5."),
    (
        lambda b: b.add(ANY, IDS[None]),
        TypeError,
        "prompt_ids must be a list of ints, got a tensor of torch.int64 [1, 3]",
    ),
    (lambda b: b.add(STOPPING, output_ids={3, 4}), TypeError, "output_ids must be a list of ints, got {3, 4}."),
    (lambda b: b.add(PENALISED, [3, 0.5]), TypeError, "prompt_ids must be a list of ints, got 0.5 at place 1."),
    (
        lambda b: b.add(PENALISED, [2**70]),
        TypeError,
        "prompt_ids must be a list of ints, got [1180591620717411303424].",
    ),
    (lambda b: b.add(PENALISED, [3, 10]), ValueError, "prompt_ids must hold ids in [0, 10), got 10."),
    (lambda b: b.add(PENALISED, output_ids=[-1]), ValueError, "output_ids must hold ids in [0, 10), got -1."),
    (
        lambda b: b.add(SamplingParams(suppress_token_ids=[10])),
        ValueError,
        "suppress_token_ids must hold ids in [0, 10), got 10.",
    ),
    (lambda b: b.add(SamplingParams(vocab_size=11)), ValueError, "vocab_size must be the batch's, 10, got 11."),
    (lambda b: b.add(ANY, position=2**63 - 1), ValueError, "position must be in [0, "),
    (lambda b: b.add(ANY, position=1.0), TypeError, "position must be an int, got 1.0."),
    (lambda b: b.extend([ANY] * 2, [[1]]), ValueError, "prompt_ids must be as many as params, 2, got 1."),
    (
        lambda b: b.extend([ANY, SamplingParams(suppress_token_ids=[10])]),
        ValueError,
        "suppress_token_ids must hold ids in [0, 10), got 10.",
    ),
    (lambda b: b.remove(2), IndexError, "row must be in [0, 2), got 2."),
    (lambda b: b.remove(True), TypeError, "row must be an int, got True."),
    (lambda b: b.swap(0, 2), IndexError, "row must be in [0, 2), got 2."),
    *(
        (lambda b, wrong=wrong: b.reorder(wrong), ValueError, "permutation must name each of 2 rows once")
        for wrong in ([0], [0, 0], [0, 2], [0.0, 1.0], [[0], [0, 1]])
    ),
    (lambda b: b.append([1, 2]), TypeError, "token_ids must be an int64 tensor, got list."),
    (lambda b: b.append(torch.ones(2)), TypeError, "got a tensor of torch.float32."),
    (lambda b: b.append(IDS), ValueError, "token_ids must have the shape [2], got [3]."),
    (lambda b: b.append(IDS[:1], [0, 1]), ValueError, "token_ids must have the shape [2], got [1]."),
    (lambda b: b.append(IDS[:1], [2]), IndexError, "row must be in [0, 2), got 2."),
    (lambda b: b.append(IDS[:1], [True]), TypeError, "rows must be ints, got [True]."),
    (lambda b: b.append(IDS[:1], 5), TypeError, "rows must be ints, got 5."),
    (lambda b: b.process(None), TypeError, "logits must be a floating-point tensor, got NoneType."),
    (lambda b: b.process(torch.zeros(2, 10).int()), TypeError, "got a tensor of torch.int32."),
    (lambda b: b.process(torch.zeros(3, 10)), ValueError, "logits must have the shape [2, 10], got [3, 10]."),
    (
        lambda b: b.process(torch.zeros(2, 16)),
        ValueError,
        "got [2, 16]. Cut the padding off, as with logits[:, :10], or",
    ),
]


def test_a_wrong_call_is_refused_and_changes_nothing(subtests: pytest.Subtests) -> None:
    untouched = example()
    for call, error, message in CALLS:
        batch = example()
        with subtests.test(msg=message):
            with pytest.raises(error, match=rf"{re.escape(message)}(.*\.)?$"):
                call(batch)
            assert batch.version == untouched.version
            assert batch.params == untouched.params
            for name, buffer in batch.host.buffers.items():
                assert (buffer == untouched.host.buffers[name]).all()
            assert batch.slot_bytes == 0
            batch.flush()
            assert batch.seed.tolist() == [1, 2]


WRONG_BATCHES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"vocab_size": 0}, ValueError, "vocab_size must be in [1, 1048576], got 0."),
    ({"vocab_size": 2**20 + 1}, ValueError, "vocab_size must be in [1, 1048576], got 1048577."),
    ({"vocab_size": 8.0}, TypeError, "vocab_size must be an int, got 8.0."),
    ({"capacity": 0}, ValueError, "capacity must be in [1, 2147483647], got 0."),
    ({"generator": 3}, TypeError, "generator must be a torch.Generator, got 3."),
    ({"device": "gpu"}, ValueError, "SamplingBatch: device must be one of torch's, as 'cpu',"),
]


def test_a_wrong_batch_is_refused() -> None:
    for arguments, error, message in WRONG_BATCHES:
        with pytest.raises(error, match=re.escape(message)):
            SamplingBatch(**({"vocab_size": 8} | arguments))


def test_tensors_of_another_device_are_refused(npu: str) -> None:
    batch = example(npu)
    with pytest.raises(ValueError, match="token_ids must be on npu:0, got cpu"):
        batch.append(torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="logits must be on npu:0, got cpu"):
        batch.process(torch.zeros(2, 10))
    with pytest.raises(ValueError, match="rows must be on the host, got a tensor on npu:0"):
        batch.append(torch.tensor([1]).to(npu), rows=torch.tensor([0]).to(npu))
    with pytest.raises(ValueError, match="prompt_ids must be on the host, got a tensor on npu:0"):
        batch.add(SamplingParams(repetition_penalty=2.0), torch.tensor([1]).to(npu))
    with pytest.raises(ValueError, match="generator must be on the CPU, got one on npu"):
        SamplingBatch(8, generator=torch.Generator(npu))
