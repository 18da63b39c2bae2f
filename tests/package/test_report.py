"""`python -m ascend_sample report`: every part goes into the file, also where one of them fails."""

from __future__ import annotations

import itertools
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

import hostcann
from ascend_sample import parity, report
from ascend_sample.bench import launches
from ascend_sample.bench.timing import Budget
from ascend_sample.parity.environment import EMULATED
from ascend_sample.sampling import SamplingBatch, SamplingParams
from ascend_sample.sampling.step.routes import RULES, Abilities, choose_rules

SHORT = Budget(seconds=0.01, fewest_rounds=1, most_rounds=1)
VOCAB_SIZE = 151936
TITLES = [
    "Installation",
    *(f"Verification of {operator}" for operator in parity.SUBJECTS),
    "Steps of the sampling layer",
    "Times of launches",
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
    assert text.count("PASSED") == len(parity.SUBJECTS)
    for name in (*report.REQUESTS, "torch calls it", *(("a graph of 100 is replayed",) if device == "npu" else ())):
        assert f"\n{name} " in text
    of_launches = text.split("## Times of launches")[1].split("## ")[0]
    for said in (text.split("## ")[0], of_launches):
        assert (EMULATED in said) == (device == "npu" and hostcann.is_active())
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
    assert [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")] == TITLES[
        : TITLES.index("Steps of the sampling layer")
    ]


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


def test_a_torch_npu_without_graphs(
    npu: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything else is told."""
    monkeypatch.delattr(torch.npu, "NPUGraph")
    assert report.look_at_step({}, npu, (2, 300), SHORT).seconds.keys() == report.WAYS.keys() - {"graph"}
    launches.print_launches(npu, 1)
    *_, called, says = capsys.readouterr().out.splitlines()
    assert called.startswith("torch calls it ")
    assert says == "no graph is replayed: torch.npu has no NPUGraph"


def test_what_is_timed_adds_as_often_as_is_told(counting: None, npu: str) -> None:
    calls = launches._calls(torch.device(npu))
    assert [additions for _, additions in calls.values()] == [1, *launches.NODES]
    for name, (call, additions) in calls.items():
        assert launches.IN_A_ROW % additions == 0
        with hostcann.profile() as counted:
            call()
        assert counted.totals.read == additions * 2 * 4 * launches.ELEMENTS
        assert (counted.totals.launches, counted.totals.replays) == ((1, 0) if name == "torch calls it" else (0, 1))


def test_a_launch_is_handed_over_before_it_is_done() -> None:
    """A device that does all that it was given while it is waited for, in 20 ms."""
    given: list[None] = []

    def wait() -> None:
        if given:
            time.sleep(0.02)
            given.clear()

    handed_over, done = launches._time(lambda: given.append(None), 10, wait)
    assert 10 * done >= 0.02
    assert 10 * handed_over < 0.01


@pytest.mark.parametrize("abilities", [(False, False, False), (False, True, False), (False, True, True)])
def test_the_kinds_of_requests_take_every_route(abilities: tuple[bool, bool, bool]) -> None:
    """Of a device with neither operator, with the first alone, and with both: each route is timed by a kind."""
    has = Abilities(*abilities)
    kinds = SamplingBatch(VOCAB_SIZE)
    kinds.extend([SamplingParams(**fields) for fields in report.REQUESTS.values()])
    some = (0.0, 0.7, 1.0), (None, 1, 50, 5000), (0.875, 0.9, 1.0), (0.0, 0.1)
    fields = ("temperature", "top_k", "top_p", "min_p")
    every = SamplingBatch(VOCAB_SIZE)
    every.extend([SamplingParams(**dict(zip(fields, values, strict=True))) for values in itertools.product(*some)])

    def routes_of(batch: SamplingBatch) -> set[str]:
        facts = {field: getattr(batch.host, field)[: len(batch)] for field in fields}
        return {RULES[rule].route for rule in choose_rules(facts, VOCAB_SIZE, torch.bfloat16, has, keep_ties=False)}

    assert routes_of(kinds) == routes_of(every)


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
