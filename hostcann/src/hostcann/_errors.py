"""The one form of an error: who refuses, the argument, its rule, what was given, and what to do."""

from __future__ import annotations

import math
import numbers
import reprlib
from typing import NoReturn

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 60


def show(value: object) -> str:
    """Returns what a message says of a value, in one line; of a very long number, how long it is."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an int of {value.bit_length()} bits"
    return " ".join(_SHOWN.repr(value).split())


def refuse(
    owner: str, name: str, rule: str, value: object, remedy: str, error: type[Exception] = ValueError
) -> NoReturn:
    """Raises "{owner}: {name} must {rule}, got {value}. {remedy}"; a text is shown as it is."""
    raise error(f"{owner}: {name} must {rule}, got {value if isinstance(value, str) else show(value)}. {remedy}")


def refuse_type(owner: str, name: str, rule: str, value: object, remedy: str) -> NoReturn:
    """Raises TypeError, with the type of the value."""
    refuse(owner, name, rule, f"{type(value).__name__} {show(value)}", remedy, TypeError)


def check_instance(owner: str, name: str, value: object, kind: type, remedy: str) -> None:
    """Raises unless value is an object of a class."""
    if not isinstance(value, kind):
        refuse_type(owner, name, f"be a {kind.__name__}", value, remedy)


def check_integer(owner: str, name: str, value: object, *, low: int, high: int) -> int:
    """Returns value as an int if it is an integer (numpy's are) from low to high, and no bool; raises if not."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        refuse_type(owner, name, "be an int", value, "Convert it with int().")
    number = int(value)
    if not low <= number <= high:
        refuse(owner, name, f"be in [{low}, {high}]", number, "Use a value of that range.")
    return number


def check_number(owner: str, name: str, value: object, *, low: float, above: bool = False) -> None:
    """Raises unless value is a finite real number from low (above low, if so)."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        refuse_type(owner, name, "be a float", value, "Convert it with float().")
    if not math.isfinite(value) or value < low or (above and value == low):
        rule = f"be a finite number {'above' if above else 'of at least'} {low:g}"
        refuse(owner, name, rule, value, "Use a value of that range.")
