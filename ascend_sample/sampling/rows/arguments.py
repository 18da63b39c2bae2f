"""Checks of what the methods of a batch are called with. Whatever is refused leaves the batch as it was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from typing import Any, Final

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascend_sample._errors import LARGEST_INTEGER, how_to_convert, how_to_fit, is_integer, refuse, show
from ascend_sample.sampling.requests.params import SamplingParams
from ascend_sample.sampling.rows.parameters import check_uncaptured

OWNER: Final = "SamplingBatch"
TokenIds = Sequence[int] | NDArray[Any]


def ints_of(values: Any) -> NDArray[Any] | None:
    """Returns a list of ints as an array [ints]; None where it is no such list."""
    try:
        given = numpy.asarray(values if isinstance(values, (numpy.ndarray, Tensor, Sequence)) else [*values])
    except (TypeError, ValueError):  # no list, or one of lists of different lengths
        return None
    return given if given.ndim == 1 and (not len(given) or given.dtype.kind in "iu") else None


def host_ints(owner: str, name: str, values: Any, remedy: str) -> NDArray[numpy.int64]:
    """Returns a list of ints as int64 [ints], or raises, for ``owner``, unless it is one, on the host."""
    _check_is_on_host(owner, name, values)
    given = ints_of(values)
    if given is None or int(given.max(initial=0)) > LARGEST_INTEGER:
        refuse(owner, name, "be ints", show(values), remedy, TypeError)
    return given.astype(numpy.int64)


def _check_is_on_host(owner: str, name: str, values: object) -> None:
    if isinstance(values, Tensor) and not values.is_cpu:
        wait = "Give a list of ints; reading a tensor would wait for the device."
        refuse(owner, name, "be on the host", f"a tensor on {values.device}", wait)


def to_integer(value: object, name: str, low: int, high: int) -> int:
    """Returns the value as an int, or raises unless it is an integer in [low, high]."""
    if not is_integer(value):
        refuse(OWNER, name, "be an int", show(value), "Convert it with int().", TypeError)
    number = int(value)
    if not low <= number <= high:
        refuse(OWNER, name, f"be in [{low}, {high}]", number, "Use a value of that range.")
    return number


def to_row(row: object, count: int) -> int:
    """Returns the number of a row, or raises unless that row exists."""
    if not is_integer(row):
        refuse(OWNER, "row", "be an int", show(row), "Use what add() and remove() return.", TypeError)
    number = int(row)
    if not 0 <= number < count:
        refuse(OWNER, "row", f"be in [0, {count})", number, "Rows move when others are removed.", IndexError)
    return number


def to_rows(rows: Iterable[int] | NDArray[Any] | Tensor, count: int) -> NDArray[numpy.int64]:
    """Returns numbers of rows, each as often as it is named, or raises unless all of them exist."""
    given = host_ints(OWNER, "rows", rows, "Name the row of each token.")
    if len(given):
        to_row(int(given.min()), count)
        to_row(int(given.max()), count)
    return given


def to_permutation(permutation: Sequence[int] | NDArray[Any], count: int) -> NDArray[numpy.int64]:
    """Returns the permutation as int64, or raises unless it names each row once."""
    source = ints_of(permutation)
    if source is None or len(source) != count or (numpy.sort(source) != numpy.arange(count)).any():
        remedy = "Entry i says which row comes to place i."
        refuse(OWNER, "permutation", f"name each of {count} rows once", show(permutation), remedy)
    return source.astype(numpy.int64)


def to_token_ids(name: str, token_ids: TokenIds, vocab_size: int) -> NDArray[numpy.int64]:
    """Returns vocabulary ids as int64, or raises unless they are valid; one may occur several times."""
    _check_is_on_host(OWNER, name, token_ids)
    given = ints_of(token_ids)
    if given is None:
        wrong, is_array = show(token_ids), isinstance(token_ids, numpy.ndarray | Tensor)
        places = () if is_array else (place for place, one in enumerate(token_ids) if not is_integer(one))
        if (place := next(iter(places), None)) is not None:
            wrong = f"{show(token_ids[place])} at place {place}"
        refuse(OWNER, name, "be a list of ints", wrong, "Give vocabulary ids.", TypeError)
    if given.size and (given.min() < 0 or given.max() >= vocab_size):
        outside = given.min() if given.min() < 0 else given.max()
        remedy = "Penalties count them; leave placeholders out."
        refuse(OWNER, name, f"hold ids in [0, {vocab_size})", int(outside), remedy)
    return given.astype(numpy.int64)


def as_many(name: str, values: Sequence[Any] | None, count: int, default: Any) -> Sequence[Any]:
    """Returns one value for each request, or raises: those given, or the default for all."""
    if values is None:
        return [default] * count
    remedy = "Give one for each request."
    if (given := length_of(name, values, remedy)) != count:
        refuse(OWNER, name, f"be as many as params, {count}", given, remedy)
    return values


def length_of(name: str, values: object, remedy: str) -> int:
    """Returns how many there are, or raises unless they are a list."""
    if not isinstance(values, Sized):
        refuse(OWNER, name, "be a list", show(values), remedy, TypeError)
    return len(values)


def length_of_text(name: str, token_ids: Any) -> int:
    """Returns how many tokens there are, or raises unless they are one list; what they are is not looked at."""
    is_list = isinstance(token_ids, Sequence | numpy.ndarray | Tensor) and not isinstance(token_ids, str | bytes)
    if not is_list or getattr(token_ids, "ndim", 1) != 1:
        refuse(OWNER, name, "be a list of ints", show(token_ids), "Give vocabulary ids.", TypeError)
    return len(token_ids)


def check_params(params: object) -> None:
    """Raises unless params are `SamplingParams`."""
    if not isinstance(params, SamplingParams):
        remedy = "Use SamplingParams.from_mapping()."
        refuse(OWNER, "params", "be SamplingParams", type(params).__name__, remedy, TypeError)


def check_generator(generator: object) -> None:
    """Raises unless a generator is None or a torch.Generator on the host."""
    if generator is None:
        return
    if not isinstance(generator, torch.Generator):
        remedy = "None uses torch's default one."
        refuse(OWNER, "generator", "be a torch.Generator", show(generator), remedy, TypeError)
    if generator.device.type != "cpu":
        remedy = "Seeds are drawn on the host."
        refuse(OWNER, "generator", "be on the CPU", f"one on {generator.device}", remedy)


def check_token_ids(token_ids: object, count: int, device: torch.device) -> None:
    """Raises unless token ids are int64 [count] on the device."""
    if not isinstance(token_ids, Tensor) or token_ids.dtype != torch.int64:
        remedy = how_to_convert("token_ids", token_ids, torch.int64)
        refuse(OWNER, "token_ids", "be an int64 tensor", _kind(token_ids), remedy, TypeError)
    if token_ids.shape != (count,):
        shape, remedy = list(token_ids.shape), "Give one token for each row."
        refuse(OWNER, "token_ids", f"have the shape [{count}]", shape, remedy)
    _check_device("token_ids", token_ids, device)


def check_batch_logits(logits: object, count: int, vocab_size: int, device: torch.device) -> None:
    """Raises unless logits are floats [count, vocab_size] on the device."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        remedy = "Give the model's output."
        refuse(OWNER, "logits", "be a floating-point tensor", _kind(logits), remedy, TypeError)
    if logits.shape != (count, vocab_size):
        remedy = how_to_fit("logits", logits.shape, vocab_size, vocab_size, "Give one row for each row of the batch.")
        refuse(OWNER, "logits", f"have the shape [{count}, {vocab_size}]", list(logits.shape), remedy)
    _check_device("logits", logits, device)


def _kind(value: object) -> str:
    return f"a tensor of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


def _check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        refuse(OWNER, name, f"be on {device}", tensor.device, "Move it with .to().")
    check_uncaptured(OWNER, tensor, name)
