"""What is rare, what is flat and what is impossible, at the size of real vocabularies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from draws import MACHINES, Case, count, counts_of, draw, seeds_and_positions
from experiments import judge_heavy_tail, judge_nearly_flat
from ledger import IS_LONG, draws, hold

from ascend_sample.sampling import SamplingParams

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class TestLargeVocabulary:
    def test_a_tail_18_nats_below_the_best_token(self) -> None:
        hold(judge_heavy_tail(draws(15_000, 200_000)), "heavy tail")

    def test_nearly_flat(self) -> None:
        hold(judge_nearly_flat(draws(10_000, 200_000)), "nearly flat")

    @pytest.mark.parametrize("dtype", DTYPES if IS_LONG else DTYPES[1:2], ids=str)
    def test_by_the_second_operator(self, dtype: torch.dtype) -> None:
        hold(judge_heavy_tail(draws(400, 8_000), on="second operator", dtype=dtype), f"heavy tail, {dtype}")
        hold(judge_nearly_flat(draws(400, 8_000), on="second operator", dtype=dtype), f"nearly flat, {dtype}")

    @pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
    def test_16_bits(self, dtype: torch.dtype) -> None:
        hold(judge_heavy_tail(draws(1_000, 40_000), dtype=dtype, key=2), f"heavy tail, {dtype}")
        hold(judge_nearly_flat(draws(1_000, 40_000), dtype=dtype, key=2), f"nearly flat, {dtype}")


IMPOSSIBLE = {
    "-inf": ({}, [-np.inf, 0.0, 1.0, -np.inf, 2.0, -np.inf], [1, 2, 4]),
    "NaN": ({}, [np.nan, 0.0, 1.0, np.nan, 2.0, 0.0], [1, 2, 4, 5]),
    "bad ids with the best logits": ({"bad_ids": [0, 5]}, [50.0, 0.0, 1.0, -1.0, 2.0, np.inf], [1, 2, 3, 4]),
    "one allowed id, far below": ({"allowed_ids": [3, 1]}, [50.0, -100.0, 1.0, -101.0, 2.0, 3.0], [1, 3]),
    "stop ids before the minimum length": (
        {"min_tokens": 2, "stop_ids": [0]},
        [9.0, 0.0, 0.0, -np.inf, 0.0, 0.0],
        [1, 2, 4, 5],
    ),
    "+inf shares the mass": ({}, [np.inf, 0.0, 80.0, np.inf, 1.0, 2.0], [0, 3]),
    "min-p of all but the best": ({"min_p": 1.0}, [1.0, 2.0, 2.0, 1.9, 0.0, 2.0], [1, 2, 5]),
}


@pytest.mark.parametrize("on", MACHINES)
@pytest.mark.parametrize("name", IMPOSSIBLE)
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_what_has_no_probability_is_never_drawn(name: str, on: str, temperature: float) -> None:
    """Among other things, since a probability of 0 with noise that is nearly 0 must not win."""
    params, logits, possible = IMPOSSIBLE[name]
    case = Case(name, torch.tensor(logits), SamplingParams(temperature=temperature, **params), output_ids=(1,))
    gate = case.gate(draws(20_000, 500_000))
    assert np.flatnonzero(gate.target).tolist() == possible
    hold(gate.judge(counts_of(case, gate.draws, on=on)), f"{name}, {on}")


@pytest.mark.parametrize("on", MACHINES)
@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams(top_k=1)], ids=["T = 0", "k = 1"])
def test_greedy_rows_leave_nothing_to_chance(on: str, params: SamplingParams) -> None:
    case = Case("ties", torch.tensor([0.0, 3.0, 1.0, 3.0, 3.0]), params)
    assert count(draw(case, *seeds_and_positions(1000, 1), on=on), 5).tolist() == [0, 1000, 0, 0, 0]
