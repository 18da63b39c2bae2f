"""Tensors of kinds that no operator takes, for the table of bad_inputs.py: name, message, how to make one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Unusual(NamedTuple):
    """A kind of tensor, in the place of one argument.

    Attributes:
        name: of the case.
        argument: which is replaced.
        message: what the public function says, after the argument's name; a regular expression.
        make: the tensor, on the CPU, from the good one.
        operator_message: what the dispatcher operator says; None where it says the same.
        operator_error: the type of that error.
    """

    name: str
    argument: str
    message: str
    make: Callable[[Tensor], Tensor]
    operator_message: str | None = None
    operator_error: type[Exception] = TypeError


class Foreign(Tensor):
    """A subclass that refuses every operator."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"no {func} of foreign tensors")


def _nested(layout: torch.layout) -> Callable[[Tensor], Tensor]:
    return lambda good: torch.nested.nested_tensor([row.reshape(-1) for row in good.cpu()], layout=layout)


def _quantized(good: Tensor) -> Tensor:
    return torch.quantize_per_tensor(good.cpu().float(), 0.1, 0, torch.quint8)


def _kinds(argument: str) -> list[Unusual]:
    """Those of an argument for which each argument's rule is the same."""
    dense = f"{argument} must be a dense strided tensor, got "
    foreign = f"{argument} must be a plain tensor, got a Foreign, whose class does not take the operator. Give the val"
    return [
        Unusual("nested", argument, dense + "a nested one. Pad its rows", _nested(torch.strided)),
        Unusual("jagged", argument, dense + "a nested one. Pad its rows", _nested(torch.jagged)),
        Unusual("quantized", argument, dense + r"a quantized one of QUInt8. Call .dequantize\(\)", _quantized),
        Unusual(
            *("foreign", argument, foreign, lambda good: good.cpu().as_subclass(Foreign)),
            *("no ascend_sample.* of foreign tensors", NotImplementedError),
        ),
    ]


def _of_dtype(argument: str, dtype: torch.dtype, c10: str) -> Unusual:
    """A tensor of a dtype that neither an argument's rule nor a conversion knows."""
    operator = {
        "logits": "must be float32, float16 or bfloat16, got ",
        "k": "must be int32, got ",
        "q": "must be float32, got ",
    }.get(argument, r"must have the dtype of logits \(BFloat16\), got ")
    function = {
        "k": f"must be an integer tensor, an int or None, got a tensor of {dtype}",
        "p": f"must be a floating-point tensor, a float or None, got a tensor of {dtype}",
    }
    function["min_p"] = function["p"]
    operator_message = f"{argument} {operator}{c10}"
    message = f"{argument} {function[argument]}" if argument in function else operator_message

    def make(good: Tensor) -> Tensor:
        return torch.empty(good.shape, dtype=dtype)

    return Unusual(str(dtype).removeprefix("torch."), argument, message, make, operator_message)


def _sparse(argument: str, dtype: torch.dtype) -> Unusual:
    """Sparse, and of a dtype that has to be converted."""
    message = f"{argument} must be a dense strided tensor, got layout Sparse"
    return Unusual(f"sparse {dtype}", argument, message, lambda good: good.cpu().to(dtype).to_sparse())


def unusual_tensors(arguments: tuple[str, ...]) -> list[Unusual]:
    """Every kind, for every argument."""
    cases = [kind for argument in arguments for kind in _kinds(argument)]
    dtypes = ((torch.float8_e4m3fn, "Float8_e4m3fn"), (torch.complex64, "ComplexFloat"), (torch.bits8, "Bits8"))
    cases += [_of_dtype(argument, dtype, c10) for argument in arguments for dtype, c10 in dtypes]
    return cases + [
        _sparse(argument, torch.int64 if argument == "k" else torch.float64)
        for argument in arguments
        if argument in ("k", "p", "min_p")
    ]
