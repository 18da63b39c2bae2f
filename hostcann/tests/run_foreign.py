"""Runs tests that other projects wrote for NPUs, each file in a process of its own on hostcann, and counts outcomes.

    python hostcann/tests/run_foreign.py FOLDER            a folder such as test/npu of torch_npu's sources
    python hostcann/tests/run_foreign.py FOLDER --json FILE --only test_npu.py --reasons REASONS.toml

It fetches nothing: FOLDER is a checkout of yours. What the files import must be installed. A case during which the
process ends, or does not end in time, is an error; the cases after it run in a new process. This file is also the
plugin of pytest that writes down, in those processes, what becomes of each case.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tomllib

OUTCOMES = ("error", "failed", "skipped", "passed")
RECORD = "RUN_FOREIGN_RECORD"
NO_CASES = 5  # the status of pytest


def note(case: str, outcome: str, message: str = "") -> None:
    """Appends a line to the record: a case is "collected", has "started", has an outcome a phase, has "finished"."""
    with open(os.environ[RECORD], "a") as record:
        record.write(json.dumps([case, outcome, message]) + "\n")


def pytest_collectreport(report: Any) -> None:
    """Writes down a file that cannot be collected."""
    if not report.passed:
        note("the file", "error" if report.failed else "skipped", message_of(report))


def pytest_collection_finish(session: Any) -> None:
    """Writes down the names of all cases, so that those without an outcome are known."""
    for item in session.items:
        note(item.nodeid, "collected")


def pytest_runtest_logstart(nodeid: str) -> None:
    """Writes down that a case starts."""
    note(nodeid, "started")


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Writes down that a case has ended; one that has not did not pass."""
    note(nodeid, "finished")


def pytest_runtest_logreport(report: Any) -> None:
    """Writes down the outcome of a case's setup, call or teardown, or of a subtest."""
    note(report.nodeid, "error" if report.failed and report.when != "call" else report.outcome, message_of(report))


def message_of(report: Any) -> str:
    """Returns the reason of a skip, or the last line of an error."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    return str(crash.message if crash else report.longrepr or "")[-800:]


def run_once(cases: list[str], folder: Path, limit: int, log: Path) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Runs cases in one process; returns the worst outcome of each, and the cases that it did not come to."""
    record = log.with_suffix(".jsonl")
    record.unlink(missing_ok=True)
    command = [sys.executable, "-m", "hostcann", "run", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "no:randomly", "-p", Path(__file__).stem, "-o", "filterwarnings=", f"--rootdir={folder}"]
    command += ["-c", os.devnull, "--confcutdir", str(folder), *cases]
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {RECORD: str(record), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    where = Path(cases[0].partition("::")[0]).parent
    with log.open("a") as output:
        program = subprocess.Popen(
            command, cwd=where, stdout=output, stderr=output, env=environment, start_new_session=True
        )
        try:
            end = f"the process ended with status {program.wait(limit)}"
        except subprocess.TimeoutExpired:
            end = f"no end within {limit} s"
            os.killpg(program.pid, 9)
            program.wait()
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    phases: dict[str, dict[str, str]] = {}
    for case, outcome, message in lines:
        phases.setdefault(case, {})[outcome] = message
    found: dict[str, dict[str, str]] = {}
    left = []
    for case, seen in phases.items():
        outcome = next((outcome for outcome in OUTCOMES if outcome in seen), None)
        if "started" in seen and "finished" not in seen:
            found[case] = {"outcome": "error", "message": end}
        elif outcome is not None:
            found[case] = {"outcome": outcome, "message": seen[outcome]}
        else:
            left.append(case)
    if not found and end != f"the process ended with status {NO_CASES}":
        found["the file"] = {"outcome": "error", "message": f"{end}, before its first case"}
    return found, left


def run(file: Path, folder: Path, limit: int, log: Path) -> dict[str, dict[str, str]]:
    """Runs the cases of a file, in as many processes as it takes."""
    output = log / f"{file.stem}.log"
    output.unlink(missing_ok=True)
    found, left = run_once([str(file)], folder, limit, output)
    while left:
        more, later = run_once([str(folder / case) for case in left], folder, limit, output)
        found |= more
        left = later if len(later) < len(left) else []
    return found


def reason_of(file: str, case: str, message: str, reasons: list[dict[str, str]]) -> str:
    """Returns the first reason whose pattern `cases` or `message` occurs in a case's name or message."""
    for reason in reasons:
        if re.search(reason.get("cases", ".^"), f"{file}::{case}") or re.search(reason.get("message", ".^"), message):
            return reason["why"]
    return "no reason is known"


def main() -> int:
    """Runs the files of a folder; returns 0 whatever became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="test_*.py", help="a pattern of files (test_*.py)")
    parser.add_argument("--limit", type=int, default=240, help="seconds of a process (240)")
    parser.add_argument("--jobs", type=int, default=2, help="files side by side (2)")
    parser.add_argument("--json", type=Path, help="writes every case's outcome there")
    parser.add_argument("--log", type=Path, help="keeps each file's output in this folder")
    parser.add_argument("--reasons", type=Path, help="TOML with [[reason]] tables: why, and cases or message, patterns")
    options = parser.parse_args()
    folder = options.folder.resolve()
    files = sorted(folder.rglob(options.only))
    if not files:
        parser.error(f"folder must hold files like {options.only}, got {folder}")
    reasons = tomllib.loads(options.reasons.read_text())["reason"] if options.reasons else []
    total: Counter[str] = Counter()
    why: Counter[tuple[str, str]] = Counter()
    found: dict[str, dict[str, dict[str, str]]] = {}
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.jobs) as pool:
        log = (options.log or Path(temporary)).resolve()
        log.mkdir(parents=True, exist_ok=True)
        pending = {file: pool.submit(run, file, folder, options.limit, log) for file in files}
        for number, (file, result) in enumerate(pending.items(), start=1):
            name = str(file.relative_to(folder))
            found[name] = result.result()
            counts = Counter(case["outcome"] for case in found[name].values())
            total += counts
            for case, of_case in found[name].items():
                if of_case["outcome"] != "passed":
                    why[of_case["outcome"], reason_of(name, case, of_case["message"], reasons)] += 1
            shown = ", ".join(f"{counts[outcome]} {outcome}" for outcome in reversed(OUTCOMES) if counts[outcome])
            print(f"{number}/{len(files)} {name}: {shown}", flush=True)
    print(", ".join(f"{total[outcome]} {outcome}" for outcome in reversed(OUTCOMES)))
    for (outcome, reason), count in sorted(why.items()) if reasons else ():
        print(f"{count:5} {outcome}: {reason}")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
