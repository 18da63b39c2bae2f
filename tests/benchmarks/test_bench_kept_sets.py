"""The benchmark of kept sets: its cells are timed, and each promise is judged by its own."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import kept_sets as bench


def test_cells_are_timed_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "VOCAB_SIZE", 300)
    monkeypatch.setattr(
        bench.distributions, "make", lambda name, count, size: 3 * torch.ones(count, size).cumsum(1) / size
    )
    found = bench.run(seconds=0.01)
    assert json.loads(json.dumps(found)) == found
    assert {name for record in found["records"] for name in record["results"]} == {
        bench.WITHOUT,
        bench.KEPT,
        bench.READ,
    }
    bench.show(found)


@pytest.mark.parametrize(("seconds", "verdict"), [(1.1, "pass"), (1.2, "FAIL")])
def test_the_promise(seconds: float, verdict: str) -> None:
    results = {bench.WITHOUT: {"median": 1.0}, bench.KEPT: {"median": seconds}, bench.READ: {"median": 0.1}}
    gate = bench.judge({"cell": "k=50", "disturbed": 0.0, "results": results})
    assert (gate.verdict, gate.worst, gate.limit) == (verdict, "k=50", 1.15)
