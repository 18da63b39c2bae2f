"""What is rare, what is flat and what is impossible, at the size of real vocabularies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from draws import MACHINES, Amount, Case, count, counts_of, draw, seeds_and_positions
from experiments import judge_heavy_tail, judge_nearly_flat
from ledger import hold

from ascend_sample.sampling import SamplingParams

LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("on", "dtype", "quick", "long"),
    [
        ("native", torch.float32, 10_000, 200_000),
        ("native", torch.bfloat16, 1_000, 40_000),
        ("native", torch.float16, 1_000, 40_000),
        ("second operator", torch.bfloat16, 400, 8_000),
        pytest.param("second operator", torch.float32, 400, 8_000, marks=LONG),
        pytest.param("second operator", torch.float16, 400, 8_000, marks=LONG),
    ],
)
def test_a_large_vocabulary(on: str, dtype: torch.dtype, quick: int, long: int, amount: Amount) -> None:
    """A tail 18 nats below the best token, and a vocabulary that is nearly flat."""
    draws = amount(quick, long)
    hold(judge_heavy_tail(draws, on=on, dtype=dtype), f"heavy tail, {on}, {dtype}")
    hold(judge_nearly_flat(draws, on=on, dtype=dtype), f"nearly flat, {on}, {dtype}")


IMPOSSIBLE = {
    "-inf": ({}, [-np.inf, 0.0, 1.0, -np.inf, 2.0, -np.inf], [1, 2, 4]),
    "NaN": ({}, [np.nan, 0.0, 1.0, np.nan, 2.0, 0.0], [1, 2, 4, 5]),
    "bad ids with the best logits": ({"suppress_token_ids": [0, 5]}, [50.0, 0.0, 1.0, -1.0, 2.0, np.inf], [1, 2, 3, 4]),
    "one allowed id, far below": ({"allowed_token_ids": [3, 1]}, [50.0, -100.0, 1.0, -101.0, 2.0, 3.0], [1, 3]),
    "stop ids before the minimum length": (
        {"min_tokens": 2, "stop_token_ids": [0]},
        [9.0, 0.0, 0.0, -np.inf, 0.0, 0.0],
        [1, 2, 4, 5],
    ),
    "+inf shares the mass": ({}, [np.inf, 0.0, 80.0, np.inf, 1.0, 2.0], [0, 3]),
    "min-p of all but the best": ({"min_p": 1.0}, [1.0, 2.0, 2.0, 1.9, 0.0, 2.0], [1, 2, 5]),
}


@pytest.mark.parametrize("on", MACHINES)
@pytest.mark.parametrize("name", IMPOSSIBLE)
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_what_has_no_probability_is_never_drawn(name: str, on: str, temperature: float, amount: Amount) -> None:
    """Among other things, since a probability of 0 with noise that is nearly 0 must not win."""
    params, logits, possible = IMPOSSIBLE[name]
    case = Case(name, torch.tensor(logits), SamplingParams(temperature=temperature, **params), output_ids=(1,))
    gate = case.gate(amount(20_000, 500_000))
    assert np.flatnonzero(gate.target).tolist() == possible
    hold(gate.judge(counts_of(case, gate.draws, on=on)), f"{name}, {on}")


@pytest.mark.parametrize("on", MACHINES)
@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams(top_k=1)], ids=["T = 0", "k = 1"])
def test_greedy_rows_leave_nothing_to_chance(on: str, params: SamplingParams) -> None:
    case = Case("ties", torch.tensor([0.0, 3.0, 1.0, 3.0, 3.0]), params)
    assert count(draw(case, *seeds_and_positions(1000, 1), on=on), 5).tolist() == [0, 1000, 0, 0, 0]
