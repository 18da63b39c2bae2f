"""The gate stops samplers that are wrong: each fault of `planted.py`, with the power by formula or by frequency."""

from __future__ import annotations

import pytest
from covering import VOCAB_SIZE, covering_set
from draws import counts_of
from experiments import JUDGES, judge_batches, judge_in_a_batch, tail_probability
from gate import Verdict, binomial_power
from ledger import IS_LONG, LEDGER, draws
from planted import MUTANTS, Mutant
from planting import planted

LEAST_POWER = 0.999
TRIALS = draws(4, 20)


def judge(mutant: Mutant, key: int) -> Verdict:
    """The verdict of the experiment that has to stop the mutant, on whatever is planted now."""
    if mutant.experiment == "counts":
        assert mutant.case is not None
        return mutant.case.gate(mutant.draws).judge(counts_of(mutant.case, mutant.draws, on=mutant.on, key=key))
    if mutant.experiment == "in a batch":
        assert mutant.case is not None
        return judge_in_a_batch(mutant.case, mutant.draws, on=mutant.on, key=key)
    if mutant.experiment == "batches":
        return judge_batches([case for case in covering_set() if case.vocab_size == VOCAB_SIZE], on=mutant.on, key=key)
    return JUDGES[mutant.experiment](mutant.draws, on=mutant.on, key=key)


def power_by_formula(mutant: Mutant) -> float | None:
    if mutant.rate is not None:
        return binomial_power(mutant.draws, tail_probability(), mutant.rate)
    if mutant.wrong is not None and mutant.case is not None:
        return mutant.case.gate(mutant.draws).power(mutant.wrong(mutant.case))
    return None


@pytest.mark.parametrize(
    "mutant", [mutant for mutant in MUTANTS if IS_LONG or mutant.is_quick], ids=lambda mutant: mutant.name
)
def test_a_planted_fault_is_stopped(mutant: Mutant) -> None:
    power = power_by_formula(mutant)
    keys = range(1, 2 if power is not None else 1 + TRIALS)
    with planted(mutant.plant):
        verdicts = [judge(mutant, key) for key in keys]
    stopped = sum(not verdict.passed for verdict in verdicts)
    if power is None:
        shown = f"{stopped} of {TRIALS}"
    else:
        shown = f"1 - {1 - power:.0e}" if 1 - power > 1e-15 else "1"
        assert power > LEAST_POWER
    LEDGER.powers.append(f"{mutant.name:<42} {mutant.draws:>9}  {shown:<15} {verdicts[0].reason}")
    assert stopped == len(verdicts)


@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.is_quick], ids=lambda mutant: mutant.name)
def test_without_the_fault_it_passes(mutant: Mutant) -> None:
    """So the fault is what was stopped."""
    verdict = judge(mutant, key=1)
    LEDGER.tests += verdict.tests
    assert verdict.passed, verdict.reason
