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

RAW, PROCESSED, LOGITS = (
    LogprobsMode.RAW_LOGPROBS,
    LogprobsMode.PROCESSED_LOGPROBS,
    LogprobsMode.PROCESSED_LOGITS,
)
PARAMS = [
    SamplingParams(temperature=0.7, top_k=50, top_p=0.9, logprobs=5, seed=1),
    SamplingParams(temperature=1.5, top_k=8, logprobs=3, seed=2, repetition_penalty=1.2, presence_penalty=0.5),
    SamplingParams(temperature=2.0, top_k=100, min_p=0.02, logprobs=0, seed=3),
]


def rows_of(vocab_size: int, dtype: torch.dtype) -> Tensor:
    """Ordinary rows, ties, a large offset, and each kind of what is no number."""
    rows = torch.randn(12, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * 3
    rows[1] += 1000
    rows[2] = torch.randint(4, (vocab_size,), generator=torch.Generator().manual_seed(2))
    rows[3, 5:9], rows[4, ::2], rows[5], rows[6] = torch.inf, torch.nan, -torch.inf, torch.nan
    rows[7, 0], rows[7, 3], rows[8, 4:] = torch.nan, torch.inf, -torch.inf
    rows[9] *= 1e-3
    rows[10, 7], rows[11, 7] = torch.finfo(dtype).max, torch.finfo(dtype).min
    return rows.to(dtype)


def sampled(logits: Tensor, params: list[SamplingParams], mode: LogprobsMode, device: str) -> tuple[Tensor, Logprobs]:
    batch = SamplingBatch(logits.shape[1], device)
    batch.extend(params, output_ids=[[3, 3, 7]] * len(params))
    output = Sampler(mode.value)(logits.to(device), batch)
    assert output.logprobs is not None
    return output.token_ids.cpu(), Logprobs(output.logprobs.rows, *(tensor.cpu() for tensor in output.logprobs[1:]))


@pytest.mark.parametrize("mode", [RAW, PROCESSED, LOGITS])
def test_the_bits_of_logprobs_that_are_made_apart(accelerator: str, mode: LogprobsMode) -> None:
    """Beside a greedy row that asks for nothing, the draw is not one call for all who ask."""
    for vocab_size, dtype in ((300, torch.float16), (2048, torch.float32), (5001, torch.bfloat16)):
        logits = rows_of(vocab_size, dtype)
        for kinds in (PARAMS, PARAMS[::2]):  # with penalties in some rows, and without any
            params = [kinds[row % len(kinds)] for row in range(len(logits))]
            ids, shared = sampled(logits, params, mode, accelerator)
            others = [*params, SamplingParams(temperature=0)]
            beside_ids, apart = sampled(torch.cat((logits, logits[:1])), others, mode, accelerator)
            assert torch.equal(ids, beside_ids[:-1])
            assert all(map(torch.equal, shared[1:], apart[1:]))


def check_numbers(device: str) -> None:
    """Compares with float64, a row of large logits among them; 50 equal ones would have a sum that is p."""
    logits = rows_of(2048, torch.float32)[[0, 1, 9]]
    params = [dataclasses.replace(PARAMS[0], logprobs=8, seed=row) for row in range(3)]
    raw_ids, raw = sampled(logits, params, RAW, device)
    expected = logits.double().log_softmax(1)
    torch.testing.assert_close(raw.values.double(), expected.gather(1, raw.token_ids), rtol=0, atol=1e-6)
    assert torch.equal(raw.ranks, (logits >= logits.gather(1, raw_ids.unsqueeze(1))).sum(1))
    _, found = sampled(logits, params, PROCESSED, device)
    with np.errstate(divide="ignore"):
        of_rows = [np.log(target_distribution(row.numpy(), one)) for row, one in zip(logits, params, strict=True)]
    kept = torch.from_numpy(np.stack(of_rows))
    torch.testing.assert_close(found.values.double(), kept.gather(1, found.token_ids), rtol=0, atol=2e-6)
    _, divided = sampled(logits, params, LOGITS, device)
    scaled = (logits / np.float32(0.7)).masked_fill(kept == -torch.inf, -torch.inf)
    assert torch.equal(divided.token_ids, found.token_ids)
    torch.testing.assert_close(divided.values, scaled.gather(1, divided.token_ids), rtol=1e-6, atol=0)


def test_the_right_numbers(accelerator: str) -> None:
    check_numbers(accelerator)


def check_without_the_second_operator() -> None:
    """What is kept is what a sorted row keeps."""
    check_numbers("npu")


@pytest.mark.long
def test_the_right_numbers_without_the_second_operator(npu: str) -> None:
    run_isolated(check_without_the_second_operator, without=["aclnnTopKTopPSampleV2"])
