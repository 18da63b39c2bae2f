"""The benchmark measures what it says: time by known clocks, contestants by their ids, promises by made-up figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from ascend_sample.bench.samplers import sample_compact
from ascend_sample.bench.timing import Budget, Statistics
from benchmarks import __main__ as command
from benchmarks import (
    agreement,
    cases,
    contestants,
    decoding_docs,
    distributions,
    environment,
    gates,
    measuring,
    native,
    pictures,
    report,
    running_vllm,
    sampler,
    speculative,
)
from benchmarks.cases import Case, Cell
from benchmarks.contestants import Noise, make_batch

ROOT = Path(__file__).parents[2]
TINY = Budget(seconds=0.01, sample_seconds=1e-4, most_rounds=3)
VOCAB_SIZE = 5000  # larger than the demo's model has tokens, and than the 1024 that torch.topk tries first


@pytest.fixture
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows like a language model's, without training one."""
    falling = 12 - 1.5 * torch.arange(1, 4097).log()
    rows = falling[torch.randperm(4096)] + torch.randn(64, 4096)
    monkeypatch.setattr(distributions, "language_model_rows", lambda: rows)


ALL_CASES = [*cases.CASES, *cases.OTHER_LOGITS, *cases.ADVERSARIAL_CASES]


@pytest.mark.usefixtures("small_model")
class TestContestants:
    def batch(self, case: Case, dtype: torch.dtype, rows: int = 32) -> contestants.Batch:
        logits = distributions.make(case.distribution, rows, VOCAB_SIZE).to(dtype)
        return make_batch(logits, case, torch.empty(rows, VOCAB_SIZE).exponential_())

    @pytest.mark.parametrize("dtype", cases.DTYPES.values(), ids=cases.DTYPES)
    @pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.name)
    def test_do_the_same_work(self, case: Case, dtype: torch.dtype) -> None:
        batch = self.batch(case, dtype)
        assert agreement.check_operator(batch, case) > 0
        for name in (*cases.PEERS, cases.SECOND, cases.SECOND_MIN_P):
            assert agreement.check_peer(name, batch, case) >= 1 - agreement.LARGEST_DIFFERENCE

    @pytest.mark.parametrize("noise", Noise)
    def test_other_ids_do_not_agree(self, noise: Noise) -> None:
        batch = self.batch(cases.TOP_K_AND_P, torch.float32)
        worst = batch.logits.argmin(dim=1)
        assert agreement.share_that_agrees(worst, batch, cases.TOP_K_AND_P, noise) == 0

    def test_a_peer_that_is_wrong_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lazy = contestants.Contestant(lambda case: lambda logits, k, p, q: logits.argmin(dim=1), Noise.RANK)
        monkeypatch.setitem(contestants.CONTESTANTS, cases.TORCH_TOPK, lazy)
        with pytest.raises(RuntimeError, match=r"only 0% of the ids of torch\.topk are right"):
            agreement.check_peer(cases.TORCH_TOPK, self.batch(cases.TOP_P, torch.float32), cases.TOP_P)

    def test_an_operator_that_is_wrong_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        wrong = contestants.Contestant(lambda case: lambda logits, k, p, q: logits.argmin(dim=1), Noise.RANK)
        monkeypatch.setitem(contestants.CONTESTANTS, cases.OPERATOR, wrong)
        with pytest.raises(RuntimeError, match="differs from the reference"):
            agreement.check_operator(self.batch(cases.TOP_P, torch.float32), cases.TOP_P)

    def test_top_p_alone_sorts_the_rows_that_need_it(self) -> None:
        """One row of nearly equal logits, whose nucleus is most of the vocabulary, beside one with a clear best."""
        logits = torch.stack((torch.linspace(0, 1e-3, VOCAB_SIZE), torch.zeros(VOCAB_SIZE)))
        logits[1, 17] = 30.0
        q = torch.ones(2, VOCAB_SIZE)
        q[0, 3000] = 1e-6  # the noise of a rank that only a full sort reaches
        assert sample_compact(logits, None, 0.9, q).tolist() == [VOCAB_SIZE - 1 - 3000, 17]

    @pytest.mark.parametrize("words", [0, 1, 127, 128, 129, 16384, 300_001])
    def test_the_floor_reads_what_it_is_given(self, words: int) -> None:
        data = torch.randint(2**30, (words,), dtype=torch.int32)
        whole = words // 128 * 128  # it leaves a rest of less than eight vectors out
        data[whole - 1 : whole] = 2**31 - 1
        found = native.library().streaming_read([data.view(torch.float32)])
        assert found == (2**31 - 1 if whole else 0)

    def test_the_core_alone_takes_time(self) -> None:
        batch = self.batch(cases.TOP_K_AND_P, torch.bfloat16, rows=1)
        time_core = contestants.subject(cases.CORE_ALONE, cases.TOP_K_AND_P, [batch])
        assert time_core(200) > time_core(1) > 0

    def test_longer_vocabularies_keep_the_head_of_the_model(self) -> None:
        own = distributions.language_model_rows().div(0.6)
        rows = distributions.make(distributions.LANGUAGE_MODEL, 8, VOCAB_SIZE)
        best = rows.topk(100, dim=1).values
        candidates = own.topk(100, dim=1).values
        assert all(any(torch.allclose(row, other) for other in candidates) for row in best)

    def test_adversarial_rows_are_what_they_are_called(self) -> None:
        rows = distributions.adversarial(1000, 4)
        assert all(values.shape == (4, 1000) for values in rows.values())
        assert (rows["-inf in all but ten ids"] > -torch.inf).sum(dim=1).max() <= 10
        assert rows["all NaN"].isnan().all()
        assert (rows["ascending"].diff(dim=1) >= 0).all()
        assert rows["one +inf"].isposinf().sum() == 4


