"""Rows for the operator sample_rows, a call of it by requests, and what the float64 reference draws of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from oracle import expected
from torch import Tensor

from ascend_sample.sampling import RowStatus, SamplingParams
from ascend_sample.sampling.draws.noise import Purpose

OK, ALL_MASKED, NAN_SEEN, INF_SEEN = RowStatus.OK, RowStatus.ALL_MASKED, RowStatus.NAN_SEEN, RowStatus.INF_SEEN
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Request(NamedTuple):
    """What a row is sampled with, as it arrives at the operator."""

    temperature: float = 1.0
    k: int = 0
    p: float = 1.0
    min_p: float = 0.0


GRID = [
    Request(*each)
    for each in itertools.product(
        (0.0, 0.3, 1.0, 1.7), (0, 1, 20, 1024, 1500), (1.0, 0.1, 0.9, 0.999), (0.0, 0.05, 1.0)
    )
]
ROUTES = [
    *(Request(1.0, 20, 0.9), Request(0.7, 300, 0.9, 0.1), Request(0.7, 20, 0.9), Request(0.7, 300)),
    *(Request(1.0, 0, 0.9), Request(0.7, 0, 0.9, 0.05), Request(1.0, 0, 1.0, 0.05), Request(0.7, 0, 1.0, 0.05)),
    *(Request(), Request(0.7), Request(1.0, 1500), Request(0.7, 1500, 0.9, 0.01)),
    *(Request(0.0, 20, 0.9), Request(0.7, 1, 0.9), Request(1.0, 0, 0.5, 1.0), Request(0.7, 20, 0.5, 1.0)),
]
"""Each way that the kernel draws a row."""


def lists(requests: list[Request]) -> dict[str, Tensor]:
    columns = zip(Request._fields, torch.tensor(requests).view(-1, 4).unbind(1), strict=True)
    return {name: column.int() if name == "k" else column for name, column in columns}


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
    result: tuple[Tensor, Tensor] = torch.ops.ascend_sample.sample_rows(logits, rows, **arguments)[:2]
    return result


def check_by_reference(logits: Tensor, requests: list[Request], keep_ties: bool = False) -> None:
    """Every id is one that the float64 reference allows, and nearly every one is its own."""
    token_ids, _ = sample_rows(logits, requests, keep_ties=keep_ties)
    seeds, positions = (each.tolist() for each in keys(len(requests)).values())
    others = 0
    for row, (temperature, k, p, min_p) in enumerate(requests):
        request = SamplingParams(
            temperature=temperature, top_k=k or None, top_p=p, min_p=min_p, seed=seeds[row] % 2**64
        )
        want = expected(logits[row].float().numpy(), request, positions[row], keep_ties=keep_ties)
        assert int(token_ids[row]) in want.acceptable, (row, int(token_ids[row]), want, requests[row], logits.dtype)
        others += int(token_ids[row]) != want.token_id
    assert others <= 0.03 * len(requests)


def make_logits(rows: int, vocab_size: int, dtype: torch.dtype, seed: int = 0, scale: float = 2.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, vocab_size, generator=generator) * scale).to(dtype)
