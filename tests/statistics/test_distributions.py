"""Every route draws from the distribution that the float64 reference computes: by hand first, then a covering set."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from covering import (
    FACTORS,
    LARGE,
    ROWS,
    SEGMENTED_FACTORS,
    SEGMENTED_ROWS,
    VOCAB_SIZE,
    covering_rows,
    covering_set,
    meetings,
    segmented_set,
)
from draws import MACHINES, Amount, Case, count, counts_of, machine
from experiments import step
from ledger import hold

from ascend_sample.sampling import Purpose, SamplingParams
from ascend_sample.sampling.reference.distribution import is_ranked
from ascend_sample.sampling.step.routes import RULES, Abilities, SamplingRoute, choose_rules

TENTHS = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
LN_2 = math.log(2)
BY_HAND = {
    "as they come": (SamplingParams(), [0.1, 0.2, 0.3, 0.4]),
    "k = 3": (SamplingParams(top_k=3), [0, 2 / 9, 3 / 9, 4 / 9]),
    "p = 0.5, exceeded by 0.4 + 0.3": (SamplingParams(top_p=0.5), [0, 0, 3 / 7, 4 / 7]),
    "k = 3, then p = 0.7 of what is left": (SamplingParams(top_k=3, top_p=0.7), [0, 0, 3 / 7, 4 / 7]),
    "min-p = 0.6 of 0.4 is 0.24": (SamplingParams(min_p=0.6), [0, 0, 3 / 7, 4 / 7]),
    "temperature 0.5 squares": (SamplingParams(temperature=0.5), [1 / 30, 4 / 30, 9 / 30, 16 / 30]),
    "temperature 0.5, then p = 0.8": (SamplingParams(temperature=0.5, top_p=0.8), [0, 0, 9 / 25, 16 / 25]),
    "temperature 0": (SamplingParams(temperature=0), [0, 0, 0, 1]),
    "the last id is bad": (SamplingParams(suppress_token_ids=[3]), [1 / 6, 2 / 6, 3 / 6, 0]),
    "a bias of ln 2": (SamplingParams(logit_bias={0: LN_2}), [2 / 11, 2 / 11, 3 / 11, 4 / 11]),
    "presence ln 2 on the output": (SamplingParams(presence_penalty=LN_2), [1 / 8, 2 / 8, 3 / 8, 2 / 8]),
    "frequency ln 2, twice": (SamplingParams(frequency_penalty=LN_2), [1 / 7, 2 / 7, 3 / 7, 1 / 7]),
    "repetition 2 squares, prompt and output, presence ln 2 halves the output": (
        SamplingParams(repetition_penalty=2, presence_penalty=LN_2),
        [0.01 / 0.59, 0.2 / 0.59, 0.3 / 0.59, 0.08 / 0.59],
    ),
}
MACHINE = pytest.mark.parametrize("on", MACHINES)


def some(machine: str, numbers: range, each: int) -> list[Any]:
    """Rows for a machine, of which one in so many is drawn in `make test`."""
    long = pytest.mark.long
    return [pytest.param(machine, number, marks=() if number % each == 0 else long) for number in numbers]


@MACHINE
@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name: str, on: str, amount: Amount) -> None:
    params, probabilities = BY_HAND[name]
    case = Case(name, TENTHS, params, prompt_ids=(0,), output_ids=(3, 3))
    gate = case.gate(amount(20_000, 200_000))
    assert gate.target == pytest.approx(np.array(probabilities), abs=1e-6)
    hold(gate.judge(counts_of(case, gate.draws, on=on)), f"{name}, {on}")


@MACHINE
def test_by_hand_in_three_segments(on: str, amount: Amount) -> None:
    """Two ids in each of the first two segments, and none in the last, a short one."""
    logits, ids = torch.full((600,), -torch.inf), [0, 1, 256, 257]
    logits[ids] = TENTHS
    case = Case("segments", logits, SamplingParams())
    gate = case.gate(amount(20_000, 200_000))
    assert gate.target[ids] == pytest.approx(TENTHS.exp().numpy())
    hold(gate.judge(counts_of(case, gate.draws, on=on)), f"segments, {on}")


def check_pairs(sizes: list[int], rows: list[tuple[int, ...]], count: int) -> None:
    """Checks that the rows are that many, and that each two values of two factors meet in one of them."""
    assert len(rows) == count
    pairs = {pair for row in rows for pair in meetings(row, 2)}
    assert len(pairs) == sum(a * b for a, b in itertools.combinations(sizes, 2))


class TestCoveringSet:
    def test_every_pair_of_values_meets_and_most_triples(self) -> None:
        sizes = [len(choices) for choices in FACTORS.values()]
        rows = covering_rows(sizes, ROWS)
        check_pairs(sizes, rows, ROWS)
        triples = {triple for row in rows for triple in meetings(row, 3)}
        assert len(triples) > 0.8 * sum(a * b * c for a, b, c in itertools.combinations(sizes, 3))

    def test_most_rows_leave_something_to_chance(self) -> None:
        kept = [int((case.target() > 0).sum()) for case in covering_set()]
        assert len(kept) == ROWS + len(LARGE)
        assert sum(number > 1 for number in kept) >= 60

    @pytest.mark.parametrize(
        ("on", "number"),
        [
            *some("native", range(ROWS + len(LARGE)), 4),
            *some("second operator", range(ROWS + len(LARGE)), 6),
            *some("torch", range(0, ROWS, 2), 12),
        ],
    )
    def test_draws(self, on: str, number: int, amount: Amount) -> None:
        case = covering_set()[number]
        few, many = {"native": (20_000, 200_000), "second operator": (8_000, 40_000), "torch": (4_000, 20_000)}[on]
        gate = case.gate(amount(few, many) * VOCAB_SIZE // case.vocab_size)
        hold(gate.judge(counts_of(case, gate.draws, on=on, key=number + 1)), f"{on}, {case.name}")


class TestSegmentedSet:
    def test_every_pair_of_values_meets(self) -> None:
        sizes = [len(choices) for choices in SEGMENTED_FACTORS.values()]
        check_pairs(sizes, covering_rows(sizes, SEGMENTED_ROWS), SEGMENTED_ROWS)

    def test_rows_are_drawn_by_segments_and_bitmasks_forbid_what_matters(self) -> None:
        kept = [int((case.target() > 0).sum()) for case in segmented_set()]
        assert sum(number > 10 for number in kept) >= 20
        for case in segmented_set():
            target = case.target()
            assert not is_ranked(case.params, case.vocab_size)
            if case.bitmask is not None:
                assert ((target == 0) & (replace(case, bitmask=None).target() > 1e-5)).any()

    @pytest.mark.parametrize(
        ("on", "number"),
        [
            *some("native", range(SEGMENTED_ROWS), 2),
            *some("second operator", range(SEGMENTED_ROWS), 6),
            *some("first operator", range(SEGMENTED_ROWS), 6),
        ],
    )
    def test_draws(self, on: str, number: int, amount: Amount) -> None:
        case = segmented_set()[number]
        gate = case.gate(amount(4_000, 100_000) if on == "native" else amount(2_000, 20_000))
        hold(gate.judge(counts_of(case, gate.draws, on=on, key=number + 1)), f"{on}, {case.name}")


def stairs(dtype: torch.dtype, step_: float = 0.25) -> torch.Tensor:
    """A 16-bit row: few values, so ties everywhere."""
    values = 1.5 * np.random.default_rng(3).normal(size=VOCAB_SIZE)
    return (torch.from_numpy(values) / step_).round().mul(step_).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_k=20),
        SamplingParams(top_k=999),
        SamplingParams(top_k=50, temperature=0.5),
        SamplingParams(top_k=50, temperature=2.0),
        SamplingParams(top_k=50, temperature=0.05),
        SamplingParams(top_k=50, top_p=0.75),
        SamplingParams(top_k=999, top_p=0.5),
        SamplingParams(temperature=0),
    ],
    ids=lambda params: f"k={params.top_k} p={params.top_p} T={params.temperature}",
)
def test_by_the_first_operator(params: SamplingParams, dtype: torch.dtype, amount: Amount) -> None:
    """Where it is exact it serves the row itself: the temperature is an exponent of the noise there."""
    case = Case("first operator", stairs(dtype), params)
    expected = SamplingRoute.GREEDY if params.temperature == 0 else SamplingRoute.FUSED
    assert route_of(params, dtype, MACHINES["first operator"]) is expected
    gate = case.gate(amount(10_000, 200_000))
    hold(gate.judge(counts_of(case, gate.draws, on="first operator", key=9)), f"{params}, {dtype}")


def route_of(params: SamplingParams, dtype: torch.dtype, abilities: Abilities) -> SamplingRoute:
    facts = {
        "temperature": np.float32([params.temperature]),
        "top_k": np.int32([params.top_k or 0]),
        "top_p": np.float32([params.top_p]),
        "min_p": np.float32([0]),
    }
    return RULES[int(choose_rules(facts, VOCAB_SIZE, dtype, abilities, keep_ties=False)[0])].route


@MACHINE
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("top_p", "scale"), [(0.9, 0.02), (0.999, 2.0)], ids=["p = 0.9, nearly flat", "p = 0.999, a long tail"]
)
def test_p_is_not_rounded_to_the_dtype_of_the_logits(
    on: str, dtype: torch.dtype, top_p: float, scale: float, amount: Amount
) -> None:
    """bfloat16 makes 0.9 to 0.8984 and 0.999 to 1; the kept set would be another, and the gate would see it."""
    values = scale * np.random.default_rng(4).normal(size=VOCAB_SIZE)
    case = Case("16 bits", torch.from_numpy(values).to(dtype), SamplingParams(top_p=top_p))
    gate = case.gate(amount(40_000, 200_000) // (10 if on in ("torch", "first operator") else 1))
    rounded = Case("rounded", case.logits, SamplingParams(top_p=float(torch.tensor(top_p, dtype=torch.bfloat16))))
    assert (rounded.target() > 0).sum() != (gate.target > 0).sum()
    if on == "native":
        assert gate.power(rounded.target()) > 0.999
    hold(gate.judge(counts_of(case, gate.draws, on=on, key=3)), f"{on}, {dtype}, p = {top_p}")


@MACHINE
@pytest.mark.parametrize(
    ("cases", "quick", "long"), [(covering_set, 8, 400), (segmented_set, 3, 250)], ids=["covering", "segmented"]
)
def test_a_mixed_batch_of_the_sampler(
    cases: Callable[[], list[Case]], quick: int, long: int, on: str, amount: Amount
) -> None:
    """Requests of a covering set in one batch, many times over: each draws from its own distribution.

    The sampler's own edits: on a CPU the kernel reads masks and bitmasks itself, of rows that have some.
    """
    chosen = cases()[: ROWS : amount(3, 1)]
    copies, vocab_size = amount(4 * quick, long // 10), chosen[0].vocab_size
    counts = np.zeros((len(chosen), vocab_size), dtype=np.int64)
    order = np.random.default_rng(0).permutation(len(chosen) * copies)
    batch = [chosen[row % len(chosen)] for row in order]
    rounds = amount(1, 10)
    with machine(on):
        for number in range(rounds):
            seeds = (10**9 * (number + 1) + order).tolist()
            for purpose in Purpose:
                tokens = step(batch, seeds, torch.float32, purpose).token_ids
                for place in range(len(chosen)):
                    counts[place] += count(tokens[torch.from_numpy(order % len(chosen) == place)], vocab_size)
    for case, drawn in zip(chosen, counts, strict=True):
        hold(case.gate(copies * rounds * len(Purpose)).judge(drawn), f"{on}, in a mixed batch, {case.name}")
