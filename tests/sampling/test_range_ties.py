"""Ranges of values whose ends next to nothing decides: bounds of a row's sum do not tell them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from range_copies import check_drawn_as_from_a_copy
from torch import Tensor

from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams

NUMBERS = ("typical_p", "epsilon_cutoff", "eta_cutoff", "top_a", "top_n_sigma", "min_p", "xtc_threshold")
BEST, MANY, DEEP = 5, 800_000, -20.3
VOCAB_SIZE = 1 << 20


def test_typical_counts_what_lies_deep_before_a_best_that_is_farther() -> None:
    """The mean is nearer to what is 20 below the best than to that: without both, what lies between is too little."""
    logits = torch.full((1, VOCAB_SIZE), DEEP)
    logits[0, :MANY] = -11.5
    logits[0, BEST] = 0.0
    between, deep = (MANY - 1) * math.exp(-11.5), (VOCAB_SIZE - MANY) * math.exp(DEEP)
    mean = (-11.5 * between + DEEP * deep) / (1 + between + deep)
    assert -mean > mean - DEEP > 0
    batch = SamplingBatch(vocab_size=VOCAB_SIZE)
    for part in (0.5, 1.5):  # of what lies deep: more than all of it needs the best
        batch.add(SamplingParams(typical_p=(between + part * deep) / (1 + between + deep), kept=True, seed=1))
    kept = Sampler()(logits.expand(2, -1), batch).kept
    assert kept is not None
    assert kept.counts.tolist() == [VOCAB_SIZE - 1, VOCAB_SIZE]
    assert not (kept.ids[: VOCAB_SIZE - 1] == BEST).any()


def tied(p: Tensor, rank: int) -> float:
    """Returns the typical_p that the nearest so many ids have together, but for rounding."""
    distance = (p.log() + (p * p.log()).sum().neg()).abs()
    return float(p[distance.argsort()[: rank + 2]].sum())


ALWAYS = {"xtc_probability": 1.0}
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
        params.append(SamplingParams(**(more | ENDS[name](p, rank)), seed=number, kept=is_kept))
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


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_number_changes_nothing(name: str, temperature: float) -> None:
    """Also where a row begins with a chunk of it."""
    logits = torch.randn(40, 2000, generator=torch.Generator().manual_seed(4)) * 2.5
    nothing = torch.full((40, 1024), -torch.inf)
    nothing[:, ::3] = torch.nan
    number = 1.0 if name == "top_n_sigma" else 0.02
    expected = ranges_of(logits, temperature, **{name: number})
    assert not torch.equal(expected, ranges_of(logits, temperature))
    torch.testing.assert_close(ranges_of(torch.cat((nothing, logits), 1), temperature, **{name: number}), expected)


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
