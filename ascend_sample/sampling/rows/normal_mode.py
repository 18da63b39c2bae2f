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

    @functools.wraps(function)
    def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():
                return function(*arguments, **named)
        if torch.is_grad_enabled():
            with torch.no_grad():
                return function(*arguments, **named)
        return function(*arguments, **named)  # as in calls within calls

    return call
