"""How long the run is, how many tests of the family it has made, and what it prints at the end."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

from gate import Verdict

IS_LONG: Final = os.environ.get("ASCEND_SAMPLE_STATISTICS") == "long"
"""`make test-statistics`: all draws, all mutants."""


@dataclass
class Ledger:
    """Of one run.

    Attributes:
        tests: how many of the family it has made so far.
        least: the smallest p-value of a right sampler, and where it was.
        powers: a line for each mutant.
        biases: for each row of the covering set, the probability of its likeliest token and the bias of it that the
            gate sees.
    """

    tests: int = 0
    least: tuple[float, str] = (1.0, "nowhere")
    powers: list[str] = field(default_factory=list)
    biases: list[tuple[float, float]] = field(default_factory=list)

    def add(self, other: Ledger) -> None:
        """What another process has written down; pairs may have become lists on the way."""
        self.tests += other.tests
        self.least = min(self.least, (other.least[0], other.least[1]))
        self.powers += other.powers
        self.biases += other.biases


LEDGER: Final = Ledger()


def draws(quick: int, long: int) -> int:
    """How many, in the normal run and in the long one."""
    return long if IS_LONG else quick


def hold(verdict: Verdict, what: str) -> None:
    """Fail unless the verdict on the layer is good."""
    LEDGER.tests += verdict.tests
    LEDGER.least = min(LEDGER.least, (verdict.p_value, f"{what}: {verdict.reason}"))
    assert verdict.passed, f"{what}: p = {verdict.p_value:.1e}. {verdict.reason}"
