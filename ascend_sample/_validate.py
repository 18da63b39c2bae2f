"""Converts the arguments that people pass into those that the dispatcher operator takes.

The rules about shapes, dtypes, devices and ranges of tensors are written once, in ``csrc/checks.cpp``. Here is only
what those cannot say, because it happens before there is a tensor: scalars and None for k and p, and the conversion
of dtypes.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Final

import torch
from torch import Tensor

from ascend_sample._contract import APPLY_NAME, OPERATOR_NAME, OPERATOR_V2_NAME, SKIP_TOP_K, SKIP_TOP_P
from ascend_sample._errors import check_bool, check_tensor, is_real, refuse, show, to_float

INT32: Final = torch.int32
INTEGERS: Final = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)
FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The dtypes of a k and of a p that torch can convert: it has more, without arithmetic."""
INT64_LIMIT: Final = 2**63
K_RULE: Final = "be an integer tensor, an int or None"
FRACTION_RULE: Final = "be a floating-point tensor, a float or None"


def _open_unit_interval(dtype: torch.dtype) -> tuple[float, float]:
    """Returns the smallest and largest values of ``dtype`` that lie between 0 and 1, both excluded."""
    info = torch.finfo(dtype)
    smallest = max(
        info.smallest_normal * info.eps, torch.finfo(torch.float32).tiny
    )  # a float16 subnormal, else a normal
    return smallest, 1.0 - info.eps / 2


OPEN_UNIT_INTERVALS: Final = {dtype: _open_unit_interval(dtype) for dtype in FLOATS}


