"""Draws from ranges of values, and ranges whose ends next to nothing decides: as from a copy that was cut before."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_value_ranges import ALWAYS, FILTERS, INF, new_batch, rows_of
from torch import Tensor

from ascend_sample.sampling import Sampler, SamplingParams
from ascend_sample.sampling.edits import value_ranges
from ascend_sample.sampling.edits.value_ranges import NUMBERS, RangeNumbers

BEST = 5


def check_drawn_as_from_a_copy(logits: Tensor, params: list[SamplingParams]) -> None:
    """Raises unless rows draw and keep what copies of them do in which what is outside of the range is -inf."""
    off = {name: SamplingParams().to_mapping()[name] for name in value_ranges.RANGE}
    batch = new_batch(params, vocab_size=logits.shape[1])
    alone = new_batch([replace(one, **off) for one in params], vocab_size=logits.shape[1])
    numbers = torch.from_numpy(RangeNumbers(batch.host, batch.row_edits.states).of_step())
    found = torch.ops.ascend_sample.value_ranges(logits, batch.temperature, numbers)
    least, most = (bound.unsqueeze(1) for bound in found)
    copy = logits.masked_fill((logits < least) | (logits > most), -INF)
    drawn, expected = Sampler()(logits, batch), Sampler()(copy, alone)
    assert torch.equal(drawn.token_ids, expected.token_ids)
    assert torch.equal(drawn.status, expected.status)
    if drawn.kept is not None and expected.kept is not None:
        assert torch.equal(drawn.kept.counts, expected.kept.counts)
        assert torch.equal(drawn.kept.ids, expected.kept.ids)


@pytest.mark.parametrize(
    ("more", "is_kept", "dtype"),
    [
        ({"top_k": 20}, True, torch.float32),
        ({"top_k": 20}, False, torch.bfloat16),
        ({"top_p": 0.6}, False, torch.float32),
        ({"top_p": 0.6}, True, torch.float16),
        ({"top_p": 0.9, "min_p": 0.05}, True, torch.bfloat16),
        ({"top_p": 0.9, "min_p": 0.05}, False, torch.float16),
        ({}, True, torch.float32),
        ({}, False, torch.bfloat16),
    ],
    ids=str,
)
def test_a_draw_without_a_copy_is_that_from_one(more: dict[str, Any], is_kept: bool, dtype: torch.dtype) -> None:
    count = 800
    filters = list(FILTERS.values())
    check_drawn_as_from_a_copy(
        rows_of(count, dtype, seed=1) + 20,
        [
            SamplingParams(**(more | filters[row % len(filters)]), seed=row, return_sampling_mask=is_kept)
            for row in range(count)
        ],
    )


def test_typical_counts_what_lies_deep_before_a_best_that_is_farther() -> None:
    """The mean is nearer to what is 20 below the best than to that: without both, what lies between is too little."""
    vocab_size, many, depth = 1 << 20, 800_000, -20.3
    logits = torch.full((1, vocab_size), depth)
    logits[0, :many] = -11.5
    logits[0, BEST] = 0.0
    between, deep = (many - 1) * math.exp(-11.5), (vocab_size - many) * math.exp(depth)
    mean = (-11.5 * between + depth * deep) / (1 + between + deep)
    assert -mean > mean - depth > 0
    parts = (0.5, 1.5)  # of what lies deep: more than all of it needs the best
    masses = [(between + part * deep) / (1 + between + deep) for part in parts]
    batch = new_batch(
        [SamplingParams(typical_p=p, return_sampling_mask=True, seed=1) for p in masses], vocab_size=vocab_size
    )
    kept = Sampler()(logits.expand(2, -1), batch).kept
    assert kept is not None
    assert kept.counts.tolist() == [vocab_size - 1, vocab_size]
    assert not (kept.ids[: vocab_size - 1] == BEST).any()


def tied(p: Tensor, rank: int) -> float:
    """Returns the typical_p that the nearest so many ids have together, but for rounding."""
    distance = (p.log() + (p * p.log()).sum().neg()).abs()
    return float(p[distance.argsort()[: rank + 2]].sum())


ENDS: dict[str, Callable[[Tensor, int], dict[str, Any]]] = {
    "typical": lambda p, rank: {"typical_p": tied(p, rank)},
    "typical, xtc": lambda p, rank: {"typical_p": tied(p, rank), **ALWAYS, "xtc_threshold": 0.02},
    "typical, min_p": lambda p, rank: {"typical_p": tied(p, rank), "min_p": 0.01},
    "epsilon": lambda p, rank: {"epsilon_cutoff": float(p[rank])},
    "eta": lambda p, rank: {"eta_cutoff": min(float((p[rank] * (-(p * p.log()).sum()).exp()) ** 2), 0.9)},
    "top_a": lambda p, rank: {"top_a": min(float(p[rank] / p[0] ** 2), 1.0)},
    "xtc": lambda p, rank: {**ALWAYS, "xtc_threshold": min(float(p[rank]), 0.5)},
    "min_p": lambda p, rank: {**ALWAYS, "xtc_threshold": min(float(p[rank // 3]), 0.5), "min_p": float(p[rank] / p[0])},
}
"""By probabilities in descending order: a filter whose range ends at the one with a rank, but for rounding."""


@pytest.mark.parametrize(
    ("step", "more", "dtype", "is_kept"),
    [
        (0.0, {}, torch.float32, True),
        (0.5, {"top_p": 0.9}, torch.float32, False),
        (0.0, {"top_k": 20}, torch.bfloat16, False),
        (0.0, {"top_p": 0.95}, torch.float16, True),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ENDS)
def test_an_end_at_a_value_is_that_of_a_copy(
    name: str, step: float, more: dict[str, Any], dtype: torch.dtype, is_kept: bool
) -> None:
    """Rows that bounds do not settle are searched exactly, and drawn from as they lie."""
    logits = (torch.randn(90, 3000, generator=torch.Generator().manual_seed(3)) * 2.5).to(dtype)
    if step:
        logits = (logits / step).round() * step
    params = []
    for number, p in enumerate(logits.double().softmax(1).sort(dim=1, descending=True).values):
        rank = (0, 1, 2, 3, 5, 9, 17, 30, 61)[number % 9]
        params.append(SamplingParams(**(more | ENDS[name](p, rank)), seed=number, return_sampling_mask=is_kept))
    check_drawn_as_from_a_copy(logits, params)


def ranges_of(logits: Tensor, temperature: float = 1.0, **numbers: float | Tensor) -> Tensor:
    """Returns the least and the largest value that rows keep, [2, rows]."""
    table = torch.zeros(len(NUMBERS), len(logits))
    for name, number in ({"typical_p": 1.0} | numbers).items():
        table[NUMBERS.index(name)] = number
    return torch.stack(torch.ops.ascend_sample.value_ranges(logits, torch.full((len(logits),), temperature), table))


def test_an_end_is_the_first_number_that_is_not_below() -> None:
    """Of a bound between two float32 that is the upper one, whichever is nearer."""
    min_p = torch.linspace(1e-3, 0.99, 500)
    bounds = min_p.double().log()
    nearest = bounds.float()
    assert 200 < (nearest < bounds).sum() < 300
    expected = torch.where(nearest < bounds, nearest.nextafter(torch.tensor(1.0)), nearest)
    assert torch.equal(ranges_of(torch.tensor([[0.0, -20.0]]).expand(500, 2), min_p=min_p)[0], expected)


def test_what_is_no_number_changes_nothing() -> None:
    """Also where a row begins with a chunk of it."""
    logits = torch.randn(40, 2000, generator=torch.Generator().manual_seed(4)) * 2.5
    nothing = torch.full((40, 1024), -torch.inf)
    nothing[:, ::3] = torch.nan
    for name, temperature in itertools.product(NUMBERS, (1.0, 0.7)):
        number = {name: 1.0 if name == "top_n_sigma" else 0.02}
        expected = ranges_of(logits, temperature, **number)
        assert not torch.equal(expected, ranges_of(logits, temperature))
        torch.testing.assert_close(ranges_of(torch.cat((nothing, logits), 1), temperature, **number), expected)


def test_rounding_leaves_a_row_that_is_typical_as_a_whole() -> None:
    """Its sum was added up in another order, which may make more of equal weights than they reach together."""
    logits = torch.linspace(-3, -0.1, 200).unsqueeze(1).repeat(1, 3000)
    logits[:, BEST] = 0
    assert torch.equal(ranges_of(logits, typical_p=1 - 2.0**-24), torch.stack((logits[:, 0], logits[:, BEST])))


def test_deviations_of_values_that_are_far_from_one_another() -> None:
    logits = torch.full((1, 500_000), 0.3)
    logits[0, -1] = 1000
    least, most = ranges_of(logits, top_n_sigma=1.0).view(-1).tolist()
    assert (least, most) == pytest.approx((1000 - float(logits.double().std(correction=0)), 1000), rel=0, abs=1e-3)
    # Squares that no float32 holds.
    logits = torch.tensor([[3e38, -3e38, 0.0, -torch.inf, torch.nan]])
    least, most = ranges_of(logits, top_n_sigma=0.5).view(-1).tolist()
    assert (least, most) == pytest.approx((3e38 - 0.5 * math.sqrt(6) * 1e38, 3e38))
