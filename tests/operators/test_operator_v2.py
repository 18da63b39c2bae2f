"""Rows of the second operator that one can check by hand, through every implementation."""

from __future__ import annotations

import math
import time

import pytest
import torch

from tests.operators.by_hand import (
    DTYPES,
    INF,
    NAN,
    PROBABILITIES,
    SAMPLE_V2,
    TENTHS,
    Row,
    check_rows,
    log,
    row,
    sample,
)

FLOAT32 = torch.float32
HUNDREDTHS = log(0.8, 0.15, 0.05)
EIGHTHS = [float(-i) / 8 for i in range(30)]
FOUR = [0, 1, 2, 3]
GROUPS = [(1.0, 60), (0.04, 500), (0.02, 1500), (0.01, 2000), (1e-9, 28000)]
HALVES = [(1.0, 2000), (0.5, 2000)]
FILTERS = [(None, None, None), (2, None, None), (None, 0.9, 0.1), (2, 0.9, 0.1)]
NOTHING = [0.0, NAN, -1.0, 0.0]


def probabilities(values: list[float], drawn: int, kept: list[int] | None = None, **options: object) -> Row:
    return row(values, drawn, kept, input_is_logits=False, **options)


def before_a_step(levels: list[tuple[float, int]], rank: int) -> Row:
    """The last rank before a step. In a level weights fall by 1e-3; a later rank with less noise scores 5/6 of this."""
    weights = [weight * (1 - i * 1e-3 / count) for weight, count in levels for i in range(count)]
    q = [1000.0] * len(weights)
    q[rank] = 1.0
    q[3000] = 1.2 * weights[3000] / weights[rank]
    return row(log(*weights), rank, p=0.95, q=q, dtype=FLOAT32)


def of_a_large_nucleus(nucleus: int, staying: int, quiet: int, drawn: int) -> Row:
    """Logits that fall slowly, and many low ones: a rank with little noise is drawn where both filters keep it."""
    values = [-rank / 700 for rank in range(2500)] + [-4.0] * 16_380
    sums = torch.softmax(torch.tensor(values, dtype=torch.float64), 0).cumsum(0)
    p = float(sums[nucleus - 2] + sums[nucleus - 1]) / 2
    q = [1.0] * len(values)
    q[quiet] = 1e-3
    return row(values, drawn, p=p, min_p=math.exp(-(staying - 0.5) / 700), q=q, dtype=FLOAT32)


