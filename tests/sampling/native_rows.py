"""Rows for sample_rows, and a call of it by requests."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import MappingProxyType

import torch
from row_reference import Request
from torch import Tensor

from ascend_sample.sampling.draws.noise import Purpose

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TEMPERATURES = (0.0, 0.3, 1.0, 1.7)
KS = (0, 1, 20, 1024, 1500)
PS = (1.0, 0.1, 0.9, 0.999)
MIN_PS = (0.0, 0.05, 1.0)
GRID = [Request(*each) for each in itertools.product(TEMPERATURES, KS, PS, MIN_PS)]
ROUTES = [
    Request(1.0, 20, 0.9, 0.0),
    Request(0.7, 300, 0.9, 0.1),
    Request(1.0, 0, 0.9, 0.0),
    Request(0.7, 0, 0.9, 0.05),
]
ROUTES += [Request(1.0, 0, 1.0, 0.05), Request(0.7, 0, 1.0, 0.05), Request(1.0, 0, 1.0, 0.0), Request(0.7, 0, 1.0, 0.0)]
ROUTES += [Request(0.7, 20, 0.9, 0.0), Request(0.7, 300, 1.0, 0.0)]
ROUTES += [Request(1.0, 1500, 1.0, 0.0), Request(0.7, 1500, 0.9, 0.01)]
ROUTES += [Request(0.0, 20, 0.9, 0.0), Request(0.7, 1, 0.9, 0.0), Request(1.0, 0, 0.5, 1.0), Request(0.7, 20, 0.5, 1.0)]


def lists(requests: list[Request]) -> dict[str, Tensor]:
    return {
        "temperature": torch.tensor([request.temperature for request in requests]),
        "k": torch.tensor([request.k for request in requests], dtype=torch.int32),
        "p": torch.tensor([request.p for request in requests]),
        "min_p": torch.tensor([request.min_p for request in requests]),
    }


def keys(count: int) -> dict[str, Tensor]:
    numbers = torch.arange(count)
    return {"seed": numbers * 6364136223846793005 + 11, "position": numbers * 37 % 1009}


def sample_rows(
    logits: Tensor,
    requests: list[Request],
    *,
    rows: Tensor | None = None,
    purpose: int = Purpose.DRAW,
    keep_ties: bool = False,
    edits: Mapping[str, Tensor] = MappingProxyType({}),
    **key: Tensor,
) -> tuple[Tensor, Tensor]:
    arguments = {**lists(requests), **(key or keys(len(requests))), "purpose": purpose, "keep_ties": keep_ties, **edits}
    result: tuple[Tensor, Tensor] = torch.ops.ascend_sample.sample_rows(logits, rows, **arguments)
    return result


def make_logits(rows: int, vocab_size: int, dtype: torch.dtype, seed: int = 0, scale: float = 2.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, vocab_size, generator=generator) * scale).to(dtype)
