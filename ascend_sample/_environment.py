"""Imports torch without letting a torch_npu that cannot load its CANN break the import. Free of torch itself."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys

AUTOLOAD_VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"
CANN_LIBRARIES = (
    "libascendcl.so",
    "libhccl.so",
    "libacl_op_compiler.so",
    "libge_runner.so",
    "libgraph.so",
    "libacl_tdt_channel.so",
)
"""The libraries of CANN that torch_npu is linked against."""


def missing_cann_library() -> str | None:
    """Why CANN cannot be loaded: the first of its libraries that the dynamic linker refuses; None when all load."""
    for name in CANN_LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError as error:
            return str(error)
    return None


def torch_npu_is_installed() -> bool:
    """Whether torch_npu can be found; it is not imported."""
    return "torch_npu" in sys.modules or importlib.util.find_spec("torch_npu") is not None


def import_torch() -> None:
    """Import torch, which imports an installed torch_npu by itself, only with the latter if CANN is there for it."""
    before = os.environ.get(AUTOLOAD_VARIABLE)
    is_settled = "torch" in sys.modules or before == "0" or not torch_npu_is_installed()
    if is_settled or missing_cann_library() is None:
        importlib.import_module("torch")
        return
    os.environ[AUTOLOAD_VARIABLE] = "0"
    try:
        importlib.import_module("torch")
    finally:
        if before is None:
            del os.environ[AUTOLOAD_VARIABLE]
        else:
            os.environ[AUTOLOAD_VARIABLE] = before
