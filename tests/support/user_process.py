"""Runs programs as a user does: in processes without the CANN that the tests have activated for themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ascend_sample
import hostcann
from tests.support.warm_python import run_warm

EXAMPLES = Path(__file__).parents[2] / "examples"
TRAINING_LIMIT_SECONDS = 1800
"""For examples that train a model where no other test has: minutes on an idle machine, many on a slow and busy one."""


def clean_environment(**variables: str) -> dict[str, str]:
    """Returns the environment without a CANN, with this package in reach, and these variables."""
    hidden = ("ASCEND", "HOSTCANN", "LD_", "TORCH_DEVICE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return kept | {"PYTHONPATH": str(Path(ascend_sample.__file__).parents[1])} | variables


def run_command(*command: str, seconds: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as a shell starts it, whatever its end."""
    variables = clean_environment(**environment)
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=seconds)


def run_python_warm(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments where it does not matter that torch has been imported first."""
    return run_warm(arguments, clean_environment(**environment), Path.cwd(), seconds=300)


def run_as_user(*arguments: str, seconds: float = 300) -> str:
    """Returns what Python prints."""
    finished = run_command(sys.executable, *arguments, seconds=seconds)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def skip_beside_a_real_cann() -> None:
    """Skips where the tests have not activated hostcann, because it would refuse to be activated beside a CANN."""
    if not hostcann.is_active():
        pytest.skip("there is a real CANN, beside which hostcann refuses to run")
