"""The planted faults, which faults/*.toml list: each is one that a person could make, and that some test must catch.

A table `planted` names a file and the pytest arguments of the tests that are tried first, which must pass without the
fault. Each of its faults is a name, one exact piece of text that occurs once, and the text that is there instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FAULTS = Path(__file__).with_name("faults")
LIBRARIES = {
    "csrc/composite": "_C",
    "csrc/autograd.cpp": "_C",
    "csrc/checks.cpp": "_C",
    "csrc/sampling_checks.cpp": "_C",
    "csrc/cpu/": "_C",
    "csrc/npu/": "_npu",
    "csrc/emulated_operators/": "libcust_opapi",
    "hostcann/csrc/runtime/": "libascendcl",
    "hostcann/csrc/hccl/": "libhccl",
    "hostcann/csrc/opapi/": "libopapi",
    "hostcann/csrc/aten/": "libopapi_math",
}
"""Which library must be built again, by the beginning of a file's path."""


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        name: what is wrong.
        file: where, from the project's folder.
        old: the text that is replaced.
        new: the text that is there instead.
        tests: pytest arguments of the tests that are tried first.
        include: a header that the new text needs.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    include: str = ""

    @property
    def library(self) -> str | None:
        """The extension that holds the fault; None for Python."""
        return next((library for start, library in LIBRARIES.items() if self.file.startswith(start)), None)


def read_faults(path: Path) -> Iterator[Mutant]:
    """Returns the faults that a file lists."""
    for table in tomllib.loads(path.read_text())["planted"]:
        for name, old, new in table["faults"]:
            yield Mutant(name, table["file"], old, new, tuple(table.get("tests", ())), table.get("include", ""))


EVERY = tuple(fault for path in sorted(FAULTS.glob("*.toml")) for fault in read_faults(path))
