"""Keeps a torch_npu that cannot load its CANN from breaking imports: torch's, and those of packages that look for it.

Free of torch itself.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

AUTOLOAD_VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"
TORCH_NPU = "torch_npu"
CANN_LIBRARIES = (
    "libascendcl.so",
    "libhccl.so",
    "libacl_op_compiler.so",
    "libge_runner.so",
    "libgraph.so",
    "libacl_tdt_channel.so",
)
"""The libraries of CANN that torch_npu is linked against."""
CANN_REMEDY = (
    "Source CANN's set_env.sh before Python starts, or install hostcann and emulate CANN: hostcann run COMMAND"
)
_find_spec = importlib.util.find_spec


def missing_cann_library() -> str | None:
    """Returns the dynamic linker's error for the first of CANN's libraries that it refuses, or None when all load."""
    for name in CANN_LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError as error:
            return str(error)
    return None


def is_emulated() -> bool:
    """Tells whether CANN is hostcann in this process: installed here, or where the program was started from."""
    try:
        hostcann = importlib.import_module("hostcann")
    except ModuleNotFoundError:
        return "HOSTCANN_HOME" in os.environ
    return bool(hostcann.is_active())


@functools.cache  # the guard, once it stands, would answer for the search
def torch_npu_is_installed() -> bool:
    """Tells whether torch_npu can be found, with or without a CANN, and does not import it."""
    return TORCH_NPU in sys.modules or _find_spec(TORCH_NPU) is not None


def import_torch() -> None:
    """Imports torch, and lets it import an installed torch_npu by itself only if CANN is there for it.

    A torch_npu that is not imported then is guarded: see `guard_torch_npu`.
    """
    if TORCH_NPU in sys.modules or not torch_npu_is_installed():
        importlib.import_module("torch")
        return
    before = os.environ.get(AUTOLOAD_VARIABLE)
    if "torch" not in sys.modules and before != "0" and missing_cann_library() is not None:
        os.environ[AUTOLOAD_VARIABLE] = "0"
    try:
        importlib.import_module("torch")
    finally:
        if before is not None:
            os.environ[AUTOLOAD_VARIABLE] = before
        else:
            os.environ.pop(AUTOLOAD_VARIABLE, None)
    if TORCH_NPU not in sys.modules:
        guard_torch_npu()


def guard_torch_npu() -> None:
    """Makes this process see no torch_npu as long as CANN does not load, and an import of it fail with the reason.

    transformers and others ask `importlib.util.find_spec` for torch_npu, and import what they find, which fails for
    all of their models. So that function does not find it, and ``import torch_npu`` raises an error with the remedy,
    where there was one about a shared object. Nothing is kept in `sys.modules`, and CANN is looked for again each
    time: once it loads, as after ``hostcann.activate()``, everything is as if there were no guard.

    Source: Python's import system, "The meta path". A finder alone cannot do it: it can find or fail, but that it
    finds nothing only makes `find_spec` ask the next one.
    """
    sys.meta_path.insert(0, _TorchNpuFinder())
    importlib.util.find_spec = _find_spec_if_loadable


class _TorchNpuFinder(MetaPathFinder):
    """Refuses to find torch_npu while CANN does not load; leaves everything else to the finders after it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        missing = missing_cann_library() if fullname == TORCH_NPU else None
        if missing is None:
            return None
        raise ModuleNotFoundError(
            f"import torch_npu: CANN's libraries must load for it, got {missing}. {CANN_REMEDY}.", name=TORCH_NPU
        )


@functools.wraps(_find_spec)
def _find_spec_if_loadable(name: str, package: str | None = None) -> ModuleSpec | None:
    if name == TORCH_NPU and TORCH_NPU not in sys.modules and missing_cann_library() is not None:
        return None
    return _find_spec(name, package)
