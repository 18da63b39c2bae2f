"""The storeys of csrc/cpu: what each header includes is below it, and is enough."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import build_programs
import pytest

CPU = build_programs.CORE / "cpu"
STOREYS = ("vectors", "rows", "draws", "filters")
"""From the lowest: a header includes those of its own storey and below. Above them all are the files of csrc/cpu."""
HEADERS = sorted(CPU.rglob("*.h"))
OF_CORE = [header for header in HEADERS if header.parent.name != "torch"]  # the others need torch, for a minute
_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(CPU))


@cache
def included(file: Path) -> tuple[Path, ...]:
    """The project's headers that a file includes."""
    names = _INCLUDE.findall(file.read_text())
    found = [
        next((at / name for at in (build_programs.CORE, file.parent) if (at / name).is_file()), None) for name in names
    ]
    assert None not in found, f"{file.name} includes one of {names}, which is nowhere"
    return tuple(path for path in found if path is not None)


@pytest.mark.long
@pytest.mark.parametrize("header", OF_CORE, ids=name_of)
def test_a_header_compiles_alone(header: Path, tmp_path: Path) -> None:
    source = tmp_path / "alone.cpp"
    target = "#define ASCEND_SAMPLE_PLAIN\n#define ASCEND_SAMPLE_TARGET plain\n"
    source.write_text(f'{target}#include "{header.relative_to(build_programs.CORE)}"\n')
    command = [build_programs.NATIVE.compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    run = subprocess.run(
        [*command, f"-I{build_programs.CORE}", str(source)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_storeys_rest_on_those_below() -> None:
    storey_of = {header: STOREYS.index(header.parent.name) for header in HEADERS if header.parent.name in STOREYS}
    assert set(storey_of.values()) == set(range(len(STOREYS)))
    upward = [
        f"{name_of(file)} includes {name_of(header)}"
        for file, storey in storey_of.items()
        for header in included(file)
        if header in storey_of and storey_of[header] > storey
    ]
    assert upward == []
