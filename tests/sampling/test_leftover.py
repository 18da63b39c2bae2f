"""Logprobs of what a draw leaves on a device: the bits of rows whose logprobs are made apart, and the right numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from ascend_sample.sampling import Logprobs, LogprobsMode, Sampler, SamplingBatch, SamplingParams
from ascend_sample.sampling.reference.distribution import target_distribution
from tests.support.isolation import run_isolated

SHARED = [LogprobsMode.RAW_LOGPROBS, LogprobsMode.PROCESSED_LOGPROBS, LogprobsMode.PROCESSED_LOGITS]
PARAMS = [
    SamplingParams(temperature=0.7, top_k=50, top_p=0.9, logprobs=5, seed=1),
    SamplingParams(temperature=1.5, top_k=8, logprobs=3, seed=2),
    SamplingParams(temperature=2.0, top_k=100, min_p=0.02, logprobs=0, seed=3),
]
PENALTIES = {"repetition_penalty": 1.2, "presence_penalty": 0.5}


def rows_of(vocab_size: int, dtype: torch.dtype) -> Tensor:
    """Ordinary rows, ties, a large offset, and each kind of what is no number."""
    generator = torch.Generator().manual_seed(vocab_size)
    rows = torch.randn(12, vocab_size, generator=generator) * 3
    rows[1] += 1000
    rows[2] = torch.randint(4, (vocab_size,), generator=generator)
    rows[3, 5:9] = torch.inf
    rows[4, ::2] = torch.nan
    rows[5] = -torch.inf
    rows[6] = torch.nan
    rows[7, 0], rows[7, 3] = torch.nan, torch.inf
    rows[8, 4:] = -torch.inf
    rows[9] *= 1e-3
    rows[10, 7] = torch.finfo(dtype).max
    rows[11, 7] = torch.finfo(dtype).min
    return rows.to(dtype)


def sampled(
    logits: Tensor, params: list[SamplingParams], mode: LogprobsMode, accelerator: str, history: list[int] | None = None
) -> tuple[Tensor, Logprobs]:
    batch = SamplingBatch(logits.shape[1], accelerator)
    batch.extend(params, output_ids=None if history is None else [history] * len(params))
    output = Sampler(mode.value)(logits.to(accelerator), batch)
    assert output.logprobs is not None
    return output.token_ids.cpu(), Logprobs(output.logprobs.rows, *(tensor.cpu() for tensor in output.logprobs[1:]))


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(300, torch.float16), (2048, torch.float32), (5001, torch.bfloat16)], ids=str
)
@pytest.mark.parametrize("mode", SHARED)
def test_the_bits_of_logprobs_that_are_made_apart(
    accelerator: str, mode: LogprobsMode, dtype: torch.dtype, vocab_size: int
) -> None:
    """Beside a greedy row that asks for nothing, the draw is not one call for all who ask."""
    logits = rows_of(vocab_size, dtype)
    params = [PARAMS[row % len(PARAMS)] for row in range(len(logits))]
    for history in (None, [3, 3, 7]):
        if history is not None:
            params = [dataclasses.replace(one, **PENALTIES) for one in params]
        ids, shared = sampled(logits, params, mode, accelerator, history)
        others = [*params, SamplingParams(temperature=0)]
        beside_ids, apart = sampled(torch.cat((logits, logits[:1])), others, mode, accelerator, history)
        assert torch.equal(ids, beside_ids[:-1])
        for name in ("token_ids", "values", "ranks"):
            assert torch.equal(getattr(shared, name), getattr(apart, name)), name


def check_numbers(device: str) -> None:
    """Compares with float64, a row of large logits among them; 50 equal ones would have a sum that is p."""
    logits = rows_of(2048, torch.float32)[[0, 1, 9]]
    params = [dataclasses.replace(PARAMS[0], logprobs=8, seed=row) for row in range(3)]
    raw_ids, raw = sampled(logits, params, LogprobsMode.RAW_LOGPROBS, device)
    expected = logits.double().log_softmax(1)
    torch.testing.assert_close(raw.values.double(), expected.gather(1, raw.token_ids), rtol=0, atol=1e-6)
    assert torch.equal(raw.ranks, (logits >= logits.gather(1, raw_ids.unsqueeze(1))).sum(1))
    _, found = sampled(logits, params, LogprobsMode.PROCESSED_LOGPROBS, device)
    with np.errstate(divide="ignore"):
        kept = torch.from_numpy(
            np.stack([np.log(target_distribution(row.numpy(), one)) for row, one in zip(logits, params, strict=True)])
        )
    torch.testing.assert_close(found.values.double(), kept.gather(1, found.token_ids), rtol=0, atol=2e-6)
    _, divided = sampled(logits, params, LogprobsMode.PROCESSED_LOGITS, device)
    scaled = (logits / np.float32(0.7)).masked_fill(kept == -torch.inf, -torch.inf)
    assert torch.equal(divided.token_ids, found.token_ids)
    torch.testing.assert_close(divided.values, scaled.gather(1, divided.token_ids), rtol=1e-6, atol=0)


def test_the_right_numbers(accelerator: str) -> None:
    check_numbers(accelerator)


def check_without_the_second_operator() -> None:
    """What is kept is what a sorted row keeps."""
    check_numbers("npu")


def test_the_right_numbers_without_the_second_operator(npu: str) -> None:
    run_isolated(check_without_the_second_operator, without=["aclnnTopKTopPSampleV2"])
