"""Rows whose result can be worked out by hand, at the bounds by which the kernel avoids work.

A row at random lies there too seldom, or lies so near to a boundary that `verify` and the fuzzer accept two results.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import ascend_sample

INF = float("inf")
TYPES = (torch.float32, torch.float16, torch.bfloat16)


class Rows(NamedTuple):
    """Rows of the first operator, without top-k, and what must come of each.

    Attributes:
        logits: [rows, vocab_size].
        p: of all rows, or of each.
        q: their noise; None: the best one is drawn.
        drawn: the id of each row.
        kept: how many are kept of each row, which are the first ids; None: they are not looked at.
        off: by how many that may be off.
    """

    logits: Tensor
    p: float | Tensor = 1.0
    q: Tensor | None = None
    drawn: int = 0
    kept: int | None = None
    off: int = 0


def what_a_sum_in_float32_loses() -> Rows:
    """One logit of 20, and 2^20 - 1 of -0.7: a whole chunk's logits of one lane, 32, weigh less than 16.

    That is half a unit of exp(20) in float32, so a lane that has added the first logit loses all that follow: 3 % of
    what the others weigh. The first has a probability of 0.998928 and does not suffice for p = 0.99895, but it would
    if the others weighed 3 % less.
    """
    logits = torch.full((1, 1 << 20), -0.7)
    logits[0, 0] = 20.0
    exponentials = torch.exp(logits.double() - 20.0)
    first, other = (float(exponentials[0, i] / exponentials.sum()) for i in (0, 1))
    p = float(torch.tensor(0.99895))
    return Rows(logits, p, kept=round(1 + (p - first) / other), off=100)


def neighbouring_floats() -> Rows:
    """Without a filter and with equal noise, one line apart: the larger is drawn.

    Between 1024 and 2048 neighbours in float32 are 0.00012 apart. Times log2(e), which is beyond 2048, that is less
    than one unit: both bounds may round to the same float.
    """
    lowest = 1510.0 + 8.0 * torch.arange(64)
    logits = torch.full((64, 33), -INF)
    logits[:, 0] = lowest
    logits[:, 32] = torch.nextafter(lowest, torch.tensor(INF))
    return Rows(logits, q=torch.ones(64, 33), drawn=32)


def beyond_a_small_nucleus() -> Rows:
    """Three logits have a probability of 1/4 each, 2896 others the rest: at p = 0.498 two are kept.

    The third would be drawn if it were. exp(x) by its chord is 6 % too high for the others, so that bounds of their sum
    cannot tell whether two or three are kept.
    """
    others = 2896
    logits = torch.full((1, 3 + others), -float(torch.tensor(others).log()))
    logits[0, :3] = 0.0
    q = torch.ones_like(logits)
    q[0, 2] = 0.5
    return Rows(logits, 0.498, q)


def beyond_a_large_nucleus() -> Rows:
    """Logits that fall slowly, and many low ones: at this p 1500 are kept, and rank 1520 would be drawn if it were."""
    kept, rank = 1500, 1520
    falling = -torch.arange(2500) / 700
    logits = torch.cat([falling, torch.full((16_380,), -4.0)])[None]
    sums = torch.softmax(logits.double(), 1).cumsum(1)
    q = torch.ones_like(logits)
    q[0, rank] = 0.5
    return Rows(logits, (sums[:, kept - 2] + sums[:, kept - 1]).float() / 2, q)


def last_before_a_step(levels: list[tuple[float, int]], rank: int) -> Rows:
    """A rank after the step has less noise, but by less than the second softmax takes from its weight."""
    weights = torch.tensor([weight * (1 - i * 1e-3 / count) for weight, count in levels for i in range(count)])
    probabilities = weights.double() / weights.double().sum()
    later = 3000
    q = torch.full((1, len(weights)), 1000.0)
    q[0, rank] = 1.0
    q[0, later] = torch.exp((probabilities[later] - probabilities[rank]) / 2)
    return Rows(weights.log()[None], 0.95, q, drawn=rank)


def equal_scores(q: float, less: dict[int, float], first: int, ps: list[float], dtype: torch.dtype) -> Rows:
    """Of 4096 equal logits, float32 makes some scores equal: the first is drawn, without a filter and with top-p."""
    noise = torch.full((len(ps), 4096), q)
    for place, value in less.items():
        noise[:, place] = value
    return Rows(torch.zeros(len(ps), 4096, dtype=dtype), torch.tensor(ps), noise, first)


def every() -> Iterator[tuple[str, Rows]]:
    """Returns all rows, by name."""
    # Of 2^m equal logits, p 2^m have a sum of p exactly: one more is kept, and those of the lowest ids are.
    for size, p, dtype in itertools.product((2048, 4096, 65536), (0.5, 0.75), TYPES):
        rows = Rows(torch.full((1, size), 1.5, dtype=dtype), p, kept=int(p * size) + 1)
        yield f"kept until the sum exceeds {p}: {size} {dtype}", rows
    # 6/7 in float32 is 9e-9 more than six exact sevenths, and six times 1/7 in float32 is 4e-8 more: six are kept.
    yield "probabilities are rounded before they are added", Rows(torch.zeros(1, 7), float(torch.tensor(6 / 7)), kept=6)
    yield "what a sum in float32 loses", what_a_sum_in_float32_loses()
    yield "neighbouring floats", neighbouring_floats()
    yield "a rank beyond a small nucleus", beyond_a_small_nucleus()
    yield "a rank beyond a large nucleus", beyond_a_large_nucleus()
    levels, halves = [(1.0, 60), (0.04, 500), (0.02, 1500), (0.01, 2000), (1e-9, 28000)], [(1.0, 2000), (0.5, 2000)]
    for last, rank in ((levels, 559), (levels, 2059), ([*halves, (1e-9, 28000)], 1999), (halves, 1999)):
        yield f"rank {rank} of {len(last)} levels", last_before_a_step(last, rank)
    for dtype in TYPES:
        for q, less, first, ps in (
            (1.0, {10: 2.0**-148, 20: 2.0**-149}, 10, [1.0, 0.75]),  # two scores are infinite
            (2.0**126, {20: 2.0**126 * (1 - 2.0**-20)}, 0, [1.0, 0.75]),  # scores have 11 bits
            (2.0**-50, {}, 0, [1.0, 0.75]),
            # Weights are 2^-12, both scores 2^-13 + 2^-36.
            (2.0, {10: 2 - 2.0**-23, 20: 2 - 2.0**-22}, 10, [1.0]),
        ):
            yield f"equal scores of noise {q:g} {dtype}", equal_scores(q, less, first, ps, dtype)


def check(rows: Rows) -> None:
    """Samples on a thread of its own: what the kernel remembers of other rows would decide what it tries first."""
    count = len(rows.logits)
    k = torch.zeros(count, dtype=torch.int32)
    p = torch.as_tensor(rows.p).expand(count).to(rows.logits.dtype)
    sample = torch.ops.ascend_sample.top_k_top_p_sample
    with ThreadPoolExecutor(1) as thread:
        ids, kept = thread.submit(sample, rows.logits, k, p, rows.q, 0.0, rows.kept is not None).result()
    assert ids.tolist() == [rows.drawn] * count
    if rows.kept is not None:
        for row in kept:
            found = (row != -INF).nonzero().flatten().tolist()
            assert found == list(range(len(found)))
            assert abs(len(found) - rows.kept) <= rows.off


def check_after_a_flat_row() -> None:
    """32 logits weigh a little more than p, 31 a little less; the rest of the row is a tail of 2^20 small weights.

    After a row with a large nucleus the kernel begins top-p with what was in the last one, or with the exact sum.
    """
    row = torch.full((1, 2**20), -20.14)
    row[0, :32] = 0
    flat = torch.randn((1, 2**20), generator=torch.Generator().manual_seed(1)) * 0.5
    for rows in (row, torch.cat((flat, row))):
        result = ascend_sample.top_k_top_p_sample(rows, None, 0.96872, torch.ones_like(rows), is_need_logits=True)
        assert result.logits_top_kp_select is not None
        assert (result.logits_top_kp_select[-1] > -INF).nonzero().flatten().tolist() == list(range(32))


def check_all() -> None:
    """Checks all rows; `test_arithmetic.py` does on every code path."""
    for _, rows in every():
        check(rows)
    check_after_a_flat_row()


def test_rows(subtests: pytest.Subtests) -> None:
    for name, rows in every():
        with subtests.test(name):
            check(rows)
    check_after_a_flat_row()
