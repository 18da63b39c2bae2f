"""`python -m ascend_sample verify`: its stream of batches, its probes, its report and its exit status."""

from __future__ import annotations

import argparse
import json
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
    BATCHES,
    SCENARIOS,
    SEEDS,
    count_rows,
)
from ascend_sample.parity.environment import is_real_npu
from ascend_sample.parity.probe import PROBES
from ascend_sample.parity.report import Failure
from ascend_sample.parity.subjects import SAMPLE_V2, SUBJECTS, Subject
from tests.parity.parity_helpers import READINGS, Reading
from tests.support.isolation import run_isolated

EACH_SUBJECT = pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)


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
    @EACH_SUBJECT
    @pytest.mark.parametrize("rows", [1500, pytest.param(20_000, marks=pytest.mark.long)])
    def test_passes(self, subject: Subject, device: str, rows: int) -> None:
        report = verify(device, rows, subject=subject)
        assert report.problems() == []
        assert report.tally.total() == count_rows(rows) >= rows
        assert report.tally.total(Kind.FAILED) == 0

    def test_says_what_was_tested(self, device: str) -> None:
        environment = verify(device, rows=1).environment
        assert environment["torch"] == torch.__version__
        assert environment["route bfloat16"].startswith("cpu" if device == "cpu" else ("aclnn", "cffi"))
        if device == "npu":
            emulated = not is_real_npu(device)
            assert ("EMULATED" in environment["device"]) is emulated
            assert ("EMULATED" in environment["CANN"]) is emulated
            assert {"SoC", "torch_npu", "aclnnTopKTopPSampleV2", "aclnnTopKTopPSampleV2 build"} <= environment.keys()

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
        wrong = READINGS["q by id"].operator()
        assert run_verify(parse("--device", "cpu", "--rows", "400"), wrong) == 1
        output = capsys.readouterr().out
        assert output.endswith("FAILED\n")
        report = verify("cpu", 400, operator=wrong)
        failure = report.failures[0]
        assert failure.where in output
        assert f"verify --device cpu --seed 0 --batch {failure.batch}" in output
        again = verify("cpu", 1, only=failure.batch, operator=wrong)
        assert again.failures == [other for other in report.failures if other.batch == failure.batch]

    @pytest.mark.parametrize(("written", "name"), list(enumerate(("logits", "k", "p", "q"))))
    def test_operator_that_writes_to_an_argument(self, written: int, name: str, device: str) -> None:
        def writing(*arguments: torch.Tensor, **options: Any) -> object:
            result = ascend_sample.top_k_top_p_sample(*arguments, **options)
            if arguments[written] is not None and arguments[written].is_contiguous():
                arguments[written].fill_(2.0)
            return result

        reasons = {failure.reason for failure in verify(device, 300, operator=writing).failures}
        assert reasons == {f"the operator wrote to its {name}"}

    def test_operator_that_raises_names_the_batch(self) -> None:
        def broken(logits: torch.Tensor, *arguments: Any, **options: Any) -> object:
            if logits.shape[0] == 64:
                raise RuntimeError("the device is gone")
            return ascend_sample.top_k_top_p_sample(logits, *arguments, **options)

        with pytest.raises(RuntimeError, match=r"the operator failed on seed=0 batch=2 row=0"):
            verify("cpu", 100, operator=broken)

    def test_no_npu(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr(environment, "has_npu", lambda: False)
        assert run_verify(parse("--device", "npu")) == 2
        assert "hostcann run python -m ascend_sample verify" in capsys.readouterr().out
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
        both = (READINGS[name].changes for name in ("maximum from 0", "NaN is the greatest"))
        unlike = Reading({old: new for changes in both for old, new in changes.items()}).operator()
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

    @pytest.mark.parametrize("name", READINGS)
    def test_each_reading_is_told_apart(self, name: str) -> None:
        operator = READINGS[name].operator()
        findings = [probe.run(operator, "cpu", torch.float16) for probe in PROBES]
        contrary = Counter(finding.reading for finding in findings if not finding.as_contract)
        known = {reading: count for reading, count in contrary.items() if not reading.startswith("no known reading")}
        assert known == READINGS[name].answers

    def test_contradiction_is_a_problem(self) -> None:
        report = verify("cpu", 1, operator=READINGS["softmax once"].operator())
        assert report.problems() == ["3 answers to the probes contradict the contract"]  # one in each dtype