def made_up(cell: Cell, operator: float = 1e-3, others: float = 1.0) -> dict[str, Any]:
    """A record whose other contestants all take `others`."""
    results = {name: Statistics.of([operator if name == cases.OPERATOR else others]) for name in cell.contestants}
    return measuring._record(cell, results, 0.0, {})


class TestPlan:
    def test_the_grid_is_complete(self) -> None:
        found = {
            (cell.case, cell.vocab_size, cell.batch_size, cell.dtype, cell.is_cold)
            for cell in cases.plan()
            if cell.section == cases.GRID and cell.case in cases.CASES
        }
        shapes = len(cases.VOCAB_SIZES) * len(cases.BATCH_SIZES) * len(cases.DTYPES)
        assert len(found) == len(cases.CASES) * shapes * 2

    def test_every_promise_is_measured(self) -> None:
        judged = gates.judge([made_up(cell) for cell in cases.plan()])
        assert [gate.name for gate in judged if gate.verdict == "not measured"] == []

    def test_every_contestant_takes_part(self) -> None:
        named = {name for cell in cases.plan() if cell.section != cases.ADVERSARIAL for name in cell.contestants}
        assert named == {*contestants.CONTESTANTS, cases.FLOOR, cases.CORE_ALONE}

    def test_the_quick_plan_is_part_of_the_plan(self) -> None:
        def data(cell: Cell) -> Cell:
            return replace(cell, contestants=())

        assert {data(cell) for cell in cases.quick_plan()} <= {data(cell) for cell in cases.plan()}

    def test_cold_data_exceeds_the_caches(self) -> None:
        for cell in cases.plan():
            if cell.is_cold:
                assert cell.batches * cell.batch_size * cell.vocab_size * cell.itemsize >= cases.COLD_BYTES
                assert cell.batches >= 2


USUAL = Cell(cases.GRID, cases.TOP_K_AND_P, 151936, 64, "bfloat16", cases.EVERYTHING)


def verdicts(records: list[dict[str, Any]], part: str) -> list[tuple[float | None, str]]:
    return [(gate.value, gate.verdict) for gate in gates.judge(records) if part in f"{gate.group}: {gate.name}"]


