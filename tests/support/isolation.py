"""Runs functions of the tests in processes of their own: other settings, misuse, or faults that end what they hit.

`own_process` and `run_in_process` are for functions at CANN's C interface, without torch; `run_isolated` is for those
that need an emulated NPU. Programs are run by `tests.support.user_process`.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.warm_python import IMPORTED_FIRST, run_warm

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 300
WITHOUT_TORCH = ("pytest", "numpy", "cffi.cparser")
"""What tests at CANN's C interface import beside hostcann: most of the time of such a process."""
OWN_HANDLES = ("tensor", "scalar", "array", "tensor_list", "executor")
"""The kinds of objects that a caller of CANN must destroy itself; torch_npu keeps streams, events and blocks."""


def program_of(function: Callable[..., Any], arguments: Sequence[object] = (), result: str = os.devnull) -> list[str]:
    """Returns what Python is called with to call a function, found again by its module and name.

    Args:
        arguments: JSON's.
        result: the file for what it returns, as JSON.
    """
    return ["-m", __name__, function.__module__, function.__name__, json.dumps(arguments), result]


def main(module: str, name: str, arguments: str, result: str) -> None:
    """Calls a function, without its decorator, and leaves what it returns in a file."""
    function = getattr(importlib.import_module(module), name)
    value = getattr(function, "__wrapped__", function)(*json.loads(arguments))
    Path(result).write_text(json.dumps(value))


def without_hostcann() -> dict[str, str]:
    """The environment without the settings of the hostcann that the tests have activated for themselves."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HOSTCANN_")}


def run_in_process(
    function: Callable[..., Any], arguments: Sequence[object] = (), environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Calls a function in a new process without torch, whatever its end."""
    variables = without_hostcann() | {"PYTHONPATH": os.pathsep.join(sys.path)} | dict(environment or {})
    return run_warm(program_of(function, arguments), variables, ROOT, TIMEOUT_SECONDS, WITHOUT_TORCH)


def must_succeed(finished: subprocess.CompletedProcess[str]) -> None:
    """Raises AssertionError with all that was printed unless the status is 0."""
    if finished.returncode != 0:
        raise AssertionError(f"status {finished.returncode}\n{finished.stdout}\n{finished.stderr}")


def own_process(**environment: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs the decorated test in a new process without torch, with these environment variables set.

    The test takes no fixtures. The process must end with status 0: an assertion, a crash, a sanitizer's finding, and
    leaks or violations that the test did not check all count.

    Example:
        >>> @own_process(HOSTCANN_SOC="Ascend310P3")
        ... def test_something() -> None: ...
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**arguments: object) -> None:
            must_succeed(run_in_process(test, list(arguments.values()), {"HOSTCANN_STRICT": "1"} | environment))

        return run

    return decorate


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
        import hostcann

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
    import hostcann

    hidden = ("HOSTCANN_", "TASK_QUEUE_ENABLE", "ASCEND_LAUNCH_BLOCKING", "ASCEND_SAMPLE_", "TORCH_DEVICE_BACKEND")
    base = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    base["PYTHONPATH"] = os.pathsep.join(sys.path)
    with tempfile.TemporaryDirectory() as folder:
        report, result = Path(folder) / "report.json", Path(folder) / "result.json"
        # What `python -m hostcann run` sets, without a process that imports torch only to set it.
        base |= hostcann.environment(without=without) | {"HOSTCANN_REPORT": str(report)}
        program = program_of(function, arguments, str(result))
        finished = run_warm(program, base | variables, Path(folder), TIMEOUT_SECONDS, IMPORTED_FIRST)
        must_succeed(finished)
        return Finished(json.loads(result.read_text()), finished.stderr, json.loads(report.read_text()))


if __name__ == "__main__":
    main(*sys.argv[1:])
