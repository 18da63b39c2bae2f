"""Runs tests that other projects wrote for NPUs, each file in a process of its own on hostcann, and counts outcomes.

    python hostcann/tests/run_foreign.py FOLDER            a folder such as test/npu of torch_npu's sources
    python hostcann/tests/run_foreign.py FOLDER --json FILE --only test_npu.py

It fetches nothing: FOLDER is a checkout of yours. What the files import must be installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

OUTCOMES = ("passed", "failed", "error", "skipped")


def outcomes_of(report: Path) -> list[dict[str, Any]]:
    """Returns what a JUnit report says of each case: its name, its outcome and the last line of its error."""
    cases = []
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag: child for child in case}
        outcome = next((kind for kind in ("failure", "error", "skipped") if kind in kinds), "passed")
        message = kinds[outcome].get("message", "") if outcome in kinds else ""
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        cases.append({"name": name, "outcome": outcome.replace("failure", "failed"), "message": message[:400]})
    return cases


def run(file: Path, folder: Path, limit: int, log: Path) -> list[dict[str, Any]]:
    """Runs a file; a run without an end or a report is one case of the outcome "error"."""
    report = log / f"{file.stem}.xml"
    command = [sys.executable, "-m", "hostcann", "run", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "no:randomly", "-o", "filterwarnings=", f"--rootdir={folder}", f"--junitxml={report}", str(file)]
    command += ["-c", os.devnull, "--confcutdir", str(folder)]
    with (log / f"{file.stem}.log").open("w") as output:
        program = subprocess.Popen(command, cwd=file.parent, stdout=output, stderr=output, start_new_session=True)
        try:
            status = program.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, 9)
            return [{"name": "the file", "outcome": "error", "message": f"no end within {limit} s"}]
    if not report.exists():
        return [{"name": "the file", "outcome": "error", "message": f"ended with status {status}, without a report"}]
    return outcomes_of(report)


def main() -> int:
    """Runs the files of a folder; returns 0 whatever became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="test_*.py", help="a pattern of files (test_*.py)")
    parser.add_argument("--limit", type=int, default=240, help="seconds of a file (240)")
    parser.add_argument("--jobs", type=int, default=2, help="files side by side (2)")
    parser.add_argument("--json", type=Path, help="writes every case's outcome there")
    parser.add_argument("--log", type=Path, help="keeps each file's output in this folder")
    options = parser.parse_args()
    folder = options.folder.resolve()
    files = sorted(folder.rglob(options.only))
    if not files:
        parser.error(f"folder must hold files like {options.only}, got {folder}")
    total: Counter[str] = Counter()
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.jobs) as pool:
        log = options.log or Path(temporary)
        log.mkdir(parents=True, exist_ok=True)
        pending = {file: pool.submit(run, file, folder, options.limit, log) for file in files}
        for number, (file, result) in enumerate(pending.items(), start=1):
            name = str(file.relative_to(folder))
            found[name] = result.result()
            counts = Counter(case["outcome"] for case in found[name])
            total += counts
            shown = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
            print(f"{number}/{len(files)} {name}: {shown}", flush=True)
    print(", ".join(f"{total[outcome]} {outcome}" for outcome in OUTCOMES))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
