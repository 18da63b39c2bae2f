"""Rows of the first operator that one can check by hand, through every implementation."""

from __future__ import annotations

import pytest

from tests.operators.by_hand import INF, NAN, SAMPLE, TENTHS, check_rows, log, row

HUNDREDTHS = log(0.8, 0.15, 0.05)
STEPS = [float(i % 97) / 10 for i in range(2000)]
FILTERS = [(None, None), (2, None), (None, 0.99), (2, 0.99)]
ROWS = {
    "scenarios": [
        row(TENTHS, 3, [0, 1, 2, 3]),
        row(TENTHS, 3, [1, 2, 3], k=3),
        row(TENTHS, 3, [2, 3], p=0.6),
        row(TENTHS, 3, [2, 3], k=3, p=0.7),  # of the best three 4/9, 3/9, 2/9: the first two sum to .78
        row(TENTHS, 0, [0, 1, 2, 3], q=[0.1, 1, 1, 1]),  # q by id: .1/.1 = 1, .2/1, .3/1, .4/1
        row(TENTHS, 2, [1, 2, 3], k=3, q=[1, 0.1, 1, 1]),  # q by rank: the second best, id 2, gets .1
        row(TENTHS, 2, [2, 3], p=0.6, q=[1, 0.1, 1e-6, 1e-6]),
        row(TENTHS, 2, [2, 3], k=3, p=0.7, q=[1, 0.1, 1e-6, 1e-6]),
        row([-3.0], 0, [0], k=1, p=0.5, q=[1.0]),
    ],
    # With top-p alone the draw is from softmax(probabilities): .8 and .15 weigh exp(.8) : exp(.15) = 1.916 : 1, while
    # the probabilities are 5.33 : 1, which they stay with top-k.
    "second softmax": [
        row(HUNDREDTHS, 0, p=0.9, q=[1.0, 0.55, 1.0]),
        row(HUNDREDTHS, 1, p=0.9, q=[1.0, 0.45, 1.0]),
        row(HUNDREDTHS, 0, k=3, p=0.9, q=[1.0, 0.45, 1.0]),
        row(HUNDREDTHS, 1, k=3, p=0.9, q=[1.0, 0.15, 1.0]),
    ],
    # Sums that are exact in binary tell > from >=.
    "top_p": [
        row([0.0] * 4, 0, list(range(n)), k=k, p=p)
        for p, n in ((0.25, 2), (0.5, 3), (0.75, 4), (0.125, 1), (0.499, 2))
        for k in (None, 4)
    ],
    "ranks": [
        *(row([1.0, 2.0, 1.0, 1.0], 1, sorted([1, 0, 2, 3][:k]), k=k) for k in (1, 2, 3, 4)),
        row([-0.0, 0.0, -0.0, 0.0], 0, [0, 1], k=2),
        row(STEPS, 96, sorted(sorted(range(2000), key=lambda i: (-STEPS[i], i))[:1024]), k=1024),
        row(STEPS, 96, list(range(2000)), k=1025),
    ],
    "filters that are off": [
        *(row(TENTHS, 3, [0, 1, 2, 3], k=k) for k in (-7, 0, 5, 2**31 - 1, None)),
        *(row(TENTHS, 3, [0, 1, 2, 3], p=p) for p in (-0.5, 0.0, 1.0, 1.5, INF, NAN, None)),
    ],
    "no number": [
        *(row([-INF, 1.0, -INF, -INF], 1, k=k, p=p, q=[1e-30, 1.0, 1e-30, 1e-30]) for k, p in FILTERS),
        *(row([-INF] * 4, 0, [], k=k, p=p) for k, p in FILTERS),
        *(row([NAN] * 4, 0, [], k=k, p=p, q=[5.0, 1.0, 1e-3, 1.0]) for k, p in FILTERS),
        row([NAN, 1.0, 2.0, NAN], 2, [1, 2], q=[1e-30, 1.0, 1.0, 1e-30]),
    ],
    # Infinities share the mass; q is by rank where a filter is on, and the two infinities are ranks 0 and 1.
    "infinity": [
        row([INF, 60000.0, INF, 0.0], 0, q=[0.5, 1e-9, 1.0, 1e-9]),
        row([INF, 60000.0, INF, 0.0], 2, q=[1.0, 1e-9, 0.5, 1e-9]),
        *(
            row([INF, 60000.0, INF, 0.0], drawn, k=k, p=p, q=[*noise, 1.0, 1e-9])
            for k, p in ((3, None), (None, 0.9), (3, 0.9))
            for drawn, noise in ((0, [0.5, 1.0]), (2, [1.0, 0.5]))
        ),
    ],
    "noise": [
        row(TENTHS, 3, q=[1.0, 0.0, 1.0, 1e-9]),  # .4 / 1.1e-8 beats .2 / 1e-8
        row([1.0, INF, 2.0], 0, k=-1, q=[0.0, NAN, 1.0], eps=0.0),
        row([1.0, INF, 2.0], 2, k=3, q=[NAN, 0.0, 1.0], eps=0.0),
        row([0.0, 0.0, -20000.0], 1, q=[1.0, 0.0, 0.0], eps=0.0),
        row(TENTHS, 0, q=[-0.1, 1.0, 1.0, -1.0]),
        row(TENTHS, 3, q=[INF, INF, INF, 1e9]),
        row(TENTHS, 1, q=[NAN, 1.0, NAN, NAN]),
        row(TENTHS, 2, k=3, q=[NAN, 1.0, NAN, NAN]),
        row(TENTHS, 0, q=[NAN] * 4),
        row(TENTHS, 3, k=3, q=[NAN] * 4),
        row([-INF, 1.0], 1, q=[1.0, NAN]),
        # A noise of NaN at an infinite logit leaves the draw to those beside it.
        row([1.0, 2.0, INF, 3.0], 0, q=[NAN] * 4),
        row([1.0, 2.0, INF, 3.0], 0, q=[1.0, 1.0, NAN, 1.0]),
        row([1.0, 2.0, INF, 3.0], 1, q=[NAN, 1.0, NAN, 1.0]),
        row([1.0, 2.0, INF, 3.0], 2, k=3, q=[NAN] * 4),
        row([1.0, 2.0, INF, 3.0], 3, k=3, q=[NAN, 1.0, 1.0, 1.0]),
    ],
}


@pytest.mark.parametrize("table", ROWS)
def test_rows(device: str, route: str | None, table: str, subtests: pytest.Subtests) -> None:
    check_rows(SAMPLE, device, route, ROWS[table], subtests)
