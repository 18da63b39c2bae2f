"""Rows whose result can be worked out by hand, at the bounds by which the kernel avoids work.

A row at random lies there too seldom, or lies so near to a boundary that `verify` and the fuzzer accept two results.
"""

from __future__ import annotations

import pytest
import torch
from batch_file import TYPES, Call
from run_driver import Driver

from ascend_sample.parity import Result

INF = float("inf")


def kept_ids(result: Result, row: int = 0) -> list[int]:
    assert result.kept is not None
    return (result.kept[row] != -INF).nonzero().flatten().tolist()


def top_p(logits: torch.Tensor, p: float) -> Call:
    """Rows that are filtered by top-p alone, without a draw."""
    rows = logits.shape[0]
    k = torch.zeros(rows, dtype=torch.int32)
    return Call(logits, k, torch.full((rows,), p, dtype=logits.dtype), None, 0.0, is_need_logits=True)


@pytest.mark.parametrize("vocab_size", [2048, 4096, 65536])
@pytest.mark.parametrize("p", [0.5, 0.75])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_large_nucleus_is_kept_until_the_sum_exceeds_p(
    driver: Driver, capabilities: list[str], vocab_size: int, p: float, dtype: torch.dtype
) -> None:
    """Of 2^m equal logits, p 2^m have a sum of p exactly: one more is kept, and those of the lowest ids are."""
    call = top_p(torch.full((1, vocab_size), 1.5, dtype=dtype), p)
    for capability in capabilities:
        (result,) = driver.run(capability, [call])
        assert kept_ids(result) == list(range(int(p * vocab_size) + 1)), capability


def test_probabilities_are_rounded_before_they_are_added(driver: Driver, capabilities: list[str]) -> None:
    """Of seven equal logits, six are kept, although six exact sevenths do not exceed p.

    6/7 in float32 is 9e-9 more than six sevenths, and six times 1/7 in float32 is 4e-8 more.
    """
    p = float(torch.tensor(6 / 7))
    seventh = float(torch.tensor(1 / 7))
    assert 6 < 7 * p < 7 * 6 * seventh
    call = top_p(torch.zeros(1, 7), p)
    for capability in capabilities:
        (result,) = driver.run(capability, [call])
        assert kept_ids(result) == [0, 1, 2, 3, 4, 5], capability


def test_what_a_sum_in_float32_loses_is_not_lost(driver: Driver, capabilities: list[str]) -> None:
    """One logit of 20, and 2^20 - 1 of -0.7: a whole chunk's logits of one lane, 32, weigh less than 16.

    That is half a unit of exp(20) in float32, so a lane that has added the first logit loses all that follow: 3 % of
    what the others weigh. The first has a probability of 0.998928 and does not suffice for p = 0.99895, but it would
    if the others weighed 3 % less.
    """
    logits = torch.full((1, 1 << 20), -0.7)
    logits[0, 0] = 20.0
    exponentials = torch.exp(logits.double() - 20.0)
    first = float(exponentials[0, 0] / exponentials.sum())
    other = float(exponentials[0, 1] / exponentials.sum())
    p = float(torch.tensor(0.99895))
    expected = 1 + (p - first) / other
    assert expected > 20_000
    for capability in capabilities:
        (result,) = driver.run(capability, [top_p(logits, p)])
        kept = kept_ids(result)
        assert kept == list(range(len(kept))), capability
        assert abs(len(kept) - expected) < 100, capability


def test_of_two_neighbouring_floats_the_larger_is_drawn(driver: Driver, capabilities: list[str]) -> None:
    """Without a filter and with equal noise, one line apart.

    Between 1024 and 2048 neighbours in float32 are 0.00012 apart. Times log2(e), which is beyond 2048, that is less
    than one unit: both bounds may round to the same float.
    """
    lowest = 1510.0 + 8.0 * torch.arange(64)
    logits = torch.full((64, 33), -INF)
    logits[:, 0] = lowest
    logits[:, 32] = torch.nextafter(lowest, torch.tensor(INF))
    call = Call(logits, torch.zeros(64, dtype=torch.int32), torch.ones(64), torch.ones(64, 33), 0.0, False)
    for capability in capabilities:
        (result,) = driver.run(capability, [call])
        assert result.ids.tolist() == [32] * 64, capability


