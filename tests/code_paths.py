"""What a program prints on each of the CPU kernel's code paths that this machine has."""

from __future__ import annotations

import os
import subprocess
import sys

CAPABILITIES = ("plain", "neon", "avx2", "avx512")


def assert_same_on_all_code_paths(program: str, *arguments: str) -> None:
    """Run a Python program with each code path in turn; all must print the same."""
    printed = {}
    for capability in CAPABILITIES:
        environment = {"ASCEND_SAMPLE_CPU_CAPABILITY": capability, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        run = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=os.environ | environment,
            capture_output=True,
            text=True,
        )
        if run.returncode == 0:
            printed[capability] = run.stdout
        else:
            assert "ASCEND_SAMPLE_CPU_CAPABILITY must be one of" in run.stderr, run.stderr
    assert "plain" in printed
    assert len(printed) > 1
    assert len(set(printed.values())) == 1, printed
