"""`filter_logits` keeps what the reference keeps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from ascend_sample.sampling import filter_logits
from ascend_sample.sampling.params import SamplingParams
from ascend_sample.sampling.reference import kept_ids


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
