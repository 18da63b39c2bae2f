"""A short run of the fuzzer (`make fuzz` is the long one), and that it finds faults."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import build_programs
import pytest

ROWS = 20_000


@pytest.fixture(scope="module")
def sanitized() -> Path:
    """The folder of the programs under AddressSanitizer and UndefinedBehaviorSanitizer."""
    return build_programs.build(build_programs.ADDRESS, ("fuzz", "faulty_fuzz"))


def run_fuzz(program: Path, *arguments: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"FAULTY_CORE": fault}
    return subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, check=False)


def test_short_run(sanitized: Path) -> None:
    run = run_fuzz(sanitized / "fuzz", "--rows", str(ROWS), "--seed", "1")
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{ROWS} rows" in run.stdout
    scenarios = {line.split()[0] for line in run.stdout.splitlines() if re.match(r"[ABC]p?q? ", line)}
    assert scenarios == {"A", "Ap", "Aq", "Apq", "Bp", "Bpq", "C", "Cq"}


def test_a_wrong_tail_is_found_and_cut_down(sanitized: Path) -> None:
    run = run_fuzz(sanitized / "faulty_fuzz", "--rows", "20000", "--seed", "1", fault="tail")
    assert run.returncode == 1
    smallest = run.stdout.split("cut down: ")[1]
    assert smallest.startswith("avx512 and plain differ")
    assert re.search(r"vocabulary (1|17),", smallest), smallest
    seed = re.search(r"--replay (\d+)", run.stdout)
    assert seed is not None
    again = run_fuzz(sanitized / "faulty_fuzz", "--replay", seed[1], fault="tail")
    assert again.returncode == 1
    assert "avx512 and plain differ" in again.stdout


def test_an_access_outside_a_row_is_found(sanitized: Path) -> None:
    run = run_fuzz(sanitized / "faulty_fuzz", "--rows", "20000", "--seed", "1", fault="overrun")
    assert run.returncode != 0
    assert "on the row of --replay" in run.stderr
    assert "AddressSanitizer" in run.stderr


def test_a_row_that_hangs_is_found(sanitized: Path) -> None:
    program = sanitized / "faulty_fuzz"
    run = run_fuzz(program, "--rows", "20000", "--seed", "1", "--row-seconds", "1", fault="hang")
    assert run.returncode == 1
    assert "on the row of --replay" in run.stderr


def test_the_faulty_core_passes_without_a_fault(sanitized: Path) -> None:
    run = run_fuzz(sanitized / "faulty_fuzz", "--rows", "2000", "--seed", "1")
    assert run.returncode == 0, run.stdout + run.stderr
