"""Prints what the gates can see, and holds the number of their tests against the family they were planned for.

A plugin of the whole run: of pytest-xdist's workers each has a ledger, and these are added up.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from typing import Any

import pytest
from gate import ALPHA, FAMILYWISE_ALPHA, TESTS_IN_FAMILY
from ledger import LEDGER, Ledger


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if hasattr(node, "workeroutput"):
        LEDGER.add(Ledger(**json.loads(node.workeroutput["ledger"])))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["ledger"] = json.dumps(dataclasses.asdict(LEDGER))
    elif LEDGER.tests > TESTS_IN_FAMILY:
        print(f"\n{LEDGER.tests} statistical tests, but gate.TESTS_IN_FAMILY is {TESTS_IN_FAMILY}.")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LEDGER.tests == 0 and not LEDGER.powers:
        return
    write = terminalreporter.write_line
    terminalreporter.section("statistics")
    write(f"{LEDGER.tests} tests at {ALPHA:.0e} each, {FAMILYWISE_ALPHA:.0e} for {TESTS_IN_FAMILY}.")
    write(f"smallest p-value of the layer: {LEDGER.least[0]:.1e}, {LEDGER.least[1]}")
    if LEDGER.biases:
        likely = [bias for probability, bias in LEDGER.biases if probability >= 0.3]
        write(
            f"bias of the likeliest token that a row of the covering set shows with power 0.99: "
            f"median {statistics.median(bias for _, bias in LEDGER.biases):.1%}, "
            f"at most {max(likely):.1%} where it has 0.3 or more"
        )
    if LEDGER.powers:
        write(f"{'planted fault':<42} {'draws':>9}  {'power':<15} stopped by")
        for line in LEDGER.powers:
            write(line)
