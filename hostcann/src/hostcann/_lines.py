"""Tells hostcann which line of a program asks for what it counts, and how much memory tensors hold then.

This file needs the standard library alone: a program under `hostcann profile` runs it when it
initialises CANN, which may be in the middle of importing torch, and this package need not be installed for it.
"""

import atexit
import ctypes
import os
import sys
import sysconfig
from typing import Any

_MODULES_OF_NO_INTEREST = ("torch", "torch_npu")  # wherever they are
_STARTUP = "hostcann_startup"
_LAST = -(10**6)  # of multiprocessing's finalizers
_GENERATED = ("<frozen ", "<eval_with_key>")  # importlib's; torch.fx's
_STANDARD_LIBRARY = tuple({os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib")})


class _Caller(ctypes.Structure):
    """hostcann::Caller of hostcann/src/hostcann/include/hostcann/hostcann.h."""

    _fields_ = (("line", ctypes.c_int64), ("memory", ctypes.c_int64))


_Find = ctypes.CFUNCTYPE(None, ctypes.c_ulong, ctypes.POINTER(_Caller))


def is_of_a_library(file: str) -> bool:
    """Tells whether a file is none of the program's own: of the standard library, of torch, or installed."""
    if file == __file__ or "/site-packages/" in file or "/dist-packages/" in file:
        return True
    if file.startswith((*_STANDARD_LIBRARY, *_GENERATED)):
        return True
    modules = [getattr(sys.modules.get(name), "__file__", None) for name in _MODULES_OF_NO_INTEREST]
    return any(module and file.startswith(os.path.join(os.path.dirname(module), "")) for module in modules)


def _memory_of_tensors() -> int | None:
    """Returns the bytes that torch's tensors hold on the device, or None in a program that has no torch_npu."""
    npu = getattr(sys.modules.get("torch"), "npu", None)
    if npu is None or not npu.is_initialized():
        return None
    return int(npu.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"])


def _uninstall(library: ctypes.CDLL, _kept_until_now: object) -> None:
    library.hostcann_end_program()


def install(library: ctypes.CDLL) -> None:
    """Makes hostcann ask this process for lines, while something profiles it and until the interpreter ends."""
    known: dict[tuple[str, int], int] = {}
    libraries: dict[str, bool] = {}
    library.hostcann_line.argtypes = [ctypes.c_char_p, ctypes.c_int]
    library.hostcann_line.restype = ctypes.c_int64

    def find(thread: int, caller: Any) -> None:
        frame = sys._current_frames().get(thread)
        while frame is not None:
            file = frame.f_code.co_filename
            if file not in libraries:
                libraries[file] = is_of_a_library(file)
            if not libraries[file]:
                break
            frame = frame.f_back
        if frame is not None:
            place = (frame.f_code.co_filename, frame.f_lineno)
            if place not in known:
                known[place] = library.hostcann_line(os.fsencode(place[0]), place[1])
            caller.contents.line = known[place]
        if caller.contents.memory < 0 and (memory := _memory_of_tensors()) is not None:
            caller.contents.memory = memory

    functions = (_Find(find), ctypes.pythonapi.PyGILState_GetThisThreadState, ctypes.pythonapi.PyGILState_Check)
    library.hostcann_begin_program(*(ctypes.cast(function, ctypes.c_void_p) for function in functions))
    atexit.register(_uninstall, library, functions)


def _report_at_the_end(library: ctypes.CDLL) -> None:
    """Has the report written before an interrupt ends Python, which hostcann's own exit does not outlive.

    A worker that multiprocessing forks ends by os._exit, after its finalizers and without atexit's functions.
    """
    atexit.register(library.hostcann_write_report)
    if (util := sys.modules.get("multiprocessing.util")) is not None:
        util.Finalize(None, library.hostcann_write_report, exitpriority=_LAST)


def startup_code() -> str:
    """Returns the line of Python that installs this in a program, for HOSTCANN_STARTUP.

    It runs among the program's own names, of which it takes and changes none.
    """
    return f"__import__('runpy').run_path({__file__!r}, run_name={_STARTUP!r})"


if __name__ == _STARTUP:
    runtime = ctypes.CDLL("libascendcl.so", mode=ctypes.RTLD_GLOBAL)
    _report_at_the_end(runtime)
    install(runtime)