class TestGates:
    VLLM_WARM = "V=151936: vLLM native / operator: k=50 p=0.9, B=64, bfloat16, warm"

    def test_a_ratio_at_its_limit_passes(self) -> None:
        assert verdicts([made_up(USUAL, 1e-3, 1.0)], self.VLLM_WARM) == [(pytest.approx(1000), "pass")]
        assert verdicts([made_up(USUAL, 1.01e-3, 1.0)], self.VLLM_WARM) == [(pytest.approx(990, rel=0.01), "FAIL")]

    def test_what_was_not_measured_is_said_so(self) -> None:
        cold = self.VLLM_WARM.replace("warm", "cold")
        assert verdicts([made_up(USUAL)], cold) == [(None, "not measured")]

    def test_a_small_vocabulary_owes_half(self) -> None:
        record = made_up(replace(USUAL, vocab_size=32000), 1.9e-3, 1.0)
        assert verdicts([record], self.VLLM_WARM.replace("151936", "32000")) == [(pytest.approx(526, rel=0.01), "pass")]

    def test_a_disturbed_cell_gives_no_verdict(self) -> None:
        record = made_up(USUAL, 1e-3, 1.0) | {"disturbed": 0.3}
        assert verdicts([record], self.VLLM_WARM) == [(pytest.approx(1000), "disturbed")]

    def test_the_best_peer_is_the_fastest(self) -> None:
        record = made_up(USUAL, 1e-3, 1.0)
        record["results"][cases.CANDIDATES]["median"] = 0.02
        assert gates.speedup(record, gates.BEST_PEER) == pytest.approx(20)
        assert gates.speedup(record, cases.VLLM) == pytest.approx(1000)

    def test_the_reference_is_no_peer(self) -> None:
        record = made_up(USUAL, 1e-3, 1.0)
        record["results"][cases.REFERENCE]["median"] = 1e-6
        assert gates.speedup(record, gates.BEST_PEER) == pytest.approx(1000)

    def test_the_worst_cell_counts_and_small_batches_do_not(self) -> None:
        cell = replace(USUAL, is_cold=True, contestants=cases.CORE)
        records = [
            made_up(cell, 1.2, 1.0),
            made_up(replace(cell, dtype="float32"), 1.4, 1.0),
            made_up(replace(cell, batch_size=1), 9.0, 1.0),
            made_up(replace(cell, is_cold=False), 9.0, 1.0),
        ]
        assert verdicts(records, "V=151936: operator / one read: k <= 50") == [(pytest.approx(1.4), "pass")]

    def test_one_row(self) -> None:
        record = made_up(Cell(cases.CALL, cases.TOP_K_AND_P, 151936, 1, "bfloat16", cases.CALLS), 1e-5, 1e-5)
        record["results"][cases.PUBLIC_TENSORS]["median"] = 13e-6
        assert verdicts([record], "one row") == [(pytest.approx(13), "FAIL"), (pytest.approx(1.3), "pass")]

    def test_hard_rows_are_compared_with_the_ordinary_row_of_their_k(self) -> None:
        cell = Cell(cases.ADVERSARIAL, cases.LARGE_K_AND_P, 151936, 8, "bfloat16", (cases.OPERATOR, "all equal"))
        harder = replace(cell, case=Case(1024, 0.999))
        records = [made_up(harder, 5.0, 6.5), made_up(cell, 1.0, 2.0)]
        assert verdicts(records, "branch A, k=1024, bfloat16") == [(pytest.approx(6.5), "FAIL")]
        assert verdicts(records, "branch A, k=50, bfloat16") == []


class TestReport:
    @pytest.mark.parametrize(
        ("seconds", "text"),
        [(1.5e-7, "0.15 us"), (9.999e-4, "1.00 ms"), (0.0123, "12.3 ms"), (1.0, "1.00 s"), (123.4, "123 s")],
    )
    def test_seconds(self, seconds: float, text: str) -> None:
        assert report.format_seconds(seconds) == text

    def test_times_stand_beside_their_ratios(self) -> None:
        (table,) = report.peers([made_up(USUAL, 1e-3, 0.02)])
        row = dict(zip(table.header, table.rows[0], strict=True))
        assert row[cases.VLLM] == "20.0 ms, 20.0x"
        assert row["ascend_sample (quartiles)"] == "1.00 ms (1.00 ms to 1.00 ms)"

    def test_a_whole_run_fills_the_document_and_an_empty_one_clears_it(self, tmp_path: Path) -> None:
        records = [made_up(cell) for cell in cases.plan()]
        run = {
            "environment": {"processor": "made up"},
            "records": records,
            "gates": [gate.to_json() for gate in gates.judge(records)],
        }
        document = tmp_path / "page.md"
        document.write_text((ROOT / "docs" / "performance.md").read_text())
        command.publish(run, document, tmp_path / "run.json", tmp_path / "pictures")
        filled = document.read_text()
        assert json.loads((tmp_path / "run.json").read_text()) == json.loads(json.dumps(run))
        assert {path.name for path in (tmp_path / "pictures").iterdir()} == set(pictures.PICTURES)
        assert all(f"](pictures/{name})" in filled for name in pictures.PICTURES)
        assert "made up" in filled
        assert report.fill(filled, run, pictures.links(list(pictures.PICTURES), "pictures")) == filled
        empty = {"environment": {}, "records": [], "gates": []}
        assert report.fill(filled, empty, []).count("-->\n<!-- end -->") == filled.count("<!-- end -->")

    def test_an_unknown_marker_is_an_error(self) -> None:
        with pytest.raises(KeyError, match="typo"):
            report.fill("<!-- generated: typo -->\n<!-- end -->", {"environment": {}, "records": [], "gates": []}, [])


