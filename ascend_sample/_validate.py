"""Converts the arguments that people pass into those that the dispatcher operator takes.

The rules about shapes, dtypes, devices and ranges of tensors are written once, in ``csrc/checks.cpp``. Here is only
what those cannot say, because it happens before there is a tensor: scalars and None for k and p, and the conversion
of dtypes.
"""

from __future__ import annotations

import numbers
import operator
from typing import Final, NamedTuple, NoReturn

import torch
from torch import Tensor

INT32: Final = torch.int32
OPERATOR_NAME = "top_k_top_p_sample"
SKIP_TOP_K = 2**20 + 1  # above every vocabulary, so top-k is off; small enough for a device that computes it in float32
SKIP_TOP_P = 1.0


class TopKTopPSample(NamedTuple):
    """What the operator returns.

    Attributes:
        logits_select_idx: int64 [batch], the drawn vocabulary ids.
        logits_top_kp_select: float32 [batch, vocab_size], the logits of the kept ids and -inf elsewhere; None if not
            asked for.
    """

    logits_select_idx: torch.Tensor
    logits_top_kp_select: torch.Tensor | None


def convert_arguments(
    logits: torch.Tensor,
    k: int | torch.Tensor | None,
    p: float | torch.Tensor | None,
    q: torch.Tensor | None,
    eps: float,
    is_need_logits: bool,
    top_k_guess: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert k and p, and check everything, for an implementation in Python (a kernel in C++ checks by itself).

    Returns:
        k as int32 [batch] and p as [batch] in the dtype of logits.
    """
    check_types(logits, q, eps, is_need_logits, top_k_guess)
    converted = convert_k(k, logits), convert_p(p, logits)
    torch.ops.ascend_sample.check_top_k_top_p_sample(logits, *converted, q, eps, is_need_logits, top_k_guess)
    return converted


def check_types(logits: object, q: object, eps: object, is_need_logits: object, top_k_guess: object) -> None:
    """Raise TypeError unless the arguments that are not converted have the types that the operator's schema names."""
    if not isinstance(logits, Tensor):
        _refuse_as_tensor(logits, "logits")
    if not (q is None or isinstance(q, Tensor)):
        _refuse_as_tensor(q, "q")
    if not isinstance(eps, float) and (not isinstance(eps, numbers.Real) or isinstance(eps, bool)):
        raise TypeError(f"{OPERATOR_NAME}: eps must be a float, got {eps!r}. Use the default, 1e-8.")
    if not isinstance(is_need_logits, bool):
        raise TypeError(f"{OPERATOR_NAME}: is_need_logits must be True or False, got {is_need_logits!r}. Use bool().")
    if not isinstance(top_k_guess, int) or isinstance(top_k_guess, bool):
        raise TypeError(f"{OPERATOR_NAME}: top_k_guess must be an int, got {top_k_guess!r}. Use the default, 32.")


def _refuse_as_tensor(value: object, name: str) -> NoReturn:
    raise TypeError(
        f"{OPERATOR_NAME}: {name} must be a torch.Tensor, got {type(value).__name__}. "
        f"Convert it with torch.as_tensor({name})."
    )


def convert_k(k: int | torch.Tensor | None, logits: torch.Tensor) -> torch.Tensor:
    """Return k as int32 [batch]: a value that does not fit saturates, because it would skip top-k either way."""
    if isinstance(k, Tensor):
        if k.dtype == INT32 and k.dim() == 1:
            return k
        if k.is_floating_point() or k.is_complex() or k.dtype == torch.bool:
            raise TypeError(
                f"{OPERATOR_NAME}: k must be an integer tensor, an int or None, got a tensor of {k.dtype}. "
                "Convert it with k.to(torch.int32)."
            )
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
            raise TypeError(
                f"{OPERATOR_NAME}: k must be an integer tensor, an int or None, got {k!r}. None skips top-k."
            ) from None
        number = max(-1, min(number, SKIP_TOP_K))
    return torch.full(logits.shape[:1], number, dtype=torch.int32, device=logits.device)


def convert_p(p: float | torch.Tensor | None, logits: torch.Tensor) -> torch.Tensor:
    """Return p as [batch] in the dtype of logits.

    A p inside (0, 1) stays inside: rounding to 0 or 1 would switch top-p off.
    """
    dtype = logits.dtype
    if isinstance(p, Tensor):
        if p.dtype == dtype and p.dim() == 1:
            return p
        if not p.is_floating_point():
            raise TypeError(
                f"{OPERATOR_NAME}: p must be a floating-point tensor, a float or None, got a tensor of {p.dtype}. "
                "Convert it with p.float()."
            )
        if p.dtype != dtype and dtype.is_floating_point:
            smallest, largest = _open_unit_interval(dtype)
            converted = p.to(dtype)
            p = torch.where((p > 0) & (p < 1), converted.clamp(smallest, largest), converted)
        return p.expand(logits.shape[0]) if p.dim() == 0 and logits.dim() == 2 else p
    if p is None:
        number = SKIP_TOP_P
    elif isinstance(p, numbers.Real) and not isinstance(p, bool):
        number = float(p)
        if 0 < number < 1 and dtype.is_floating_point:
            smallest, largest = _open_unit_interval(dtype)
            number = max(smallest, min(number, largest))
    else:
        raise TypeError(
            f"{OPERATOR_NAME}: p must be a floating-point tensor, a float or None, got {p!r}. None skips top-p."
        )
    return torch.full(logits.shape[:1], number, dtype=dtype, device=logits.device)


def _open_unit_interval(dtype: torch.dtype) -> tuple[float, float]:
    """The smallest and largest values of ``dtype`` that lie between 0 and 1, both excluded."""
    info = torch.finfo(dtype)
    smallest = max(
        info.smallest_normal * info.eps, torch.finfo(torch.float32).tiny
    )  # a float16 subnormal, else a normal
    return smallest, 1.0 - info.eps / 2
