"""The sampler's benchmark measures what it says, and the page shows what it measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import distributions, environment, sampler
from benchmarks.sampler import ADAPTER, CELLS, DISTINCT, EQUAL, FUSED, UNMASKED
from benchmarks.step_rows import KINDS, PEER, READ, STEP

MADE_UP = (
    {STEP: 1.4, FUSED: 1.0, PEER: 900.0},
    {STEP: 1.0, FUSED: 0.9, PEER: 400.0},
    {EQUAL: 1.0, DISTINCT: 1.2},
    {STEP: 9.0},
    {ADAPTER: 1.0, UNMASKED: 4.0, PEER: 8.0},
    {ADAPTER: 3.0, UNMASKED: 6.0, PEER: 2.4},
)


def records(disturbed: float = 0.0) -> list[dict[str, object]]:
    return [
        {
            "cell": str(place),
            "disturbed": disturbed,
            "results": {name: {"median": value} for name, value in cell.items()},
        }
        for place, cell in enumerate(MADE_UP)
    ]


def test_promises_are_those_of_the_worst_cell() -> None:
    gates = sampler.judge(records())
    assert [gate.value for gate in gates] == [pytest.approx(value) for value in (1.4, 400.0, 1.2, 0.8, 0.5)]
    assert [gate.worst for gate in gates] == ["0", "1", "2", "5", "5"]
    assert [gate.verdict for gate in gates] == ["pass", "FAIL", "pass", "FAIL", "FAIL"]


def test_budgets_are_of_the_kinds() -> None:
    found = [
        {"cell": kind.name, "kind": kind.name, "batch_size": rows, "is_cold": is_cold, "disturbed": 0.0}
        | {"results": results(step)}
        for kind in KINDS
        for rows, is_cold, step in ((64, False, kind.reads), (64, True, kind.reads), (1, False, 3.1 * kind.reads))
    ]
    mean = sum(kind.reads for kind in KINDS) / len(KINDS)
    found.append({"cell": "mixed", "kind": None, "batch_size": 64, "disturbed": 0.0, "results": results(1.16 * mean)})
    gates = [gate for gate in sampler.judge(found) if gate.value is not None]
    assert {gate.verdict for gate in gates if READ in gate.name and gate.worst in {kind.name for kind in KINDS}} == {
        "pass",
        "FAIL",
    }
    assert all(
        (gate.verdict == "FAIL") == ("small" in gate.name or "mixed" in gate.name)
        for gate in gates
        if READ in gate.name
    )
    ahead = {gate.name: gate for gate in gates if gate.bound == "at least"}
    assert len(ahead) == len(KINDS)
    for kind in KINDS:
        gate = ahead[f"{kind.name}: {PEER} / a step"]
        assert gate.value == pytest.approx(300 / kind.reads)
        assert gate.limit == (100 if kind.is_edited else 500)


def results(step: float) -> dict[str, dict[str, float]]:
    return {name: {"median": value} for name, value in ((STEP, step), (READ, 1.0), (PEER, 300.0))}


def test_a_disturbed_cell_says_nothing() -> None:
    assert {gate.verdict for gate in sampler.judge(records(disturbed=0.4))} == {"disturbed"}


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.describe())
def test_every_cell_runs(cell: sampler.Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small: what is timed are valid steps, and the contestants sample the same batches."""
    monkeypatch.setattr(distributions, "language_model_rows", lambda: torch.randn(64, 4096))
    monkeypatch.setattr(sampler.step_rows, "COLD_BYTES", 2**22)
    cell = replace(cell, vocab_size=6000)
    for name, call in cell.make(cell).items():
        for _ in range(3 if name != READ else 0):
            result = call()
            ids = result if isinstance(result, torch.Tensor) else result.token_ids  # type: ignore[attr-defined]
            assert ids.shape == (cell.batch_size,)
            assert ids.min() >= 0
            assert ids.max() < 6000


def test_masks_leave_what_they_say() -> None:
    logits = torch.randn(4, 3000, generator=torch.Generator().manual_seed(0))
    assert (sampler.all_but_five(logits) > -torch.inf).sum(dim=1).tolist() == [5] * 4
    kept = sampler.below_min_p(torch.tensor([[0.0, -2.9, -3.1]]))  # exp(-3) is 0.0498
    assert torch.equal(kept, torch.tensor([[0.0, -2.9, -torch.inf]]))


def test_the_page_shows_the_published_run(tmp_path: Path) -> None:
    found = json.loads(sampler.PUBLISHED.read_text())
    gates = [gate.to_json() for gate in sampler.judge(found["records"])]
    assert found["gates"] == gates
    assert sampler.tables(found) in sampler.DOCUMENT.read_text()
    document = tmp_path / "page.md"
    begin, end = (f"<!-- {sampler.MARKS}: {which} -->" for which in ("begin", "end"))
    document.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    sampler.publish(found, document, tmp_path / "data.json")
    assert document.read_text() == f"before\n{begin}\n{sampler.tables(found)}\n{end}\nafter\n"
    assert json.loads((tmp_path / "data.json").read_text()) == found


def test_a_run_has_a_record_for_each_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "CELLS", (sampler.Cell("greedy", 2, False, lambda cell: {STEP: lambda: None}),))
    monkeypatch.setattr(environment, "describe", lambda: {"processor": "made up"})
    found = sampler.run(0.01)
    assert [record["cell"] for record in found["records"]] == ["greedy, [2, 151936] bf16, warm"]
    assert "made up" in sampler.tables(found)