@pytest.mark.usefixtures("small_model")
class TestRun:
    def test_from_a_plan_to_verdicts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(cases, "COLD_BYTES", 1e5)
        monkeypatch.setattr(measuring, "SECONDS_PER_CONTESTANT", 0.002)
        plan = [
            replace(USUAL, vocab_size=VOCAB_SIZE, batch_size=4, is_cold=True),
            Cell(cases.CALL, cases.TOP_K_AND_P, VOCAB_SIZE, 1, "bfloat16", cases.CALLS),
            replace(cases.plan()[-1], vocab_size=VOCAB_SIZE, batch_size=2),
        ]
        assert plan[2].section == cases.ADVERSARIAL
        monkeypatch.setattr(cases, "plan", lambda: plan)
        threads = torch.get_num_threads()
        try:
            assert command.main(["--output", str(tmp_path), "--check"]) == 0  # at these shapes nothing is promised
        finally:
            torch.set_num_threads(threads)
        run = json.loads((tmp_path / "performance.json").read_text())
        assert [set(record["results"]) for record in run["records"]] == [set(cell.contestants) for cell in plan]
        assert all(result["median"] > 0 for record in run["records"] for result in record["results"].values())
        agreements = {name: result.get("agreement") for name, result in run["records"][0]["results"].items()}
        assert agreements.pop(cases.FLOOR) is None
        assert agreements.pop(cases.REFERENCE) is None
        assert min(agreements.values()) > 0.7
        assert run["environment"]["kernel's code path"] in ("plain", "neon", "avx2", "avx512")
        assert "promises: 0 pass, 0 FAIL" in capsys.readouterr().out

    def test_a_selection_of_nothing_is_refused(self) -> None:
        with pytest.raises(SystemExit, match="must be part of a cell's description, got 'nothing'"):
            command.main(["--only", "nothing"])

    def test_an_output_that_is_no_folder_is_refused_before_the_work(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(command, "measure", lambda options: pytest.fail("measured"))
        (tmp_path / "file").touch()
        with pytest.raises(SystemExit, match=r"--output must be a folder, or be made one, got .*file'\. Name"):
            command.main(["--output", str(tmp_path / "file")])


def test_the_kernel_beside_which_is_measured_must_have_been_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "OBJECTS", tmp_path)
    native.library.cache_clear()
    with pytest.raises(SystemExit, match="the kernel's objects must be in "):
        native.library()


class TestPublish:
    @pytest.mark.parametrize("module", [command, running_vllm, sampler, decoding_docs])
    def test_nothing_was_measured_yet(
        self, module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for each in (command, running_vllm, sampler, speculative):
            monkeypatch.setattr(each, "OUTPUT", tmp_path / "none")
        monkeypatch.setattr("sys.argv", ["benchmarks", *(["publish"] if module is not decoding_docs else [])])
        with pytest.raises(SystemExit, match=rf"there is no {tmp_path}.* yet. Run python -m benchmarks.* first"):
            module.main()

    def test_a_part_of_the_plan_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(command, "publish", lambda run: pytest.fail("published"))
        records = [made_up(cell) for cell in cases.quick_plan()]
        run = {"environment": {}, "records": records, "gates": []}
        environment.keep(tmp_path / "performance.json", run)
        with pytest.raises(SystemExit, match=rf"publish takes a full run, got {len(records)} of \d+ cells in "):
            command.main(["publish", "--output", str(tmp_path)])


def test_the_machine_is_described_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert environment._revision() == "unknown, without git"


@pytest.mark.parametrize("name", ["performance", "sampling_speed", "decoding_speed"])
def test_published_runs_have_a_record_a_line(name: str, tmp_path: Path) -> None:
    published = ROOT / "docs" / f"{name}.json"
    environment.keep(tmp_path / "again", environment.kept(published, ""))
    assert (tmp_path / "again").read_text() == published.read_text()


class TestDocumentation:
    """docs/performance.md shows the run in docs/performance.json."""

    RUN: dict[str, Any] = json.loads((ROOT / "docs" / "performance.json").read_text())

    def test_tables_and_pictures(self, tmp_path: Path) -> None:
        drawn = pictures.draw(self.RUN, tmp_path)
        kept = sorted(path.name for path in command.PICTURES.glob("*.png"))
        assert kept == sorted(drawn)
        for name in kept:
            before, again = imread(command.PICTURES / name), imread(tmp_path / name)
            assert before.shape == again.shape
            # Not bit for bit: fonts are rendered by whatever FreeType matplotlib was built with.
            assert float(np.abs(before - again).mean()) < 0.01, f"{name} is out of date: run `make bench-docs`"
            assert (command.PICTURES / name).stat().st_size < 150_000
        document = command.DOCUMENT.read_text()
        assert report.fill(document, self.RUN, pictures.links(drawn, "pictures/performance")) == document

    def test_verdicts_follow_from_the_records(self) -> None:
        again = json.loads(json.dumps([gate.to_json() for gate in gates.judge(self.RUN["records"])]))
        assert again == self.RUN["gates"] or not self.RUN["records"]
