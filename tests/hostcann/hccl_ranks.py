"""Ranks of a group, each a process that runs a program at the C level, without torch."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from activation_programs import LIBRARY
from runtime_programs import PRELUDE

from tests.support.user_process import clean_environment

HCCL = LIBRARY.with_name("libhccl.so")
RANKS = """
import os
import numpy as np
hccl = ctypes.CDLL(sys.argv[2])
folder, ranks, rank = sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
count_t = ctypes.c_uint64
TYPES = {"int8": 0, "int16": 1, "int32": 2, "float16": 3, "float32": 4, "int64": 5, "uint64": 6, "uint8": 7,
         "uint16": 8, "uint32": 9, "float64": 10}
SUM, PRODUCT, LARGEST, SMALLEST = range(4)

def device():
    ok("aclInit", None)
    ok("aclrtSetDevice", rank)

def root_info(name):
    path = os.path.join(folder, name)
    if rank == 0 and not os.path.exists(path):
        text = ctypes.create_string_buffer(4108)
        assert hccl.HcclGetRootInfo(text) == 0
        with open(path + ".new", "wb") as file:
            file.write(text.raw)
        os.rename(path + ".new", path)
    while not os.path.exists(path):
        time.sleep(0.002)
    with open(path, "rb") as file:
        return file.read()

def join(name="group", ranks=ranks, rank=rank):
    group = handle()
    status = hccl.HcclCommInitRootInfo(ranks, root_info(name), rank, ctypes.byref(group))
    return group if status == 0 else (status, acl.aclGetRecentErrMsg().decode())

def joined():
    device()
    return join(), stream()

def on_device(array):
    address = malloc(max(array.nbytes, 1))
    ok("aclrtMemcpy", address, size_t(array.nbytes), array.tobytes(), size_t(array.nbytes), H2D)
    return address

def all_reduce(group, array, on, reduction=SUM):
    address = on_device(array)
    kind = TYPES[array.dtype.name]
    assert hccl.HcclAllReduce(address, address, count_t(array.size), kind, reduction, group, on) == 0
    return address

def refused(status, text, name, *arguments):
    got = getattr(hccl, name)(*arguments)
    message = acl.aclGetRecentErrMsg().decode()
    assert got == status and text in message, (got, message)

def failure(on):
    status = acl.aclrtSynchronizeStream(on)
    assert status == 507035, status
    return acl.aclGetRecentErrMsg().decode()

def async_error(group):
    error = ctypes.c_int(-1)
    assert hccl.HcclGetCommAsyncError(group, ctypes.byref(error)) == 0
    return error.value
"""


STARTED: list[subprocess.Popen[str]] = []


def start(folder: Path, ranks: int, program: str, **variables: str) -> list[subprocess.Popen[str]]:
    """Runs the program in so many processes, each with `rank` and `ranks`."""
    text = PRELUDE + RANKS + textwrap.dedent(program)
    environment = clean_environment(HOSTCANN_DEVICES=str(ranks), **variables)
    for rank in range(ranks):
        command = [sys.executable, "-c", text, str(LIBRARY), str(HCCL), str(folder), str(ranks), str(rank)]
        STARTED.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    return STARTED


def run(folder: Path, ranks: int, program: str, seconds: int = 60, **variables: str) -> None:
    """Fails with what a rank has printed unless all of them end well within so many seconds."""
    for rank, process in enumerate(start(folder, ranks, program, **variables)):
        _, errors = process.communicate(timeout=seconds)
        assert process.returncode == 0, f"rank {rank}: {errors}"
