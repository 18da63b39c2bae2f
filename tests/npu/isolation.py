"""Runs functions of the tests in processes of their own: other settings, or faults that end torch_npu's queue."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ascend_sample
from ascend_sample import hostcann
from tests.support.warm_python import run_warm

TIMEOUT_SECONDS = 300
PACKAGE_PARENT = Path(ascend_sample.__file__).parents[1]
OWN_HANDLES = ("tensor", "scalar", "array", "tensor_list", "executor")
"""The kinds of objects that a caller of CANN must destroy itself; torch_npu keeps streams, events and blocks."""


@dataclass(frozen=True)
class Finished:
    """A process that ended with status 0.

    Attributes:
        result: what the function returned.
        stderr: everything that was logged.
        report: hostcann's report at exit: violations, live objects, activities.
    """

    result: Any
    stderr: str
    report: dict[str, Any]

    @property
    def launches(self) -> dict[str, int]:
        """How often each operator was launched."""
        return hostcann.Profile.of_reports(self.report).launches

    def check_clean(self) -> None:
        """No misuse of CANN's interface, and nothing left alive at exit."""
        assert self.report["violations"] == []
        assert {kind: self.report["live"][kind] for kind in OWN_HANDLES} == dict.fromkeys(OWN_HANDLES, 0)


def run_isolated(
    function: Callable[..., Any], *arguments: object, without: Sequence[str] = (), **variables: str
) -> Finished:
    """Calls a function of a test module in a new process with an emulated NPU.

    Args:
        function: found again by its module and name.
        arguments: for the function; JSON's.
        without: symbols that CANN shall not have.
        variables: to set in its environment.

    Raises:
        AssertionError: the process did not end with status 0.
    """
    hidden = ("HOSTCANN_", "TASK_QUEUE_ENABLE", "ASCEND_LAUNCH_BLOCKING", "ASCEND_SAMPLE_", "TORCH_DEVICE_BACKEND")
    base = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    base["PYTHONPATH"] = os.pathsep.join([str(PACKAGE_PARENT), *sys.path])
    with tempfile.TemporaryDirectory() as folder:
        report, result = Path(folder) / "report.json", Path(folder) / "result.json"
        # What `python -m ascend_sample.hostcann run` sets, without a process that imports torch only to set it.
        base |= hostcann.environment(without=without) | {"HOSTCANN_REPORT": str(report)}
        call = [function.__module__, function.__name__, json.dumps(arguments), str(result)]
        finished = run_warm(["-m", __name__, *call], base | variables, Path(folder), TIMEOUT_SECONDS)
        if finished.returncode != 0:
            raise AssertionError(f"status {finished.returncode}\n{finished.stdout}\n{finished.stderr}")
        return Finished(json.loads(result.read_text()), finished.stderr, json.loads(report.read_text()))


def main(module: str, name: str, arguments: str, result: str) -> None:
    """Calls a function and leaves what it returns in a file."""
    value = getattr(importlib.import_module(module), name)(*json.loads(arguments))
    Path(result).write_text(json.dumps(value))


if __name__ == "__main__":
    main(*sys.argv[1:])
