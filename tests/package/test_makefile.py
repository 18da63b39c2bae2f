"""The Makefile: what it builds again, and where it works. Nothing is really made."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def would_run(folder: Path, *arguments: str) -> str:
    """The commands that make would run there, if it were not `make test` that starts it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "VENV"))}
    return subprocess.check_output(["make", "-n", *arguments], cwd=folder, env=environment, text=True)


def test_what_a_build_is_made_of(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in (".requirements", ".built"):
        (tmp_path / "bin" / name).touch()
    assert "pip install" not in would_run(ROOT, "build", f"VENV={tmp_path}")
    for changed in ("setup.py", "requirements.txt", "csrc/checks.h", "csrc/cpu/flags.json"):
        assert "--no-deps -e ." in would_run(ROOT, "build", f"VENV={tmp_path}", "-W", changed)


def test_in_a_folder_whose_name_has_a_space(tmp_path: Path) -> None:
    folder = tmp_path / "a project"
    shutil.copytree(ROOT / "csrc", folder / "csrc")
    for file in ("Makefile", "setup.py", "pyproject.toml", "requirements.txt", "requirements-dev.txt"):
        shutil.copy(ROOT / file, folder)
    assert "a project" not in would_run(folder, "verify", "test-rows", "test-shards", "test-drafts", "bench-npu")
