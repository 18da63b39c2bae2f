"""Adds aclnn operators to hostcann as a vendor adds some to CANN: a library below `opp/vendors/`, named in config.ini.

torch_npu, and programs that look operators up as it does, ask such libraries first.
"""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hostcann._errors import refuse
from hostcann._home import LIBRARIES, PACKAGE_HOME, PRIORITIES, RUNTIME_LIBRARY, VENDORS, prepare_home

INCLUDE: Final = Path(__file__).with_name("include")
"""The folder of `hostcann/opapi.h`, which operators are written with."""
LIBRARY: Final = "libcust_opapi.so"


def add_operators(vendor: str, sources: Sequence[str | os.PathLike[str]]) -> Path:
    """Compiles operators and installs them for every program that runs on hostcann from now on.

    Operators that the vendor has already are replaced. To remove them, remove the vendor's folder.

    Args:
        vendor: a name of letters, digits and underscores.
        sources: C++ files, in which HOSTCANN_ACLNN of `hostcann/opapi.h` defines operators. `CXX` and `CXXFLAGS` of the
            environment name another compiler than c++, and more options.

    Returns:
        The library.

    Raises:
        ValueError: the name breaks its rule, a source does not exist, or none is given.
        RuntimeError: hostcann's libraries were not built, there is no compiler, the sources do not compile, or the
            folder of hostcann cannot be written.

    Example:
        >>> hostcann.add_operators("mine", ["my_operator.cpp"])  # doctest: +SKIP
    """
    owner = "hostcann.add_operators"
    if not re.fullmatch(r"\w+", vendor):
        refuse(owner, "vendor", "consist of letters, digits and underscores", repr(vendor), "Use 'mine', say.")
    files = [os.fspath(source) for source in sources]
    missing = [file for file in files if not os.path.isfile(file)]
    if missing or not files:
        refuse(owner, "sources", "name files that exist", missing, "Give C++ files.")
    prepare_home()
    vendors = PACKAGE_HOME / VENDORS
    library = vendors / vendor / "op_api" / "lib" / LIBRARY
    unfinished = library.with_suffix(f".{os.getpid()}")
    options = ["-shared", "-fPIC", "-std=c++20", "-O2", "-fvisibility=hidden", *os.environ.get("CXXFLAGS", "").split()]
    needed = [f"-L{PACKAGE_HOME / LIBRARIES}", "-l:libopapi.so", f"-l:{RUNTIME_LIBRARY}"]
    compiler = os.environ.get("CXX", "c++").split()
    command = [*compiler, *options, f"-I{INCLUDE}", *files, *needed, "-o", str(unfinished)]
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if finished.returncode != 0:
            raise RuntimeError(f"{owner}: the sources must compile, but they do not.\n{finished.stdout}")
        unfinished.replace(library)  # as a whole: a process may have the old one loaded
    except FileNotFoundError as error:
        remedy = "Install one (apt-get install g++), or name one in CXX."
        raise RuntimeError(f"{owner}: a compiler must be on PATH, but {compiler[0]} is not. {remedy}") from error
    except OSError as error:
        remedy = "Install hostcann where you may write: in a virtual environment."
        raise RuntimeError(f"{owner}: {vendors} must be a folder that can be written. {remedy}") from error
    finally:
        if unfinished.is_file():
            unfinished.unlink()
    installed = sorted(path.parents[2].name for path in vendors.glob(f"*/op_api/lib/{LIBRARY}"))
    (vendors / PRIORITIES).write_text(f"load_priority={','.join(installed)}\n")
    return library
