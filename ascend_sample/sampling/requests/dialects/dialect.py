"""What a dialect is made of, and how a request in it is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

import numpy
from torch import Tensor

from ascend_sample._errors import check_bool, check_integer, refuse, show
from ascend_sample.sampling.requests.checks import LARGEST_COUNT, nearest, read_by
from ascend_sample.sampling.requests.dialects.forms import IDS, NUMBER, Form

Request = TypeVar("Request")
PLAIN: Final = (bool, int, float, str, list, tuple, dict)
"""Types whose values can be compared with those that ask for nothing."""


@dataclass(frozen=True)
class Field:
    """What becomes of one field of another engine's request.

    Attributes:
        becomes: the fields of `SamplingParams` that it decides; none where it is the engine's, or refused.
        note: what the documentation says of it: how it is taken, whose it is, or why it is refused.
        off: the values of a refused field that mean nothing is asked for; None where the field is not refused.
        form: of the values of a field that is taken; None where `SamplingParams` checks what they are.
    """

    becomes: tuple[str, ...] = ()
    note: str = ""
    off: tuple[Any, ...] | None = None
    form: Form | None = None


def taken(*becomes: str, note: str = "", form: Form | None = None) -> Field:
    """Declares a field that decides some of ours."""
    return Field(becomes, note, form=form)


def number(*becomes: str, note: str = "") -> Field:
    """Declares a field of numbers that decides some of ours."""
    return taken(*becomes, note=note, form=NUMBER)


def engines(note: str) -> Field:
    """Declares a field that is the engine's matter, and changes no token that is drawn from given logits."""
    return Field((), note)


def same(*names: str) -> dict[str, Field]:
    """Describes fields of numbers that are ours of the same names."""
    return {name: number(name) for name in names}


def refused(note: str, *off: Any) -> Field:
    """Declares a field that nobody here serves; with one of the values `off`, or None, it asks for nothing."""
    return Field((), note, off)


@dataclass(frozen=True)
class Context:
    """What a request does not say itself.

    Attributes:
        owner: the function that reads, as errors name it.
        eos_ids: the ids that end a text of the model; None where the caller does not know.
        vocab_size: of the model; None where the caller does not know.
        max_model_len: of how many tokens a text has at most.
        thinking: our fields of the tags around the model's thoughts, beside a budget for these.
    """

    owner: str
    eos_ids: tuple[int, ...] | None
    vocab_size: int | None
    max_model_len: int
    thinking: Mapping[str, Any]

    def refuse(
        self, field: str, rule: str, value: object, remedy: str, error: type[Exception] = ValueError
    ) -> NoReturn:
        """Raises the error of a field that cannot be taken."""
        refuse(self.owner, field, rule, show(value), remedy, error)


@dataclass(frozen=True)
class Difference:
    """Where the engine draws from another distribution than ours, with the same values.

    Attributes:
        applies: tells whether these fields of ours are set so that it matters.
        note: what the engine does instead.
    """

    applies: Callable[[Mapping[str, Any]], bool]
    note: str


@dataclass(frozen=True)
class Dialect:
    """The request of one engine.

    Attributes:
        name: as in `SamplingParams.from_<name>`.
        source: the class or interface, with its version.
        fields: what becomes of each.
        convert: makes our fields of those that are taken and were given.
        differences: where the engine's law is another one.
    """

    name: str
    source: str
    fields: Mapping[str, Field]
    convert: Callable[[dict[str, Any], Context], dict[str, Any]]
    differences: tuple[Difference, ...] = ()

    def read(
        self,
        make: Callable[..., Request],
        request: object,
        eos_ids: Collection[int] | None = None,
        vocab_size: int | None = None,
        max_model_len: int = LARGEST_COUNT,
        exactly: bool = False,
        thinking_start: Sequence[int] = (),
        thinking_end: Sequence[int] = (),
        thinking_closing: Sequence[int] = (),
    ) -> Request:
        """Returns the request of ours that one of the engine asks for.

        Args:
            make: makes it of the fields of `SamplingParams`.
            request: a mapping, or the engine's own object. A value of None is one that was not given.
            eos_ids: the ids that end a text of the model, where the engine knows them beside the request; [] if none
                does.
            vocab_size: of the model.
            max_model_len: of how many tokens a text has at most, prompt and output.
            exactly: refuses what the engine would draw from another distribution.
            thinking_start: the tag that opens a thought, where the engine knows it beside the request.
            thinking_end: the one that closes it.
            thinking_closing: what closes a thought that is too long.

        Raises:
            TypeError: request has no fields, or a value has the wrong type.
            ValueError: a field is unknown, or asks for what nobody here serves.
        """
        owner = f"SamplingParams.from_{self.name}"
        ends: Any = _without_arrays(eos_ids)
        if ends is not None:
            IDS.check(owner, "eos_ids", ends)
            ends = tuple(ends)
        check_integer(owner, "max_model_len", max_model_len, low=1)
        check_bool(owner, "exactly", exactly)
        thinking = {
            "thinking_start": thinking_start,
            "thinking_end": thinking_end,
            "thinking_closing": thinking_closing,
        }
        context = Context(owner, ends, vocab_size, max_model_len, thinking)
        values = _values_of(request, context).items()
        given = {name: _without_arrays(value) for name, value in values if value is not None}
        for name, value in given.items():
            if name not in self.fields:
                remedy = nearest(name, self.fields, "Leave it out, or read it in its own dialect.")
                context.refuse("the name of a field", f"be one of {self.source}", name, remedy)
            field = self.fields[name]
            if field.off is not None and not (isinstance(value, PLAIN) and value in field.off):
                rule = f"be {' or '.join(map(repr, field.off)) or 'left out'}"
                context.refuse(name, rule, value, field.note)
            if field.form is not None:
                field.form.check(owner, name, value)
        with read_by(owner, self._names({*given, *(["eos_ids"] if ends else [])})):
            ours = self.convert({name: value for name, value in given.items() if self.fields[name].becomes}, context)
            if vocab_size is not None:
                ours["vocab_size"] = vocab_size
            for difference in self.differences if exactly else ():
                if difference.applies(ours):
                    context.refuse("exactly", "be False for this request", True, difference.note)
            return make(**ours)

    def _names(self, given: Collection[str]) -> dict[str, str]:
        """Returns their names of our fields: those that were given, or else the first one."""
        theirs: dict[str, list[str]] = {"stop_ids": ["eos_ids"]}
        for name, field in self.fields.items():
            for ours in field.becomes:
                theirs.setdefault(ours, []).append(name)
        return {ours: " or ".join(filter(given.__contains__, names)) or names[0] for ours, names in theirs.items()}


def _without_arrays(value: object) -> object:
    """Returns an array or a tensor as what it is made of: numbers, which can be compared, and lists of them."""
    return value.tolist() if isinstance(value, numpy.ndarray | Tensor) else value


def _values_of(request: object, context: Context) -> Mapping[str, Any]:
    """Returns the public fields of a mapping, a dataclass, a msgspec or pydantic object, or a plain one."""
    if isinstance(request, Mapping):
        return request
    names = getattr(request, "__struct_fields__", None)
    if names is None and hasattr(request, "__dict__") and not isinstance(request, type):
        names = [*vars(request), *(getattr(request, "__pydantic_extra__", None) or ())]
    if names is None:
        context.refuse("request", "be a mapping or the engine's object", request, "Give its dict.", TypeError)
    return {name: getattr(request, name) for name in names if not name.startswith("_")}
