"""Makes the message of every refused argument, and checks integers, numbers and truth values.

A message has one form: who refuses, the argument, its rule, what was given, and what to do.
"""

from __future__ import annotations

import math
import numbers
import reprlib
from typing import Any, Final, NoReturn, SupportsFloat, TypeGuard

import torch
from torch import Tensor

SHOWN_BITS: Final = 128
"""Python refuses to print integers of thousands of digits; nobody would read them."""
SHOWN_CHARACTERS: Final = 60
LARGEST_INTEGER: Final = 2**63 - 1
"""No size and no id is larger, because tensors of these are int64."""


class _OneLine(reprlib.Repr):
    """Shows a wrong value: its beginning, should it be long."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = SHOWN_CHARACTERS

    def repr_int(self, x: int, level: int) -> str:
        """Shows a number, or how large it is."""
        return repr(x) if x.bit_length() <= SHOWN_BITS else f"an int of {x.bit_length()} bits"


def show(value: object) -> str:
    """Returns what a message says of a value, in one line.

    Example:
        >>> show("5"), show(10**5000)
        ("'5'", 'an int of 16610 bits')
    """
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype} {list(value.shape)}"
    return " ".join(_OneLine().repr(value).split())


def show_with_type(value: object) -> str:
    """Returns what a message says of a value of a wrong type, in one line.

    Example:
        >>> show_with_type("5"), show_with_type(torch.ones(2))
        ("str '5'", 'a tensor of torch.float32 [2]')
    """
    return show(value) if isinstance(value, Tensor) else f"{type(value).__name__} {show(value)}"


def refuse(
    owner: str, name: str, rule: str, value: object, remedy: str, error: type[Exception] = ValueError
) -> NoReturn:
    """Raises an error in the project's form.

    Args:
        owner: the function, class or program that refuses.
        name: the argument.
        rule: what it must, beginning with a verb.
        value: what was given: a text as it is, anything else as `show` shows it.
        remedy: what to do, a sentence.
        error: what is raised.

    Example:
        >>> refuse("sample", "gamma", "be at least 1", 0, "Use 7.")
        Traceback (most recent call last):
        ...
        ValueError: sample: gamma must be at least 1, got 0. Use 7.
    """
    if isinstance(value, torch.device | torch.dtype):
        value = str(value)
    raise error(f"{owner}: {name} must {rule}, got {value if isinstance(value, str) else show(value)}. {remedy}")


def refuse_type(owner: str, name: str, rule: str, value: object, remedy: str) -> NoReturn:
    """Raises TypeError in the project's form, with the type of the value."""
    refuse(owner, name, rule, show_with_type(value), remedy, TypeError)


def refuse_result(owner: str, name: str, rule: str, value: object, remedy: str) -> NoReturn:
    """Raises for what something returned: ValueError for a tensor that does not fit, TypeError for no tensor."""
    refuse(owner, name, rule, show_with_type(value), remedy, ValueError if isinstance(value, Tensor) else TypeError)


def check_instance(owner: str, name: str, value: object, kind: type, remedy: str) -> None:
    """Raises unless value is an object of a class."""
    if not isinstance(value, kind):
        refuse_type(owner, name, f"be a {kind.__name__}", value, remedy)


def is_integer(value: object) -> TypeGuard[numbers.Integral]:
    """Tells whether value is an integer (numpy's are), and no truth value."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_real(value: object) -> TypeGuard[SupportsFloat]:
    """Tells whether value is a real number (numpy's are), and no truth value."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def to_float(value: Any) -> float:
    """Returns a number as a float: infinite where it is beyond a float's range."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def check_integer(owner: str, name: str, value: object, *, low: int, high: int | None = None) -> int:
    """Returns value as an int if it is an integer from low to high (`LARGEST_INTEGER` unless given); raises if not."""
    if not is_integer(value):
        refuse_type(owner, name, "be an int", value, "Convert it with int().")
    number = int(value)
    most = LARGEST_INTEGER if high is None else high
    if not low <= number <= most:
        rule = f"be at least {low}" if high is None and number < low else f"be in [{low}, {most}]"
        refuse(owner, name, rule, number, "Use a value of that range.")
    return number


def check_number(
    owner: str, name: str, value: object, *, low: float, high: float = math.inf, above: bool = False
) -> None:
    """Raises unless value is a finite number from low (above low, if so) to high."""
    if not is_real(value):
        refuse_type(owner, name, "be a float", value, "Convert it with float().")
    number = to_float(value)
    is_high_enough = number > low if above else number >= low
    if not (is_high_enough and number <= high and math.isfinite(number)):
        rule = f"be a finite number {'above' if above else 'of at least'} {low:g}"
        rule += "" if high == math.inf else f" and at most {high:g}"
        refuse(owner, name, rule, value, "Use a value of that range.")


def check_tensor(owner: str, name: str, value: object) -> None:
    """Raises unless value is a tensor."""
    if not isinstance(value, Tensor):
        remedy = f"Convert it with torch.as_tensor({name})."
        refuse(owner, name, "be a torch.Tensor", type(value).__name__, remedy, TypeError)


def check_bool(owner: str, name: str, value: object) -> None:
    """Raises unless value is True or False."""
    if not isinstance(value, bool):
        refuse_type(owner, name, "be True or False", value, "Use bool().")
