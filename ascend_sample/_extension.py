"""Loads the compiled parts of the package, and knows which of them were built."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])
_FOLDER = Path(__file__).parent
_OF_WHEEL = "_C_torch_"
"""How the names of the cores begin that a wheel has, one for each minor version of torch: "_C_torch_2_13.so"."""
_npu_is_loaded = False
_is_settled = False
"""Whether there is nothing more to load for an NPU: said last, when all of it is there."""
_settling = threading.Lock()
_cffi_library: torch.library.Library | None = None


def library_path(name: str) -> Path | None:
    """Returns the path of the compiled library ``name`` ("_C", "_npu"), or None where it was not built."""
    path = _FOLDER / f"{name}.so"
    return path if path.is_file() else None


def core_path() -> Path:
    """Returns the path of the core: that built for the environment's torch, or a wheel's for torches like it.

    Raises:
        ImportError: the package was not built, or the wheel has none for this torch.
    """
    like = "_".join(torch.__version__.split(".")[:2])  # torch keeps its C++ interface from 2.13.0 to 2.13.1
    path = library_path("_C") or library_path(f"{_OF_WHEEL}{like}")
    if path is not None:
        return path
    if versions := _versions_of_wheel():
        raise ImportError(
            f"ascend_sample: this wheel is for torch {', '.join(versions)}, got torch {torch.__version__}. Install one "
            "of these, or compile the package for this torch: `pip install .` in its sources."
        )
    raise ImportError(
        "ascend_sample: the compiled core _C.so is missing from the package. "
        "Run `pip install .` in the project, or leave its source folder if you want the installed package."
    )


def _versions_of_wheel() -> list[str]:
    """Returns what torches a wheel has cores for: ["2.7", "2.13"]."""
    found = (path.stem.removeprefix(_OF_WHEEL).split("_") for path in _FOLDER.glob(f"{_OF_WHEEL}*.so"))
    return [".".join(numbers) for numbers in sorted(found, key=lambda numbers: [int(number) for number in numbers])]


def load_core() -> None:
    """Loads the operators' schemas and the CPU, composite and fake kernels.

    Raises:
        ImportError: there is no core for this torch, or it was built against another one.
    """
    _load(core_path(), f"torch {torch.__version__}")


def constant_when_compiled(function: Function) -> Function:
    """Marks a function as `torch.compiler.assume_constant_result` does, which would import torch's whole compiler.

    The mark is as old as torch.compile.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_when_compiled
def load_npu_if_imported() -> bool:
    """Registers the NPU kernels when torch_npu is in the process, and never imports it.

    Returns:
        Whether the compiled binding is loaded.

    Raises:
        ImportError: the binding was built against another torch_npu.
    """
    global _npu_is_loaded, _is_settled
    if not _is_settled and "torch_npu" in sys.modules:
        with _settling:  # first calls may come from several threads
            if not _is_settled:
                _npu_is_loaded = _load_npu()
                _is_settled = True
    return _npu_is_loaded


def _load_npu() -> bool:
    """Registers the NPU kernels; returns whether they are those of the compiled binding."""
    path = library_path("_npu")
    if path is None:
        _register_cffi_kernel()
        return False
    _load(path, f"torch_npu {sys.modules['torch_npu'].__version__}")
    from ascend_sample.npu import binding

    binding.configure()
    return True


def _register_cffi_kernel() -> None:
    """Registers the kernels that serve tensors on an NPU through cffi where there is no compiled binding."""
    global _cffi_library
    from ascend_sample.npu import aclnn_cffi, operators

    _cffi_library = torch.library.Library("ascend_sample", "IMPL")
    for operator in operators.OPERATORS:
        _cffi_library.impl(operator, functools.partial(aclnn_cffi.serve, operator), "PrivateUse1")


def _load(path: Path, partner: str) -> None:
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(
            f"ascend_sample: {path.name} does not load with {partner}: {error}. It must be built against the one that "
            "loads it: reinstall with `pip install --force-reinstall --no-deps .`."
        ) from error
