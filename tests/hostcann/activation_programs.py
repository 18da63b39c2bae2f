"""Programs of the tests' own under hostcann, with the environment that they need."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ascend_sample import _environment
from ascend_sample.hostcann._home import PACKAGE_HOME, prepare_home
from tests.support.warm_python import run_warm

LIBRARY = PACKAGE_HOME / "lib64" / "libascendcl.so"
PACKAGE = PACKAGE_HOME.parent.parent
needs_hostcann = pytest.mark.skipif(not LIBRARY.is_file(), reason="hostcann was not built")
needs_torch_npu = pytest.mark.skipif(not _environment.torch_npu_is_installed(), reason="torch_npu is not installed")

TIMEOUT_SECONDS = 120
LAST_MESSAGES = (
    "Dequeue: taskqueue is empty, wait for efd_read end",
    "Warning: aclrtSetDevice: call aclInit first (function StartConsume)",
)
"""What torch_npu 2.13 prints by itself, on every CANN, when a process ends: where its queue is empty, and where the
queue's thread has not begun yet."""
KNOWN_MESSAGES = ("32 padding size", *LAST_MESSAGES)
"""What it prints at all."""


def clean_environment(**variables: str) -> dict[str, str]:
    """The environment without what an active hostcann has put into it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOSTCANN_", "ASCEND_")) and name != "LD_LIBRARY_PATH"
    }
    return kept | {"PYTHONPATH": str(PACKAGE.parent)} | variables


def execute(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command, started as a shell starts it."""
    return subprocess.run(
        command, env=clean_environment(**variables), capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )


def warm(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python with these arguments, where it does not matter that torch has been imported before all else."""
    return run_warm(arguments, clean_environment(**variables), Path.cwd(), TIMEOUT_SECONDS)


def python(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return warm("-c", textwrap.dedent(program), **variables)


def run(program: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The program under `python -m ascend_sample.hostcann run`."""
    command = ["-m", "ascend_sample.hostcann", "run", *options]
    return warm(*command, sys.executable, "-c", textwrap.dedent(program), **variables)


def variables_of_run() -> dict[str, str]:
    """What `run` sets."""
    home = prepare_home()
    paths = {"HOSTCANN_HOME": home, "ASCEND_HOME_PATH": home, "ASCEND_OPP_PATH": home / "opp"}
    return {name: str(path) for name, path in paths.items()} | {"LD_LIBRARY_PATH": str(home / "lib64")}


def emulated(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The program in the environment that `run` sets, without the command line."""
    return python(program, **variables_of_run(), HOSTCANN_STRICT="1", **variables)


def output(done: subprocess.CompletedProcess[str], messages: tuple[str, ...] = KNOWN_MESSAGES) -> str:
    """What a program that must succeed quietly, but for these messages, has printed."""
    noise = [line for line in done.stderr.splitlines() if not any(known in line for known in messages)]
    assert (done.returncode, noise) == (0, []), done.stderr
    return done.stdout.strip()
