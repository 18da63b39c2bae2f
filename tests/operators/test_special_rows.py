"""Short random rows of nothing but special values, where rare rules meet, through every implementation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import ascend_sample
from ascend_sample.reference import top_k_top_p_sample_reference
from ascend_sample.reference_v2 import top_k_top_p_sample_v2_reference

INF, NAN = math.inf, math.nan
LOGITS = (-INF, NAN, -60000.0, -1.0, -0.0, 0.0, 1.0, 1.0, 2.0, 60000.0, INF)
NOISE = (NAN, NAN, -0.0, 0.0, 1.0, 1.0, 2.0, -1.0, INF, 1e-30)
P = (-0.5, 0.0, 0.3, 0.5, 0.9, 1.0, NAN)
MIN_P = (-1.0, 0.0, 0.1, 0.5, 1.0, NAN)
ROWS = 32


@pytest.mark.parametrize("route", [None, "composite"])
@pytest.mark.parametrize("seed", range(2))
def test_ids_and_kept_logits_are_the_references(device: str, route: str | None, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def drawn(values: tuple[float, ...], *shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
        return torch.tensor(values)[torch.randint(len(values), shape, generator=generator)].to(dtype)

    for vocab_size in range(1, 9):
        logits = drawn(LOGITS, ROWS, vocab_size)
        k = torch.randint(-1, vocab_size + 2, (ROWS,), generator=generator).int()
        p, min_p = drawn(P, ROWS), drawn(MIN_P, ROWS)
        q = None if vocab_size == seed + 1 else drawn(NOISE, ROWS, vocab_size, dtype=torch.float32)
        options = {"eps": float(seed % 2), "is_need_logits": True}
        expected = (
            top_k_top_p_sample_reference(logits, k, p, q, **options),
            top_k_top_p_sample_v2_reference(logits, k, p, q, **options),
            top_k_top_p_sample_v2_reference(logits, k, p, q, min_p, **options),
            top_k_top_p_sample_v2_reference(logits, k, p, q, min_p, **options, input_is_logits=False),
        )
        x, k, p, min_p = (each.to(device) for each in (logits, k, p, min_p))
        q = None if q is None else q.to(device)
        with ascend_sample.use_backend(route):
            results = (
                ascend_sample.top_k_top_p_sample(x, k, p, q, **options),
                ascend_sample.top_k_top_p_sample_v2(x, k, p, q, **options),
                ascend_sample.top_k_top_p_sample_v2(x, k, p, q, min_p, **options),
                ascend_sample.top_k_top_p_sample_v2(x, k, p, q, min_p, **options, input_is_logits=False),
            )
        for result, right in zip(results, expected, strict=True):
            assert torch.equal(result.logits_select_idx.cpu(), right.logits_select_idx)
            assert torch.equal(result.logits_top_kp_select.cpu(), right.logits_top_kp_select)
