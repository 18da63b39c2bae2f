"""Which implementation serves which tensors, and how to force one.

========= ============================================================ ==============================
backend   what it is                                                   serves
========= ============================================================ ==============================
cpu       the native kernel                                            CPU tensors
aclnn     aclnnTopKTopPSample through the compiled binding             float16 and bfloat16 on an NPU
cffi      the same, without a compiled binding                         float16 and bfloat16 on an NPU
composite vectorised torch operators, no synchronisation               any device
reference the specification in code, row after row (slow)              any device
========= ============================================================ ==============================
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from ascend_sample import _extension

BACKENDS = ("cpu", "aclnn", "cffi", "composite", "reference")
VARIABLE = "ASCEND_SAMPLE_BACKEND"
NPU = "npu"

Implementation = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]

_dispatcher_operator: Implementation = torch.ops.ascend_sample.top_k_top_p_sample.default
_composite_operator: Implementation = torch.ops.ascend_sample.top_k_top_p_sample_composite.default


class Route(NamedTuple):
    """The backend that serves a tensor, and why."""

    backend: str
    reason: str


def _check_name(name: str, source: str) -> str:
    if name not in BACKENDS:
        raise ValueError(
            f"{source} must be one of {', '.join(BACKENDS)}, got {name!r}. Leave it out to choose by device."
        )
    return name


_forced: str | None = _check_name(os.environ[VARIABLE], VARIABLE) if os.environ.get(VARIABLE) else None


@contextmanager
def use_backend(name: str | None) -> Iterator[None]:
    """Force one backend for every call of the public function inside the block, in every thread; None chooses by
    device.

    Args:
        name: one of :data:`BACKENDS`, or None.

    Raises:
        ValueError: there is no such backend. One that cannot serve a tensor raises at the call.

    Example:
        >>> with use_backend("composite"):
        ...     which_backend(torch.zeros(1, 4)).backend
        'composite'
    """
    global _forced
    before = _forced
    _forced = None if name is None else _check_name(name, "backend")
    try:
        yield
    finally:
        _forced = before


def which_backend(tensor: torch.Tensor) -> Route:
    """Tell which backend serves logits like ``tensor`` (its device and dtype count), and why.

    Args:
        tensor: logits, of any shape.

    Raises:
        RuntimeError: the forced backend cannot serve them.

    Example:
        >>> which_backend(torch.zeros(1, 4)).backend
        'cpu'
    """
    if _forced is None:
        return _route_by_device(tensor)
    obstacle = _obstacle(_forced, tensor)
    if obstacle is not None:
        raise RuntimeError(
            f"top_k_top_p_sample: the forced backend {_forced} cannot serve {tensor.dtype} on {tensor.device}: "
            f"{obstacle}. Unset {VARIABLE}, or name another of {', '.join(BACKENDS)}."
        )
    return Route(_forced, "forced")


def implementation(logits: torch.Tensor) -> Implementation:
    """The function that the route of ``logits`` stands for; all of them take the operator's arguments."""
    if not logits.is_cpu:
        _extension.load_npu_if_imported()
    if _forced is None:
        return _dispatcher_operator  # it knows the device
    return _implementation_of(which_backend(logits).backend)


def _implementation_of(backend: str) -> Implementation:
    if backend == "reference":
        from ascend_sample.reference import top_k_top_p_sample_reference

        return top_k_top_p_sample_reference
    if backend == "cffi":
        from ascend_sample.npu import aclnn_cffi

        return aclnn_cffi.top_k_top_p_sample
    if backend == "composite":
        return _composite_operator
    return _dispatcher_operator


def _route_by_device(tensor: torch.Tensor) -> Route:
    device = tensor.device.type
    if device == "cpu":
        return Route("cpu", "the native kernel of CPU tensors")
    if device != NPU:
        return Route("composite", f"{device} has no kernel of its own")
    obstacle = _obstacle("aclnn", tensor)
    if obstacle is None:
        return Route("aclnn", "aclnnTopKTopPSample was found")
    if _extension.library_path("_npu") is not None:
        return Route("composite", obstacle)  # the binding was built, and falls back to the composite by itself
    cffi_obstacle = _obstacle("cffi", tensor)
    if cffi_obstacle is None:
        return Route("cffi", f"aclnnTopKTopPSample was found; {obstacle}")
    return Route("composite", cffi_obstacle)


def _obstacle(backend: str, tensor: torch.Tensor) -> str | None:
    """Why ``backend`` cannot serve ``tensor``, or None when it can."""
    device = tensor.device.type
    if backend == "cpu" and device != "cpu":
        return "it serves CPU tensors"
    if backend in ("aclnn", "cffi"):
        if device != NPU:
            return "it serves tensors on an NPU"
        if tensor.dtype not in (torch.float16, torch.bfloat16):
            return f"aclnnTopKTopPSample takes float16 and bfloat16, not {tensor.dtype}"
        return _aclnn_obstacle() if backend == "aclnn" else _cffi_obstacle()
    return None


def _aclnn_obstacle() -> str | None:
    if not _extension.load_npu_if_imported():
        return "the compiled binding was not built, because torch_npu was not installed when the package was"
    obstacle: str = torch.ops.ascend_sample.aclnn_obstacle()
    return obstacle or None


def _cffi_obstacle() -> str | None:
    from ascend_sample.npu import aclnn_cffi

    return aclnn_cffi.obstacle()
