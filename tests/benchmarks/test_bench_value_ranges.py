"""The benchmarks of ranges and of kept sets: each option does something to its rows, and promises are judged."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
import torch

from ascend_sample.sampling import SamplingParams
from ascend_sample.sampling.edits.value_ranges import keeps_range
from benchmarks import kept_sets, step_rows
from benchmarks import value_ranges as bench
from benchmarks.step_rows import READ


@pytest.mark.parametrize(("module", "steps"), [(bench, {*bench.FILTERS}), (kept_sets, {bench.WITHOUT, kept_sets.KEPT})])
def test_cells_are_timed_and_judged(module: ModuleType, steps: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "VOCAB_SIZE", 300)
    monkeypatch.setattr(step_rows, "COLD_BYTES", 3 * bench.ROWS * 300 * 2)
    monkeypatch.setattr(
        bench.distributions, "make", lambda name, count, size: 3 * torch.ones(count, size).cumsum(1) / size
    )
    found = module.run(seconds=0.01)
    assert json.loads(json.dumps(found)) == found
    assert {name for record in found["records"] for name in record["results"]} == {*steps, READ}
    assert [record["cell"] for record in found["records"]] == [
        f"{cell}{place}" for place in ("", ", from memory") for cell in module.CELLS
    ]
    module.show(found)


def record_of(cell: str, value: float) -> dict[str, Any]:
    results = {bench.WITHOUT: {"median": 1.0}, "top_a": {"median": value}, READ: {"median": 0.1}}
    return {"cell": cell, "disturbed": 0.0, "results": results}


def test_each_filter_is_on_but_one() -> None:
    ranged = {name for name, fields in bench.FILTERS.items() if keeps_range(SamplingParams(**fields))}
    assert ranged == {*bench.FILTERS} - {bench.WITHOUT, "adaptive_p"}
    assert SamplingParams(**bench.FILTERS["adaptive_p"]).adaptive_target is not None


@pytest.mark.parametrize(("seconds", "verdict"), [(1.4, "pass"), (1.6, "FAIL")])
def test_the_promise_is_of_the_worst(seconds: float, verdict: str) -> None:
    gate = bench.judge([record_of("one", 1.2), record_of("other", seconds)])
    assert (gate.verdict, gate.worst) == (verdict, "other, top_a")


@pytest.mark.parametrize(("seconds", "verdict"), [(1.1, "pass"), (1.2, "FAIL")])
def test_the_promise_of_kept_sets_is_of_each_cell(seconds: float, verdict: str) -> None:
    results = {bench.WITHOUT: {"median": 1.0}, kept_sets.KEPT: {"median": seconds}, READ: {"median": 0.1}}
    gate = kept_sets.judge({"cell": "k=50", "disturbed": 0.0, "results": results})
    assert (gate.verdict, gate.worst, gate.limit) == (verdict, "k=50", 1.15)
