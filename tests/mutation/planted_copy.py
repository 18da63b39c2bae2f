"""A copy of the project that faults are planted in, one after the other, and tested."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutation.mutants import LIBRARIES, Mutant

ROOT = Path(__file__).resolve().parents[2]
ALL_TESTS = ("tests",)
TIMEOUT_SECONDS = {False: 600, True: 3600}  # of a mutant's first tests, of all tests: far beyond what they need
TESTS_FAILED, NO_TESTS = 1, 5  # pytest's exit statuses


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: the test that caught it, or None where it survived."""

    mutant: Mutant
    caught_by: str | None
    seconds: float


class MutationError(Exception):
    """The run itself is wrong: a stale text, a mutant that does not compile, tests that fail without any fault."""


class CleanRuns:
    """What fails of tests while there is no fault: each is run once, by the first copy that asks."""

    def __init__(self) -> None:
        self._failures: dict[tuple[str, ...], str | None] = {}
        self._locks: defaultdict[tuple[str, ...], threading.Lock] = defaultdict(threading.Lock)
        self._of_locks = threading.Lock()

    def failure(self, tests: tuple[str, ...], run: Callable[[tuple[str, ...]], str | None]) -> str | None:
        """Returns what `run` has found of these tests, or finds now; None where all pass."""
        with self._of_locks:
            lock = self._locks[tests]
        with lock:
            if tests not in self._failures:
                self._failures[tests] = run(tests)
            return self._failures[tests]


@dataclass(frozen=True)
class PlantedCopy:
    """A copy of the project in a folder of its own.

    Attributes:
        tree: the folder.
        clean: what tests find without a fault, in all copies.
        options: of pytest, beside the tests.
    """

    tree: Path
    clean: CleanRuns = field(default_factory=CleanRuns)
    options: tuple[str, ...] = ()

    def update(self) -> None:
        """Makes the copy equal to the project, and touches nothing that is equal already.

        What is copied is new to the compiler: an interrupted run may have left a fault in the copy and in its objects.
        The libraries that faults are planted in are always built in the copy.
        """
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        planted_in = {f"{library}.so" for library in LIBRARIES.values()}
        built = [path for folder in ("ascend_sample", "hostcann/src") for path in (ROOT / folder).rglob("*.so")]
        libraries = [path for path in built if path.name not in planted_in]
        sources = [path for path in (ROOT / name for name in names if name) if path.is_file()]
        wanted = set()
        for path in (*sources, *libraries):
            target = self.tree / path.relative_to(ROOT)
            wanted.add(target)
            if not target.is_file() or not filecmp.cmp(path, target, shallow=False):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.unlink(missing_ok=True)
                shutil.copyfile(path, target)
        for path in self.tree.rglob("*"):
            of_the_copy = "build" in path.relative_to(self.tree).parts[:2] or path.name in planted_in
            if path.is_file() and path not in wanted and not of_the_copy:
                path.unlink()

    def environment(self) -> dict[str, str]:
        """Without what would lead the tests to another package or another CANN than the copy's."""
        hidden = ("HOSTCANN_", "ASCEND_", "TASK_QUEUE_ENABLE", "PYTEST_", "LD_LIBRARY_PATH")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        return kept | {
            "PYTHONPATH": os.pathsep.join((str(self.tree), str(self.tree / "hostcann" / "src"))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "MAX_JOBS": "2",
            "OMP_NUM_THREADS": "1",
        }

    def build(self, library: str, *options: str) -> None:
        """Compiles what has changed of an extension; `build_one.py` says which options there are.

        Raises:
            MutationError: it does not compile.
        """
        command = [sys.executable, str(self.tree / "tests" / "mutation" / "build_one.py"), library, "--quick", *options]
        finished = subprocess.run(
            command, cwd=self.tree, env=self.environment(), capture_output=True, text=True, check=False
        )
        if finished.returncode != 0:
            raise MutationError(f"{library} does not compile:\n{finished.stdout}\n{finished.stderr}")

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """The copy with the fault in it, built where the first tests need that; afterwards all is as it was."""
        path = self.tree / mutant.file
        original = path.read_text()
        text = original.replace(mutant.old, mutant.new)
        path.write_text(f"#include <{mutant.include}>\n{text}" if mutant.include else text)
        built = []
        if mutant.library is not None:
            # tests/cpu links some of the objects.
            patterns = (
                f"build/objects/**/{mutant.library}/**/*.o",
                f"hostcann/build/objects/**/{mutant.library}/**/*.o",
            )
            patterns += (f"ascend_sample/**/{mutant.library}.so", f"hostcann/src/**/{mutant.library}.so")
            built = [(file, file.read_bytes()) for pattern in patterns for file in self.tree.glob(pattern)]
        try:
            if mutant.library is not None:
                self.build(mutant.library, "--served")
            yield
        finally:
            path.write_text(original)
            for file, content in built:
                file.unlink(missing_ok=True)  # a new file: another process may still have the old one mapped
                file.write_bytes(content)
                file.chmod(0o755)

    def first_failure(self, tests: Sequence[str]) -> str | None:
        """The first test that fails, or how the run ended otherwise; None when all pass.

        Raises:
            MutationError: pytest could not run the tests.
        """
        command = [sys.executable, "-m", "pytest", "-x", "-v", "-p", "no:cacheprovider", *self.options, *tests]
        timeout = TIMEOUT_SECONDS[tests == ALL_TESTS]
        try:
            finished = subprocess.run(
                command,
                cwd=self.tree,
                env=self.environment(),
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"no end within {timeout} s"
        if finished.returncode == 0 or (self.options and finished.returncode == NO_TESTS):  # the options leave none
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
        raise MutationError(
            f"pytest {' '.join(tests)}: status {finished.returncode}\n{finished.stdout}\n{finished.stderr}"
        )

    def check_import(self) -> None:
        """The tests of the copy import the copy.

        Raises:
            MutationError: they import another package.
        """
        where = "import ascend_sample; print(ascend_sample.__file__)"
        command = [sys.executable, "-c", where]
        found = subprocess.run(
            command, cwd=self.tree, env=self.environment(), capture_output=True, text=True, check=True
        ).stdout
        if not Path(found.strip()).is_relative_to(self.tree):
            raise MutationError(f"the tests of the copy must import the copy's ascend_sample, got {found.strip()}")

    def try_mutant(self, mutant: Mutant) -> Outcome:
        """Plants one fault and runs tests until one fails.

        Raises:
            MutationError: tests fail without the fault as well.
        """
        if failure := self.clean.failure(mutant.tests, self.first_failure):
            raise MutationError(f"without any fault, pytest {' '.join(mutant.tests)} must pass, got {failure}")
        start = time.monotonic()
        with self.planted(mutant):
            caught_by = self.first_failure(mutant.tests)
            is_late = caught_by is None
            if is_late and mutant.library is not None:
                self.build(mutant.library)  # it may lie in what was not compiled
                caught_by = self.first_failure(mutant.tests)
            if caught_by is None:
                caught_by = self.first_failure(ALL_TESTS)
        if is_late and caught_by is not None and "::" in caught_by and self.first_failure((caught_by,)) is not None:
            raise MutationError(f"{caught_by} seemed to catch {mutant.name!r}, but it fails without the fault as well")
        return Outcome(mutant, caught_by, time.monotonic() - start)
