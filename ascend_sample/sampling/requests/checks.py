"""Checks of single values of a request: types, ranges, and what becomes of a value in float32.

A divisor, a factor or a bound is refused when float32, in which devices keep it, would turn it into something else: 0,
infinity or a subnormal number, which devices treat as 0.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeGuard

import numpy
from torch import Tensor

from ascend_sample._contract import MAX_VOCAB_SIZE
from ascend_sample._errors import is_integer, is_real, refuse, show, to_float

OWNER: Final = "SamplingParams"
SMALLEST_POSITIVE: Final = 2.0**-126
"""The smallest normal float32: what lies between 0 and it may be 0 on a device."""
LARGEST: Final = float(numpy.finfo(numpy.float32).max)
LARGEST_FRACTION: Final = 1.0 - 2.0**-24
"""The largest float32 below 1."""
LARGEST_COUNT: Final = 2**31 - 1
FORMER: Final = {
    "allowed_ids": "allowed_token_ids",
    "bad_ids": "suppress_token_ids",
    "stop_ids": "stop_token_ids",
    "logprob_ids": "logprob_token_ids",
    "kept": "return_sampling_mask",
    "thinking_budget": "thinking_token_budget",
    "thinking_closing": "thinking_end_message_ids",
    "thinking_start": "thinking_start_ids",
    "thinking_end": "thinking_end_ids",
    "dry_range": "dry_penalty_last_n",
}
"""The names that fields have now, by those that they had."""


_READER: Final[ContextVar[tuple[str, Mapping[str, str]]]] = ContextVar("_READER", default=(OWNER, {}))
"""The function that makes the request, and other names of fields: those that its caller wrote."""


@contextmanager
def read_by(owner: str, names: Mapping[str, str]) -> Iterator[None]:
    """Has errors name the function that reads a request of another engine, and the fields of that request.

    Args:
        owner: the function.
        names: the other engine's names, by ours.
    """
    token = _READER.set((owner, names))
    try:
        yield
    finally:
        _READER.reset(token)


def refuse_field(field: str, rule: str, value: object, remedy: str, error: type[Exception] = ValueError) -> NoReturn:
    """Raises an error that names a field, its rule, the value, and what to do."""
    owner, names = _READER.get()
    field, rule, remedy = (
        re.sub(r"\w+", lambda word: names.get(word[0], word[0]), text) for text in (field, rule, remedy)
    )
    refuse(owner, field, rule, show(value), remedy, error)


def nearest(name: object, known: Iterable[str], otherwise: str) -> str:
    """Returns what to do about an unknown name: it asks for the nearest one that is known, if any is near.

    Example:
        >>> nearest("temprature", ["top_k", "temperature"], "Leave it out.")
        "Did you mean 'temperature'?"
    """
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    return f"Did you mean {near[0]!r}?" if near else otherwise


def check_names(names: Iterable[object], known: Collection[str], error: type[Exception]) -> None:
    """Raises where a name is none of a request's fields: an error of that type, TypeError of what is no name."""
    for name in names:
        if not isinstance(name, str):
            refuse(OWNER, "the name of a field", "be a str", show(name), "Give names as strings.", TypeError)
        if name not in known:
            near = nearest(name, known, f"The fields are {', '.join(known)}.")
            remedy = f"Its name is {FORMER[name]!r} now." if name in FORMER else near
            raise error(f"{OWNER}: {name!r} must be a known field. {remedy}")


def real(low: float, high: float, remedy: str, or_zero: bool = False) -> Callable[..., float]:
    """Makes a check of real numbers in [low, high], or 0 where that is taken; a zero comes back without a sign."""
    rule = f"{'be 0 or lie' if or_zero else 'lie'} in [{show_bound(low)}, {show_bound(high)}]"

    def to_real(value: object, field: str, vocab_size: int | None = None) -> float:
        if not is_real(value):
            refuse_field(field, f"be a float, {rule}", value, "Convert it with float().", TypeError)
        number = to_float(value)
        if not math.isfinite(number):
            refuse_field(field, f"be finite, {rule}", value, remedy)
        if not (low <= number <= high or (or_zero and number == 0.0)):
            refuse_field(field, rule, value, remedy)
        return number + 0.0

    return to_real


