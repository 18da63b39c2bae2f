"""Which implementation serves which tensors, and how to force one.

========= ============================================================ ==============================
backend   what it is                                                   serves
========= ============================================================ ==============================
cpu       the native kernel, of the operators that draw                CPU tensors
aclnn     CANN's operator through the compiled binding                 an NPU; but for the first, float32 as well
cffi      the same, without a compiled binding                         the same
composite vectorised torch operators, no synchronisation               any device
reference the specification in code, row after row (slow)              any device
========= ============================================================ ==============================

The first operator, top_k_top_p_sample, calls aclnnTopKTopPSample, on 16-bit logits alone; top_k_top_p_sample_v2 calls
aclnnTopKTopPSampleV2, and apply_top_k_top_p calls aclnnApplyTopKTopP.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ascend_sample import _extension
from ascend_sample._contract import OPERATOR_NAME
from ascend_sample._errors import check_tensor, refuse, show
from ascend_sample.npu.operators import OPERATORS

BACKENDS = ("cpu", "aclnn", "cffi", "composite", "reference")
VARIANTS = ("cffi", "composite", "reference")
"""Backends that are operators of the dispatcher by themselves, named after the operator that they are a variant of."""
VARIABLE = "ASCEND_SAMPLE_BACKEND"
NPU = "npu"
FORCED = "forced"
"""The reason of a route that no device has chosen."""

Implementation = Callable[..., Any]

_dispatcher_operators: dict[str, Implementation] = {
    name: getattr(torch.ops.ascend_sample, name).default for name in OPERATORS
}


_cpu_operators = {
    name for name in OPERATORS if torch._C._dispatch_has_kernel_for_dispatch_key(f"ascend_sample::{name}", "CPU")
}
"""What the native kernel serves; the composite serves the others on a CPU too."""


class Route(NamedTuple):
    """The backend that serves a tensor, and why."""

    backend: str
    reason: str


def _check_name(name: str, source: str) -> str:
    if name not in BACKENDS:
        rule = f"be one of {', '.join(BACKENDS)}"
        refuse("ascend_sample", source, rule, show(name), "Leave it out to choose by device.")
    return name


_forced: str | None = os.environ.get(VARIABLE) or None  # checked where it counts: `info` is to tell what is wrong
_requests: list[list[str | None]] = [[_forced]]
"""What the variable says, and what each open block says: the last one counts. Each is a list, to be known again."""
_requests_lock = threading.Lock()


@contextmanager
def use_backend(name: str | None) -> Iterator[None]:
    """Forces one backend for every call of the public functions inside the block, in every thread.

    None chooses by device. Of blocks that are open at once, in one thread or in several, the last that began counts.

    Args:
        name: one of :data:`BACKENDS`, or None.

    Raises:
        ValueError: there is no such backend. One that cannot serve a tensor raises at the call.

    Example:
        >>> with use_backend("composite"):
        ...     which_backend(torch.zeros(1, 4)).backend
        'composite'
    """
    request = [None if name is None else _check_name(name, "backend")]
    if torch.compiler.is_dynamo_compiling():  # it traces no lock, and guards on what is forced before
        before = _force(request[0])
        try:
            yield
        finally:
            _force(before)
        return
    with _requests_lock:
        _requests.append(request)
        _force(request[0])
    try:
        yield
    finally:
        with _requests_lock:
            # Blocks of other threads may end in another order than they began.
            _requests[:] = [other for other in _requests if other is not request]
            _force(_requests[-1][0])


def _force(name: str | None) -> str | None:
    """Forces a backend, and returns the one that was forced before."""
    global _forced
    before, _forced = _forced, name
    return before


def which_backend(tensor: torch.Tensor, operator: str = OPERATOR_NAME) -> Route:
    """Tells which backend serves logits like ``tensor`` (its device and dtype count), and why.

    Args:
        tensor: logits, of any shape.
        operator: the name of the function that is to be called with them.

    Raises:
        RuntimeError: the forced backend cannot serve them.
        ValueError: there is no such function, or no backend that is called what the environment says.

    Example:
        >>> which_backend(torch.zeros(1, 4)).backend
        'cpu'
    """
    check_tensor("which_backend", "tensor", tensor)
    if operator not in OPERATORS:
        remedy = f"Leave it out for {OPERATOR_NAME}."
        refuse("which_backend", "operator", f"be one of {', '.join(OPERATORS)}", show(operator), remedy)
    if _forced is None:
        return _route_by_device(tensor, operator)
    obstacle = _obstacle(_check_name(_forced, VARIABLE), tensor, operator)
    if obstacle is not None:
        raise RuntimeError(
            f"{operator}: the forced backend {_forced} cannot serve {tensor.dtype} on {tensor.device}: "
            f"{obstacle}. Unset {VARIABLE}, or name another of {', '.join(BACKENDS)}."
        )
    return Route(_forced, FORCED)


def implementation(logits: torch.Tensor, operator: str) -> Implementation:
    """Returns the function that the route of ``logits`` stands for, which takes the operator's arguments."""
    if not logits.is_cpu:
        _extension.load_npu_if_imported()
    if _forced is None:
        return _dispatcher_operators[operator]  # it knows the device
    return _implementation_of(which_backend(logits, operator).backend, operator)