def convert_arguments(
    logits: torch.Tensor,
    k: int | torch.Tensor | None,
    p: float | torch.Tensor | None,
    q: torch.Tensor | None,
    eps: float,
    is_need_logits: bool,
    top_k_guess: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Converts k and p, and checks everything, for an implementation in Python (a kernel in C++ checks by itself).

    Returns:
        k as int32 [batch] and p as [batch] in the dtype of logits.
    """
    check_types(logits, q, eps, is_need_logits, top_k_guess)
    converted = convert_k(k, logits), convert_p(p, logits)
    torch.ops.ascend_sample.check_top_k_top_p_sample(logits, *converted, q, eps, is_need_logits, top_k_guess)
    return converted


def convert_arguments_v2(
    logits: torch.Tensor,
    k: int | torch.Tensor | None,
    p: float | torch.Tensor | None,
    q: torch.Tensor | None,
    min_p: float | torch.Tensor | None,
    eps: float,
    is_need_logits: bool,
    top_k_guess: int,
    ks_max: int,
    input_is_logits: bool,
    is_need_sample_result: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Converts k, p and min_p, and checks everything, as `convert_arguments` does for the first operator.

    Returns:
        k as int32 [batch], p and min_p as [batch] in the dtype of logits; None for a min_p of None.
    """
    options = (eps, is_need_logits, top_k_guess, ks_max, input_is_logits, is_need_sample_result)
    check_types_v2(logits, q, *options)
    k, p = convert_k(k, logits, OPERATOR_V2_NAME), convert_p(p, logits, OPERATOR_V2_NAME)
    min_p = convert_min_p(min_p, logits)
    torch.ops.ascend_sample.check_top_k_top_p_sample_v2(logits, k, p, q, min_p, *options)
    return k, p, min_p


def convert_filters(
    logits: torch.Tensor, k: int | torch.Tensor | None, p: float | torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Converts the k and p of the operator that filters alone; None stays None.

    Returns:
        p as [batch] in the dtype of logits, and k as int32 [batch]: in the order of the dispatcher operator.
    """
    check_tensor(APPLY_NAME, "logits", logits)
    return (
        None if p is None else convert_p(p, logits, APPLY_NAME),
        None if k is None else convert_k(k, logits, APPLY_NAME),
    )


def check_types(
    logits: object, q: object, eps: object, is_need_logits: object, top_k_guess: object, op: str = OPERATOR_NAME
) -> None:
    """Raises TypeError unless the arguments that are not converted have the types that the operator's schema names."""
    if not isinstance(logits, Tensor):
        check_tensor(op, "logits", logits)
    if not (q is None or isinstance(q, Tensor)):
        check_tensor(op, "q", q)
    if not isinstance(eps, float):
        _as_float(eps, "eps", "be a float", "Use the default, 1e-8.", op)
    check_bool(op, "is_need_logits", is_need_logits)
    _check_int(top_k_guess, "top_k_guess", "32", op)


def check_types_v2(
    logits: object,
    q: object,
    eps: object,
    is_need_logits: object,
    top_k_guess: object,
    ks_max: object,
    input_is_logits: object,
    is_need_sample_result: object,
) -> None:
    """Checks the second operator's arguments as `check_types` does those of the first."""
    check_types(logits, q, eps, is_need_logits, top_k_guess, OPERATOR_V2_NAME)
    _check_int(ks_max, "ks_max", "1024", OPERATOR_V2_NAME)
    check_bool(OPERATOR_V2_NAME, "input_is_logits", input_is_logits)
    check_bool(OPERATOR_V2_NAME, "is_need_sample_result", is_need_sample_result)


def _check_int(value: object, name: str, default: str, op: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(op, name, "be an int", show(value), f"Use the default, {default}.", TypeError)
    if not -INT64_LIMIT <= value < INT64_LIMIT:
        refuse(op, name, "fit in int64", value, f"Use the default, {default}.")


def _as_float(value: Any, name: str, rule: str, remedy: str, op: str) -> float:
    if torch.compiler.is_dynamo_compiling() and getattr(value, "ndim", None) == 0:
        value = value.item()  # dynamo makes an array of a number of numpy's
    if not is_real(value):
        refuse(op, name, rule, show(value), remedy, TypeError)
    number = to_float(value)
    if math.isinf(number) and value not in (math.inf, -math.inf):
        refuse(op, name, "fit in a float", value if isinstance(value, int) else f"a {type(value).__name__}", remedy)
    return number


def explain(error: Exception, op: str, **arguments: object) -> None:
    """Raises the error of the rule that a tensor breaks, where torch has refused the tensor before the rules could.

    It returns where no rule is broken. A call that succeeds pays nothing for it.

    Args:
        error: what torch said.
        op: the operator, which the message begins with.
        arguments: all arguments that may be tensors, as they were given, by name and in order.
    """
    if str(error).startswith(f"{op}: "):
        return
    for name, tensor in arguments.items():
        if not isinstance(tensor, Tensor):
            continue
        try:
            torch.ops.ascend_sample.check_tensor(tensor, name, op)
        except (RuntimeError, TypeError) as refusal:
            if str(refusal).startswith(f"{op}: "):
                raise refusal from error
            if isinstance(refusal, (NotImplementedError, TypeError)):  # a subclass that knows no foreign operator
                value = f"a {type(tensor).__name__}, whose class does not take the operator"
                refuse(op, name, "be a plain tensor", value, "Give the values as a torch.Tensor.", TypeError)


def convert_k(k: int | torch.Tensor | None, logits: torch.Tensor, op: str = OPERATOR_NAME) -> torch.Tensor:
    """Returns k as int32 [batch]: a value that does not fit saturates, because it would skip top-k either way."""
    if isinstance(k, Tensor):
        if k.dtype == INT32 and k.dim() == 1:
            return k
        if k.dtype not in INTEGERS and not k.is_quantized:
            refuse(op, "k", K_RULE, f"a tensor of {k.dtype}", "Convert it with k.to(torch.int32).", TypeError)
        if k.dtype != torch.int32:
            k = k.to(torch.int64).clamp(-1, SKIP_TOP_K).to(torch.int32)
        return k.expand(logits.shape[0]) if k.dim() == 0 and logits.dim() == 2 else k
    if k is None:
        number = SKIP_TOP_K
    else:
        try:
            if isinstance(k, bool):
                raise TypeError
            number = k if isinstance(k, int) else operator.index(k)
        except TypeError:
            refuse(op, "k", K_RULE, show(k), "None skips top-k.", TypeError)
        number = max(-1, min(number, SKIP_TOP_K))
    return logits.new_full(logits.shape[:1], number, dtype=INT32)


def convert_p(p: float | torch.Tensor | None, logits: torch.Tensor, op: str = OPERATOR_NAME) -> torch.Tensor:
    """Returns p as [batch] in the dtype of logits.

    A p inside (0, 1) stays inside: rounding to 0 or 1 would switch top-p off.
    """
    return _convert_fraction(SKIP_TOP_P if p is None else p, "p", "top-p", logits, op)


def convert_min_p(min_p: float | torch.Tensor | None, logits: torch.Tensor) -> torch.Tensor | None:
    """Returns min_p as [batch] in the dtype of logits, or None for None.

    A min_p inside (0, 1) stays inside: rounding to 0 would switch min-p off, rounding to 1 would keep one entry.
    """
    return None if min_p is None else _convert_fraction(min_p, "min_p", "min-p", logits, OPERATOR_V2_NAME)


def _convert_fraction(
    value: float | torch.Tensor, name: str, skipped: str, logits: torch.Tensor, op: str
) -> torch.Tensor:
    """Returns p or min_p as [batch] in the dtype of logits."""
    dtype = logits.dtype
    if isinstance(value, Tensor):
        if value.dtype == dtype and value.dim() == 1:
            return value
        if value.dtype not in FLOATS and not value.is_quantized:
            refuse(op, name, FRACTION_RULE, f"a tensor of {value.dtype}", f"Convert it with {name}.float().", TypeError)
        if value.dtype != dtype and dtype in FLOATS:
            smallest, largest = OPEN_UNIT_INTERVALS[dtype]
            converted = value.to(dtype)
            value = torch.where((value > 0) & (value < 1), converted.clamp(smallest, largest), converted)
        return value.expand(logits.shape[0]) if value.dim() == 0 and logits.dim() == 2 else value
    number = value if type(value) is float else _as_float(value, name, FRACTION_RULE, f"None skips {skipped}.", op)
    if dtype not in FLOATS:
        dtype = torch.float32  # of logits that are refused, in words of their own
    elif 0 < number < 1:
        smallest, largest = OPEN_UNIT_INTERVALS[dtype]
        number = max(smallest, min(number, largest))
    return logits.new_full(logits.shape[:1], number, dtype=dtype)