def integer(low: int, high: int | None, remedy: str) -> Callable[..., int]:
    """Makes a check of integers (numpy's are) in [low, high]; a high of None is the vocabulary's size, as in {high}."""

    def to_integer(value: object, field: str, vocab_size: int | None) -> int:
        highest = high or vocab_size or MAX_VOCAB_SIZE
        rule = f"be an int in [{low}, {show_bound(highest)}]"
        if not is_integer(value):
            refuse_field(field, rule, value, "Convert it with int().", TypeError)
        number = int(value)
        if not low <= number <= highest:
            refuse_field(field, rule, number, remedy.format(high=highest))
        return number

    return to_integer


def to_boolean(value: object, field: str, vocab_size: int | None) -> bool:
    """Returns True or False, and takes nothing else."""
    if not isinstance(value, bool):
        refuse_field(field, "be True or False", value, "Convert it with bool().", TypeError)
    return value


def is_list(value: object) -> TypeGuard[Collection[Any]]:
    """Tells whether value is a list, a tuple, a set, an array or the like, and neither a text nor a mapping."""
    is_other = isinstance(value, str | bytes | bytearray | Mapping) or getattr(value, "ndim", 1) == 0
    return isinstance(value, Collection) and not is_other


def as_lists(value: object, field: str) -> object:
    """Returns an array, or a tensor on the host, as lists of numbers; a number, or anything else, as it is."""
    if isinstance(value, Tensor) and not value.is_cpu:
        remedy = f"Give {field}.tolist(), which waits for the device."
        refuse_field(field, "be on the host", value, remedy)
    return value.tolist() if isinstance(value, numpy.ndarray | Tensor) and value.ndim else value


def to_ids(values: object, field: str, vocab_size: int | None) -> tuple[int, ...]:
    """Returns vocabulary ids, each once, sorted.

    Raises:
        TypeError: no collection of integers.
        ValueError: an id is out of range.
    """
    values = as_lists(values, field)
    if not is_list(values):
        refuse_field(field, "be a collection of vocabulary ids", values, "Give a list of ints.", TypeError)
    if set(map(type, values)) <= {int}:  # a vocabulary's worth of ids passes without a loop in Python
        ids = sorted(set(values))
        for outermost in ids[:1] + ids[-1:]:
            to_id(outermost, field, vocab_size)
    else:
        ids = sorted({to_id(value, field, vocab_size) for value in values})
    return tuple(ids)


def to_id(value: object, field: str, vocab_size: int | None) -> int:
    """Returns one vocabulary id as a Python int; without a vocabulary's size it may be any that the operators take."""
    if not is_integer(value):
        refuse_field(field, "hold ints", value, "Give vocabulary ids.", TypeError)
    number = int(value)
    size = MAX_VOCAB_SIZE if vocab_size is None else vocab_size
    if not 0 <= number < size:
        remedy = "Use the ids of the model's own vocabulary."
        refuse_field(field, f"hold ids in [0, {size})", number, remedy)
    return number


def to_sequence(
    value: object, field: str, vocab_size: int | None, rule: str = "be a sequence of ids"
) -> tuple[int, ...]:
    """Returns vocabulary ids in their order; an id alone is a sequence of one.

    Raises:
        TypeError: no sequence of integers.
        ValueError: an id is out of range.
    """
    value = as_lists(value, field)
    sequence = [value] if is_integer(value) else value
    if not isinstance(sequence, Sequence) or isinstance(sequence, str | bytes | bytearray):
        refuse_field(field, rule, value, "Texts must be tokenized: give lists of ints.", TypeError)
    return tuple(to_id(token_id, field, vocab_size) for token_id in sequence)