def _implementation_of(backend: str, operator: str) -> Implementation:
    if backend not in VARIANTS:
        return _dispatcher_operators[operator]
    variant: Implementation = getattr(torch.ops.ascend_sample, f"{operator}_{backend}").default
    return variant


def _sample_by_reference(
    operator: str, logits: torch.Tensor, *arguments: Any
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Serves as the kernel of the operator's variant that is its specification."""
    aclnn = OPERATORS[operator]
    reference = getattr(importlib.import_module(aclnn.reference), f"{operator}_reference")
    schema = getattr(torch.ops.ascend_sample, operator).default._schema
    names = (argument.name for argument in schema.arguments)
    returned = reference(**dict(zip(names, (logits, *arguments), strict=False)))
    if isinstance(returned, torch.Tensor):
        return returned
    return tuple(
        result.new_empty(logits, (0,)) if tensor is None else tensor
        for tensor, result in zip(returned, aclnn.results, strict=True)
    )


def _sample_by_cffi(operator: str, *arguments: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Serves as the kernel of the operator's variant that calls CANN through cffi."""
    from ascend_sample.npu import aclnn_cffi

    return aclnn_cffi.launch(operator, *arguments)


_library = torch.library.Library("ascend_sample", "IMPL")
for _name in OPERATORS:
    _reference, _cffi = (functools.partial(kernel, _name) for kernel in (_sample_by_reference, _sample_by_cffi))
    _library.impl(f"{_name}_reference", _reference, "CompositeExplicitAutograd")
    _library.impl(f"{_name}_cffi", _cffi, "PrivateUse1")


def _route_by_device(tensor: torch.Tensor, operator: str) -> Route:
    device = tensor.device.type
    if device == "cpu" and operator in _cpu_operators:
        return Route("cpu", "the native kernel of CPU tensors")
    if device != NPU:
        return Route("composite", f"{device} has no kernel of {operator}")
    obstacle = _obstacle("aclnn", tensor, operator)
    found = f"{OPERATORS[operator].name} was found"
    if obstacle is None:
        return Route("aclnn", found)
    if _extension.library_path("_npu") is not None:
        return Route("composite", obstacle)  # the binding was built, and falls back to the composite by itself
    cffi_obstacle = _obstacle("cffi", tensor, operator)
    if cffi_obstacle is None:
        return Route("cffi", f"{found}; {obstacle}")
    return Route("composite", cffi_obstacle)


def _obstacle(backend: str, tensor: torch.Tensor, operator: str) -> str | None:
    """Returns why ``backend`` cannot serve ``tensor``, or None when it can."""
    device = tensor.device.type
    if backend == "cpu":
        return (
            None
            if device == "cpu" and operator in _cpu_operators
            else "it serves CPU tensors, for the operators that draw"
        )
    if backend in ("aclnn", "cffi"):
        if device != NPU:
            return "it serves tensors on an NPU"
        of_process: Callable[[str], str | None] = _aclnn_obstacle if backend == "aclnn" else _cffi_obstacle
        return OPERATORS[operator].obstacle_of(tensor.dtype) or of_process(operator)
    return None


@_extension.constant_when_compiled
def _aclnn_obstacle(operator: str) -> str | None:
    if not _extension.load_npu_if_imported():
        return "the compiled binding was not built, because torch_npu was not installed when the package was"
    obstacle: str = torch.ops.ascend_sample.aclnn_obstacle(operator)
    return obstacle or None


@_extension.constant_when_compiled
def _cffi_obstacle(operator: str) -> str | None:
    from ascend_sample.npu import aclnn_cffi

    return aclnn_cffi.obstacle(operator)
