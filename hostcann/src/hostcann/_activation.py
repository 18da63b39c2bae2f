"""Puts hostcann in CANN's place: for this process and its children, and only where there is no real CANN."""

import ctypes
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from hostcann._errors import check_instance, check_integer, refuse, show
from hostcann._home import LIBRARIES, RUNTIME_LIBRARY, library_paths, prepare_home

HOME_VARIABLE = "HOSTCANN_HOME"
OF_TORCH = "libopapi_math.so"
"""The library that is linked to torch."""
_OWN_SYMBOL = b"hostcann_settings_error"  # no real CANN has it
_LINKER_CACHE = Path("/etc/ld.so.cache")
MOST_BYTES = 2**63 - 1
"""As torch counts them."""
LONGEST_DELAY_MS = 60_000
_STREAM_MODES = ("normal", "delayed", "lazy")
_LOADED: list[Path] = []
"""hostcann's libascendcl.so, once this process has been seen to have it: it stays."""


def activate(
    *,
    soc: str | None = None,
    without: Sequence[str] = (),
    memory: int | None = None,
    stream_mode: str | None = None,
    cann_version: str | None = None,
) -> None:
    """Makes this process, and those that it starts, find hostcann where they look for CANN.

    Call it before torch_npu is imported; before torch is best, because torch imports torch_npu by itself. Arguments
    that are left out keep what the HOSTCANN_* variables say. Calling it again without arguments does nothing.

    Args:
        soc: the SoC's name, as aclrtGetSocName reports it. Default "Ascend910B3".
        without: symbols that the libraries shall not export, as an older CANN does not.
        memory: the device's memory in bytes. Default 16 GiB.
        stream_mode: "normal", "delayed", "delayed:MILLISECONDS" or "lazy" (see `set_stream_mode`).
        cann_version: the version that CANN reports.

    Raises:
        RuntimeError: a real CANN is in reach, torch_npu is loaded, hostcann is active with other settings, or its
            libraries were not built.
        TypeError: an argument is of a wrong type.
        ValueError: an argument or a variable breaks its rule.

    Example:
        >>> import hostcann
        >>> hostcann.activate(soc="Ascend910B3")  # doctest: +SKIP
        >>> import torch_npu  # doctest: +SKIP
    """
    wanted = _settings(soc, memory, stream_mode, cann_version)
    loaded = _loaded_runtime()
    if loaded is not None:
        if wanted or without:
            raise RuntimeError(
                "hostcann.activate: hostcann is active in this process already, so its settings must stay as they are. "
                "Call activate() once, with all arguments, before anything loads CANN."
            )
        return
    if "torch_npu" in sys.modules:
        raise RuntimeError(
            "hostcann.activate: torch_npu must not be loaded yet, but it is. Call activate() before importing it "
            "(and before torch, which imports it), or use `hostcann run`."
        )
    variables = environment(without=without) | wanted
    os.environ.update(variables)
    # torch_npu asks for them by their bare names, which the linker resolves to what is loaded.
    folder = Path(variables[HOME_VARIABLE]) / LIBRARIES
    libraries = [path for path in library_paths(folder.parent) if path.parent == folder and path.name != OF_TORCH]
    runtime, *_ = [ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL) for path in libraries]
    check_variables(runtime)
    for library in _torch_libraries():
        ctypes.CDLL(str(library))
    ctypes.CDLL(str(folder / OF_TORCH), ctypes.RTLD_GLOBAL)


def _torch_libraries() -> list[Path]:
    """Returns those that libopapi_math.so is linked to: torch need not be imported yet, and would import torch_npu.

    Raises:
        RuntimeError: torch is not installed.
    """
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        raise RuntimeError("hostcann.activate: torch must be installed, but it is not. Run `pip install torch`.")
    folder = Path(torch.origin).parent / "lib"
    return [path for name in ("torch_global_deps", "torch") if (path := folder / f"lib{name}.so").is_file()]


def check_variables(runtime: ctypes.CDLL) -> None:
    """Raises ValueError if a HOSTCANN_* variable is wrong: the runtime says so, which read them when it was loaded."""
    runtime.hostcann_settings_error.restype = ctypes.c_char_p
    if error := runtime.hostcann_settings_error().decode():
        raise ValueError(f"hostcann: {error}")


def is_active() -> bool:
    """Tells whether CANN is hostcann for this process: it is loaded, or the dynamic linker will find it first."""
    return _loaded_runtime() is not None or _home_of_environment() is not None


def active_home() -> Path:
    """Returns the home that this process uses.

    Raises:
        RuntimeError: hostcann is not active.
    """
    loaded = _loaded_runtime()
    if loaded is not None:
        return loaded.parent.parent
    home = _home_of_environment()
    if home is None:
        raise RuntimeError(
            "hostcann must be active in this process, but it is not. Call hostcann.activate() before "
            "importing torch_npu, or start the program with `hostcann run`."
        )
    return home