def to_sequences(values: object, field: str, vocab_size: int | None) -> tuple[tuple[int, ...], ...]:
    """Returns what `to_ids_and_sequences` does, or raises for several ids alone: are they one sequence, or many?"""
    values = as_lists(values, field)
    if isinstance(values, Sequence) and len(values) > 1 and all(map(is_integer, values)):
        remedy = f"Give {show([values])} for one sequence, {show([[value] for value in values])} for several of one id."
        refuse_field(field, "be a list of lists, or of one id", values, remedy)
    return to_ids_and_sequences(values, field, vocab_size)


def to_ids_and_sequences(values: object, field: str, vocab_size: int | None) -> tuple[tuple[int, ...], ...]:
    """Returns sequences of vocabulary ids, each once, sorted; an id alone is a sequence of one.

    Raises:
        TypeError: no collection of sequences of integers.
        ValueError: a sequence is empty, or an id is out of range.
    """
    values = as_lists(values, field)
    if not is_list(values):
        refuse_field(field, "be a collection of sequences of ids", values, "Give a list of lists.", TypeError)
    sequences = set()
    for value in values:
        sequence = to_sequence(value, field, vocab_size, "hold sequences of ids")
        if not sequence:
            refuse_field(field, "hold sequences of at least one id", value, "Leave it out.")
        sequences.add(sequence)
    return tuple(sorted(sequences))


def to_bias(values: object, field: str, vocab_size: int | None) -> Mapping[int, float]:
    """Returns a bias for each of some ids, sorted by id, in a copy that nobody can change.

    Raises:
        TypeError: no mapping of ints to floats.
        ValueError: an id is out of range, a bias is not finite or too large for float32.
    """
    if not isinstance(values, Mapping):
        refuse_field(field, "be a mapping of vocabulary ids to floats", values, "Give a dict.", TypeError)
    are_plain = set(map(type, values)) <= {int} and set(map(type, values.values())) <= {int, float}
    if are_plain and values and all(map(LARGEST.__ge__, map(abs, values.values()))):
        # A vocabulary's worth of biases passes without a loop in Python.
        for outermost in (min(values), max(values)):
            to_id(outermost, field, vocab_size)
        ids = numpy.fromiter(values, numpy.int64, len(values))
        numbers = numpy.fromiter(values.values(), numpy.float64, len(values)) + 0.0
        order = ids.argsort()
        return MappingProxyType(dict(zip(ids[order].tolist(), numbers[order].tolist(), strict=True)))
    finite = real(-LARGEST, LARGEST, "Use suppress_token_ids or allowed_token_ids to decide about an id.")
    biases = {}
    for key, value in values.items():
        token_id = to_id(key, field, vocab_size)
        biases[token_id] = finite(value, f"{field}[{token_id}]")
    return MappingProxyType(dict(sorted(biases.items())))


def by_id(pairs: Collection[tuple[Any, Any]], field: str) -> dict[int, Any]:
    """Returns the values of pairs by their ids: integers, or the texts of some, as JSON has them for keys.

    Raises:
        ValueError: an id is neither, or occurs twice.
    """
    values = {_id_of_key(key, field): value for key, value in pairs}
    if len(values) < len(pairs):
        refuse_field(field, "name each id once", list(pairs), "An id and its text are the same.")
    return values


def _id_of_key(key: object, field: str) -> int:
    if isinstance(key, str) and re.fullmatch(r"[0-9]{1,20}", key):
        return int(key)
    if not is_integer(key):
        refuse_field(field, "have integers as its ids", key, "Texts must be tokenized before.")
    return int(key)


def show_bound(number: float) -> str:
    """Returns a bound of a range as a person writes it: 2**-126, 2**64 - 1, 3.4e+38."""
    if number == SMALLEST_POSITIVE:
        return "2**-126"
    if isinstance(number, int) and number >= LARGEST_COUNT:
        return f"2**{(number + 1).bit_length() - 1} - 1"
    return f"{number:.6g}" if isinstance(number, float) else str(number)
