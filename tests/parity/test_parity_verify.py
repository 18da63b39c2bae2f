"""`python -m ascend_sample verify`: its stream of batches, its probes, its report and its exit status."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import ascend_sample
from ascend_sample.npu.operators import OPERATORS
from ascend_sample.parity import Kind, Report, add_verify_arguments, environment, run_verify, verify
from ascend_sample.parity import run as run_module
from ascend_sample.parity.cases import (
    BATCH_SIZES,
    BATCHES,
    GUESSES,
    SCENARIOS,
    SEEDS,
    VOCAB_SIZES,
    count_rows,
    deal,
    dtype_of,
    make_batch,
    shape_of,
    stream,
)
from ascend_sample.parity.environment import is_real_npu
from ascend_sample.parity.families import FAMILIES
from ascend_sample.parity.operands import Layout, Operand
from ascend_sample.parity.probe import PROBES
from ascend_sample.parity.report import Failure
from ascend_sample.parity.subjects import SAMPLE_V2
from ascend_sample.reference import top_k_top_p_sample_trace
from tests.parity.parity_helpers import CONTRACT, mutant, places_of
from tests.support.isolation import run_isolated

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ROWS = 2500  # four cycles of the stream, with every vocabulary in it


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_verify_arguments(parser)
    return parser.parse_args(words)


def report_on_v2() -> tuple[str, dict[str, object]]:
    """A few rows of the second operator on the NPU: the text, and what the JSON says of the verdict."""
    report = verify("npu", 1, subject=SAMPLE_V2)
    record = report.to_json()
    return report.to_text(), {name: record[name] for name in ("passed", "verdict", "routes")}


class TestVerify:
    def test_passes(self, device: str) -> None:
        report = verify(device, ROWS)
        assert report.problems() == []
        assert report.tally.total() == count_rows(ROWS) >= ROWS
        assert report.tally.total(Kind.FAILED) == 0

    def test_says_what_was_tested(self, device: str) -> None:
        environment = verify(device, rows=1).environment
        assert environment["torch"] == torch.__version__
        assert environment["route bfloat16"].startswith("cpu" if device == "cpu" else ("aclnn", "cffi"))
        if device == "npu":
            emulated = not is_real_npu(device)
            assert ("EMULATED" in environment["device"]) is emulated
            assert ("EMULATED" in environment["CANN"]) is emulated
            assert {"SoC", "torch_npu", "aclnnTopKTopPSample", "aclnnTopKTopPSampleV2"} <= environment.keys()

    def test_exit_status_and_json(self, device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "report.json"
        assert run_verify(parse("--device", device, "--rows", "200", "--seed", "3", "--json", str(file))) == 0
        report = json.loads(file.read_text(encoding="utf-8"))
        assert report["passed"] is True
        assert report["rows"] == sum(record[kind.label] for record in report["by_scenario_and_dtype"] for kind in Kind)
        output = capsys.readouterr().out
        assert output.startswith("operator")
        assert output.endswith("PASSED\n")

    def test_who_answered_stands_beside_the_verdict(self, npu: str) -> None:
        text, record = report_on_v2()
        assert text.endswith("\nPASSED")
        assert "the device's answer" in text
        assert (record["verdict"], set(record["routes"])) == ("PASSED", {"bfloat16", "float16", "float32"})
        with ascend_sample.use_backend("composite"):
            text, record = report_on_v2()
        verdict = "PASSED: the composite (bfloat16, float16, float32) answered, not the device's operator"
        assert text.endswith(f"\n{verdict}")
        assert "the device's answer" not in text
        assert record == {
            "passed": True,
            "verdict": verdict,
            "routes": dict.fromkeys(("bfloat16", "float16", "float32"), "composite"),
        }

    def test_cann_without_the_operator(self, npu: str) -> None:
        if is_real_npu(npu):
            pytest.skip("a real CANN hides no operator")
        finished = run_isolated(report_on_v2, without=[OPERATORS["top_k_top_p_sample_v2"].phase_2])
        text, record = finished.result
        assert text.splitlines()[-1] == record["verdict"]
        assert "PASSED: the composite (bfloat16, float16, float32) answered" in text
        assert "the device's answer" not in text

    def test_scenario_without_a_row_is_a_problem(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert verify("cpu", 3, subject=SAMPLE_V2).problems() == []  # too few rows to ask for all
        monkeypatch.setattr(run_module, "COVERING_ROWS", 3)
        (problem,) = verify("cpu", 3, subject=SAMPLE_V2).problems()
        assert problem.startswith("no row of 17")
        assert "probabilities: top-k min-p (float32)" in problem
        assert verify("cpu", 3, only=2, subject=SAMPLE_V2).problems() == []
        assert [problem[:9] for problem in verify("cpu", 3).problems()] == ["no row of"]

    def test_failure_can_be_run_again(self, capsys: pytest.CaptureFixture[str]) -> None:
        wrong = mutant(q_by_id=True)
        assert run_verify(parse("--device", "cpu", "--rows", "400"), wrong) == 1
        output = capsys.readouterr().out
        assert output.endswith("FAILED\n")
        report = verify("cpu", 400, operator=wrong)
        failure = report.failures[0]
        assert failure.where in output
        assert f"verify --device cpu --seed 0 --batch {failure.batch}" in output
        again = verify("cpu", 1, only=failure.batch, operator=wrong)
        assert again.failures == [other for other in report.failures if other.batch == failure.batch]

    @pytest.mark.parametrize("written", range(4), ids=("logits", "k", "p", "q"))
    def test_operator_that_writes_to_an_argument(self, written: int, device: str) -> None:
        def writing(*arguments: torch.Tensor, **options: Any) -> object:
            result = ascend_sample.top_k_top_p_sample(*arguments, **options)
            if arguments[written] is not None and arguments[written].is_contiguous():
                arguments[written].fill_(2.0)
            return result

        reasons = {failure.reason for failure in verify(device, 300, operator=writing).failures}
        assert reasons == {f"the operator wrote to its {('logits', 'k', 'p', 'q')[written]}"}

    def test_operator_that_raises_names_the_batch(self) -> None:
        def broken(logits: torch.Tensor, *arguments: object, **options: object) -> tuple[torch.Tensor, None]:
            if logits.shape[0] == 64:
                raise RuntimeError("the device is gone")
            return CONTRACT(logits, *arguments, **options)  # type: ignore[arg-type, return-value]

        with pytest.raises(RuntimeError, match=r"the operator failed on seed=0 batch=2 row=0"):
            verify("cpu", 100, operator=broken)

    def test_no_npu(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr(environment, "has_npu", lambda: False)
        assert run_verify(parse("--device", "npu")) == 2
        assert "python -m ascend_sample.hostcann run" in capsys.readouterr().out
        assert run_verify(parse("--rows", "1")) == 0  # without an NPU the default is the CPU

    def test_a_device_that_torch_does_not_have(self, capsys: pytest.CaptureFixture[str]) -> None:
        for device in ("hpu", "meta"):
            assert run_verify(parse("--device", device)) == 2
            (said,) = capsys.readouterr().out.splitlines()
            assert f"verify: --device must be one that torch can use here, got {device}: " in said

    def test_a_forced_backend_that_does_not_serve_the_device(self, capsys: pytest.CaptureFixture[str]) -> None:
        with ascend_sample.use_backend("aclnn"):
            assert run_verify(parse("--device", "cpu")) == 2
        (said,) = capsys.readouterr().out.splitlines()
        assert said.startswith(
            "verify: top_k_top_p_sample: the forced backend aclnn cannot serve torch.bfloat16 on cpu"
        )

    @pytest.mark.parametrize(
        "words",
        [
            ["--rows", "0"],
            ["--rows", "many"],
            ["--seed", "-1"],
            ["--seed", str(SEEDS)],
            ["--batch", "-1"],
            ["--batch", str(BATCHES)],
            ["--device", "npu:0"],
            ["--json", "no/such/folder/file"],
        ],
    )
    def test_bad_options(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            parse(*words)
        assert f"error: argument {words[0]}: must " in capsys.readouterr().err

    def test_the_last_batch_of_the_last_seed(self) -> None:
        assert run_verify(parse("--device", "cpu", "--seed", str(SEEDS - 1), "--batch", str(BATCHES - 1))) == 0
        assert verify("cpu", 1, SEEDS - 1, only=BATCHES - 1, subject=SAMPLE_V2).problems() == []

    def test_undefined_inputs_never_fail_a_real_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        unlike = mutant(nan_wins=True, maximum_from_zero=True)
        assert verify("cpu", 400, operator=unlike).tally.total(Kind.FAILED) > 0
        monkeypatch.setattr(run_module, "is_real_npu", lambda device: True)
        report = verify("cpu", 400, operator=unlike)
        assert report.problems() == []
        assert report.undefined.total(Kind.FAILED) > 0
        text = report.to_text()
        assert "Undefined on the device" in text
        assert len(re.findall("underflows: the maximum starts at 0 .* undefined ", text)) == 1
        assert " NO " not in text


class TestReport:
    def report(self) -> Report:
        return Report(environment={}, command="verify", is_real_device=False)

    def test_an_empty_run_does_not_pass(self) -> None:
        assert self.report().problems() == ["no row was compared"]

    def test_each_scenario_in_each_dtype(self) -> None:
        report = self.report()
        report.must_cover = ("bfloat16", "float16")
        for scenario in SCENARIOS:
            report.tally.add(scenario, "bfloat16", Kind.EXACT)
            if scenario != "Apq":
                report.tally.add(scenario, "float16", Kind.EXACT)
        assert report.problems() == ["no row of 1 of the scenarios: top-k top-p sample (float16)"]
        report.undefined.add("Apq", "float16", Kind.EXACT)  # which tests nothing
        assert len(report.problems()) == 1
        report.tally.add("Apq", "float16", Kind.EXACT)
        assert report.problems() == []

    def test_mixed_routes(self) -> None:
        report = self.report()
        report.tally.add("C", "float16", Kind.FAILED)
        report.failures.append(Failure("somewhere", 0, "a reason"))
        report.routes = {"bfloat16": "aclnn", "float16": "composite", "float32": "reference"}
        assert report.verdict() == (
            "FAILED: the composite (float16) and the reference (float32) answered, not the device's operator"
        )

    @pytest.mark.parametrize(("explained", "passes"), [(9, True), (10, False)])
    def test_limit_on_explanations(self, explained: int, passes: bool) -> None:
        report = self.report()
        report.tally.add("C", "float16", Kind.EXACT)
        report.ordinary_rows, report.ordinary_explained = 1000, explained
        assert (report.problems() == []) is passes

    def test_one_batch_is_not_held_to_the_limit_on_explanations(self) -> None:
        report = verify("cpu", 3, only=2)
        report.ordinary_rows, report.ordinary_explained = 3, 1
        assert report.problems() == []
        report.failures.append(Failure("row 0", 2, "another id"))
        assert report.problems() == ["1 rows failed"]


class TestProbes:
    def test_device_answers_as_the_contract_says(self, device: str, subtests: pytest.Subtests) -> None:
        for probe in PROBES:
            for dtype in (torch.bfloat16, torch.float16):
                if probe.defined_on_device or not is_real_npu(device):
                    with subtests.test(f"{probe.question} {dtype}"):
                        finding = probe.run(ascend_sample.top_k_top_p_sample, device, dtype)
                        assert finding.as_contract, finding.reading

    @pytest.mark.parametrize(
        ("change", "answers"),
        [
            ({"second_softmax": False}, {"softmax once": 1}),
            ({"keeps_one_at_zero": True}, {"one entry is kept": 2}),
            ({"inclusive": True}, {"kept until the sum is >= p": 2}),
            (
                {"descending_ids": True},
                {"exactly k, the highest ids": 1, "the highest id": 1, "the highest ids": 1, "ids descending": 1},
            ),
            ({"keeps_tied": True}, {"all of them are kept": 1}),
            ({"q_by_id": True}, {"by vocabulary id": 2}),
            ({"q_by_rank": True}, {"by rank": 1}),
            ({"signed_q": True}, {"a negative score": 1}),
            ({"maximum_from_zero": True}, {"underflows: the maximum starts at 0": 1}),
            ({"large_k": "honour"}, {"k is honoured": 1}),
            ({"large_k": "cap"}, {"k is capped at 1024": 1}),
            ({"filler": 0.0}, {"another value": 1}),
            ({"sorts_probabilities": True}, {"the lowest id": 1}),
            ({"score_of_nan": 0.0}, {"it is drawn": 1}),
            ({"score_of_nan": -math.inf}, {"the first, -inf as it is": 1}),
            ({"score_of_nothing": math.inf}, {"0 / 0 is drawn": 1}),
        ],
        ids=lambda value: next(iter(value)),
    )
    def test_each_reading_is_told_apart(self, change: dict[str, object], answers: dict[str, int]) -> None:
        findings = [probe.run(mutant(**change), "cpu", torch.float16) for probe in PROBES]
        contrary = Counter(finding.reading for finding in findings if not finding.as_contract)
        known = {reading: count for reading, count in contrary.items() if not reading.startswith("no known reading")}
        assert known == answers

    def test_every_outcome_is_reached_and_distinct(self) -> None:
        for probe in PROBES:
            assert len({(outcome.token, outcome.kept) for outcome in probe.outcomes}) == len(probe.outcomes)
            assert probe.run(CONTRACT, "cpu", torch.bfloat16).as_contract

    def test_contradiction_is_a_problem(self) -> None:
        report = verify("cpu", 1, operator=mutant(second_softmax=False))
        assert report.problems() == ["3 answers to the probes contradict the contract"]  # one in each dtype


class TestStream:
    def test_covers_what_it_says(self) -> None:
        seen: dict[str, set[object]] = {}
        rows = 0
        for batch in stream(0, ROWS, DTYPES):
            rows += batch.shape[0]
            operands = [batch.logits, batch.k, batch.p, *([] if batch.q is None else [batch.q])]
            for key, values in {
                "batch": {batch.shape[0]},
                "vocab": {batch.shape[1]},
                "vocab and dtype": {(batch.shape[1], batch.logits.dtype_name)},
                "family": {batch.family},
                "scenario and dtype": {(scenario, batch.logits.dtype_name) for scenario in batch.scenarios()},
                "layout": {(index, operand.layout) for index, operand in enumerate(operands)},
                "guess": {batch.top_k_guess},
                "need": {batch.is_need_logits},
                "k": set(batch.k.view().tolist()),
            }.items():
                seen.setdefault(key, set()).update(values)
        assert rows == count_rows(ROWS)
        assert seen["batch"] == set(BATCH_SIZES)
        assert seen["vocab"] == set(VOCAB_SIZES)
        assert seen["family"] == {family.name for family in FAMILIES}
        assert len(seen["scenario and dtype"]) == len(SCENARIOS) * len(DTYPES)
        assert len(seen["layout"]) == 2 * len(Layout) + 2 * (len(Layout) - 1)  # vectors are never transposed
        assert seen["guess"] == set(GUESSES)
        assert seen["need"] == {True, False}
        assert {-1, 0, 1, 2, 50, 1024, 1025} <= seen["k"]
        assert len(seen["vocab and dtype"]) >= 3 * len(VOCAB_SIZES) - 2  # 2**20 comes once in four cycles

    @pytest.mark.parametrize("n_dtypes", [1, 2, 3])
    @pytest.mark.parametrize("n_hands", [8, 12])
    def test_combinations_are_dealt_out(self, n_dtypes: int, n_hands: int) -> None:
        """Of one dtype and batch size, every `n_hands` batches in a row have each once, in changing orders."""
        dealt: dict[tuple[torch.dtype, int], list[int]] = {}
        for index in places_of(20_000, largest=8193):
            batches_alike = dtype_of(index, DTYPES[:n_dtypes]), shape_of(index)[1]
            dealt.setdefault(batches_alike, []).append(deal(4, index, n_dtypes, n_hands))
        assert len(dealt) == n_dtypes * len(BATCH_SIZES)
        orders = set()
        for hands in dealt.values():
            rounds = [tuple(hands[start : start + n_hands]) for start in range(0, len(hands), n_hands)]
            orders.update(rounds)
            assert all(sorted(each) == list(range(n_hands)) for each in rounds[:-1])
        assert len(orders) > 4

    def test_batch_depends_on_seed_and_index_alone(self) -> None:
        for batch in list(stream(5, 300, DTYPES))[::5]:
            again = make_batch(5, batch.index, DTYPES)
            other = make_batch(6, batch.index, DTYPES)
            assert torch.equal(batch.logits.view().nan_to_num(), again.logits.view().nan_to_num())
            assert torch.equal(batch.k.view(), again.k.view())
            assert again.describe(0) == batch.describe(0) != other.describe(0)

    def test_scenarios_are_those_of_the_reference(self) -> None:
        for batch in stream(2, 400, DTYPES):
            q = None if batch.q is None else batch.q.view()
            trace = top_k_top_p_sample_trace(batch.logits.view(), batch.k.view(), batch.p.view(), q, batch.eps)
            assert batch.scenarios() == [row.scenario for row in trace]

    def test_undefined_rows(self) -> None:
        nan = float("nan")
        logits = torch.tensor(
            [[0.0, 1.0], [nan, 1.0], [torch.inf, 1.0], [-torch.inf] * 2, [-99.0, -98.0], [-torch.inf, 0.0]]
        )
        batch = make_batch(0, 0, DTYPES)
        rows = torch.full((6,), -1, dtype=torch.int32)
        changed = batch.__class__(
            **vars(batch)
            | {
                "logits": Operand.arrange(logits, Layout.CONTIGUOUS, 0.0),
                "k": Operand.arrange(rows, Layout.CONTIGUOUS, 0),
                "p": Operand.arrange(torch.ones(6), Layout.CONTIGUOUS, 0.0),
                "q": None,
            }
        )
        assert changed.undefined_on_device() == [False, True, True, True, True, False]

    @pytest.mark.parametrize("layout", Layout, ids=lambda layout: layout.value)
    @pytest.mark.parametrize("shape", [(4,), (4, 6)], ids=str)
    def test_layouts(self, layout: Layout, shape: tuple[int, ...], device: str) -> None:
        values = torch.arange(24.0)[: 4 if len(shape) == 1 else 24].reshape(shape)
        view = Operand.arrange(values, layout, filler=-1.0).view(device)
        expected = values[:1].expand(shape) if layout is Layout.EXPANDED else values
        assert torch.equal(view.cpu(), expected)
        assert view.is_contiguous() is (layout in (Layout.CONTIGUOUS, Layout.OFFSET))
