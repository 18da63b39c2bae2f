"""The benchmark beside llama.cpp, without llama.cpp: its requests are read, its cells timed, its promises judged."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch

from ascend_sample.bench.timing import repeat
from ascend_sample.sampling import SamplingParams
from benchmarks import llama_cpp as bench

CHAINS = (bench.LLAMA, bench.SAMPLERS_ALONE)


def test_cells_are_timed_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "VOCAB_SIZE", 300)
    monkeypatch.setattr(bench.distributions, "make", lambda name, count, size: torch.arange(size).repeat(count, 1) / 99)
    monkeypatch.setattr(bench, "chain_times", lambda *given: dict.fromkeys(CHAINS, repeat(random.random)))
    threads = torch.get_num_threads()
    found = bench.run(seconds=0.01)
    assert torch.get_num_threads() == threads
    assert json.loads(json.dumps(found)) == found
    assert {name for record in found["records"] for name in record["results"]} == {*CHAINS, *bench.STEPS}
    bench.show(found)


def test_each_request_asks_for_something_else() -> None:
    asked = [bench.params_of(request, 1) for request in bench.CELLS.values()]
    assert len(set(map(str, asked))) == len(asked)
    assert asked[list(bench.CELLS).index("no filter")] == SamplingParams(seed=1)
    assert "dry_range" not in str(asked), "the whole text"


@pytest.mark.parametrize(("seconds", "verdict"), [(1.0, "FAIL"), (1.3, "pass")])
def test_the_promise_is_of_chains_a_row(seconds: float, verdict: str) -> None:
    def record(cell: str, value: float) -> dict[str, Any]:
        results = {name: {"median": value} for name in CHAINS} | {name: {"median": 1.6} for name in bench.STEPS}
        return {"cell": cell, "disturbed": 0.0, "results": results}

    records = [record(bench.DEFAULT, seconds), record(bench.EVERYTHING, 2.0), record("top-k 40", 0.1)]
    gate = bench.judge(records, "Sampler, float32")
    assert (gate.verdict, gate.worst, gate.limit) == (verdict, bench.DEFAULT, 50)
    assert gate.value == pytest.approx(seconds * 64 / 1.6)
