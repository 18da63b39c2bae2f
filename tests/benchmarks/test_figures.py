"""The arithmetic of published figures, on made-up times and on the published runs, whose tables the documents show."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascend_sample.bench.timing import Statistics
from benchmarks import __main__ as command
from benchmarks import (
    cases,
    decoding_docs,
    gates,
    measuring,
    pictures,
    report,
    sampler,
    speculative,
)
from benchmarks.cases import Cell
from benchmarks.step_rows import KINDS, PEER, READ, STEP

USUAL = Cell(cases.GRID, cases.TOP_K_AND_P, 151936, 64, "bfloat16", cases.EVERYTHING)
VLLM_WARM = "V=151936: vLLM native / operator: k=50 p=0.9, B=64, bfloat16, warm"


def made_up(cell: Cell, operator: float = 1e-3, others: float = 1.0, **results: float) -> dict[str, Any]:
    """A record whose other contestants all take `others`."""
    names = dict.fromkeys(cell.contestants, others) | {cases.OPERATOR: operator} | results
    return measuring._record(cell, {name: Statistics.of([seconds]) for name, seconds in names.items()}, 0.0, {})


def verdicts(records: list[dict[str, Any]], part: str) -> list[tuple[float | None, str]]:
    return [(gate.value, gate.verdict) for gate in gates.judge(records) if part in f"{gate.group}: {gate.name}"]


def test_ratios_of_the_kernel() -> None:
    assert verdicts([made_up(USUAL)], VLLM_WARM) == [(pytest.approx(1000), "pass")]
    assert verdicts([made_up(USUAL, 1.01e-3)], VLLM_WARM) == [(pytest.approx(990, rel=0.01), "FAIL")]
    assert verdicts([made_up(USUAL)], VLLM_WARM.replace("warm", "cold")) == [(None, "not measured")]
    assert verdicts([made_up(USUAL) | {"disturbed": 0.3}], VLLM_WARM) == [(pytest.approx(1000), "disturbed")]
    small = made_up(replace(USUAL, vocab_size=32000), 1.9e-3)  # owes half
    assert verdicts([small], VLLM_WARM.replace("151936", "32000")) == [(pytest.approx(526, rel=0.01), "pass")]


def test_the_plan_measures_every_promise() -> None:
    plan = cases.plan()
    assert {gate.verdict for gate in gates.judge([made_up(cell) for cell in plan])} <= {"pass", "FAIL"}
    described = {replace(cell, contestants=()) for cell in plan}
    assert {replace(cell, contestants=()) for cell in cases.quick_plan()} <= described
    for cell in plan:
        rows = cell.batches * cell.batch_size
        assert not cell.is_cold or rows * cell.vocab_size * cell.itemsize >= cases.COLD_BYTES


def test_steps_of_the_sampler() -> None:
    """Each kind of rows at its budget, and one row of a small vocabulary beyond three times of it."""
    records = [
        {"cell": kind.name, "kind": kind.name, "batch_size": rows, "is_cold": False, "disturbed": 0.0}
        | {"results": {STEP: {"median": step}, READ: {"median": 1.0}, PEER: {"median": 300.0}}}
        for kind in KINDS
        for rows, step in ((64, kind.reads), (1, 3.1 * kind.reads))
    ]
    found = [gate for gate in sampler.judge(records) if gate.value is not None]
    of_reads = [gate for gate in found if READ in gate.name]
    assert len(of_reads) == 2 * len(KINDS)
    assert all((gate.verdict == "FAIL") == ("small" in gate.name) for gate in of_reads)
    ahead = {gate.worst: gate for gate in found if gate.name.endswith(f"{PEER} / a step")}
    for kind in KINDS:
        assert ahead[kind.name].value == pytest.approx(300 / kind.reads)
        assert ahead[kind.name].limit == (100 if kind.is_edited else 500)


class TestPublished:
    """The pages show the runs that lie beside them, and what these promise follows from their records."""

    def test_performance(self) -> None:
        run = json.loads(command.PUBLISHED.read_text())
        assert json.loads(json.dumps([gate.to_json() for gate in gates.judge(run["records"])])) == run["gates"]
        links = pictures.links(list(pictures.PICTURES), "pictures/performance")
        document = command.DOCUMENT.read_text()
        assert report.fill(document, run, links) == document

    def test_sampling_speed(self, tmp_path: Path) -> None:
        run = json.loads(sampler.PUBLISHED.read_text())
        assert run["gates"] == [gate.to_json() for gate in sampler.judge(run["records"])]
        (tmp_path / "page.md").write_text(text := sampler.DOCUMENT.read_text())
        sampler.publish(run, tmp_path / "page.md", tmp_path / "data.json")
        assert (tmp_path / "page.md").read_text() == text
        assert (tmp_path / "data.json").read_text() == sampler.PUBLISHED.read_text()

    def test_decoding_speed(self, tmp_path: Path) -> None:
        run = json.loads(decoding_docs.PUBLISHED.read_text())
        assert run["speculative"]["gates"] == [gate.to_json() for gate in speculative.judge(run["speculative"])]
        (tmp_path / "page.md").write_text(text := decoding_docs.DOCUMENT.read_text())
        decoding_docs.publish(run["speculative"], run["beam_search"], tmp_path / "page.md", tmp_path / "data.json")
        assert (tmp_path / "page.md").read_text() == text
        assert (tmp_path / "data.json").read_text() == decoding_docs.PUBLISHED.read_text()
