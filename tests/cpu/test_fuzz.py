"""A short run of the fuzzer, and that it finds faults.

Built as the package is: guard pages see what is touched outside a row. `make fuzz` and `make sanitize` run it with
sanitizers, which take minutes to compile.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROWS = 50_000
FIRST_OPERATOR = {"A", "Ap", "Aq", "Apq", "Bp", "Bpq", "C", "Cq"}
FILTERS = ("1", "A", "Ap", "Am", "Apm", "Bp", "Bpm", "C", "Cm")
SECOND_OPERATOR = {
    f"2:{filters}{draw}{values}" for filters in FILTERS for draw in ("", "q", "/dense") for values in ("", "/prob")
}
ROWS_OF_LAYER = {"g"} | {f"{filters}q{divided}" for filters in FILTERS for divided in ("", "t")}
REQUESTS = {f"r:{row}{edits}" for row in ROWS_OF_LAYER for edits in ("", "/edits")}
BEST_TOKENS = {"l:", "l:t", "l:+", "l:+raw"}
FILTERED = {"g"} | {f"{filters}{divided}" for filters in FILTERS for divided in ("", "t")}
DISTRIBUTIONS = {f"f:{row}{edits}" for row in FILTERED for edits in ("", "/edits")}


def run_fuzz(program: Path, *arguments: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"FAULTY_CORE": fault}
    return subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, check=False)


def test_short_run(programs: Path) -> None:
    run = run_fuzz(programs / "fuzz", "--rows", str(ROWS), "--seed", "1")
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{ROWS} rows" in run.stdout
    scenarios = {line.split()[0] for line in run.stdout.splitlines() if re.match(r"([2rf]:)?[1ABCg]|l:", line)}
    assert scenarios == FIRST_OPERATOR | SECOND_OPERATOR | REQUESTS | DISTRIBUTIONS | BEST_TOKENS


def test_a_wrong_tail_is_found_and_cut_down(programs: Path) -> None:
    run = run_fuzz(programs / "faulty_fuzz", "--rows", "20000", "--seed", "1", fault="tail")
    assert run.returncode == 1
    smallest = run.stdout.split("cut down: ")[1]
    assert smallest.startswith("avx512 and plain differ")
    assert re.search(r"vocabulary (1|17),", smallest), smallest
    seed = re.search(r"--replay (\d+)", run.stdout)
    assert seed is not None
    again = run_fuzz(programs / "faulty_fuzz", "--replay", seed[1], fault="tail")
    assert again.returncode == 1
    assert "avx512 and plain differ" in again.stdout


@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        ("heavy", r"plain is wrong: the probability of id \d+ is \S+, not \S+"),
        ("leak", r"plain is wrong: (the probability of id \d+ is 1e-30, not 0|\d+ entries are kept, not \d+ to \d+)"),
        ("short", r"plain is wrong: \d+ entries are kept, not \d+ to \d+"),
        ("zeros", r"plain is wrong: the probability of id \d+ is 0, not NaN"),
    ],
)
def test_a_wrong_distribution_is_found_and_cut_down(programs: Path, fault: str, finding: str) -> None:
    program = programs / "faulty_fuzz"
    run = run_fuzz(program, "--rows", "20000", "--seed", "1", fault=f"distribution: {fault}")
    assert run.returncode == 1
    smallest = run.stdout.split("cut down: ")[1]
    assert re.match(finding, smallest), smallest
    size = re.search(r"vocabulary (\d+),.* distribution wanted", smallest)
    assert size is not None, smallest
    assert int(size[1]) <= 16, smallest


def test_a_wrong_rank_is_found_and_cut_down(programs: Path) -> None:
    run = run_fuzz(programs / "faulty_fuzz", "--rows", "20000", "--seed", "1", fault="rank")
    assert run.returncode == 1
    smallest = run.stdout.split("cut down: ")[1]
    assert re.match(r"plain is wrong: rank 2, not 1 to 1", smallest), smallest
    assert "vocabulary 1," in smallest, smallest


@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        ("list", r"plain is wrong: id \d+ is drawn, and not listed"),
        ("chance", r"plain is wrong: its log-probability is told as -?0\.01\d*, and listed as 0\.0"),
    ],
)
def test_what_is_told_wrong_is_found_and_cut_down(programs: Path, fault: str, finding: str) -> None:
    run = run_fuzz(programs / "faulty_fuzz", "--rows", "20000", "--seed", "1", fault=fault)
    assert run.returncode == 1
    smallest = run.stdout.split("cut down: ")[1]
    assert re.match(finding, smallest), smallest
    assert "vocabulary 1," in smallest, smallest


def test_an_access_outside_a_row_is_found(programs: Path) -> None:
    run = run_fuzz(programs / "faulty_fuzz", "--rows", "20000", "--seed", "1", fault="overrun")
    assert run.returncode != 0
    assert "on the row of --replay" in run.stderr


def test_a_row_that_hangs_is_found(programs: Path) -> None:
    program = programs / "faulty_fuzz"
    run = run_fuzz(program, "--rows", "20000", "--seed", "1", "--row-seconds", "1", fault="hang")
    assert run.returncode == 1
    assert "on the row of --replay" in run.stderr


def test_the_faulty_core_passes_without_a_fault(programs: Path) -> None:
    run = run_fuzz(programs / "faulty_fuzz", "--rows", "2000", "--seed", "1")
    assert run.returncode == 0, run.stdout + run.stderr
