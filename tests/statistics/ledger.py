"""How many tests of the family a run has made, which the gates were planned for, and the least likely of what it saw.

A plugin of the whole run: of pytest-xdist's workers each has a ledger, and these are added up.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final

import pytest
from gate import ALPHA, FAMILYWISE_ALPHA, TESTS_IN_FAMILY, Verdict


@dataclasses.dataclass
class Ledger:
    """Of one run.

    Attributes:
        tests: how many of the family it has made so far.
        p_value: the smallest one.
        where: it was.
    """

    tests: int = 0
    p_value: float = 1.0
    where: str = "nowhere"

    def add(self, tests: int, p_value: float, where: str) -> None:
        """Writes down tests of which the smallest p-value was here."""
        self.tests += tests
        if p_value < self.p_value:
            self.p_value, self.where = p_value, where


LEDGER: Final = Ledger()


def hold(verdict: Verdict, what: str) -> None:
    """Fail unless the verdict on the layer is good."""
    LEDGER.add(verdict.tests, verdict.p_value, f"{what}: {verdict.reason}")
    assert verdict.passed, f"{what}: p = {verdict.p_value:.1e}. {verdict.reason}"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if hasattr(node, "workeroutput"):
        LEDGER.add(*json.loads(node.workeroutput["ledger"]))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["ledger"] = json.dumps(dataclasses.astuple(LEDGER))
    elif LEDGER.tests > TESTS_IN_FAMILY:
        print(f"\n{LEDGER.tests} statistical tests, but gate.TESTS_IN_FAMILY is {TESTS_IN_FAMILY}.")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LEDGER.tests:
        terminalreporter.section("statistics")
        terminalreporter.write_line(
            f"{LEDGER.tests} tests at {ALPHA:.0e} each, {FAMILYWISE_ALPHA:.0e} for {TESTS_IN_FAMILY}; "
            f"smallest p-value {LEDGER.p_value:.1e}, {LEDGER.where}"
        )
