"""The run over versions says what has failed and why, and the READMEs show what it has kept."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from ascend_sample.hostcann._elf import hide_symbols
from ascend_sample.hostcann._home import PACKAGE_HOME
from tests.matrix import run, steps, tables
from tests.matrix.environment import LAST_LINES, Environment, Pair, StepFailure, interpreter

PAIR = Pair("2.10.0", "2.10.0.post7", "3.11")
OTHER = Pair("2.10.0", "2.10.0.post7", "3.12")


class Planted(Environment):
    """An environment in which nothing is done, and one step's command fails."""

    def __init__(self, folder: Path, fault: str) -> None:
        super().__init__(PAIR, Path(sys.executable), folder)
        self.fault = fault
        self.done: list[str] = []

    def _step(self, name: str) -> None:
        self.done.append(name)
        if name == self.fault:
            raise StepFailure(f"{name} is broken\nbecause of a fault")

    def install(self) -> None:
        self._step("install")

    def build(self) -> None:
        self._step("build")

    def check_symbols(self) -> None:
        self._step("symbols")

    def run(self, *command: str | Path) -> str:
        self._step("verify" if "verify" in command else "import" if "run" in command else "another command")
        return ""

    def test(self, *tests: str) -> None:
        self._step(next(name for name, each in steps.TESTS.items() if each == tests))


def failed_at(fault: str, tmp_path: Path) -> tuple[dict[str, Any], str]:
    record = {"steps": run.attempt(Planted(tmp_path, fault), steps.NAMES)}
    return record, tables.verdict(record)


def test_all_steps_are_run_and_green(tmp_path: Path) -> None:
    record, verdict = failed_at("", tmp_path)
    assert tuple(record["steps"]) == steps.NAMES
    assert verdict == "green"
    del record["steps"]["faults"], record["steps"]["decoding"]
    assert tables.verdict(record) == "green, without faults, decoding"


@pytest.mark.parametrize("fault", ["symbols", "verify", *steps.TESTS])
def test_a_failed_step_is_named_and_the_others_go_on(fault: str, tmp_path: Path) -> None:
    record, verdict = failed_at(fault, tmp_path)
    assert verdict == f"fails: {fault}"
    assert len(record["steps"]) == 5 + len(steps.TESTS)
    lines = tables.table({PAIR.name: record}, [[PAIR, OTHER]], "torch")
    assert lines[2] == f"| 2.10.0, 2.10.0.post7 | fails: {fault} | not run |"
    assert lines[-1] == f"- 2.10.0.post7 python 3.11, {fault}: `because of a fault`"


@pytest.mark.parametrize("fault", steps.ALL_DEPENDS_ON)
def test_nothing_follows_a_build_that_fails(fault: str, tmp_path: Path) -> None:
    record, verdict = failed_at(fault, tmp_path)
    assert list(record["steps"])[-1] == fault
    assert verdict == f"fails: {fault}"


def test_a_failed_command_gives_its_status_and_its_last_lines(tmp_path: Path) -> None:
    environment = Environment(PAIR, Path(sys.executable), tmp_path)
    environment.tree.mkdir()
    with pytest.raises(StepFailure) as failure:
        environment.run(sys.executable, "-c", "print(*range(99), sep='\\n'); raise SystemExit(3)")
    assert str(failure.value).splitlines() == ["exit status 3", *map(str, range(99 - LAST_LINES, 99))]
    assert "# 0 s" in environment.log.read_text()


def test_the_line_that_says_what_went_wrong_is_kept(tmp_path: Path) -> None:
    environment = Environment(PAIR, Path(sys.executable), tmp_path)
    environment.tree.mkdir()
    program = "import os; print('a line', f'  what(): no {os.getcwd()}', *range(20), sep='\\n'); raise SystemExit(1)"
    with pytest.raises(StepFailure) as failure:
        environment.run(sys.executable, "-c", program)
    assert str(failure.value).splitlines()[:2] == ["exit status 1", "  what(): no source"]
    assert tables.reason(str(failure.value)) == "what(): no source"
    assert tables.reason("exit status 1\nnothing to see") == "nothing to see"


def test_a_function_that_hostcann_lacks_is_named(tmp_path: Path) -> None:
    """libhcomm.so, in torch_npu's place, needs a function of libhccl.so."""
    environment = Environment(PAIR, Path(sys.executable), tmp_path)
    package = tmp_path / "venv" / "lib" / "python3.11" / "site-packages" / "torch_npu" / "lib"
    libraries = environment.tree / "ascend_sample" / "hostcann" / "home" / "lib64"
    package.mkdir(parents=True)
    libraries.mkdir(parents=True)
    shutil.copy(PACKAGE_HOME / "lib64" / "libhcomm.so", package / "libtorch_npu.so")
    with pytest.raises(StepFailure, match=r"hostcann does not export HcclGroupStart$"):
        environment.check_symbols()
    hide_symbols(PACKAGE_HOME / "lib64" / "libhccl.so", ["HcclGroupStart"], libraries / "libhccl.so")
    with pytest.raises(StepFailure, match=r"hostcann does not export HcclGroupStart$"):
        environment.check_symbols()
    shutil.copy(PACKAGE_HOME / "lib64" / "libhccl.so", libraries)
    environment.check_symbols()


def test_a_python_that_is_not_here_is_no_failure() -> None:
    assert interpreter("2.99") is None
    record = run.record(Pair("2.10.0", "2.10.0.post7", "2.99"), steps.NAMES, is_kept=False)
    assert not tables.failed(record)
    assert tables.verdict(record) == "no interpreter here"


def test_versions_are_chosen_by_their_beginnings() -> None:
    known = tuple(run.VERSIONS)
    assert run.chosen("2.10,2.7.1", known, "--versions") == ["2.7.1", "2.10.0"]
    assert run.chosen(None, known, "--versions") == list(known)
    with pytest.raises(SystemExit, match="--versions must name some of 2"):
        run.chosen("2.1", known, "--versions")


def test_every_chosen_test_exists() -> None:
    names = [name for tests in steps.TESTS.values() for name in tests]
    assert [name for name in names if not (tables.ROOT / name).exists()] == []


def test_the_readmes_show_what_is_kept(tmp_path: Path) -> None:
    copies = {tmp_path / path.name: heading for path, heading in tables.HEADINGS.items()}
    for path in tables.HEADINGS:
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    tables.publish(tables.read(), run.pairs(), copies)
    for path in tables.HEADINGS:
        assert (tmp_path / path.name).read_text(encoding="utf-8") == path.read_text(encoding="utf-8")
