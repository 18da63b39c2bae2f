"""The scripts that run tests in builds and environments of their own say what they do before they do it."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SCRIPTS = [path for path in sorted(TESTS.rglob("run*.py")) if 'if __name__ == "__main__"' in path.read_text()]
SCRIPTS.remove(TESTS / "cpu" / "run_operator.py")  # test_capabilities.py's own
SCRIPTS.append(TESTS / "mutation" / "build_one.py")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(TESTS)))
def test_help_is_all_that_help_asks_for(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(*arguments: object, **options: object) -> None:
        raise AssertionError(f"{arguments} is started")

    for module, name in ((subprocess, "Popen"), (os, "execv"), (pytest, "main")):
        monkeypatch.setattr(module, name, start)
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    monkeypatch.syspath_prepend(str(script.parent))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")
