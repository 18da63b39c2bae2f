"""What the batch refuses: the message names the argument, its rule, the value and a remedy, and nothing has changed."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda batch: batch.add({"top_k": 5}), TypeError, "params must be SamplingParams, got dict."),
        (lambda batch: batch.extend(SamplingParams()), TypeError, "params must be a list, got SamplingParams()."),
        (lambda batch: batch.add(SamplingParams(), 5), TypeError, "prompt_ids must be a list of ints, got 5."),
        (
            lambda batch: batch.add(SamplingParams(), torch.tensor([[1, 2, 3]])),
            TypeError,
            "prompt_ids must be a list of ints, got a tensor of torch.int64 [1, 3].",
        ),
        (lambda batch: batch.add(SamplingParams(), torch.tensor(3)), TypeError, "got a tensor of torch.int64 []."),
        (lambda batch: batch.add(SamplingParams(), "text"), TypeError, "prompt_ids must be a list of ints, got 'text'"),
        (
            lambda batch: batch.add(SamplingParams(stop_sequences=[[1, 2]]), output_ids={3, 4}),
            TypeError,
            "output_ids must be a list of ints, got {3, 4}.",
        ),
        (
            lambda batch: batch.add(SamplingParams(stop_sequences=[[1, 2]]), output_ids=None),
            TypeError,
            "output_ids must be a list of ints, got None.",
        ),
        (lambda batch: batch.add(SamplingParams(), position=2**63 - 1), ValueError, "position must be in [0, "),
        (
            lambda batch: batch.add(SamplingParams(repetition_penalty=2.0), [[1], [1, 2]]),
            TypeError,
            "prompt_ids must be a list of ints",
        ),
        (lambda batch: batch.append(torch.tensor([1]), 5), TypeError, "rows must be ints, got 5."),
        (lambda batch: batch.reorder([[0], [0, 1]]), ValueError, "permutation must name each of 2 rows once"),
        (
            lambda batch: batch.add(SamplingParams(bad_ids=[10])),
            ValueError,
            "bad_ids must hold ids in [0, 10), got 10.",
        ),
        (
            lambda batch: batch.add(SamplingParams(logit_bias={99: 1.0})),
            ValueError,
            "logit_bias must hold ids in [0, 10)",
        ),
        (
            lambda batch: batch.add(SamplingParams(vocab_size=11)),
            ValueError,
            "vocab_size must be the batch's, 10, got 11.",
        ),
        (
            lambda batch: batch.add(SamplingParams(logprobs=11)),
            ValueError,
            "logprobs must be an int in [0, 10], got 11.",
        ),
        (lambda batch: batch.add(SamplingParams(bad_ids=range(10))), ValueError, "bad_ids must leave at least one"),
        (
            lambda batch: batch.add(SamplingParams(repetition_penalty=2.0), [3, 10]),
            ValueError,
            "prompt_ids must hold ids in [0, 10), got 10.",
        ),
        (
            lambda batch: batch.add(SamplingParams(frequency_penalty=2.0), output_ids=[-1]),
            ValueError,
            "output_ids must hold ids in [0, 10), got -1.",
        ),
        (
            lambda batch: batch.add(SamplingParams(repetition_penalty=2.0), [3, 0.5]),
            TypeError,
            "prompt_ids must be a list of ints, got 0.5 at place 1.",
        ),
        (
            lambda batch: batch.add(SamplingParams(repetition_penalty=2.0), [2**70]),
            TypeError,
            "prompt_ids must be a list of ints, got [1180591620717411303424].",
        ),
        (lambda batch: batch.add(SamplingParams(), position=-1), ValueError, "position must be in [0, "),
        (lambda batch: batch.add(SamplingParams(), position=1.0), TypeError, "position must be an int, got 1.0."),
        (
            lambda batch: batch.extend([SamplingParams()] * 2, [[1]]),
            ValueError,
            "prompt_ids must be as many as params, 2, got 1.",
        ),
        (
            lambda batch: batch.extend([SamplingParams(bad_ids=[3]), SamplingParams(bad_ids=[10])]),
            ValueError,
            "bad_ids must hold ids in [0, 10), got 10.",
        ),
        (lambda batch: batch.remove(2), IndexError, "row must be in [0, 2), got 2."),
        (lambda batch: batch.remove(-1), IndexError, "row must be in [0, 2), got -1."),
        (lambda batch: batch.remove(True), TypeError, "row must be an int, got True."),
        (lambda batch: batch.swap(0, 2), IndexError, "row must be in [0, 2), got 2."),
        (lambda batch: batch.reorder([0]), ValueError, "permutation must name each of 2 rows once, got [0]."),
        (lambda batch: batch.reorder([0, 0]), ValueError, "permutation must name each of 2 rows once"),
        (lambda batch: batch.reorder([0, 2]), ValueError, "permutation must name each of 2 rows once"),
        (lambda batch: batch.reorder([0.0, 1.0]), ValueError, "permutation must name each of 2 rows once"),
        (lambda batch: batch.append([1, 2]), TypeError, "token_ids must be an int64 tensor, got list."),
        (lambda batch: batch.append(torch.tensor([1.0, 2.0])), TypeError, "got a tensor of torch.float32."),
        (
            lambda batch: batch.append(torch.tensor([1, 2, 3])),
            ValueError,
            "token_ids must have the shape [2], got [3].",
        ),
        (
            lambda batch: batch.append(torch.tensor([[1], [2]])),
            ValueError,
            "token_ids must have the shape [2], got [2, 1].",
        ),
        (
            lambda batch: batch.append(torch.tensor([1]), [0, 1]),
            ValueError,
            "token_ids must have the shape [2], got [1].",
        ),
        (lambda batch: batch.append(torch.tensor([1]), [2]), IndexError, "row must be in [0, 2), got 2."),
        (lambda batch: batch.append(torch.tensor([1]), [-1]), IndexError, "row must be in [0, 2), got -1."),
        (lambda batch: batch.append(torch.tensor([1]), [0.5]), TypeError, "rows must be ints, got [0.5]."),
        (lambda batch: batch.append(torch.tensor([1]), [True]), TypeError, "rows must be ints, got [True]."),
        (lambda batch: batch.process(None), TypeError, "logits must be a floating-point tensor, got NoneType."),
        (lambda batch: batch.process(torch.zeros(2, 10).int()), TypeError, "got a tensor of torch.int32."),
        (lambda batch: batch.process(torch.zeros(2, 9)), ValueError, "logits must have the shape [2, 10], got [2, 9]."),
        (
            lambda batch: batch.process(torch.zeros(3, 10)),
            ValueError,
            "logits must have the shape [2, 10], got [3, 10].",
        ),
        (
            lambda batch: batch.process(torch.zeros(2, 16)),
            ValueError,
            "logits must have the shape [2, 10], got [2, 16]. Cut the padding off, as with logits[:, :10], or",
        ),
    ],
)
def test_a_wrong_call_is_refused_and_changes_nothing(
    call: Callable[[SamplingBatch], Any], error: type[Exception], message: str
) -> None:
    batch, untouched = example(), example()
    with pytest.raises(error) as caught:
        call(batch)
    assert message in str(caught.value)
    assert str(caught.value).endswith(".")
    assert batch.version == untouched.version
    assert batch.params == untouched.params
    for name, buffer in batch.host.buffers.items():
        assert (buffer == untouched.host.buffers[name]).all()
    assert batch.slot_bytes == 0
    batch.flush()
    assert batch.seed.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"vocab_size": 0}, ValueError, "vocab_size must be in [1, 1048576], got 0."),
        ({"vocab_size": 2**20 + 1}, ValueError, "vocab_size must be in [1, 1048576], got 1048577."),
        ({"vocab_size": 8.0}, TypeError, "vocab_size must be an int, got 8.0."),
        ({"vocab_size": 8, "capacity": 0}, ValueError, "capacity must be in [1, 2147483647], got 0."),
        ({"vocab_size": 8, "capacity": True}, TypeError, "capacity must be an int, got True."),
        ({"vocab_size": 8, "generator": 3}, TypeError, "generator must be a torch.Generator, got 3."),
        ({"vocab_size": 8, "device": "gpu"}, ValueError, "SamplingBatch: device must be one of torch's, as 'cpu',"),
        ({"vocab_size": 8, "device": torch.int64}, ValueError, "device must be one of torch's"),
    ],
)
def test_a_wrong_batch_is_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        SamplingBatch(**arguments)
    assert message in str(caught.value)


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
