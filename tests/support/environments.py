"""Virtual environments of the tests' own: made once for a list of pinned packages, and run apart from this one's."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PIP_INSTALL: Final = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
"""What python is called with, before the packages."""
ROOT: Final = Path(__file__).resolve().parents[2]
PINS: Final = dict(
    line.split("==")
    for name in ("requirements.txt", "requirements-dev.txt")
    for line in (ROOT / name).read_text().split()
    if "==" in line
)
"""The versions of the packages of this project's own environment."""


def create(folder: Path) -> Path:
    """Make a new environment, with pip alone, in place of what is in the folder; returns its python."""
    venv.create(folder, with_pip=True, clear=True)
    return folder / "bin" / "python"


def environment_of(requirements: Path, folder: Path) -> Path:
    """Python with the packages of a requirements file, installed anew only when the file has changed."""
    python, installed = folder / "bin" / "python", folder / requirements.name
    if not installed.exists() or installed.read_text() != requirements.read_text():
        print(f"  installing {requirements.name}", flush=True)
        must(create(folder), *PIP_INSTALL, "-r", requirements)
        shutil.copy(requirements, installed)
    return python


def run(*command: str | Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command and take its output."""
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def must(*command: str | Path) -> None:
    """Run a command that has to succeed."""
    finished = run(*command)
    if finished.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} ended with status {finished.returncode}:\n{finished.stdout}")


def variables(home: Path, folders: Sequence[Path]) -> dict[str, str]:
    """The variables of a process that imports from the folders and from its environment, and from nowhere else."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),  # caches are written there
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_WAIT_POLICY": "passive",
    }


def passes(python: Path, test: Path, environment: dict[str, str]) -> bool:
    """Run pytest on a file or folder, without this project's settings of it, and print how it went."""
    options = ("-q", "-p", "no:cacheprovider", "--confcutdir", test.parent, "-o", "filterwarnings=")
    finished = run(python, "-m", "pytest", *map(str, options), test, environment=environment)
    print("  " + "\n  ".join(finished.stdout.strip().splitlines()[-1 if finished.returncode == 0 else 0 :]), flush=True)
    return finished.returncode == 0
