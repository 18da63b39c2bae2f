"""Tests that break what they touch (a context, the process's counters) run in a process of their own."""

import functools
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.warm_python import run_warm

TIMEOUT_SECONDS = 120
IMPORTED_FIRST = ("pytest", "numpy", "cffi.cparser")
"""What the modules of the suite import beside hostcann: most of the time of such a process."""


def own_process(**environment: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs the decorated test in a new process with these environment variables set.

    The test takes no fixtures; values from ``parametrize`` must be JSON's. The process must end with status 0: an
    assertion, a crash, a sanitizer's finding, and leaks or violations that the test did not check all count.

    Example:
        >>> @own_process(HOSTCANN_SOC="Ascend310P3")
        ... def test_something() -> None: ...
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**arguments: object) -> None:
            result = run_in_process(test, arguments, {"HOSTCANN_STRICT": "1"} | environment)
            if result.returncode != 0:
                raise AssertionError(f"status {result.returncode}\n{result.stdout}\n{result.stderr}")

        return run

    return decorate


def run_in_process(
    test: Callable[..., None], arguments: dict[str, object], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Calls a function of a test module in a new process."""
    package, _, _ = __name__.rpartition(".")
    folder = Path(__file__).parents[package.count(".") + 1]
    return run_warm(program_of(test, arguments), os.environ | environment, folder, TIMEOUT_SECONDS, IMPORTED_FIRST)


def program_of(test: Callable[..., None], arguments: dict[str, object]) -> list[str]:
    """What python is called with to call a function of a test module."""
    return ["-m", __name__, test.__module__, test.__name__, json.dumps(arguments)]


def main(module: str, name: str, arguments: str) -> None:
    """Calls `name` of `module`, without its decorator."""
    test = getattr(importlib.import_module(module), name)
    getattr(test, "__wrapped__", test)(**json.loads(arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
