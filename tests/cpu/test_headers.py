"""The storeys of csrc/cpu: what each header includes, and that it is enough."""

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
MOST_FLOORS = 8
MOST_LINES = 400
HEADERS = sorted(CPU.rglob("*.h"))
OF_CORE = [header for header in HEADERS if header.parent.name != "torch"]  # the others need torch, for a minute
_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)
_DECLARED = (
    re.compile(r"^(?:struct|class|enum class) (\w+)", re.MULTILINE),
    re.compile(r"^using (\w+) =", re.MULTILINE),
    re.compile(r"^#define (\w+)", re.MULTILINE),
    re.compile(r"^(?:inline )?constexpr \w+(?:<.+>)? (\w+)", re.MULTILINE),
    re.compile(r"^[A-Za-z][\w:<>*&, ]*[ *&](\w+)\([^;]*$", re.MULTILINE),  # a function
)


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


def chain(file: Path) -> tuple[Path, ...]:
    """The longest way from a file down its includes, without the file."""
    return max(((header, *chain(header)) for header in included(file)), key=len, default=())


def declared(header: Path) -> set[str]:
    """The names that a header gives to its includers."""
    text = header.read_text()
    return {name for pattern in _DECLARED for name in pattern.findall(text)}


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


def test_headers_include_what_they_need_and_no_others() -> None:
    idle = [
        f"{name_of(file)} uses nothing of {header.name}"
        for file in HEADERS
        for header in included(file)
        if not declared(header) & set(re.findall(r"\w+", _INCLUDE.sub("", file.read_text())))
    ]
    assert idle == []


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


def test_includes_are_not_deep() -> None:
    for source in sorted(CPU.rglob("*.cpp")):
        longest = [header.name for header in chain(source)]
        assert len(longest) <= MOST_FLOORS, f"{source.name}: {' -> '.join(longest)}"


def test_files_are_short() -> None:
    files = [
        path for folder in (CPU, Path(__file__).parent) for path in folder.rglob("*") if path.suffix in {".cpp", ".h"}
    ]
    assert {"kernel.h", "simd.h", "fuzz.cpp"} <= {path.name for path in files}
    lengths = {path.name: len(path.read_text().splitlines()) for path in files}
    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}


def test_the_readme_names_each_header_and_its_section() -> None:
    rows = re.findall(r"^\| `([\w/]+\.h)` \| .+ \| (.+) \|$", (CPU / "README.md").read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == sorted({name for name, _ in rows}, key=[name for name, _ in rows].index)
    assert {name for name, _ in rows} == {name_of(header) for header in HEADERS}
    described = (build_programs.ROOT / "docs" / "cpu_kernel.md").read_text()
    sections = set(re.findall(r"^#+ (.+)$", described, re.MULTILINE))
    assert {section for _, section in rows} <= sections
