"""Runs the conformance suite from an ordinary test run, in a process without torch."""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
TIMEOUT_SECONDS = 600


def test_conformance_suite() -> None:
    # Settings of the outer run (injected faults, a stream mode, a report file) must not reach the inner one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOSTCANN_")}
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--confcutdir", str(FOLDER), str(FOLDER)],
        env=environment,
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    assert "skipped" not in result.stdout.splitlines()[-1], result.stdout
