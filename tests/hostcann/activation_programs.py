"""Programs of the tests' own under hostcann, with the environment that they need."""

import os
import subprocess
import sys
import textwrap

import pytest

from ascend_sample import _environment
from ascend_sample.hostcann._home import PACKAGE_HOME, prepare_home

LIBRARY = PACKAGE_HOME / "lib64" / "libascendcl.so"
PACKAGE = PACKAGE_HOME.parent.parent
needs_hostcann = pytest.mark.skipif(not LIBRARY.is_file(), reason="hostcann was not built")
needs_torch_npu = pytest.mark.skipif(not _environment.torch_npu_is_installed(), reason="torch_npu is not installed")

KNOWN_MESSAGES = ("32 padding size", "taskqueue is empty, wait for efd_read end")
"""What torch_npu 2.13 prints by itself, on every CANN; the second where a busy machine lets its queue wait."""


def clean_environment(**variables: str) -> dict[str, str]:
    """The environment without what an active hostcann has put into it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOSTCANN_", "ASCEND_")) and name != "LD_LIBRARY_PATH"
    }
    return kept | {"PYTHONPATH": str(PACKAGE.parent)} | variables


def execute(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=clean_environment(**variables), capture_output=True, text=True, timeout=120)


def python(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return execute(sys.executable, "-c", textwrap.dedent(program), **variables)


def run(program: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The program under `python -m ascend_sample.hostcann run`."""
    command = [sys.executable, "-m", "ascend_sample.hostcann", "run", *options]
    return execute(*command, sys.executable, "-c", textwrap.dedent(program), **variables)


def emulated(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The same in the environment that `run` sets, without waiting for the command line to start."""
    home = prepare_home()
    paths = {"HOSTCANN_HOME": home, "ASCEND_HOME_PATH": home, "ASCEND_OPP_PATH": home / "opp"}
    strings = {name: str(path) for name, path in paths.items()} | {"LD_LIBRARY_PATH": str(home / "lib64")}
    return python(program, **strings, HOSTCANN_STRICT="1", **variables)


def output(done: subprocess.CompletedProcess[str]) -> str:
    """What a program that must succeed quietly has printed."""
    noise = [line for line in done.stderr.splitlines() if not any(known in line for known in KNOWN_MESSAGES)]
    assert (done.returncode, noise) == (0, []), done.stderr
    return done.stdout.strip()
