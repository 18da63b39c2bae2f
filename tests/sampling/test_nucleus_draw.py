"""Rows with top-p alone draw what the same rows draw without it when all but their nucleus is masked.

The nucleus is found here in float64. The CPU kernel draws between two cuts, where that does, and else searches for the
end: a token may depend on neither, nor on what else a row asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.sampling import Sampler, SamplerOutput, SamplingBatch, SamplingParams

VOCAB_SIZE = 3000
ROWS = 400
NEAR = 1e-5
"""A sum of probabilities is as near to p: rounding decides."""


def normal(generator: torch.Generator) -> Tensor:
    deviations = torch.linspace(0.1, 5, ROWS).unsqueeze(1)
    return torch.randn(ROWS, VOCAB_SIZE, generator=generator) * deviations


def with_ties(generator: torch.Generator) -> Tensor:
    return torch.randint(-6, 4, (ROWS, VOCAB_SIZE), generator=generator).float()


def with_a_tail(generator: torch.Generator) -> Tensor:
    """Little of it lies where a first look reaches."""
    logits = torch.rand(ROWS, VOCAB_SIZE, generator=generator) - 8
    logits[:, 1500:1510] = 3 * torch.rand(ROWS, 10, generator=generator)
    return logits


def masked(generator: torch.Generator) -> Tensor:
    logits = normal(generator)
    return logits.masked_fill(torch.rand(ROWS, VOCAB_SIZE, generator=generator) < 0.9, -torch.inf)


def late(generator: torch.Generator) -> Tensor:
    """The first logits tell nothing of the largest."""
    logits = normal(generator)
    logits[:, :2048] -= 60
    return logits


KINDS = (normal, with_ties, with_a_tail, masked, late)
SHIFTS = (0.0, 40.0, -70.0)
TEMPERATURES = (1.0, 0.05, 0.7, 30.0)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PAIRS = [
    (kind, SHIFTS[(number + place) % 3], temperature, DTYPES[(number + 2 * place) % 3])
    for number, kind in enumerate(KINDS)
    for place, temperature in enumerate(TEMPERATURES)
]
"""Each kind at each temperature; shifts and dtypes in turns."""


class Nuclei:
    """What top-p keeps of rows, for several p."""

    def __init__(self, logits: Tensor, temperature: float) -> None:
        logits = logits.float()
        quotients = (logits - logits.amax(1, keepdim=True)) / temperature
        ordered = quotients.sort(dim=1, descending=True, stable=True)
        self._ids, probabilities = ordered.indices, ordered.values.double().softmax(1)
        self._sums = probabilities.cumsum(1)
        self._before = self._sums - probabilities

    def of(self, p: float) -> tuple[Tensor, Tensor]:
        """What is kept, bool [rows, vocab_size], and in which rows rounding does not decide that, bool [rows]."""
        is_kept = self._before <= p
        is_clear = ((self._sums - p).abs() > NEAR).all(1)
        return torch.zeros_like(is_kept).scatter_(1, self._ids, is_kept), is_clear


@cache
def batch_of(params: SamplingParams, rows: int = ROWS) -> SamplingBatch:
    """Rows that differ in their seeds: many tests draw from them, and none moves them on."""
    batch = SamplingBatch(VOCAB_SIZE)
    batch.extend([replace(params, seed=row) for row in range(rows)])
    return batch


def draw(logits: Tensor, batch: SamplingBatch) -> SamplerOutput:
    return Sampler()(logits, batch, advance=False)


@pytest.mark.parametrize(("kind", "shift", "temperature", "dtype"), PAIRS)
def test_what_is_outside_changes_nothing(
    kind: Callable[[torch.Generator], Tensor], shift: float, temperature: float, dtype: torch.dtype
) -> None:
    logits = (kind(torch.Generator().manual_seed(1)) + shift).to(dtype)
    nuclei = Nuclei(logits, temperature)
    clear = 0
    for p in (0.3, 0.9, 0.995):
        is_kept, is_clear = nuclei.of(p)
        params = SamplingParams(top_p=p, temperature=temperature)
        drawn = draw(logits, batch_of(params))
        told = draw(logits, batch_of(replace(params, return_sampling_mask=True)))
        alone = logits.masked_fill(~is_kept, -torch.inf)
        expected = draw(alone, batch_of(replace(params, top_p=1.0))).token_ids
        clear += int(is_clear.sum())
        assert torch.equal(drawn.token_ids[is_clear], expected[is_clear])
        assert torch.equal(drawn.token_ids, told.token_ids)
        assert told.kept is not None
        assert torch.equal(told.kept.counts[is_clear], is_kept.sum(1)[is_clear].int())
        assert not drawn.status.any()
    assert clear > ROWS


@pytest.mark.parametrize(
    ("more", "dtype"),
    [
        ({"min_p": 0.02}, torch.float32),
        ({"min_p": 0.3}, torch.bfloat16),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.05}, torch.float32),
        ({"epsilon_cutoff": 2e-3}, torch.bfloat16),
        ({"typical_p": 0.4, "min_p": 0.2}, torch.float32),
    ],
    ids=str,
)
def test_other_filters_beside(more: dict[str, Any], dtype: torch.dtype) -> None:
    """A range comes before the nucleus, and min-p after it, by the largest weight that is left."""
    logits = normal(torch.Generator().manual_seed(2)).to(dtype)
    for temperature in (1.0, 0.6):
        others = SamplingParams(temperature=temperature, **more)
        ranged = {name: value for name, value in more.items() if name != "min_p"}
        batch = batch_of(replace(others, min_p=0.0))
        left = logits.float() if not ranged else batch.process(logits.float()).logits
        is_kept, is_clear = Nuclei(left, temperature).of(0.8)
        weights = (left.double() / temperature).softmax(1)
        share = weights / weights.amax(1, keepdim=True)
        is_kept &= share >= others.min_p
        is_clear &= ((share - others.min_p).abs() > NEAR).all(1) | (others.min_p == 0)
        params = replace(others, top_p=0.8)
        drawn = draw(logits, batch_of(params)).token_ids
        told = draw(logits, batch_of(replace(params, return_sampling_mask=True)))
        alone = left.masked_fill(~is_kept, -torch.inf)
        expected = draw(alone, batch_of(SamplingParams(temperature=temperature))).token_ids
        assert int(is_clear.sum()) > ROWS // 8
        assert torch.equal(drawn[is_clear], expected[is_clear])
        assert torch.equal(drawn, told.token_ids)