def test_a_rank_beyond_a_small_nucleus_is_not_drawn(driver: Driver, capabilities: list[str]) -> None:
    """Three logits have a probability of 1/4 each, 2896 others the rest: at p = 0.498 two are kept.

    The third would be drawn if it were. exp(x) by its chord is 6 % too high for the others, so that bounds of their sum
    cannot tell whether two or three are kept.
    """
    others = 2896
    logits = torch.full((1, 3 + others), -float(torch.tensor(others).log()))
    logits[0, :3] = 0.0
    q = torch.ones_like(logits)
    q[0, 2] = 0.5
    call = Call(logits, torch.zeros(1, dtype=torch.int32), torch.tensor([0.498]), q, 0.0, is_need_logits=False)
    for capability in capabilities:
        (result,) = driver.run(capability, [call])
        assert result.ids.tolist() == [0], capability


def test_a_rank_beyond_a_large_nucleus_is_not_drawn(driver: Driver, capabilities: list[str]) -> None:
    """Logits that fall slowly, and many low ones: at this p 1500 are kept, and rank 1520 would be drawn if it were."""
    kept, rank = 1500, 1520
    falling = -torch.arange(2500) / 700
    logits = torch.cat([falling, torch.full((16_380,), -4.0)])[None]
    sums = torch.softmax(logits.double(), 1).cumsum(1)
    p = (sums[:, kept - 2] + sums[:, kept - 1]) / 2
    q = torch.ones_like(logits)
    q[0, rank] = 0.5
    call = Call(logits, torch.zeros(1, dtype=torch.int32), p.float(), q, 0.0, is_need_logits=False)
    for capability in capabilities:
        (result,) = driver.run(capability, [call])
        assert result.ids.tolist() == [0], capability


@pytest.mark.parametrize(
    ("levels", "rank"),
    [
        ([(1.0, 60), (0.04, 500), (0.02, 1500), (0.01, 2000), (1e-9, 28000)], 559),
        ([(1.0, 60), (0.04, 500), (0.02, 1500), (0.01, 2000), (1e-9, 28000)], 2059),
        ([(1.0, 2000), (0.5, 2000), (1e-9, 28000)], 1999),
        ([(1.0, 2000), (0.5, 2000)], 1999),
    ],
)
def test_the_last_rank_before_a_step_is_drawn(
    driver: Driver, capabilities: list[str], levels: list[tuple[float, int]], rank: int
) -> None:
    """A rank after the step has less noise, but by less than the second softmax takes from its weight."""
    weights = torch.tensor([weight * (1 - i * 1e-3 / count) for weight, count in levels for i in range(count)])
    probabilities = weights.double() / weights.double().sum()
    later = 3000
    q = torch.full((1, len(weights)), 1000.0)
    q[0, rank] = 1.0
    q[0, later] = torch.exp((probabilities[later] - probabilities[rank]) / 2)
    call = Call(weights.log()[None], torch.zeros(1, dtype=torch.int32), torch.tensor([0.95]), q, 0.0, False)
    for capability in capabilities:
        (result,) = driver.run(capability, [call])
        assert result.ids.tolist() == [rank], capability


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("q", "less", "first", "ps"),
    [
        (1.0, {10: 2.0**-148, 20: 2.0**-149}, 10, [1.0, 0.75]),  # two scores are infinite
        (2.0**126, {20: 2.0**126 * (1 - 2.0**-20)}, 0, [1.0, 0.75]),  # scores have 11 bits
        (2.0**-50, {}, 0, [1.0, 0.75]),
        (2.0, {10: 2 - 2.0**-23, 20: 2 - 2.0**-22}, 10, [1.0]),  # weights are 2^-12, both scores 2^-13 + 2^-36
    ],
)
def test_of_scores_that_float32_makes_equal_the_first_wins(
    driver: Driver,
    capabilities: list[str],
    q: float,
    less: dict[int, float],
    first: int,
    ps: list[float],
    dtype: torch.dtype,
) -> None:
    """Of 4096 equal logits, without a filter and with top-p."""
    count = len(ps)
    noise = torch.full((count, 4096), q)
    for place, value in less.items():
        noise[:, place] = value
    logits = torch.zeros(count, 4096, dtype=dtype)
    call = Call(logits, torch.zeros(count, dtype=torch.int32), torch.tensor(ps, dtype=dtype), noise, 0.0, False)
    for capability in capabilities:
        (result,) = driver.run(capability, [call])
        assert result.ids.tolist() == [first] * count, capability
