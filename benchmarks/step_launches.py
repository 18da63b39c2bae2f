"""What a step launches, copies, waits for and holds on an NPU, beside its budgets: counted on the emulated device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Final

from rich.table import Table

from benchmarks.gates import AT_MOST, Gate
from benchmarks.native import ROOT
from tests.sampling.step_costs import BUDGETS, MOST_COPIES, ROUNDING

PROGRAM: Final = ROOT / "tests" / "sampling" / "step_costs.py"
CANNS: Final = {"both operators": (1, ()), "the first operator alone": (2, ("--without", "aclnnTopKTopPSampleV2"))}
"""A CANN, how many times the launches it may take, and how hostcann plays it."""


def run() -> dict[str, dict[str, Any]]:
    """Counts steps of every budget, batch size, vocabulary and dtype; by CANN, then by these."""
    found = {}
    for name, (_, options) in CANNS.items():
        emulated = [sys.executable, "-m", "hostcann", "run", *options]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [*emulated, sys.executable, str(PROGRAM)],
            env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found[name] = json.loads(done.stdout.splitlines()[-1])
    return found


def worst_of(found: dict[str, Any], budget: str) -> dict[str, float]:
    """Returns the largest of each count of a budget's steps; the memory is that of the largest batches."""
    of_sizes = {tuple(key.rsplit(" ", 3)[1:]): cost for key, cost in found.items() if key.rsplit(" ", 3)[0] == budget}
    costs = list(of_sizes.values())
    largest = max(int(batch_size) for batch_size, _, _ in of_sizes)
    large = [cost for (batch_size, _, _), cost in of_sizes.items() if int(batch_size) == largest]
    return {
        "launches": max(cost["launches"] for cost in costs),
        "to the device": max(cost["copies"].get("h2d", 0) for cost in costs),
        "back": max(cost["copies"].get("d2h", 0) for cost in costs),
        "waits": max(cost["waits"] for cost in costs),
        "float32 a logit": max(cost["memory"] for cost in large) / 4,
    }


def judge(found: dict[str, dict[str, Any]]) -> list[Gate]:
    """Compares every count with its budget."""
    gates = []
    for cann, costs in found.items():
        times = CANNS[cann][0]
        for name, budget in BUDGETS.items():
            memory = budget.memory * ROUNDING / 4
            limits = {
                "launches": times * budget.launches,
                "to the device": MOST_COPIES,
                "back": 0,
                "waits": 0,
                "float32 a logit": memory,
            }
            worst = worst_of(costs, name)
            gates += [
                Gate("step on an NPU", f"{cann}: {name}, {what}", AT_MOST, limit, worst[what], unit="")
                for what, limit in limits.items()
                if what != "float32 a logit" or (times == 1 and memory != float("inf"))
            ]
    return gates


def table(gates: list[dict[str, Any]]) -> Table:
    """Shows counts beside their limits."""
    shown = Table("step on the emulated NPU", "counted", "limit", "")
    for gate in gates:
        shown.add_row(gate["name"], f"{gate['value']:.3g}", f"{gate['limit']:.3g}", gate["verdict"])
    return shown
