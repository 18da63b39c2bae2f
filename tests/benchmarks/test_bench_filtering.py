"""The benchmark of what filters leave: contestants do the same, each cell is timed, and promises are judged."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from benchmarks import filtering as bench
from benchmarks.step_rows import READ


@pytest.mark.parametrize("cell", bench.CELLS)
def test_the_processor_leaves_what_the_warpers_leave(cell: str) -> None:
    logits = torch.randn(4, 3000, generator=torch.Generator().manual_seed(1)) * 2
    ours, theirs = (bench.processors(bench.CELLS[cell], logits)[name]() for name in (bench.OURS, bench.THEIRS))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


def test_cells_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "VOCAB_SIZE", 300)
    monkeypatch.setattr(bench.distributions, "make", lambda name, count, size: torch.randn(count, size))
    found = bench.run(seconds=0.01)
    assert json.loads(json.dumps(found)) == found
    kinds = [{*record["results"]} - {READ} for record in found["records"]]
    steps = 1 + len(bench.CELLS) + len(bench.EDITED)
    assert kinds == [{bench.OURS, bench.THEIRS}] * len(bench.CELLS) + [{bench.RAW, bench.PROCESSED}] * steps
    assert all(READ in record["results"] for record in found["records"])
    bench.show(found)


def record_of(cell: str, **medians: float) -> dict[str, Any]:
    results = {name: {"median": median} for name, median in medians.items()}
    return {"cell": cell, "disturbed": 0.0, "results": results | {READ: {"median": 0.1}}}


@pytest.mark.parametrize(
    ("theirs", "processed", "verdicts"), [(1.1, 2.4, ["pass", "pass"]), (0.9, 2.6, ["FAIL", "FAIL"])]
)
def test_promises_are_of_the_worst(theirs: float, processed: float, verdicts: list[str]) -> None:
    records = [record_of("good", **{bench.OURS: 1.0, bench.THEIRS: 50.0}), record_of("steps", **{bench.RAW: 1.0})]
    records[1]["results"][bench.PROCESSED] = {"median": 1.0}
    records.append(record_of("worst", **{bench.OURS: 1.0, bench.THEIRS: theirs}))
    records.append(record_of("worst step", **{bench.RAW: 1.0, bench.PROCESSED: processed}))
    gates = bench.judge(records)
    assert [gate.verdict for gate in gates] == verdicts
    assert [gate.worst for gate in gates] == ["worst", "worst step"]
