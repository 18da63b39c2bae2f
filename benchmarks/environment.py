"""What a run says about the machine and the software that it measured."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from benchmarks import native

PACKAGES = ("torch", "numpy", "transformers")
VARIABLES = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "OMP_PROC_BIND", "ASCEND_SAMPLE_CPU_CAPABILITY")


def keep(file: Path, found: dict[str, Any]) -> None:
    """Writes what a run has measured, one record a line, which is small and shows what changed."""

    def entry(value: Any) -> str:
        if isinstance(value, dict):
            return _lines("{}", (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in value.items()))
        return _lines("[]", map(json.dumps, value)) if isinstance(value, list) else json.dumps(value)

    file.parent.mkdir(parents=True, exist_ok=True)
    text = _lines("{}", (f"{json.dumps(name)}: {entry(value)}" for name, value in found.items()))
    file.write_text(f"{text}\n", encoding="utf-8")


def _lines(brackets: str, entries: Iterable[str]) -> str:
    return "\n".join((brackets[0], ",\n".join(entries), brackets[1]))


def kept(file: Path, command: str) -> dict[str, Any]:
    """Returns what a run has kept.

    Raises:
        SystemExit: there was none; the command makes one.
    """
    if not file.is_file():
        raise SystemExit(f"benchmarks: there is no {file} yet. Run {command} first.")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def describe() -> dict[str, str]:
    """Labels and values: processor, caches, code paths, versions, variables that steer threads, date."""
    variables = [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ]
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores, {platform.machine()}",
        "caches": _caches(),
        "kernel's code path": native.library().capability(),
        "torch's code path": torch.backends.cpu.get_cpu_capability(),
        "software": ", ".join(
            [
                f"Python {platform.python_version()}",
                *(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES),
            ]
        ),
        "system": f"{platform.system()} {platform.release()}",
        "revision": _revision(),
        "variables": ", ".join(variables) or "none",
        "date": time.strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    """The name that the kernel of the operating system knows, where it knows one."""
    path = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)$", path.read_text(), re.MULTILINE) if path.exists() else None
    return found[1].strip() if found else platform.processor() or "unknown processor"


def _caches() -> str:
    """The caches of the first core that hold data, as Linux lists them."""
    levels = {}
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((entry / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction":
            levels[level] = f"L{level} {size}"
    return ", ".join(levels.values()) or "unknown"


def _revision() -> str:
    """The commit, and whether the sources differ from it."""
    if shutil.which("git") is None:
        return "unknown, without git"
    finished = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=native.ROOT, capture_output=True, text=True, check=False
    )
    return finished.stdout.strip() or "not under version control"
