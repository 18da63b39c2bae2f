"""What a program prints on each of the CPU kernel's code paths that this machine has."""

from __future__ import annotations

import os
import subprocess
import sys

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
        command = [sys.executable, "-c", program]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if run.returncode == 0:
            printed[capability] = run.stdout
        else:
            assert "ASCEND_SAMPLE_CPU_CAPABILITY must be one of" in run.stderr, run.stderr
    assert "plain" in printed
    assert len(set(printed.values())) == 1, printed
