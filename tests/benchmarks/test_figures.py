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
    assisted,
    beam_search,
    cases,
    decoding_docs,
    environment,
    gates,
    measuring,
    pictures,
    report,
    running_vllm,
    sampler,
    speculative,
    vllm_engine,
)
from benchmarks.cases import Case, Cell
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


def test_the_best_peer_is_the_fastest_and_the_reference_is_none() -> None:
    record = made_up(USUAL, **{cases.CANDIDATES: 0.02, cases.REFERENCE: 1e-6})
    assert gates.speedup(record, gates.BEST_PEER) == pytest.approx(20)
    assert gates.speedup(record, cases.VLLM) == pytest.approx(1000)


def test_the_worst_cell_counts_and_small_batches_do_not() -> None:
    cell = replace(USUAL, is_cold=True, contestants=cases.CORE)
    records = [
        made_up(cell, 1.2),
        made_up(replace(cell, dtype="float32"), 1.4),
        made_up(replace(cell, batch_size=1), 9.0),
        made_up(replace(cell, is_cold=False), 9.0),
    ]
    assert verdicts(records, "V=151936: operator / one read: k <= 50") == [(pytest.approx(1.4), "pass")]


def test_one_row_and_hard_rows() -> None:
    call = Cell(cases.CALL, cases.TOP_K_AND_P, 151936, 1, "bfloat16", cases.CALLS)
    record = made_up(call, 1e-5, 1e-5, **{cases.PUBLIC_TENSORS: 13e-6})
    assert verdicts([record], "one row") == [(pytest.approx(13), "FAIL"), (pytest.approx(1.3), "pass")]
    cell = Cell(cases.ADVERSARIAL, cases.LARGE_K_AND_P, 151936, 8, "bfloat16", (cases.OPERATOR, "all equal"))
    records = [made_up(replace(cell, case=Case(1024, 0.999)), 5.0, 6.5), made_up(cell, 1.0, 2.0)]
    assert verdicts(records, "branch A, k=1024, bfloat16") == [(pytest.approx(6.5), "FAIL")]


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


def test_assisted_generation_and_beam_search() -> None:
    ours, theirs = assisted.OURS, assisted.THEIRS
    seconds = {
        (ours, assisted.PLAIN): [4.0, 8.0, 4.0],
        (ours, assisted.DRAFTED): [2.0, 4.0, 2.0],
        (theirs, assisted.PLAIN): [6.0, 12.0, 6.0],
        (theirs, assisted.DRAFTED): [4.0, 8.0, 3.0],
    }
    record = assisted.describe("greedy", seconds, 0.01)
    assert record["speed"] == {ours: 2.0, theirs: 1.5}
    assert record["beside"] == {assisted.PLAIN: 1.5, assisted.DRAFTED: 2.0}
    timed = beam_search.Timed(
        beam_search.Decoder(beam_search.SIZES["base"], 10, 2), passes=[(0, 1), (3, 7)], moves=[(0, 0), (1.5, 2)]
    )
    assert timed.steps() == [{"step": 6, "model": 4, "cache": 0.5, "search": 1.5}]


def test_a_running_vllm() -> None:
    def figures(sampling: float, speed: float) -> dict[str, dict[str, float]]:
        kinds = enumerate(vllm_engine.KINDS)
        return {kind: {"sampling": sampling, "share": 0.5, "tokens a second": speed + place} for place, kind in kinds}

    own, plugin = figures(0.1, 100), figures(0.002, 150)
    plugin["min-p 0.05"]["sampling"] = 0.02
    plugin["greedy"] |= {"sampling": 0.1, "tokens a second": 98.0}  # whose rows are not filtered
    parts, speeds = running_vllm.judge({running_vllm.OWN: own, running_vllm.PLUGIN: plugin})
    assert (parts.value, parts.worst, parts.verdict) == (5, "min-p 0.05", "FAIL")
    assert (speeds.value, speeds.worst, speeds.verdict) == (0.98, "greedy", "pass")


class TestPublished:
    """The pages show the runs that lie beside them, and what these promise follows from their records."""

    def test_performance(self) -> None:
        run = json.loads(command.PUBLISHED.read_text())
        assert json.loads(json.dumps([gate.to_json() for gate in gates.judge(run["records"])])) == run["gates"]
        links = pictures.links(list(pictures.PICTURES), "pictures/performance")
        document = command.DOCUMENT.read_text()
        assert report.fill(document, run, links) == document

    @pytest.mark.long
    def test_publishing_again_changes_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "page.md").write_text(text := command.DOCUMENT.read_text())
        run = json.loads(command.PUBLISHED.read_text())
        command.publish(run, tmp_path / "page.md", tmp_path / "run.json", tmp_path / "pictures" / "performance")
        assert (tmp_path / "page.md").read_text() == text
        assert (tmp_path / "run.json").read_text() == command.PUBLISHED.read_text()
        drawn, kept = (folder.glob("*.png") for folder in (tmp_path / "pictures" / "performance", command.PICTURES))
        assert {path.name for path in drawn} == {path.name for path in kept}

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

    def test_a_part_of_the_plan_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SystemExit, match=rf"there is no {tmp_path}.* yet. Run python -m benchmarks first"):
            command.main(["publish", "--output", str(tmp_path)])
        records = [made_up(cell) for cell in cases.quick_plan()]
        environment.keep(tmp_path / "performance.json", {"environment": {}, "records": records, "gates": []})
        with pytest.raises(SystemExit, match=rf"publish takes a full run, got {len(records)} of \d+ cells in "):
            command.main(["publish", "--output", str(tmp_path)])
