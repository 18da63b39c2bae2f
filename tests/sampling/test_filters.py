"""`filter_logits` keeps what the reference keeps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from ascend_sample.sampling import SamplingBatch, filter_logits
from ascend_sample.sampling.reference.distribution import kept_ids
from ascend_sample.sampling.requests.params import SamplingParams
from ascend_sample.sampling.step.distribution import scaled_logits


@pytest.mark.parametrize("keep_ties", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keeps_what_the_reference_keeps(device: str, dtype: torch.dtype, keep_ties: bool) -> None:
    grid = list(itertools.product((0.0, 0.4, 1.0), (None, 1, 7, 200), (1.0, 0.2, 0.9), (0.0, 0.03, 1.0)))
    logits = (torch.randn(len(grid), 300) * 2).to(dtype)
    logits[::5, ::7] = -torch.inf
    columns = list(zip(*grid, strict=True))
    filtered = filter_logits(
        logits.to(device),
        temperature=torch.tensor(columns[0], device=device),
        top_k=torch.tensor([k or -1 for k in columns[1]], device=device),
        top_p=torch.tensor(columns[2], device=device),
        min_p=torch.tensor(columns[3], device=device),
        keep_ties=keep_ties,
    ).cpu()
    for row, (temperature, top_k, top_p, min_p) in enumerate(grid):
        params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        values = logits[row].double().numpy()
        kept = [token_id for token_id in kept_ids(values, params, keep_ties) if values[token_id] > -np.inf]
        assert (filtered[row] > -torch.inf).nonzero().flatten().tolist() == sorted(kept)
        torch.testing.assert_close(
            filtered[row, kept].double(), torch.from_numpy(values[kept]) / (temperature or 1.0), rtol=1e-6, atol=0
        )


def test_special_values(device: str) -> None:
    logits = torch.tensor([[torch.nan, 1.0, 2.0], [torch.inf, 1.0, torch.inf], [-torch.inf] * 3], device=device)
    filtered = filter_logits(logits, top_p=torch.full((3,), 0.9, device=device)).cpu()
    assert filtered[0].tolist() == [-torch.inf, 1.0, 2.0]
    assert filtered[1].tolist() == [torch.inf, -torch.inf, torch.inf]
    assert (filtered[2] == -torch.inf).all()


def test_a_softmax_of_scaled_logits_loses_no_digits(device: str) -> None:
    """Of the logits divided first it is off by 2e-6."""
    params = [SamplingParams(temperature=temperature, top_k=7, seed=1) for temperature in (0.7, 0.2, 1.7, 0.0)]
    batch = SamplingBatch(300, device)
    batch.extend(params)
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(1)) + 30
    for keep_ties in (False, True):
        found = scaled_logits(logits.to(device), batch.row_parameters(), keep_ties).cpu().double().log_softmax(1)
        for row, one in enumerate(params):
            kept = sorted(kept_ids(logits[row].double().numpy(), one, keep_ties))
            assert (found[row] > -torch.inf).nonzero().flatten().tolist() == kept
            wanted = (logits[row, kept].double() / (float(np.float32(one.temperature)) or 1.0)).log_softmax(0)
            torch.testing.assert_close(found[row, kept], wanted, rtol=2**-23, atol=1e-7)


def test_scaled_logits_of_special_values(device: str) -> None:
    batch = SamplingBatch(3, device)
    batch.extend([SamplingParams(temperature=0.5, top_p=0.9, seed=1)] * 3)
    logits = torch.tensor([[torch.nan, 1.0, 2.0], [torch.inf, 1.0, torch.inf], [-torch.inf] * 3], device=device)
    found = scaled_logits(logits, batch.row_parameters()).cpu()
    assert found[0].tolist() == [-torch.inf, -2.0, 0.0]
    assert found[1].tolist() == [0.0, -torch.inf, 0.0]
    assert (found[2] == -torch.inf).all()
