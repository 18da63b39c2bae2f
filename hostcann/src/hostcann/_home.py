"""The folder that plays CANN's installation: `runtime/`, `compiler/`, `opp/` and the libraries in `lib64/`.

`opp/vendors/` has operators that were added (`_operators.py`), each vendor's in a library of its own.
"""

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from hostcann._elf import exported_symbols, hide_symbols
from hostcann._errors import refuse

PACKAGE_HOME = Path(__file__).parent / "home"
RUNTIME_LIBRARY = "libascendcl.so"
LIBRARIES = "lib64"
VENDORS = "opp/vendors"
PRIORITIES = "config.ini"
_FOLDERS = ("runtime", "compiler", "opp", VENDORS, LIBRARIES)  # torch_npu asks whether the first three exist


def library_paths(home: Path) -> list[Path]:
    """Returns the libraries of a home, those that others need first, and then those of vendors."""
    libraries = sorted((home / LIBRARIES).glob("lib*.so"), key=lambda path: (path.name != RUNTIME_LIBRARY, path.name))
    return [*libraries, *sorted((home / VENDORS).glob("*/op_api/lib/lib*.so"))]


def prepare_home(without: Sequence[str] = ()) -> Path:
    """Returns a usable home whose libraries do not export the names in `without`.

    The package's own folder serves where it can; a temporary one with links to its libraries where it cannot be
    written, or where symbols are to be missing.

    Raises:
        RuntimeError: the libraries were not built.
        ValueError: a name in `without` is exported by no library.
    """
    if not (PACKAGE_HOME / LIBRARIES / RUNTIME_LIBRARY).is_file():
        raise RuntimeError(
            f"hostcann: {PACKAGE_HOME / LIBRARIES / RUNTIME_LIBRARY} must exist, but it was not built. Install "
            "hostcann again, on Linux and beside torch: `pip install ./hostcann`."
        )
    if not without and _make_folders(PACKAGE_HOME):
        return PACKAGE_HOME
    return _temporary_home(sorted(set(without)))


def _make_folders(home: Path) -> bool:
    try:
        for name in _FOLDERS:
            (home / name).mkdir(parents=True, exist_ok=True)
    except OSError:  # installed where this user may not write
        return all((home / name).is_dir() for name in _FOLDERS)
    return True


def _temporary_home(without: list[str]) -> Path:
    """Returns the one home per state of the libraries and list of names, which later processes use again unchanged."""
    libraries = library_paths(PACKAGE_HOME)
    hidden = {path: _exported_of(path, without) for path in libraries}
    unknown = set(without).difference(*hidden.values())
    if unknown:
        remedy = "`hostcann info --symbols` lists them."
        refuse("hostcann", "without", "name symbols that hostcann's libraries export", sorted(unknown), remedy)
    state = [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in libraries]
    key = hashlib.sha256(repr((state, without)).encode()).hexdigest()[:16]
    parent = Path(tempfile.gettempdir()) / f"hostcann-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        parent.mkdir(mode=0o700)
    status = parent.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or not stat.S_ISDIR(status.st_mode):
        raise RuntimeError(
            f"hostcann: {parent} must be a folder that only this user can write to. Remove it, or set TMPDIR."
        )
    home = parent / key
    if not _is_whole(home, libraries):
        _build_home(home, parent, hidden)
    return home


def _is_whole(home: Path, libraries: Iterable[Path]) -> bool:
    """Tells whether nothing is missing: what cleans temporary folders may remove a part."""
    libraries_are_there = all(_place_in(home, library).is_file() for library in libraries)
    return libraries_are_there and all((home / name).is_dir() for name in _FOLDERS)


def _place_in(home: Path, library: Path) -> Path:
    return home / library.relative_to(PACKAGE_HOME)


def _exported_of(library: Path, names: list[str]) -> set[str]:
    return exported_symbols(library).intersection(names) if names else set()


def _build_home(home: Path, parent: Path, hidden: dict[Path, set[str]]) -> None:
    """Builds the home aside and moves it into place whole: another process may be doing the same.

    Of one that is there, but not whole, each library is replaced by itself: a process may be using it.
    """
    draft = Path(tempfile.mkdtemp(dir=parent))
    try:
        for name in _FOLDERS:
            (draft / name).mkdir(exist_ok=True)
        for library, names in hidden.items():
            target = _place_in(draft, library)
            target.parent.mkdir(parents=True, exist_ok=True)
            if names:
                hide_symbols(library, names, target)
            else:
                target.symlink_to(library)
        priorities = Path(VENDORS) / PRIORITIES
        if (PACKAGE_HOME / priorities).is_file():
            shutil.copyfile(PACKAGE_HOME / priorities, draft / priorities)
        if not home.is_dir():
            draft.rename(home)
            return
        for path in sorted(draft.rglob("*")):
            if path.is_dir():
                (home / path.relative_to(draft)).mkdir(exist_ok=True)
            else:
                path.replace(home / path.relative_to(draft))
    except OSError:
        if not _is_whole(home, hidden):
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # gone already when it was moved
