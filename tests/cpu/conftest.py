"""The programs and the rows that the tests of this folder share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import build_programs
import pytest
from batch_file import Call, read_results, write_batches
from rows import make_calls

from ascend_sample.parity import Result

UNAVAILABLE_STATUS = 3


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the programs, with the package's own objects in them."""
    return build_programs.build(build_programs.NATIVE, ("driver", "fuzz", "faulty_fuzz", "allocations"))


@pytest.fixture(scope="session")
def calls() -> list[Call]:
    """20,000 rows and more."""
    return make_calls()


class Driver:
    """Runs the driver on batches."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._program = programs / "driver"
        self._folder = folder

    def status(self, capability: str) -> int:
        """The exit status on no batch at all: 3 where the capability is not available."""
        return self._run(capability, 1, "together", self._batches([])).returncode

    def run(self, capability: str, calls: list[Call], threads: int = 1, memory: str = "together") -> list[Result]:
        """The results of a capability, or of the oracle."""
        run = self._run(capability, threads, memory, self._batches(calls))
        assert run.returncode == 0, f"driver {capability} {threads} {memory}: status {run.returncode}: {run.stderr}"
        return read_results(self._folder / "results", calls)

    def _run(self, capability: str, threads: int, memory: str, batches: Path) -> subprocess.CompletedProcess[str]:
        results = self._folder / "results"
        command = [str(self._program), capability, str(threads), memory, str(batches), str(results)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def _batches(self, calls: list[Call]) -> Path:
        path = self._folder / "batches"
        write_batches(path, calls)
        return path


@pytest.fixture(scope="session")
def driver(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """The driver."""
    return Driver(programs, tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="session")
def capabilities(driver: Driver) -> list[str]:
    """The code paths that this machine can run, plain first."""
    available = [name for name in ("plain", "neon", "avx2", "avx512") if driver.status(name) != UNAVAILABLE_STATUS]
    assert available[0] == "plain"
    return available


@pytest.fixture(scope="session")
def expected(driver: Driver, calls: list[Call]) -> list[Result]:
    """What the plain code path makes of the rows."""
    return driver.run("plain", calls)
