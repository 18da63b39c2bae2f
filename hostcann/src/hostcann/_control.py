"""The tests' way into hostcann: faults, stream modes, limits, violations. Called through ctypes; no torch needed."""

import ctypes
import functools
import json
from types import TracebackType
from typing import Final, NamedTuple

from hostcann._activation import LONGEST_DELAY_MS, MOST_BYTES, active_home, check_variables
from hostcann._errors import check_instance, check_integer, refuse, show
from hostcann._home import LIBRARIES, RUNTIME_LIBRARY

LARGEST_INT: Final = 2**31 - 1
"""The largest number that C's int has."""


class Violation(NamedTuple):
    """One misuse of CANN's interface, such as an operand that was freed before its kernel ran."""

    kind: str
    message: str


@functools.cache
def _load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    for name in ("inject", "violations", "live", "profile"):
        getattr(library, f"hostcann_{name}").restype = ctypes.c_char_p
    library.hostcann_inject.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
    ]
    library.hostcann_set_stream_mode.argtypes = [ctypes.c_char_p, ctypes.c_int]
    library.hostcann_set_memory_capacity.argtypes = [ctypes.c_uint64]
    library.hostcann_set_null_kernels.argtypes = [ctypes.c_int]
    check_variables(library)
    return library


def load_runtime() -> ctypes.CDLL:
    """Returns the runtime's library, with the types of the functions that it has for tests."""
    return _load(str(active_home() / LIBRARIES / RUNTIME_LIBRARY))


def inject(
    site: str, name: str = "", nth: int = 1, code: int | None = None, message: str | None = None, count: int = 1
) -> None:
    """Makes the nth next call of `site` fail, and the `count` - 1 calls after it.

    Args:
        site: "malloc", "memcpy" or "synchronize" (calls of the runtime); "workspace" (phase 1 asks for an absurd
            workspace), "phase1", "phase2" or "task" (the kernel itself) of an aclnn operator.
        name: which one: the function ("aclrtMalloc"; torch_npu calls aclrtMallocAlign32) or the operator
            ("aclnnSoftmax"); every one when empty.
        nth: counted from 1, and from now.
        code: the status that is returned; the site's usual one when None.
        message: what aclGetRecentErrMsg says; a text that names the site when None.
        count: how many calls fail.

    Raises:
        TypeError: a number is no int, or a text no str.
        ValueError: an argument breaks its rule.
        RuntimeError: hostcann is not active.
    """
    owner = "hostcann.inject"
    check_instance(owner, "site", site, str, "Name one, 'phase1' say.")
    check_instance(owner, "name", name, str, "Leave it out for every one.")
    message = "" if message is None else message
    check_instance(owner, "message", message, str, "Leave it out for one that names the site.")
    nth, count = (
        check_integer(owner, argument, value, low=1, high=LARGEST_INT)
        for argument, value in (("nth", nth), ("count", count))
    )
    status = 0 if code is None else check_integer(owner, "code", code, low=1, high=LARGEST_INT)
    error = load_runtime().hostcann_inject(site.encode(), name.encode(), nth, status, message.encode(), count)
    if error:
        raise ValueError(f"hostcann.inject: {error.decode()}.")


def clear_faults() -> None:
    """Forgets every injected fault."""
    load_runtime().hostcann_clear_faults()


def set_stream_mode(mode: str, delay_ms: int = 2) -> None:
    """Says when what is queued on streams runs.

    Args:
        mode: "normal" (at once), "delayed" (each task waits `delay_ms` first) or "lazy" (nothing runs until the host
            synchronises; what never synchronises never runs).
        delay_ms: for "delayed": at most a minute.

    Raises:
        TypeError: the delay is no int, or the mode no str.
        ValueError: there is no such mode, or the delay is out of its range.
    """
    check_instance("hostcann.set_stream_mode", "mode", mode, str, "Use 'normal' to run tasks at once.")
    delay_ms = check_integer("hostcann.set_stream_mode", "delay_ms", delay_ms, low=0, high=LONGEST_DELAY_MS)
    if load_runtime().hostcann_set_stream_mode(mode.encode(), delay_ms) != 0:
        rule = "be 'normal', 'delayed' or 'lazy'"
        refuse("hostcann.set_stream_mode", "mode", rule, show(mode), "Use 'normal' to run tasks at once.")


def set_memory_capacity(capacity: int) -> None:
    """Limits the device's memory to `capacity` bytes; what is allocated already stays.

    Raises:
        TypeError: the capacity is no int.
        ValueError: the capacity is not positive, or beyond what a signed number of 64 bits holds.
    """
    capacity = check_integer("hostcann.set_memory_capacity", "capacity", capacity, low=1, high=MOST_BYTES)
    load_runtime().hostcann_set_memory_capacity(capacity)


class null_kernels:
    """Switches off (or on again) the running of kernels: launches are accepted, counted and dropped.

    What remains is the host's part of a call, which can then be measured alone; results are garbage. As a context
    manager it restores the former state.

    Example:
        >>> with hostcann.null_kernels():  # doctest: +SKIP
        ...     measure()
    """

    def __init__(self, enabled: bool = True) -> None:
        self._before = bool(load_runtime().hostcann_null_kernels())
        load_runtime().hostcann_set_null_kernels(int(enabled))

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        load_runtime().hostcann_set_null_kernels(int(self._before))


def violations() -> list[Violation]:
    """Returns the misuses noticed since the start or `reset_violations`, the first thousand of them."""
    return [Violation(**entry) for entry in json.loads(load_runtime().hostcann_violations())]


def reset_violations() -> None:
    """Forgets the violations so far."""
    load_runtime().hostcann_reset_violations()


def live() -> dict[str, int]:
    """Returns how many tensors, scalars, arrays, lists, executors, streams, events, blocks and host blocks exist."""
    return dict(json.loads(load_runtime().hostcann_live()))
