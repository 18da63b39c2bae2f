"""How a field of a request is declared: once, where `SamplingParams` has it. What is done per field follows from it.

A declaration says which values are refused, what the field acts on, and how the rows of a batch keep it. From these
come the checks of a request, the host's mirrors and the device's tensors (`rows/table.py`), the parameters that rows
are sampled with (`rows/parameters.py`), and what strategies and engines may ask for.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import numpy

from ascend_sample.sampling.requests.checks import LARGEST_FRACTION, check_names

Check = Callable[..., Any]
Request = TypeVar("Request")
KEY: Final = "declaration"
"""Where the metadata of a dataclass field has the declaration."""


class Stage(enum.Enum):
    """What a field acts on, in the order of a step."""

    LOGITS = "logits"  # what the logits become before the temperature: it may depend on the tokens before
    RANGE = "range"  # which values of these, divided by the temperature, stay
    DISTRIBUTION = "distribution"  # what is drawn from, given these logits
    STATE = "state"  # what stays or is drawn, by what was drawn before
    DRAW = "draw"  # which token is drawn
    REPORT = "report"  # what is told about it


class Column(NamedTuple):
    """How the rows of a batch keep a field: as one number each."""

    dtype: str  # the name that numpy and torch give it
    off: Any = None  # the number of a row for which the field does nothing; None: the field's default
    is_on_device: bool = True  # whether the device has it, beside the host
    # turns a value other than None into the number, given the number of columns of the logits; None: it is the
    # number
    convert: Callable[[Any, int], Any] | None = None

    def numbers(self, values: list[Any], vocab_size: int) -> list[Any]:
        """Returns the numbers that stand for values of the field, of which None are off."""
        off, convert = self.off, self.convert
        if convert is not None:
            known = {value: off if value is None else convert(value, vocab_size) for value in set(values)}
            return [known[value] for value in values]  # of many rows most have the same
        return [off if value is None else value for value in values] if None in values else values


class Declaration(NamedTuple):
    """All that is known of a field beside its name, its type and its default."""

    # takes a value, the field's name and the size of the vocabulary or None; returns the value's normal form, or
    # raises
    check: Check
    stage: Stage | None  # what it acts on; None: on nothing, as it serves checks alone
    column: Column | None  # how the rows of a batch keep it; None: in another form than a number each


def declared(default: Any, check: Check, stage: Stage | None, column: Column | None = None) -> Any:
    """Declares a field in the body of a dataclass; a default of None is taken, whatever the check says of it."""
    if column is not None and column.off is None:
        column = column._replace(off=default)
    of_default = {"default_factory": default} if callable(default) else {"default": default}
    return dataclasses.field(**of_default, metadata={KEY: Declaration(check, stage, column)})


def suggesting(cls: type[Request]) -> type[Request]:
    """Has the constructor of a dataclass say of an unknown name which one is the nearest."""
    init = cls.__init__
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]

    @functools.wraps(init)
    def checked(self: Request, *values: Any, **named: Any) -> None:
        check_names(named, names, TypeError)
        init(self, *values, **named)

    cls.__init__ = checked  # type: ignore[assignment]
    return cls


def to_fraction(number: float, vocab_size: int = 0) -> numpy.float32:
    """Returns a number of [0, 1] in float32: what is below 1 stays so, where rounding would switch a filter off."""
    return numpy.float32(min(number, LARGEST_FRACTION) if number < 1.0 else 1.0)
