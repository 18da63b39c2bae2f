"""Tensors that outlive a call are no inference tensors, whatever mode the caller is in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def in_normal_mode(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Makes a function's tensors usable, and writable, inside and outside of `torch.inference_mode`.

    Engines step inside of it, and may add, remove and append outside. A tensor that is made inside can be written
    there alone. There are no gradients either: leaving inference mode would switch them on, in `torch.no_grad` too.

    Example:
        >>> with torch.inference_mode():
        ...     torch.zeros(1).is_inference(), in_normal_mode(torch.zeros)(1).is_inference()
        (True, False)
    """
    guarded = torch.inference_mode(False)(torch.no_grad()(function))

    @functools.wraps(function)
    def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        is_normal = not (torch.is_inference_mode_enabled() or torch.is_grad_enabled())  # as in calls within calls
        return (function if is_normal else guarded)(*arguments, **named)

    return call
