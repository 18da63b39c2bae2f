"""hostcann's own functions: faults, modes, violations, what is alive. No CANN has them."""

import functools
import json
from typing import Any

from .cann import ffi, library_path

ffi.cdef("""
const char *hostcann_inject(const char *site, const char *name, int nth, int code, const char *message, int count);
void hostcann_clear_faults(void);
int hostcann_set_stream_mode(const char *mode, int delay_ms);
const char *hostcann_violations(void);
void hostcann_reset_violations(void);
const char *hostcann_live(void);
""")


@functools.cache
def _library() -> Any:
    return ffi.dlopen(library_path("ascendcl"), ffi.RTLD_NOW | ffi.RTLD_NODELETE)


def available() -> bool:
    """Whether the libraries are hostcann's: a real CANN does not have these functions."""
    return hasattr(_library(), "hostcann_violations")


def _text(value: Any) -> str:
    return str(ffi.string(value).decode())


def inject(site: str, name: str = "", nth: int = 1, code: int = 0, message: str = "", count: int = 1) -> None:
    """From the nth occurrence on, `count` occurrences of a site (and, for operators, a name) fail.

    Args:
        site: malloc, workspace, phase1, phase2, task, memcpy or synchronize.
        name: An operator or function; "" for every one.
        nth: Counted from now, from 1.
        code: The status; 0 for the site's usual one.
        message: CANN's message; "" for one that says that it was injected.
        count: How many times.
    """
    error = _text(_library().hostcann_inject(site.encode(), name.encode(), nth, code, message.encode(), count))
    assert error == "", error


def clear_faults() -> None:
    """Withdraws all injected faults."""
    _library().hostcann_clear_faults()


def set_stream_mode(mode: str) -> None:
    """Takes ``normal``, ``delayed``, ``delayed:MILLISECONDS`` or ``lazy``, as HOSTCANN_STREAM_MODE does."""
    name, _, delay = mode.partition(":")
    assert _library().hostcann_set_stream_mode(name.encode(), int(delay or 2)) == 0, mode


def check_violations(*kinds: str) -> None:
    """These violations, no others, have happened; they are then forgotten, so that the process may end well."""
    violations = json.loads(_text(_library().hostcann_violations()))
    assert [violation["kind"] for violation in violations] == list(kinds), violations
    for violation in violations:
        assert violation["message"], violation
    _library().hostcann_reset_violations()


def live() -> dict[str, int]:
    """How many objects of each kind are alive."""
    return dict(json.loads(_text(_library().hostcann_live())))
