"""A step whose rows ask for their kept sets, on the CPU, beside the same step without.

    python -m benchmarks.kept_sets  # prints the table and the promises, writes build/performance/kept_sets.json

Rows and turns are those of `benchmarks/value_ranges.py`, from a cache and from memory.
"""

from __future__ import annotations

from typing import Any, Final

import ascend_sample  # noqa: F401  imports torch in a way that needs no CANN
from benchmarks.command import measure_and_show, run_of
from benchmarks.gates import AT_MOST, Gate, gate_of_ratios
from benchmarks.value_ranges import WITHOUT, show, times_of

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
    records = times_of(CELLS, {WITHOUT: {}, KEPT: {"return_sampling_mask": True}}, seconds)
    return run_of(records, map(judge, records))


def judge(record: dict[str, Any]) -> Gate:
    """What is promised of a cell."""
    name = f"{record['cell']}: {KEPT} / {WITHOUT}"
    return gate_of_ratios("kept sets", name, AT_MOST, MOST, [record], KEPT, WITHOUT)


if __name__ == "__main__":
    raise SystemExit(measure_and_show("kept_sets", __doc__, (SECONDS, "for each row of the table"), run, show))
