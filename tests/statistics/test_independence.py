"""Draws have nothing to do with each other, and a request's draw nothing with the batch around it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from covering import VOCAB_SIZE, covering_set
from draws import MACHINES, Case, counts_of
from experiments import judge_batches, judge_lags, judge_purposes, judge_seeds
from ledger import draws, hold

from ascend_sample.sampling import SamplingParams

MACHINE = pytest.mark.parametrize("on", MACHINES)


@MACHINE
def test_positions(on: str) -> None:
    hold(judge_lags(draws(40_000, 1_000_000), on=on), f"lags, {on}")


@MACHINE
def test_seeds(on: str) -> None:
    hold(judge_seeds(draws(40_000, 1_000_000), on=on), f"seeds, {on}")


@MACHINE
def test_purposes(on: str) -> None:
    hold(judge_purposes(draws(40_000, 1_000_000), on=on), f"purposes, {on}")


@MACHINE
def test_counts_scatter_as_those_of_independent_draws(on: str) -> None:
    """Neither more, as draws that repeat each other would, nor less, as draws that are spread out would."""
    values = np.random.default_rng(8).normal(size=100)
    case = Case("scatter", torch.from_numpy(values).float(), SamplingParams())
    gate = case.gate(20_000)
    keys = range(1, 1 + draws(10, 100))
    hold(gate.judge_scatter([counts_of(case, gate.draws, on=on, key=key) for key in keys]), f"scatter, {on}")


@MACHINE
def test_the_batch_does_not_matter(on: str) -> None:
    cases = [case for case in covering_set() if case.vocab_size == VOCAB_SIZE and not case.keep_ties]
    for key in range(draws(1, 5)):
        hold(judge_batches(cases, on=on, key=key + 1), on)
