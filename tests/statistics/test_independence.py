"""Draws have nothing to do with each other, and a request's draw nothing with the batch around it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from covering import VOCAB_SIZE, covering_set
from draws import MACHINES, Amount, Case, counts_of
from experiments import JUDGES, judge_batches
from ledger import hold

from ascend_sample.sampling import SamplingParams

MACHINE = pytest.mark.parametrize("on", MACHINES)


@MACHINE
@pytest.mark.parametrize("of", JUDGES)
def test_pairs(of: str, on: str, amount: Amount) -> None:
    hold(JUDGES[of](amount(40_000, 1_000_000), on=on), f"{of}, {on}")


@MACHINE
def test_counts_scatter_as_those_of_independent_draws(on: str, amount: Amount) -> None:
    """Neither more, as draws that repeat each other would, nor less, as draws that are spread out would."""
    values = np.random.default_rng(8).normal(size=100)
    case = Case("scatter", torch.from_numpy(values).float(), SamplingParams())
    gate = case.gate(20_000)
    keys = range(1, 1 + amount(10, 100))
    hold(gate.judge_scatter([counts_of(case, gate.draws, on=on, key=key) for key in keys]), f"scatter, {on}")


@MACHINE
def test_the_batch_does_not_matter(on: str, amount: Amount) -> None:
    cases = [case for case in covering_set() if case.vocab_size == VOCAB_SIZE and not case.keep_ties]
    for key in range(amount(1, 5)):
        hold(judge_batches(cases[:: amount(3, 1)], on=on, key=key + 1), on)
