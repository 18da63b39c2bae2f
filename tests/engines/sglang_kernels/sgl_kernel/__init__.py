"""Stands where SGLang's compiled kernels would be, which PyPI has for CUDA alone, and which a CPU needs for its models.

Any name can be imported, from any module below; nothing can be called. On a CPU without AMX SGLang calls none of them
for a model in float32: its layers, and what draws, are plain torch.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any


class Missing:
    """A kernel, or what has kernels, that is not here."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Missing:
        return _missing(f"{self.name}.{name}")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        raise NotImplementedError(f"{self.name}: SGLang's compiled kernels are not here")


def _missing(name: str) -> Missing:
    if name.rpartition(".")[2].startswith("__"):
        raise AttributeError(name)
    return Missing(name)


def __getattr__(name: str) -> Missing:
    return _missing(f"sgl_kernel.{name}")


class Modules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module below this one."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        is_below = name.startswith("sgl_kernel.")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_below else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: _missing(f"{spec.name}.{name}")  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


sys.meta_path.append(Modules())
