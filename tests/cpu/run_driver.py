"""Runs driver.cpp."""

from __future__ import annotations

import subprocess
from pathlib import Path

from batch_file import Call, read_results, write_batches

from ascend_sample.parity import Result


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
