"""Ranks of a group, each a process at the C level, without torch: `in_ranks` starts them, the rest is for them."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import cann
from tests.support.isolation import ROOT, program_of, without_hostcann

TYPES = {
    **{"int8": 0, "int16": 1, "int32": 2, "float16": 3, "float32": 4, "int64": 5, "uint64": 6, "uint8": 7},
    **{"uint16": 8, "uint32": 9, "float64": 10},
}
SUM, PRODUCT, LARGEST, SMALLEST = range(4)


def in_ranks(count: int, seconds: int = 60, **variables: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs the decorated test in so many processes at once, all of which must end well within so many seconds.

    The test takes no fixtures; a parameter `ranks` of it is the number in place of `count`.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**arguments: Any) -> None:
            ranks, started = arguments.get("ranks", count), []
            command = [sys.executable, *program_of(test, list(arguments.values()))]
            with tempfile.TemporaryDirectory() as folder:
                for rank in range(ranks):
                    own = {"RANK": str(rank), "RANKS": str(ranks), "FOLDER": folder, "HOSTCANN_DEVICES": str(ranks)}
                    environment = without_hostcann() | {"PYTHONPATH": os.pathsep.join(sys.path)} | own | variables
                    process = subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True)
                    started.append(process)
                try:
                    for rank, process in enumerate(started):
                        _, errors = process.communicate(timeout=seconds)
                        assert process.returncode == 0, f"rank {rank}: {errors}"
                finally:
                    for process in started:
                        process.kill()
                        process.wait()

        return run

    return decorate


# ---- in a rank ----


def this_rank() -> int:
    return int(os.environ["RANK"])


def all_ranks() -> int:
    return int(os.environ["RANKS"])


def shared(name: str) -> Path:
    """A file that all ranks see."""
    return Path(os.environ["FOLDER"]) / name


def appears(path: Path) -> bytes:
    """Waits for a file, and reads it."""
    while not path.exists():
        time.sleep(0.002)
    return path.read_bytes()


def root_info(name: str) -> bytes:
    """That of the group of this name, which rank 0 makes."""
    path = shared(name)
    if this_rank() == 0 and not path.exists():
        text = cann.ffi.new("char[]", 4108)
        cann.ok("HcclGetRootInfo", text)
        path.with_suffix(".new").write_bytes(bytes(cann.ffi.buffer(text)))
        path.with_suffix(".new").rename(path)
    return appears(path)


def join(name: str = "group", ranks: int | None = None) -> Any:
    """The group of this name; where that is refused, the status and the message."""
    group = cann.new()
    status = cann.hccl.HcclCommInitRootInfo(ranks or all_ranks(), root_info(name), this_rank(), group)
    return group[0] if status == 0 else (status, cann.recent_message())


def joined() -> tuple[Any, Any]:
    """A group of all ranks, and a stream, on a device of its own."""
    cann.start(this_rank())
    return join(), cann.stream()


def on_device(array: np.ndarray) -> Any:
    block = cann.malloc(max(array.nbytes, 1))
    cann.ok("aclrtMemcpy", block, array.nbytes, array.tobytes(), array.nbytes, cann.H2D)
    return block


def all_reduce(group: Any, array: np.ndarray, on: Any, reduction: int = SUM) -> Any:
    """Queues it, in place; returns the address."""
    block = on_device(array)
    cann.ok("HcclAllReduce", block, block, array.size, TYPES[array.dtype.name], reduction, group, on)
    return block


def failure(on: Any) -> str:
    """Waits for a stream that must fail; returns the message."""
    status = cann.acl.aclrtSynchronizeStream(on)
    assert status == cann.TASK_FAILED, status
    return cann.recent_message()


def async_error(group: Any) -> int:
    error = cann.ffi.new("int *", -1)
    cann.ok("HcclGetCommAsyncError", group, error)
    return int(error[0])


def begin_anew() -> None:
    """After a failure: without the streams and blocks of before."""
    cann.ok("aclrtResetDeviceForce", this_rank())
    cann.ok("aclrtSetDevice", this_rank())
