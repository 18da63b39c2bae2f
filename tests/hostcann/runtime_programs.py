"""Runs small programs against libascendcl.so of hostcann: each in a process of its own, with ctypes, without torch.

A program's text may use `acl` (the library, statuses unchecked), `ok` (calls it and checks the status), `fails`
(checks the status and that the message names what it must) and whatever else PRELUDE defines.
"""

import subprocess
import sys
import textwrap
from pathlib import Path

from activation_programs import LIBRARY

import ascend_sample
from tests.support.user_process import run_command

SOURCES = Path(ascend_sample.__file__).parent.parent / "csrc"

PRELUDE = """
import ctypes, json, sys, threading, time
acl = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
for name in ("violations", "live", "profile", "inject", "settings_error"):
    getattr(acl, "hostcann_" + name).restype = ctypes.c_char_p
H2D, D2H, D2D, H2H = 1, 2, 3, 0
size_t, handle = ctypes.c_size_t, ctypes.c_void_p

def ok(name, *arguments):
    status = getattr(acl, name)(*arguments)
    assert status == 0, (name, status, acl.aclGetRecentErrMsg())

def fails(status, text, name, *arguments):
    got = getattr(acl, name)(*arguments)
    message = acl.aclGetRecentErrMsg().decode()
    assert got == status, (name, got, message)
    assert text in message, message

def violations():
    return [entry["kind"] for entry in json.loads(acl.hostcann_violations())]

def live():
    return json.loads(acl.hostcann_live())

def counted(kind, profile=0):
    entries = json.loads(acl.hostcann_profile(profile))
    return {entry["name"]: entry["count"] for entry in entries if entry["kind"] == kind}

def made(name, *arguments):
    result = handle()
    ok(name, ctypes.byref(result), *arguments)
    return result

def malloc(size):
    return made("aclrtMalloc", size_t(size), 0)

def pinned(data):
    block = made("aclrtMallocHost", size_t(len(data)))
    ctypes.memmove(block, data, len(data))
    return block

def stream():
    return made("aclrtCreateStream")

def event(flags=8):
    return made("aclrtCreateEventWithFlag", flags)

def plus(address, offset):
    return handle(address.value + offset)

def copy(destination, source, size, kind, on):
    ok("aclrtMemcpyAsync", destination, size_t(size), source, size_t(size), kind, on)

def read(address, size):
    buffer = ctypes.create_string_buffer(size)
    ok("aclrtMemcpy", buffer, size_t(size), address, size_t(size), D2H)
    return buffer.raw

def mode(name, delay=0):
    assert acl.hostcann_set_stream_mode(name.encode(), delay) == 0

def inject(site, name="", nth=1, code=0, count=1):
    assert acl.hostcann_inject(site.encode(), name.encode(), nth, code, b"", count) == b""

def start():
    ok("aclInit", None)
    ok("aclrtSetDevice", 0)
"""


def run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs PRELUDE, `start()` and the program."""
    return run_command(sys.executable, "-c", f"{PRELUDE}\n{textwrap.dedent(program)}", str(LIBRARY), **variables)


def check(program: str, **variables: str) -> None:
    done = run(program, **variables)
    assert done.returncode == 0, done.stderr
