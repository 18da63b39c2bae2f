"""Logprobs of rows that a device draws together: the numbers of float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_logprobs import reported

from ascend_sample.sampling import LogprobsMode, SamplingParams
from ascend_sample.sampling.reference.distribution import target_distribution
from tests.support.isolation import run_isolated


def check_numbers(device: str) -> None:
    """Of three rows, of large logits and of small ones; 50 equal ones would have a sum that is p."""
    logits = torch.randn(3, 2048, generator=torch.Generator().manual_seed(2048)) * 3
    logits[1] += 1000
    logits[2] *= 1e-3
    fields = {"temperature": 0.7, "top_k": 50, "top_p": 0.9, "logprobs": 8}
    params = [SamplingParams(**fields, seed=row) for row in range(3)]  # type: ignore[arg-type]

    raw = reported(logits, params, device, LogprobsMode.RAW_LOGPROBS)
    expected = logits.double().log_softmax(1)
    torch.testing.assert_close(raw.values.double(), expected.gather(1, raw.token_ids), rtol=0, atol=1e-6)
    assert torch.equal(raw.ranks, (logits >= logits.gather(1, raw.token_ids[:, :1])).sum(1))
    found = reported(logits, params, device, LogprobsMode.PROCESSED_LOGPROBS)
    with np.errstate(divide="ignore"):
        of_rows = [np.log(target_distribution(row.numpy(), one)) for row, one in zip(logits, params, strict=True)]
    kept = torch.from_numpy(np.stack(of_rows))
    torch.testing.assert_close(found.values.double(), kept.gather(1, found.token_ids), rtol=0, atol=2e-6)
    divided = reported(logits, params, device, LogprobsMode.PROCESSED_LOGITS)
    scaled = (logits / np.float32(0.7)).masked_fill(kept == -torch.inf, -torch.inf)
    best = logits.sort(dim=1, descending=True, stable=True).indices[:, :8]
    is_kept = found.values[:, 1:] > -torch.inf
    assert is_kept.sum() > 16
    assert torch.equal(raw.token_ids[:, 1:], best)
    assert torch.equal(found.token_ids[:, 1:][is_kept], best[is_kept])
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