ROWS = {
    # Sums that are exact in binary tell >= from >.
    "top_p": [
        *(
            row([0.0] * 4, 0, list(range(n)), k=k, p=p, dtype=dtype)
            for dtype in DTYPES
            for k in (None, 4)
            for p, n in (
                *((0.25, 1), (0.5, 2), (0.75, 3), (0.125, 1), (0.515625, 3)),
                *((0.0, 1), (-0.5, 1), (1.0, 4), (1.5, 4)),
            )
        ),
        row(TENTHS, 3, FOUR, p=NAN),
        # .8 : .15 are drawn 5.33 : 1. The first operator would draw them 1.916 : 1.
        row(HUNDREDTHS, 0, p=0.9, q=[1.0, 0.45, 1.0]),
        row(HUNDREDTHS, 1, p=0.9, q=[1.0, 0.15, 1.0]),
        row(TENTHS, 3, [3], p=0.0, q=[9.0, 1e-9, 1e-9, 1e-9]),
        row(TENTHS, 3, [3], k=2, p=-1.0, min_p=0.9),
    ],
    "top_p of many": [
        *(before_a_step(GROUPS, rank) for rank in (59, 559, 2059)),
        before_a_step([*HALVES, (1e-9, 28000)], 1999),
        before_a_step(HALVES, 1999),
    ],
    "ks_max": [
        row(EIGHTHS, 0, list(range(kept)), k=k, ks_max=ks_max)
        for ks_max, k, kept in ((1, 8, 8), (1, 9, 30), (9, 16, 16), (9, 17, 30), (1024, 30, 30))
    ],
    "min_p": [
        *(
            probabilities(PROBABILITIES, 1, kept, min_p=min_p, dtype=dtype)
            for dtype in DTYPES
            for min_p, kept in (
                *((0.5, [1, 2]), (0.51, [1]), (0.25, FOUR), (1.0, [1]), (7.0, [1])),
                *((0.0, FOUR), (-1.0, FOUR), (NAN, FOUR), (None, FOUR)),
            )
        ),
        row([0.0, 2.0, 2.0], 1, [1], min_p=1.0),
        row([0.0, 2.0, 2.0], 1, [1, 2], min_p=0.999),
        row([0.0, 3.0, 2.0, 1.0], 1, [1, 2], min_p=0.3),
        # After top-k and top-p.
        probabilities(PROBABILITIES, 1, [1, 2], k=3, min_p=0.5),
        probabilities(PROBABILITIES, 1, [1, 2], p=0.8, min_p=0.5),
        probabilities(PROBABILITIES, 1, [0, 1, 2], k=3, p=0.8, min_p=0.25),
        # Kept are 1, 2: by place the noises .9 and .1, by rank the same; by id they would be .1 and 9.
        probabilities(PROBABILITIES, 2, min_p=0.5, q=[0.9, 0.1, 9.0, 9.0]),
        # Kept are 0, 1, 3 in this order; by rank they would be 3, 0, 1.
        probabilities([0.25, 0.125, 0.0, 0.5], 1, min_p=0.25, q=[9.0, 1e-3, 9.0, 9.0]),
        probabilities([0.25, 0.125, 0.0, 0.5], 0, k=3, min_p=0.25, q=[9.0, 1e-3, 9.0, 9.0]),
        # Within a millionth of min-p a logit is told by the probabilities; a kept one would be drawn.
        row([0.0, math.log(0.5) - 5e-7], 0, [0], min_p=0.5, q=[1.0, 1e-6], dtype=FLOAT32),
        row([0.0, math.log(0.5) + 5e-7], 1, [0, 1], min_p=0.5, q=[1.0, 1e-6], dtype=FLOAT32),
        *(row([INF, 9.0, INF, INF], 2, [0, 2, 3], min_p=0.5, q=[3.0, 1.0, 2.0, 1e-6], dtype=each) for each in DTYPES),
        # Rounded up to 1, min-p would keep one of two equal entries; rounded to 0, it would keep everything.
        *(row([2.0, 2.0], 0, [0, 1], min_p=1 - 1e-9, dtype=dtype) for dtype in DTYPES),
        *(row([0.0, -200.0], 0, [0], min_p=1e-30, dtype=dtype) for dtype in DTYPES),
    ],
    "min_p of many": [
        of_a_large_nucleus(1500, 1400, 1399, 1399),
        of_a_large_nucleus(1500, 1400, 1400, 0),
        of_a_large_nucleus(1500, 1520, 1499, 1499),
        of_a_large_nucleus(1500, 1520, 1510, 0),  # a rough sum leaves it open which of the two is smaller
        of_a_large_nucleus(1500, 2200, 1505, 0),
        of_a_large_nucleus(1500, 600, 599, 599),
        of_a_large_nucleus(1500, 600, 600, 0),
    ],
    "probabilities": [
        probabilities(PROBABILITIES, 1, [1, 2], p=0.75),
        probabilities([0.1, 0.2, 0.05], 1, [0, 1, 2], p=0.9),
        *(probabilities([1.0] * 4, 3, FOUR, k=k, q=[9.0, 9.0, 9.0, 1e-9]) for k in (None, 4)),
        *(
            probabilities([nothing, 0.5, nothing, nothing], 1, [1], k=k, p=p, q=[1e-30, 1.0, 1e-30, 1e-30])
            for nothing in (0.0, -0.5, NAN, -INF)
            for k, p in ((None, None), (3, None), (None, 0.99), (3, 0.99))
        ),
        probabilities([0.0, 0.5, 0.0, 0.0], 1, [1], q=[1.0, INF, 1.0, 1.0]),  # never for another score of 0
        *(
            probabilities(NOTHING, 0, [], k=k, p=p, min_p=min_p, **noise)
            for k, p, min_p in ((None, None, None), (2, 0.5, 0.5), (None, 0.5, None))
            for noise in ({}, {"q": [5.0, 1.0, 1e-3, 1.0]})
        ),
    ],
    "special values": [
        *(row([-INF] * 4, 0, [], k=k, p=p, min_p=min_p) for k, p, min_p in FILTERS),
        *(row([NAN] * 4, 0, [], k=k, p=p, min_p=min_p, q=[5.0, 1.0, 1e-3, 1.0]) for k, p, min_p in FILTERS),
        row(TENTHS, 0, q=[-0.1, 1.0, 1.0, -1.0]),
        row(TENTHS, 1, q=[NAN, 1.0, NAN, NAN]),
        row(TENTHS, 3, k=3, q=[NAN] * 4),
        row([-INF, 1.0], 1, q=[1.0, NAN]),
        row([0.0, 0.0, -20000.0], 1, q=[1.0, 0.0, 0.0], eps=0.0),
    ],
    # Faults that the fuzzer once found in the CPU kernel.
    "found by fuzzing": [
        # A noise of 0 leaves the draw open, so the whole nucleus is sorted: padded scores fell onto its first ids.
        *(
            row([i / 1024 for i in range(2999)] + [3.0], 2999, p=0.9, q=[0.0] + [1.0] * 2999, eps=0.0, dtype=dtype)
            for dtype in (FLOAT32, torch.float16)
        ),
        # Weights of 1/802 in the row, of 1/2 among what min-p leaves: 0.5 / 1e-39 is beyond float32, twice.
        row(
            *([math.log(0.4)] * 2000 + [0.0, 0.0], 2001, [2000, 2001]),
            **{"min_p": 0.5, "q": [1.25e-39, 1e-39] + [1.0] * 2000, "eps": 0.0, "dtype": FLOAT32},
        ),
    ],
}


@pytest.mark.parametrize("table", ROWS)
def test_rows(device: str, route: str | None, table: str, subtests: pytest.Subtests) -> None:
    check_rows(SAMPLE_V2, device, route, ROWS[table], subtests)


def test_min_p_cuts_next_to_zero(device: str, route: str | None) -> None:
    """Half of the best has the logit 1.2e-7, and a millionth around it lie 1.8e9 floats, tried one by one once."""
    values = [math.log(2) + 1.2e-7, 5e-7, -3e-7, -3.0]
    start = time.process_time()
    assert sample(SAMPLE_V2, device, route, [values], min_p=0.5, dtype=FLOAT32) == ([0], [[0, 1]])
    assert time.process_time() - start < 3


def test_a_logit_just_below_the_cut_of_min_p(device: str, route: str | None) -> None:
    """4e-7 below half of the best. The first row tells what is tried first for the others: they once kept it."""
    rows = [[math.log(2), -4e-7]] * 3
    assert sample(SAMPLE_V2, device, route, rows, p=0.99, min_p=0.5, dtype=FLOAT32) == ([0] * 3, [[0]] * 3)
