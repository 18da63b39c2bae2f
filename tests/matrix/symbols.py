"""Sees that hostcann exports every function of CANN that the installed libtorch_npu.so is linked to."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from hostcann._elf import exported_symbols
from hostcann._home import PACKAGE_HOME, library_paths

CANN_NAMES = ("acl", "Hccl", "Msprof", "_ZN2ge")
"""How the names of CANN's functions begin."""


def missing(library: Path, home: Path) -> set[str]:
    """Returns the functions of CANN that a library needs and the libraries of a home do not export."""
    command = ["nm", "--dynamic", "--undefined-only", "--format=just-symbols", str(library)]
    taken = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return {name for name in taken if name.startswith(CANN_NAMES)}.difference(
        *map(exported_symbols, library_paths(home))
    )


if __name__ == "__main__":
    (folder,) = importlib.util.find_spec("torch_npu").submodule_search_locations
    lacking = missing(Path(folder) / "lib" / "libtorch_npu.so", PACKAGE_HOME)
    sys.exit(f"hostcann does not export {', '.join(sorted(lacking))}" if lacking else 0)
