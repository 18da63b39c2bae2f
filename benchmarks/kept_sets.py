"""A step whose rows ask for their kept sets, on the CPU, beside the same step without.

    python -m benchmarks.kept_sets  # prints the table and the promises, writes build/performance/kept_sets.json

Rows and turns are those of `benchmarks/value_ranges.py`, from a cache and from memory.
"""

from __future__ import annotations

from typing import Any, Final

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN
from benchmarks import environment
from benchmarks.command import measure_and_show
from benchmarks.gates import AT_MOST, Gate, Measured, gate_of_worst, ratio
from benchmarks.native import ROOT
from benchmarks.value_ranges import WITHOUT, show, times_of

OUTPUT = ROOT / "build" / "performance" / "kept_sets.json"
SECONDS = 6.0
KEPT: Final = "kept sets"
MOST: Final = 1.15
"""So many times the step without them a step with kept sets may take."""
CELLS: Final[dict[str, dict[str, Any]]] = {
    "k=50": {"top_k": 50},
    "k=50 p=0.9": {"top_k": 50, "top_p": 0.9},
    "p=0.9": {"top_p": 0.9},
}


def run(seconds: float) -> dict[str, Any]:
    """Times every cell."""
    records = times_of(CELLS, {WITHOUT: {}, KEPT: {"kept": True}}, seconds)
    gates = [judge(record).to_json() for record in records]
    return {"environment": environment.describe(), "records": records, "gates": gates}


def judge(record: dict[str, Any]) -> Gate:
    """What is promised of a cell."""
    cell = record["cell"]
    measured = Measured(ratio(record, KEPT, WITHOUT), record, cell)
    return gate_of_worst("kept sets", f"{cell}: {KEPT} / {WITHOUT}", AT_MOST, MOST, [measured])


if __name__ == "__main__":
    raise SystemExit(measure_and_show("kept_sets", __doc__, (SECONDS, "for each row of the table"), run, show, OUTPUT))
