"""Programs of the tests' own under hostcann, with the environment that they need."""

import subprocess
import sys
import textwrap

import pytest

from hostcann._home import PACKAGE_HOME, prepare_home
from tests.support.user_process import run_python_warm

LIBRARY = PACKAGE_HOME / "lib64" / "libascendcl.so"
needs_torch_npu = pytest.mark.usefixtures("npu")

LAST_MESSAGES = (
    "Dequeue: taskqueue is empty, wait for efd_read end",
    "Warning: aclrtSetDevice: call aclInit first (function StartConsume)",
)
"""What torch_npu 2.13 prints by itself, on every CANN, when a process ends: where its queue is empty, and where the
queue's thread has not begun yet."""
KNOWN_MESSAGES = ("32 padding size", *LAST_MESSAGES)
"""What it prints at all."""


def python(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_python_warm("-c", textwrap.dedent(program), **variables)


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`python -m hostcann`."""
    return run_python_warm("-m", "hostcann", *arguments, **variables)


def run(program: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The program under `python -m hostcann run`."""
    return command("run", *options, sys.executable, "-c", textwrap.dedent(program), **variables)


def variables_of_run() -> dict[str, str]:
    """What `run` sets."""
    home = prepare_home()
    paths = {"HOSTCANN_HOME": home, "ASCEND_HOME_PATH": home, "ASCEND_OPP_PATH": home / "opp"}
    return {name: str(path) for name, path in paths.items()} | {"LD_LIBRARY_PATH": str(home / "lib64")}


def output(done: subprocess.CompletedProcess[str], messages: tuple[str, ...] = KNOWN_MESSAGES) -> str:
    """What a program that must succeed quietly, but for these messages, has printed."""
    noise = [line for line in done.stderr.splitlines() if not any(known in line for known in messages)]
    assert (done.returncode, noise) == (0, []), done.stderr
    return done.stdout.strip()
