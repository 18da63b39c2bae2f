"""CANN's C interface from Python, by cffi and without torch, and hostcann's own functions, which no CANN has.

The libraries are those of the repository's hostcann, or of the home in ASCEND_SAMPLE_CONFORMANCE_HOME; the value
`system` leaves it to the dynamic loader. Each is loaded when it is first used, and never unloaded: threads of the
runtime outlive the interpreter's modules.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
TASK_FAILED = 507035


def load_module(name: str, path: str) -> ModuleType:
    """A module by its path below the root: importing the package that it belongs to would import torch."""
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and named tuples look there for their own module
    spec.loader.exec_module(module)
    return module


abi = load_module("conformance_abi", "ascend_sample/npu/_abi.py")
ffi = abi.ffi
ffi.cdef("""
aclError aclrtResetDeviceForce(int32_t device);
aclError aclrtMemsetAsync(void *to, size_t capacity, int32_t value, size_t bytes, aclrtStream stream);
aclError aclrtMallocPhysical(void **handle, size_t bytes, const void *properties, uint64_t flags);
aclError aclrtDestroyStreamForce(aclrtStream stream);
aclError aclrtStreamQuery(aclrtStream stream, int *status);
aclError aclrtSetStreamFailureMode(aclrtStream stream, uint64_t mode);
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t milliseconds);
aclError aclrtLaunchHostFunc(aclrtStream stream, void (*function)(void *), void *arguments);
aclError aclrtCreateEventWithFlag(void **event, uint32_t flag);
aclError aclrtDestroyEvent(void *event);
aclError aclrtRecordEvent(void *event, aclrtStream stream);
aclError aclrtStreamWaitEvent(aclrtStream stream, void *event);
aclError aclrtQueryEventStatus(void *event, int *status);
aclError aclrtSynchronizeEvent(void *event);
aclError aclrtEventElapsedTime(float *milliseconds, void *start, void *end);
aclError aclrtPeekAtLastError(int level);
aclError aclrtGetLastError(int level);
aclError aclsysGetVersionStr(char *package, char *version);
aclError aclmdlRICaptureBegin(aclrtStream stream, int mode);
aclError aclmdlRICaptureEnd(aclrtStream stream, void **model);
aclError aclmdlRICaptureThreadExchangeMode(int *mode);
aclError aclmdlRIExecuteAsync(void *model, aclrtStream stream);
aclError aclmdlRIDestroy(void *model);
aclError aclmdlRICaptureTaskGrpBegin(aclrtStream stream);
aclError aclmdlRICaptureTaskGrpEnd(aclrtStream stream, void **group);
aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream stream, void *group);
aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream stream);
aclError aclrtHostRegister(void *host, uint64_t bytes, int type, void **device);
aclError aclrtHostRegisterV2(void *host, uint64_t bytes, uint32_t flags);
aclError aclrtHostUnregister(void *host);

int HcclGetRootInfo(void *root_info);
int HcclCommInitRootInfo(uint32_t ranks, const void *root_info, uint32_t rank, void **group);
int HcclCommDestroy(void *group);
int HcclCommResume(void *group);
int HcclGetCommAsyncError(void *group, int *error);
int HcclAllReduce(void *from, void *to, uint64_t count, int data_type, int op, void *group, aclrtStream stream);
int HcclBroadcast(void *buffer, uint64_t count, int data_type, uint32_t root, void *group, aclrtStream stream);
int HcclSend(void *buffer, uint64_t count, int data_type, uint32_t to, void *group, aclrtStream stream);
int HcclRecv(void *buffer, uint64_t count, int data_type, uint32_t from, void *group, aclrtStream stream);
int HcclBarrier(void *group, aclrtStream stream);
int HcclGroupEnd(void);

const char *hostcann_inject(const char *site, const char *name, int nth, int code, const char *message, int count);
void hostcann_clear_faults(void);
int hostcann_set_stream_mode(const char *mode, int delay_ms);
const char *hostcann_violations(void);
void hostcann_reset_violations(void);
const char *hostcann_live(void);
int hostcann_open_profile(void);
const char *hostcann_profile(int number);
""")


def library_path(name: str) -> str:
    """Where `lib{name}.so` is, for dlopen; the sampling operators are a vendor's."""
    home = os.environ.get("ASCEND_SAMPLE_CONFORMANCE_HOME") or str(ROOT / "hostcann" / "src" / "hostcann" / "home")
    if home == "system":
        return f"lib{name}.so"
    place = "opp/vendors/ascend_sample/op_api/lib" if name == "cust_opapi" else "lib64"
    path = Path(home) / place / f"lib{name}.so"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist. Build it first: make build")
    return str(path)


class Library:
    """A library's functions, which return their statuses unchecked."""

    def __init__(self, name: str, flags: int = 0) -> None:
        self._name, self._flags = name, ffi.RTLD_NOW | ffi.RTLD_NODELETE | flags

    @functools.cached_property
    def _loaded(self) -> Any:
        return ffi.dlopen(library_path(self._name), self._flags)

    def __getattr__(self, function: str) -> Any:
        return getattr(self._loaded, function)


