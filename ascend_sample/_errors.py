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

from ascend_sample._environment import CANN_REMEDY, TORCH_NPU

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


def how_to_convert(name: str, value: object, dtype: torch.dtype) -> str:
    """Returns the remedy for an argument that is no tensor of a dtype."""
    call = f"{name}.to({dtype})" if isinstance(value, Tensor) else f"torch.as_tensor({name}, dtype={dtype})"
    return f"Convert it with {call}."


def how_to_fit(name: str, shape: torch.Size, columns: int, vocab_size: int, otherwise: str) -> str:
    """Returns the remedy for a tensor that does not fit a batch: by its width, or, of the right one, otherwise.

    Args:
        name: the argument.
        shape: its own.
        columns: how many it must have: fewer than ids where ranks have parts of the vocabulary.
        vocab_size: of the batch.
        otherwise: what to do about another number of rows.

    Example:
        >>> how_to_fit("logits", torch.Size([2, 128]), 100, 100, "Give one row for each row of the batch.")
        'Cut the padding off, as with logits[:, :100], or make the batch with vocab_size=128.'
    """
    if len(shape) != 2 or shape[1] == columns:
        return otherwise
    if columns != vocab_size:
        return "Give the part of the vocabulary that the shard describes."
    if shape[1] < columns:
        return f"Make the batch with vocab_size={shape[1]}."
    return f"Cut the padding off, as with {name}[:, :{columns}], or make the batch with vocab_size={shape[1]}."


def check_device(owner: str, device: object) -> None:
    """Raises unless torch knows a device of that name in this process, or it is one already; None is torch's default.

    Example:
        >>> check_device("step", "gpu")
        Traceback (most recent call last):
        ...
        ValueError: step: device must be one of torch's, as 'cpu', 'cuda:0' or 'npu:0', got 'gpu'. Use logits.device.
    """
    try:
        if device is not None:
            torch.device(device)  # type: ignore[call-overload]
        return
    except (RuntimeError, TypeError):
        is_npu = isinstance(device, str) and device.partition(":")[0] == "npu"
    remedy = f"Import {TORCH_NPU} first. {CANN_REMEDY}." if is_npu else "Use logits.device."
    refuse(owner, "device", "be one of torch's, as 'cpu', 'cuda:0' or 'npu:0'", show(device), remedy)


def check_bool(owner: str, name: str, value: object) -> None:
    """Raises unless value is True or False."""
    if not isinstance(value, bool):
        refuse_type(owner, name, "be True or False", value, "Use bool().")
