"""Plants faults in a copy of the project, one after the other, and sees that the tests catch each.

    python -m tests.mutation.run              all of them
    python -m tests.mutation.run --only cpu   those with "cpu" in their names
    python -m tests.mutation.run --list       the names
    python -m tests.mutation.run --anew       those too that outcomes.json has

All of them take hours. `outcomes.json` keeps what has caught each fault: a run tries those whose own entry, file or
tests have changed since, and those that survived, so that an interrupted run goes on where it was. The copy lies in
build/mutation and is kept, so that a second run compiles only what has changed. A fault is caught when a test fails, or
when the tests end with something left on the emulated device or with a misuse of CANN's interface: first by the tests
that its entry names for it, then by all. A fault of the CPU kernel is compiled for the instruction set that serves
calls here, and for all of them where that does not show it. Exit status 1 when one survives.
"""

from __future__ import annotations

import argparse
import filecmp
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from tests.mutation.mutants import EVERY, LIBRARIES, Mutant

ROOT = Path(__file__).resolve().parents[2]
TREE = ROOT / "build" / "mutation"
OUTCOMES = ROOT / "tests" / "mutation" / "outcomes.json"
"""What has caught each fault, the seconds that it took, and the digest of what it was planted in."""
ALL_TESTS = ("tests",)
TIMEOUT_SECONDS = {False: 600, True: 3600}  # of a mutant's first tests, of all tests: far beyond what they need
TESTS_FAILED = 1  # pytest's exit status


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: the test that caught it, or None where it survived."""

    mutant: Mutant
    caught_by: str | None
    seconds: float


class MutationError(Exception):
    """The run itself is wrong: a stale text, a mutant that does not compile, tests that fail without any fault."""


def check_texts(mutants: Sequence[Mutant]) -> None:
    """Every text that is to be replaced occurs once.

    Raises:
        MutationError: naming those that do not.
    """
    stale = [
        f"{mutant.name}: {mutant.old!r} must occur once in {mutant.file}, got {count} times"
        for mutant in mutants
        if (count := (ROOT / mutant.file).read_text().count(mutant.old)) != 1
    ]
    if stale:
        raise MutationError("\n".join([*stale, "The source has changed: change tests/mutation/faults as well."]))


def update_copy() -> None:
    """Makes the copy equal to the project, and touches nothing that is equal already.

    What is copied is new to the compiler: an interrupted run may have left a fault in the copy and in its objects. The
    libraries that faults are planted in are always built in the copy.
    """
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    planted_in = {f"{library}.so" for library in LIBRARIES.values()}
    libraries = [path for path in (ROOT / "ascend_sample").rglob("*.so") if path.name not in planted_in]
    sources = [path for path in (ROOT / name for name in names if name) if path.is_file()]
    wanted = set()
    for path in (*sources, *libraries):
        target = TREE / path.relative_to(ROOT)
        wanted.add(target)
        if not target.is_file() or not filecmp.cmp(path, target, shallow=False):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copyfile(path, target)
    for path in TREE.rglob("*"):
        of_the_copy = path.relative_to(TREE).parts[0] == "build" or path.name in planted_in
        if path.is_file() and path not in wanted and not of_the_copy:
            path.unlink()


def environment() -> dict[str, str]:
    """Without what would lead the tests to another package or another CANN than the copy's."""
    hidden = ("HOSTCANN_", "ASCEND_", "TASK_QUEUE_ENABLE", "PYTEST_", "LD_LIBRARY_PATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return kept | {"PYTHONPATH": str(TREE), "PYTHONDONTWRITEBYTECODE": "1", "MAX_JOBS": "2"}


def build(library: str, *options: str) -> None:
    """Compiles what has changed of an extension; `build_one.py` says which options there are.

    Raises:
        MutationError: it does not compile.
    """
    command = [sys.executable, str(TREE / "tests" / "mutation" / "build_one.py"), library, "--quick", *options]
    finished = subprocess.run(command, cwd=TREE, env=environment(), capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise MutationError(f"{library} does not compile:\n{finished.stdout}\n{finished.stderr}")


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The copy with the fault in it, built where the first tests need that; afterwards all is as it was."""
    path = TREE / mutant.file
    original = path.read_text()
    text = original.replace(mutant.old, mutant.new)
    path.write_text(f"#include <{mutant.include}>\n{text}" if mutant.include else text)
    built = []
    if mutant.library is not None:
        objects = (TREE / "build" / "objects" / mutant.library).rglob("*.o")  # tests/cpu links some of them
        libraries = (TREE / "ascend_sample").rglob(f"{mutant.library}.so")
        built = [(file, file.read_bytes()) for file in (*objects, *libraries)]
    try:
        if mutant.library is not None:
            build(mutant.library, "--served")
        yield
    finally:
        path.write_text(original)
        for file, content in built:
            file.unlink(missing_ok=True)  # a new file: another process may still have the old one mapped
            file.write_bytes(content)
            file.chmod(0o755)


def first_failure(tests: Sequence[str]) -> str | None:
    """The first test that fails, or how the run ended otherwise; None when all pass.

    Raises:
        MutationError: pytest could not run the tests.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-v", "-p", "no:cacheprovider", *tests]
    timeout = TIMEOUT_SECONDS[tests == ALL_TESTS]
    try:
        finished = subprocess.run(
            command, cwd=TREE, env=environment(), capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no end within {timeout} s"
    if finished.returncode == 0:
        return None
    # As it is printed while the tests run: a device that has failed can end the run before the summary.
    failed = re.search(r"^(\S+\.py::.*?) (?:FAILED|ERROR)", finished.stdout, re.MULTILINE)
    if failed:
        return failed.group(1)
    left_behind = re.search(r"^hostcann: (.{1,100})", finished.stdout, re.MULTILINE)
    if left_behind and finished.returncode == TESTS_FAILED:
        return f"the end of the run: {left_behind.group(1)}"
    if finished.returncode < 0:
        return f"crash, signal {-finished.returncode}"
    raise MutationError(f"pytest {' '.join(tests)}: status {finished.returncode}\n{finished.stdout}\n{finished.stderr}")


def check_import() -> None:
    """The tests of the copy import the copy.

    Raises:
        MutationError: they import another package.
    """
    where = "import ascend_sample; print(ascend_sample.__file__)"
    command = [sys.executable, "-c", where]
    found = subprocess.run(command, cwd=TREE, env=environment(), capture_output=True, text=True, check=True).stdout
    if not Path(found.strip()).is_relative_to(TREE):
        raise MutationError(f"the tests of the copy must import the copy's ascend_sample, got {found.strip()}")


@functools.cache
def failure_without_fault(tests: tuple[str, ...]) -> str | None:
    """Returns what fails of the tests that are to catch faults while there is none."""
    return first_failure(tests)


def try_mutant(mutant: Mutant) -> Outcome:
    """Plants one fault and runs tests until one fails.

    Raises:
        MutationError: tests fail without the fault as well.
    """
    if failure := failure_without_fault(mutant.tests):
        raise MutationError(f"without any fault, pytest {' '.join(mutant.tests)} must pass, got {failure}")
    start = time.monotonic()
    with planted(mutant):
        caught_by = first_failure(mutant.tests)
        is_late = caught_by is None
        if is_late and mutant.library is not None:
            build(mutant.library)  # it may lie in what was not compiled
            caught_by = first_failure(mutant.tests)
        if caught_by is None:
            caught_by = first_failure(ALL_TESTS)
    if is_late and caught_by is not None and "::" in caught_by and first_failure((caught_by,)) is not None:
        raise MutationError(f"{caught_by} seemed to catch {mutant.name!r}, but it fails without the fault as well")
    return Outcome(mutant, caught_by, time.monotonic() - start)


def digest(mutant: Mutant) -> str:
    """Returns that of the fault, the file that it is planted in, and the files of the tests that are tried first."""
    tests = [argument.split("::")[0] for argument in mutant.tests if argument.startswith("tests/")]
    found = hashlib.sha256(repr(mutant).encode())
    for file in (mutant.file, *tests):
        for path in sorted((ROOT / file).rglob("*.py")) if (ROOT / file).is_dir() else [ROOT / file]:
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def known_outcomes(mutants: Sequence[Mutant]) -> list[Outcome]:
    """Returns what earlier runs have found of faults that have not changed since; survivors are tried again."""
    kept = json.loads(OUTCOMES.read_text()) if OUTCOMES.is_file() else {}
    return [
        Outcome(mutant, entry["caught_by"], entry["seconds"])
        for mutant in mutants
        if (entry := kept.get(mutant.name)) and entry["caught_by"] and entry["digest"] == digest(mutant)
    ]


def keep_outcome(outcome: Outcome) -> None:
    """Writes one outcome beside the others; the file is replaced as a whole."""
    kept = json.loads(OUTCOMES.read_text()) if OUTCOMES.is_file() else {}
    kept[outcome.mutant.name] = {
        "digest": digest(outcome.mutant),
        "caught_by": outcome.caught_by,
        "seconds": round(outcome.seconds),
    }
    unfinished = OUTCOMES.with_suffix(".new")
    names = [mutant.name for mutant in EVERY if mutant.name in kept]
    unfinished.write_text(json.dumps({name: kept[name] for name in names}, indent=1) + "\n")
    unfinished.replace(OUTCOMES)


def print_table(outcomes: Sequence[Outcome]) -> None:
    width = max((len(outcome.mutant.name) for outcome in outcomes), default=0)
    print(f"\n{'fault':<{width}}  seconds  caught by")
    for outcome in outcomes:
        print(f"{outcome.mutant.name:<{width}}  {outcome.seconds:7.0f}  {outcome.caught_by or 'SURVIVED'}")
    survivors = sum(outcome.caught_by is None for outcome in outcomes)
    print(f"\n{len(outcomes) - survivors} of {len(outcomes)} faults were caught.")


def run(mutants: Sequence[Mutant], *, is_anew: bool) -> int:
    """Tries each mutant; returns the exit status."""
    check_texts(mutants)
    update_copy()
    outcomes = [] if is_anew else known_outcomes(mutants)
    known = {outcome.mutant.name for outcome in outcomes}
    left = [mutant for mutant in mutants if mutant.name not in known]
    if outcomes:
        print(f"{len(outcomes)} of {len(mutants)} faults were caught before, and nothing of theirs has changed.")
    for library in tqdm(sorted(set(LIBRARIES.values())), desc="building", unit="library"):
        build(library)
    check_import()
    wrong = []
    with tqdm(left, desc="faults", unit="fault") as progress:
        for mutant in progress:
            progress.set_postfix_str(mutant.name)
            try:
                outcomes.append(try_mutant(mutant))
            except MutationError as error:  # of this one alone: the others take hours
                wrong.append(f"{mutant.name}: {error}")
                progress.write(wrong[-1])
                continue
            keep_outcome(outcomes[-1])
            progress.write(f"{mutant.name}: {outcomes[-1].caught_by or 'SURVIVED'}")
    print_table(outcomes)
    if wrong:
        raise MutationError("\n".join([f"{len(wrong)} could not be tried:", *wrong]))
    return 1 if any(outcome.caught_by is None for outcome in outcomes) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant faults and see that the tests catch them.")
    parser.add_argument("--only", metavar="TEXT", default="", help="only the faults with this in their names")
    parser.add_argument("--anew", action="store_true", help="try those too that were caught before")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    options = parser.parse_args()
    chosen = [mutant for mutant in EVERY if options.only in mutant.name]
    if not chosen:
        print(f"--only must be part of a fault's name, got {options.only!r}. --list prints them.", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(mutant.name for mutant in chosen))
        return 0
    try:
        return run(chosen, is_anew=options.anew)
    except MutationError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