acl = Library("ascendcl", ffi.RTLD_GLOBAL)
aclnn = Library("opapi")
operators = Library("cust_opapi")
hccl = Library("hccl")


# ---- statuses ----


class CannError(RuntimeError):
    """A call failed that the test expected to work."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(f"{call}: {status} {abi.status_name(status)}: {recent_message()}")
        self.status = status


def check(status: int, call: str) -> None:
    """Raises CannError with CANN's message unless `status` is success."""
    if status != abi.SUCCESS:
        raise CannError(call, status)


def recent_message() -> str:
    """aclGetRecentErrMsg, "" when there is none; reading clears it."""
    message = acl.aclGetRecentErrMsg()
    return "" if message == ffi.NULL else ffi.string(message).decode()


def call(name: str, *arguments: Any) -> int:
    """Calls a function of the runtime or of HCCL by name, where None is a null pointer; returns the status."""
    library = hccl if name.startswith("Hccl") else acl
    return int(getattr(library, name)(*(ffi.NULL if argument is None else argument for argument in arguments)))


def ok(name: str, *arguments: Any) -> None:
    """A call that must work."""
    check(call(name, *arguments), name)


def fails(status: int, text: str, name: str, *arguments: Any) -> None:
    """A call that must end with this status and a message with this text."""
    found, message = call(name, *arguments), recent_message()
    assert found == status, (name, found, message)
    assert text in message, message


# ---- hostcann's own functions ----


def is_hostcann() -> bool:
    """Whether the libraries are hostcann's: a real CANN does not have its functions."""
    return hasattr(acl, "hostcann_violations")


def inject(site: str, name: str = "", nth: int = 1, code: int = 0, message: str = "", count: int = 1) -> None:
    """From the nth occurrence on, `count` occurrences of a site (and, for operators, a name) fail.

    Args:
        site: malloc, workspace, phase1, phase2, task, memcpy or synchronize.
        name: an operator or function; "" for every one.
        nth: counted from now, from 1.
        code: the status; 0 for the site's usual one.
        message: CANN's message; "" for one that says that it was injected.
        count: how many times.
    """
    error = acl.hostcann_inject(site.encode(), name.encode(), nth, code, message.encode(), count)
    assert ffi.string(error) == b"", error


def set_stream_mode(mode: str) -> None:
    """Takes `normal`, `delayed`, `delayed:MILLISECONDS` or `lazy`, as HOSTCANN_STREAM_MODE does."""
    name, _, delay = mode.partition(":")
    assert acl.hostcann_set_stream_mode(name.encode(), int(delay or 2)) == 0, mode


def check_violations(*kinds: str) -> None:
    """These violations, no others, have happened; they are then forgotten, so that the process may end well."""
    violations = json.loads(ffi.string(acl.hostcann_violations()))
    assert [violation["kind"] for violation in violations] == list(kinds), violations
    assert all(violation["message"] for violation in violations), violations
    acl.hostcann_reset_violations()


def live(kind: str = "") -> Any:
    """How many objects are alive: of one kind, or of each."""
    counts = json.loads(ffi.string(acl.hostcann_live()))
    return counts[kind] if kind else counts


def counted(kind: str, profile: int = 0) -> dict[str, int]:
    """What a profile, or the process's own, has counted of a kind, by name."""
    entries = json.loads(ffi.string(acl.hostcann_profile(profile)))
    return {entry["name"]: entry["count"] for entry in entries if entry["kind"] == kind}


# ---- the runtime in few words ----

H2D, D2H, D2D = 1, 2, 3


def start(device: int = 0) -> None:
    ok("aclInit", None)
    ok("aclrtSetDevice", device)


def new() -> Any:
    """Where a call puts a handle."""
    return ffi.new("void **")


def made(name: str, *arguments: Any) -> Any:
    """The handle that a call gives."""
    result = new()
    ok(name, result, *arguments)
    return result[0]


def malloc(size: int) -> Any:
    return made("aclrtMalloc", size, 0)


def pinned(data: bytes) -> Any:
    """Host memory that copies need not wait for, with these bytes."""
    block = made("aclrtMallocHost", len(data))
    ffi.memmove(block, data, len(data))
    return block


def stream() -> Any:
    return made("aclrtCreateStream")


def event(flags: int = 8) -> Any:
    """With a timeline, unless other flags are given."""
    return made("aclrtCreateEventWithFlag", flags)


def address_of(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def pointer(address: int) -> Any:
    return ffi.cast("void *", address)


def plus(block: Any, offset: int) -> Any:
    return pointer(address_of(block) + offset)


def copy(to: Any, source: Any, size: int, kind: int, on: Any) -> None:
    ok("aclrtMemcpyAsync", to, size, source, size, kind, on)


def read(block: Any, size: int) -> bytes:
    """Bytes of the device, by a copy that waits for the default stream alone."""
    buffer = ffi.new("char[]", size)
    ok("aclrtMemcpy", buffer, size, block, size, D2H)
    return bytes(ffi.buffer(buffer, size))


def on_host(block: Any, size: int) -> bytes:
    """Bytes of host memory."""
    return bytes(ffi.buffer(ffi.cast("char *", block), size))