def environment(*, without: Sequence[str] = ()) -> dict[str, str]:
    """Returns the variables that make a program find hostcann as its CANN, with their values for this process.

    A home that the environment has already stays, and so do the symbols that it leaves out, unless others are named.

    Raises:
        RuntimeError: a real CANN is in reach, or hostcann's libraries were not built.
        ValueError: a name in `without` is exported by no library.
    """
    real = find_real_cann()
    if real is not None:
        raise RuntimeError(
            f"hostcann.activate: there must be no real CANN in reach, found {real}. One process can hold only one of "
            "the two: use the real one, or unset ASCEND_HOME_PATH, ASCEND_TOOLKIT_HOME and LD_LIBRARY_PATH."
        )
    home = (None if without else _home_of_environment()) or prepare_home(without)
    folders = [str(home / LIBRARIES)]
    folders += [folder for folder in _search_path() if not is_hostcann(Path(folder) / RUNTIME_LIBRARY)]
    return {
        HOME_VARIABLE: str(home),
        "ASCEND_HOME_PATH": str(home),
        "ASCEND_OPP_PATH": str(home / "opp"),
        "LD_LIBRARY_PATH": os.pathsep.join(folders),
    }


def find_real_cann() -> str | None:
    """Returns where a libascendcl.so that is not hostcann's would be found, in words, or None when there is none."""
    for source, path in _candidates():
        if path.is_file() and not is_hostcann(path):
            return f"{path} ({source})"
    return None


def is_hostcann(library: Path) -> bool:
    """Tells whether a libascendcl.so is hostcann's."""
    return library.is_file() and _OWN_SYMBOL in library.read_bytes()


def _candidates() -> Iterator[tuple[str, Path]]:
    for path in _mapped_runtimes():
        yield "loaded in this process", path
    for variable in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        root = os.environ.get(variable)
        if root:
            for folder in ("lib64", "runtime/lib64"):
                yield variable, Path(root) / folder / RUNTIME_LIBRARY
    for folder in _search_path():
        yield "LD_LIBRARY_PATH", Path(folder) / RUNTIME_LIBRARY
    if _LINKER_CACHE.is_file():
        name = re.escape(RUNTIME_LIBRARY.encode())
        for match in re.findall(rb"(/[^\0]*/" + name + rb")\0", _LINKER_CACHE.read_bytes()):
            yield str(_LINKER_CACHE), Path(os.fsdecode(match))


def _search_path() -> list[str]:
    return [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]


def _mapped_runtimes() -> set[Path]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {Path(line.split(maxsplit=5)[5]) for line in lines if line.endswith("/" + RUNTIME_LIBRARY)}


def _loaded_runtime() -> Path | None:
    """Returns the libascendcl.so among the libraries of this process if it is hostcann's, else None."""
    if not _LOADED:
        _LOADED.extend(filter(is_hostcann, _mapped_runtimes()))
    return next(iter(_LOADED), None)


def _home_of_environment() -> Path | None:
    home = os.environ.get(HOME_VARIABLE)
    if home and str(Path(home) / LIBRARIES) in _search_path() and is_hostcann(Path(home) / LIBRARIES / RUNTIME_LIBRARY):
        return Path(home)
    return None


def _settings(soc: str | None, memory: int | None, stream_mode: str | None, cann_version: str | None) -> dict[str, str]:
    variables: dict[str, str] = {}
    if soc is not None:
        _check_word("soc", soc, "be a SoC's name such as 'Ascend910B3'")
        variables["HOSTCANN_SOC"] = soc
    if memory is not None:
        variables["HOSTCANN_MEMORY"] = str(check_integer("hostcann.activate", "memory", memory, low=1, high=MOST_BYTES))
    if stream_mode is not None:
        check_instance("hostcann.activate", "stream_mode", stream_mode, str, "Leave it out for 'normal'.")
        mode, _, delay = stream_mode.partition(":")
        is_delay = mode == "delayed" and delay.isascii() and delay.isdigit() and int(delay) <= LONGEST_DELAY_MS
        if mode not in _STREAM_MODES or (":" in stream_mode and not is_delay):
            rule = f"be one of {', '.join(_STREAM_MODES)} or delayed:MILLISECONDS, at most {LONGEST_DELAY_MS}"
            refuse("hostcann.activate", "stream_mode", rule, show(stream_mode), "Leave it out for 'normal'.")
        variables["HOSTCANN_STREAM_MODE"] = stream_mode
    if cann_version is not None:
        _check_word("cann_version", cann_version, "be a version such as '9.0.0'")
        variables["HOSTCANN_CANN_VERSION"] = cann_version
    return variables


def _check_word(name: str, value: object, rule: str) -> None:
    """Raises unless an argument is a text that a variable of the environment can have, and that is not empty."""
    check_instance("hostcann.activate", name, value, str, "Leave it out for that.")
    if not value or "\0" in str(value):
        refuse("hostcann.activate", name, rule, show(value), "Leave it out for that.")
