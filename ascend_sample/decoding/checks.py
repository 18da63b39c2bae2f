"""These functions check arguments that decoding strategies and models have in common."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeGuard

from ascend_sample._errors import check_number, refuse

LARGEST_POWER: Final = 1e20
"""The largest power of a length: sums of log-probabilities, which are float32 and above the beams' NOTHING, may be
divided or multiplied by it."""


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Tells whether value is a sequence of values, and no text."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def check_length_penalty(strategy: str, length_penalty: float, longest: float, low: float = -math.inf) -> None:
    """Raises unless longest ** length_penalty, by which sums may be divided, leaves scores the range of a float32."""
    check_number(strategy, "length_penalty", length_penalty, low=low)
    most = math.log(LARGEST_POWER) / math.log(longest) if longest > 1 else math.inf
    if abs(length_penalty) > most:
        shown = math.floor(most * 10) / 10  # nothing that is refused lies within it
        rule = f"be in [{max(-shown, low):g}, {shown:g}] with that many new tokens"
        remedy = f"No sum may be divided by more than {LARGEST_POWER:g}, or multiplied."
        refuse(strategy, "length_penalty", rule, length_penalty, remedy)


def name_of(called: object) -> str:
    """Returns the name of a function, or that of an object's class."""
    return getattr(called, "__name__", type(called).__name__)


def has_methods(value: object, names: Sequence[str]) -> bool:
    """Tells whether value is an object, no class, with methods of these names."""
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in names)


def check_arguments(strategy: str, called: Callable[..., Any], given: Any, encoder: Mapping[str, Any]) -> None:
    """Raises unless a call has parameters for what is given by place, and by name for the encoder."""
    try:
        signature = inspect.signature(called)
    except ValueError:  # what is not written in Python need not say what it takes
        return
    try:
        signature.bind(*given, **encoder)
    except TypeError as error:
        rule = f"be what {name_of(getattr(called, '__self__', called))} takes, {signature}"
        refuse(strategy, "encoder", rule, f"{sorted(encoder)}: {error}", "Use these names.")
