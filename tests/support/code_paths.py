"""What a program prints on each of the CPU kernel's code paths that this machine has."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.warm_python import run_warm

TIMEOUT_SECONDS = 300
CAPABILITIES = ("plain", "neon", "avx2", "avx512")


def assert_same_on_all_code_paths(program: str) -> None:
    """Run a Python program, for which modules are where they are here, with each code path; all print the same."""
    printed = {}
    for capability in CAPABILITIES:
        environment = os.environ | {
            "ASCEND_SAMPLE_CPU_CAPABILITY": capability,
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        run = run_warm(["-c", program], environment, Path.cwd(), TIMEOUT_SECONDS)
        if run.returncode == 0:
            printed[capability] = run.stdout
        else:
            assert "ASCEND_SAMPLE_CPU_CAPABILITY must be one of" in run.stderr, run.stderr
    assert "plain" in printed
    assert len(set(printed.values())) == 1, printed
