"""How rows of the second operator are run through an implementation."""

from __future__ import annotations

import math
from typing import Any

import torch

import ascend_sample
from ascend_sample import TopKTopPSampleV2

INF = math.inf
NAN = math.nan
PROBABILITIES = [0.125, 0.5, 0.25, 0.125]


def run(
    device: str,
    route: str | None,
    rows: list[list[float]],
    q: list[list[float]] | None = None,
    dtype: torch.dtype = torch.float16,
    **options: Any,
) -> TopKTopPSampleV2:
    """The operator on a device by a route, its results on the CPU."""
    x = torch.tensor(rows, dtype=torch.float32).to(dtype).to(device)
    noise = None if q is None else torch.tensor(q, dtype=torch.float32, device=device)
    moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    with ascend_sample.use_backend(route):
        result = ascend_sample.top_k_top_p_sample_v2(x, q=noise, **moved)
    return TopKTopPSampleV2(*(None if part is None else part.cpu() for part in result))


def sample(device: str, route: str | None, rows: list[list[float]], **options: Any) -> tuple[list[int], list[Any]]:
    """The drawn ids and the kept ids of each row."""
    result = run(device, route, rows, is_need_logits=True, **options)
    filler = -INF if options.get("input_is_logits", True) else 0.0
    assert result.logits_top_kp_select is not None
    kept = [torch.nonzero(row != filler).flatten().tolist() for row in result.logits_top_kp_select]
    return result.logits_select_idx.tolist(), kept


def log(*probabilities: float) -> list[float]:
    return [math.log(probability) if probability > 0 else -INF for probability in probabilities]


TENTHS = log(0.1, 0.2, 0.3, 0.4)
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
