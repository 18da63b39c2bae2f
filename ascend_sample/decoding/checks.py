"""The rules of the decoding layer's arguments, and the messages of what breaks them."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeGuard

from torch import Tensor

LARGEST_POWER: Final = 1e20
"""Of a length: sums of log-probabilities, in float32 and above beam_run.NOTHING, may be divided or multiplied by it."""


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether value is a sequence of values, and no text."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def is_integer(value: object) -> TypeGuard[numbers.Integral]:
    """Whether value is an integer, and no truth value."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_integer(strategy: str, name: str, value: object, *, low: int, high: int | None = None) -> None:
    """Raise unless value is an integer from low to high."""
    if not is_integer(value):
        refuse_type(strategy, name, "be an int", value, "Convert it with int().")
    number = int(value)
    if number < low or (high is not None and number > high):
        rule = f"be at least {low}" if high is None else f"be in [{low}, {high}]"
        refuse(strategy, name, rule, value, "Use a value of that range.")


def check_number(
    strategy: str, name: str, value: object, *, low: float, high: float = float("inf"), above: bool = False
) -> None:
    """Raise unless value is a finite number from low (above low, if so) to high."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        refuse_type(strategy, name, "be a float", value, "Convert it with float().")
    number = float(value)
    is_high_enough = number > low if above else number >= low
    if not (is_high_enough and number <= high and abs(number) != float("inf")):
        rule = f"be a finite number {'above' if above else 'of at least'} {low:g}"
        rule += "" if high == float("inf") else f" and at most {high:g}"
        refuse(strategy, name, rule, value, "Use a value of that range.")


def check_length_penalty(strategy: str, length_penalty: float, longest: float, low: float = -math.inf) -> None:
    """Raise unless longest ** length_penalty, by which sums may be divided, leaves scores the range of a float32."""
    check_number(strategy, "length_penalty", length_penalty, low=low)
    most = math.log(LARGEST_POWER) / math.log(longest) if longest > 1 else math.inf
    if abs(length_penalty) > most:
        rule = f"be in [{max(-most, low):.3g}, {most:.3g}] with that many new tokens"
        remedy = f"No sum may be divided by more than {LARGEST_POWER:g}, or multiplied."
        refuse(strategy, "length_penalty", rule, length_penalty, remedy)


def check_bool(strategy: str, name: str, value: object) -> None:
    """Raise unless value is True or False."""
    if not isinstance(value, bool):
        refuse_type(strategy, name, "be True or False", value, "Use bool().")


def refuse(strategy: str, name: str, rule: str, value: object, remedy: str) -> NoReturn:
    """Raise ValueError in the project's form."""
    raise ValueError(f"{strategy}: {name} must {rule}, got {value}. {remedy}")


def refuse_type(strategy: str, name: str, rule: str, value: object, remedy: str) -> NoReturn:
    """Raise TypeError in the project's form."""
    raise TypeError(f"{strategy}: {name} must {rule}, got {kind_of(value)}. {remedy}")


def refuse_result(strategy: str, name: str, rule: str, value: object, remedy: str) -> NoReturn:
    """Raise for what something returned: ValueError for a tensor of a wrong shape or dtype, TypeError for no tensor."""
    if isinstance(value, Tensor):
        refuse(strategy, name, rule, kind_of(value), remedy)
    refuse_type(strategy, name, rule, value, remedy)


def name_of(called: object) -> str:
    """The name of a function, or that of an object's class."""
    return getattr(called, "__name__", type(called).__name__)


def kind_of(value: object) -> str:
    """What a message says of a value, in one line."""
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype} {list(value.shape)}"
    return " ".join(f"{type(value).__name__} {value!r}".split())[:80]


def has_methods(value: object, names: Sequence[str]) -> bool:
    """Whether value is an object, no class, with methods of these names."""
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in names)


def check_arguments(strategy: str, name: str, called: Callable[..., Any], given: Any, named: Mapping[str, Any]) -> None:
    """Raise unless a call has parameters for what is given by place and by name."""
    try:
        signature = inspect.signature(called)
    except ValueError:  # what is not written in Python need not say what it takes
        return
    try:
        signature.bind(*given, **named)
    except TypeError as error:
        rule = f"be what {name_of(getattr(called, '__self__', called))} takes, {signature}"
        refuse(strategy, name, rule, f"{sorted(named)}: {error}", "Use these names.")
