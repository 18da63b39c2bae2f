"""A run of the fuzzer, and that it finds faults.

Built as the package is: guard pages see what is touched outside a row. `make fuzz` and `make sanitize` run it with
sanitizers, which take minutes to compile.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

FILTERS = ("1", "A", "Ap", "Am", "Apm", "Bp", "Bpm", "C", "Cm")
ROWS_OF_LAYER = {
    f"{kind}:{row}{edits}"
    for kind, draw in (("r", "q"), ("f", ""))
    for row in ("g", *(f"{filters}{draw}{divided}" for filters in FILTERS for divided in ("", "t")))
    for edits in ("", "/edits")
}
SCENARIOS = ROWS_OF_LAYER | {
    *("A", "Ap", "Aq", "Apq", "Bp", "Bpq", "C", "Cq"),  # of the first operator
    *(f"2:{filters}{draw}" for filters in FILTERS for draw in ("", "q")),
    *("l:", "l:t", "l:+", "l:+raw"),  # of the best tokens
}


def run_fuzz(program: Path, *arguments: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"FAULTY_CORE": fault}
    return subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("rows", [6_000, pytest.param(50_000, marks=pytest.mark.long)])
def test_short_run(programs: Path, rows: int) -> None:
    run = run_fuzz(programs / "fuzz", "--rows", str(rows), "--seed", "1")
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{rows} rows" in run.stdout
    scenarios = {line.split()[0] for line in run.stdout.splitlines() if re.match(r"([2rf]:)?[1ABCg]|l:", line)}
    assert scenarios <= SCENARIOS
    assert len(scenarios) > 0.9 * len(SCENARIOS)
    assert scenarios == SCENARIOS or rows < 50_000


@pytest.mark.parametrize(
    ("fault", "finding", "largest"),
    [
        ("token", "avx512 and plain differ", 17),
        ("share", r"plain is wrong: the probability of id \d+ is \S+, not \S+", 1),
    ],
)
def test_a_fault_is_found_and_cut_down(programs: Path, fault: str, finding: str, largest: int) -> None:
    run = run_fuzz(programs / "faulty_fuzz", "--rows", "2000", "--seed", "1", fault=fault)
    assert run.returncode == 1
    smallest = run.stdout.split("cut down: ")[1]
    assert re.match(finding, smallest), smallest
    assert f"vocabulary {largest}," in smallest, smallest
    seed = re.search(r"--replay (\d+)", run.stdout)
    assert seed is not None
    again = run_fuzz(programs / "faulty_fuzz", "--replay", seed[1], fault=fault)
    assert again.returncode == 1
    assert re.search(finding, again.stdout)


@pytest.mark.parametrize("fault", ["overrun", "hang"])
def test_a_row_that_ends_the_program_is_named(programs: Path, fault: str) -> None:
    run = run_fuzz(programs / "faulty_fuzz", "--rows", "2000", "--seed", "1", "--row-seconds", "1", fault=fault)
    assert run.returncode != 0
    assert re.search(r"on the row of --replay [1-9]\d*", run.stderr)


def test_the_faulty_core_passes_without_a_fault(programs: Path) -> None:
    run = run_fuzz(programs / "faulty_fuzz", "--rows", "1000", "--seed", "1")
    assert run.returncode == 0, run.stdout + run.stderr
