"""`python -m ascend_sample report`: every part goes into the file, also where one of them fails."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

import hostcann
from ascend_sample import report
from ascend_sample.bench.timing import Budget
from ascend_sample.parity.environment import EMULATED
from ascend_sample.sampling import SamplingBatch

SHORT = Budget(seconds=0.01, fewest_rounds=1, most_rounds=1)
TITLES = [
    "Installation",
    "Verification of top_k_top_p_sample",
    "Verification of top_k_top_p_sample_v2",
    "Verification of apply_top_k_top_p",
    "Steps of the sampling layer",
    "Times of the operator",
]


def parsed(*words: str) -> Namespace:
    parser = ArgumentParser()
    report.add_report_arguments(parser)
    return parser.parse_args(list(words))


def small(device: str, file: Path) -> Namespace:
    return parsed("--device", device, "--rows", "30", "--vocab-size", "300", "--batch", "3", "--file", str(file))


def test_the_file_has_every_part(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.md"
    assert report.run_report(small(device, file), SHORT) == 0
    printed, text = capsys.readouterr().out, file.read_text()
    assert [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")] == TITLES
    assert "Every part passed." in text
    assert text.count("PASSED") == 3
    for name in report.REQUESTS:
        assert f"\n{name} " in text
    assert (EMULATED in text) == (device == "npu" and hostcann.is_active())
    for part in text.split("```text\n")[1:]:
        assert part.split("\n```")[0] in printed


def break_steps(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def broken(*_: object) -> int:
        raise error

    monkeypatch.setattr(report, "look_at_step", broken)


def test_a_part_that_raises_is_told_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_steps(monkeypatch, RuntimeError("the device is on fire"))
    assert report.run_report(small("cpu", tmp_path / "report.md"), SHORT) == 1
    text = (tmp_path / "report.md").read_text()
    for said in ("Failed: Steps of the sampling layer.", "RuntimeError: the device is on fire", "x operator"):
        assert said in text
    assert "Failed: Steps of the sampling layer." in capsys.readouterr().out


def test_what_is_known_is_kept_when_it_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_steps(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        report.run_report(small("cpu", tmp_path / "report.md"), SHORT)
    text = (tmp_path / "report.md").read_text()
    assert "Ended early, in this part: Steps of the sampling layer." in text
    assert [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")] == TITLES[:4]


def test_tokens_that_are_not_the_cpus_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = len(report.REQUESTS)
    arguments = parsed("--device", "cpu", "--batch", "25", "--vocab-size", "300")
    for unequal, status in ((0, 0), (1, 0), (kinds, 1)):  # of the first kind's 25 tokens
        of_kinds = iter([unequal] + [0] * kinds)
        seen = (report.Step("native", 25, each, 3, None, {"step": 1e-3}) for each in of_kinds)
        monkeypatch.setattr(report, "look_at_step", lambda *_, seen=seen: next(seen))
        assert report._show_steps("cpu", arguments, SHORT) == status
    assert "may differ" in capsys.readouterr().out


def test_what_a_step_calls_is_counted(counting: None, npu: str) -> None:
    few = report.look_at_step({"temperature": 0.0}, npu, (2, 300), SHORT)
    more = report.look_at_step({"top_k": 20, "repetition_penalty": 1.2}, npu, (2, 300), SHORT)
    assert few.launches is not None
    assert 0 < few.launches < (more.launches or 0)
    assert 0 < few.operators < more.operators
    assert few.routes == "greedy"
    assert few.tokens == 6
    assert few.seconds.keys() == report.WAYS.keys()
    here = report.look_at_step({}, "cpu", (2, 300), SHORT)
    assert (here.tokens, here.unequal, here.launches, list(here.seconds)) == (2, 0, None, ["step"])


def test_tokens_of_every_way_are_compared(npu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a graph that has the noise of another position is seen."""

    class OtherStep(report.StaticStep):
        def prepare(self, batch: SamplingBatch, **options: Any) -> None:
            batch.append(torch.zeros(len(batch), dtype=torch.int64, device=batch.device))
            super().prepare(batch, **options)

    monkeypatch.setattr(report, "StaticStep", OtherStep)
    assert report.look_at_step({}, npu, (8, 300), SHORT).unequal >= 5


def test_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept.md").write_text("kept")
    small("cpu", tmp_path / "kept.md")
    small("cpu", tmp_path / "new.md")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["kept"]
    for file, rule in {
        "no/folder": "name a file in a folder that exists, got 'no/folder'",
        ".": "name a file in a folder that exists, got '.'",
        "x" * 300: "name a file that can be written (File name too long), got 'xxx",
    }.items():
        with pytest.raises(SystemExit):
            small("cpu", Path(file))
        assert f"error: argument --file: must {rule}" in capsys.readouterr().err


def test_no_npu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(report.parity.environment, "has_npu", lambda: False)
    assert report.run_report(parsed("--device", "npu")) == 2
    assert "hostcann run python -m ascend_sample report --device npu" in capsys.readouterr().out
