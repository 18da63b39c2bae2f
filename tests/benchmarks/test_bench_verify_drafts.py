"""The benchmark of verified drafts: what it times is what it says, and its promises are judged."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from benchmarks import verify_drafts as bench
from benchmarks.verify_drafts import CELLS, JUDGE, READ, REQUESTS, VERIFY


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "VOCAB_SIZE", 300)

    def rows(name: str, count: int, vocab_size: int) -> torch.Tensor:
        return 3 * torch.randn(count, vocab_size, generator=torch.Generator().manual_seed(5))

    monkeypatch.setattr(bench.distributions, "make", rows)


def test_drafts_are_as_right_as_the_cell_says() -> None:
    for cell in CELLS:
        accepted = bench.call_of(cell, bench.make_case(cell))().accepted
        if cell.rule == "match":
            assert accepted.tolist() == [cell.right] * REQUESTS
        else:
            assert REQUESTS < int(accepted.sum()) < bench.GAMMA * REQUESTS


def test_cells_are_timed_and_judged() -> None:
    found = bench.run(seconds=0.01)
    assert json.loads(json.dumps(found)) == found
    records = {record["cell"]: record for record in found["records"]}
    assert set(records["match, all stay"]["results"]) == {VERIFY, READ, JUDGE}
    assert records["match, all stay"]["reached"] == 5 * REQUESTS
    assert set(records["block, dense q"]["results"]) == {VERIFY, READ}
    assert [gate["value"] is not None for gate in found["gates"]] == [True] * 3


def test_promises() -> None:
    def record(rule: str, **seconds: float) -> dict[str, Any]:
        names = {"verify": VERIFY, "read": READ, "judge": JUDGE}
        results = {names[name]: {"median": value} for name, value in seconds.items()}
        return {"cell": rule, "rule": rule, "disturbed": 0.0, "results": results}

    good = [record("match", verify=1.5, read=1.0, judge=9.0), record("standard", verify=2.9, read=1.0, judge=20.0)]
    assert [gate.verdict for gate in bench.judge(good)] == ["pass"] * 3
    bad = [record("match", verify=1.7, read=1.0, judge=8.0), record("standard", verify=3.1, read=1.0, judge=20.0)]
    assert [gate.verdict for gate in bench.judge(bad)] == ["FAIL"] * 3
