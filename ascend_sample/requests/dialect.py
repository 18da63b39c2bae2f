"""What the table of an engine is made of, and how a request is read by it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, NoReturn

import numpy
from torch import Tensor

from ascend_sample._errors import check_bool, check_integer, refuse, show
from ascend_sample.requests.values import FLAG, IDS, MAPPING, NUMBER, TEXTS, Form, integer_ids, unsigned, without_texts
from ascend_sample.sampling.requests.checks import LARGEST_COUNT, nearest, read_by, refuse_field
from ascend_sample.sampling.requests.params import SamplingParams

PLAIN: Final = (bool, int, float, str, list, tuple, dict)
"""Types whose values can be compared with those that ask for nothing."""


class Field(NamedTuple):
    """What becomes of one field of another engine's request.

    Attributes:
        verdict: a copied field becomes the first of ours that it names; the dialect's `combine` reads a taken one; the
            engine's own changes no token that is drawn from given logits; nothing here serves a refused one.
        becomes: the fields of `SamplingParams` that it decides.
        note: what the documentation says of it: how it is taken, whose it is, or why it is refused.
        form: what its values must be; None where `SamplingParams` checks that.
        off: values that ask for nothing.
        convert: makes our value of a copied one.
    """

    verdict: Literal["copied", "taken", "engine", "refused"]
    becomes: tuple[str, ...] = ()
    note: str = ""
    form: Form | None = None
    off: tuple[Any, ...] = ()
    convert: Callable[[Any], Any] | None = None

    @property
    def is_taken(self) -> bool:
        """Whether it decides some of ours."""
        return self.verdict in ("copied", "taken")

    def is_off(self, value: object) -> bool:
        """Returns whether a value asks for nothing."""
        return isinstance(value, PLAIN) and value in self.off


def copied(
    *becomes: str,
    note: str = "",
    form: Form | None = NUMBER,
    off: tuple[Any, ...] = (),
    convert: Callable[[Any], Any] | None = None,
) -> Field:
    """Declares a field that becomes one of ours, of which a number is asked unless there is another form."""
    return Field("copied", becomes, note, form, off, convert)


def same(*names: str) -> dict[str, Field]:
    """Declares fields of numbers that are ours of the same names."""
    return {name: copied(name) for name in names}


def taken(*becomes: str, note: str = "", form: Form | None = NUMBER) -> Field:
    """Declares a field that decides some of ours beside other ones."""
    return Field("taken", becomes, note, form)


def engines(note: str) -> Field:
    """Declares a field that is the engine's matter."""
    return Field("engine", note=note)


def each(names: str, field: Field) -> dict[str, Field]:
    """Declares fields alike, whose names stand in a text."""
    return dict.fromkeys(names.split(), field)


def refused(note: str, *off: Any) -> Field:
    """Declares a field that nothing here serves; with one of the values `off`, or None, it asks for nothing."""
    return Field("refused", note=note, off=off)


# What several engines have alike.
ROWS: Final = engines("The engine's: a row for each text, with a seed of its own (`derive_seeds`).")
GRAMMAR: Final = engines("The engine's grammar makes a bitmask, which `Sampler` takes beside the request.")
ANSWER: Final = engines("The engine's: how the answer is sent, billed or kept.")
LENGTH: Final = engines("The engine's: it ends the text.")
STOP: Final = copied(
    "stop_sequences",
    note="Sequences of ids; texts are left to the engine, which ends the text.",
    form=TEXTS,
    convert=without_texts,
)
BIAS: Final = copied("logit_bias", note="Ids may be texts, as JSON has them.", form=MAPPING, convert=integer_ids)
STOP_IDS: Final = copied("stop_token_ids", form=IDS)
HELD: Final = copied("min_tokens", note="Beside eos_ids, which are not drawn before.")
IGNORE_EOS: Final = taken(
    "stop_token_ids",
    note="True: eos_ids end nothing. The engine's least number of tokens holds them back too; `strict` refuses that.",
    form=FLAG,
)


def seed(note: str = "A negative one becomes the unsigned number of its 64 bits.", *off: int) -> Field:
    """Declares a seed, which is none where it is one of the numbers `off`."""
    return copied("seed", note=note, form=None, off=off, convert=unsigned)


class Context(NamedTuple):
    """What a request does not say itself, as `Dialect.read` takes it.

    Attributes:
        owner: the function that reads, as errors name it.
        eos_ids: the ids that end a text of the model; None where the caller does not know.
        vocab_size: of the model; None where the caller does not know.
        max_model_len: of how many tokens a text has at most.
        strict: whether the engine's distribution must be ours.
        thinking: our fields of the tags around the model's thoughts.
    """

    owner: str
    eos_ids: tuple[int, ...] | None
    vocab_size: int | None
    max_model_len: int
    strict: bool
    thinking: Mapping[str, Any]

    def refuse(
        self, field: str, rule: str, value: object, remedy: str, error: type[Exception] = ValueError
    ) -> NoReturn:
        """Raises the error of a field that cannot be taken."""
        refuse(self.owner, field, rule, show(value), remedy, error)

    def refuse_strict(self, difference: str) -> NoReturn:
        """Raises the error of a request that the engine would draw from another distribution."""
        self.refuse("strict", "be False for this request", True, difference)


Values = dict[str, Any]


class Dialect(NamedTuple):
    """The requests of one engine.

    Attributes:
        name: as in `from_<name>`.
        source: the class or interface, with its version.
        fields: what becomes of each.
        combine: changes our fields, which hold what is copied, by those that were given: all but the engine's.
        differences: where the engine draws from another distribution, in words, and whether that matters with these
            fields of ours.
    """

    name: str
    source: str
    fields: Mapping[str, Field]
    combine: Callable[[Values, Values, Context], None] = lambda ours, given, context: None
    differences: Mapping[str, Callable[[Values], bool]] = MappingProxyType({})

    def read(
        self,
        request: object,
        eos_ids: Collection[int] | None = None,
        vocab_size: int | None = None,
        max_model_len: int = LARGEST_COUNT,
        strict: bool = False,
        thinking_start_ids: Sequence[int] = (),
        thinking_end_ids: Sequence[int] = (),
        thinking_end_message_ids: Sequence[int] = (),
    ) -> SamplingParams:
        """Returns the request of ours that one of another engine asks for.

        Every field is taken, left to the engine, or refused by name: docs/requests.md has the tables.

        Args:
            request: a mapping of its fields, or the engine's own object. None is a value that was not given.
            eos_ids: the ids that end a text of the model, where the engine knows them beside the request; [] if none
                does. They become `stop_token_ids`, unless the request ignores them.
            vocab_size: of the model. Ids are checked against it at once.
            max_model_len: of how many tokens a text has at most, prompt and output.
            strict: refuses what the engine would draw from another distribution, such as one filtered in another
                order.
            thinking_start_ids: the tag that opens a thought, where the engine knows it beside the request.
            thinking_end_ids: the one that closes it.
            thinking_end_message_ids: what closes a thought that is too long.

        Raises:
            TypeError: request has no fields, or a value has the wrong type.
            ValueError: a field is unknown, or asks for what nothing here serves, or as for `SamplingParams`.
        """
        owner = f"from_{self.name}"
        ends: Any = _without_arrays(eos_ids)
        if ends is not None:
            IDS.check(owner, "eos_ids", ends)
            ends = tuple(ends)
        check_integer(owner, "max_model_len", max_model_len, low=1)
        check_bool(owner, "strict", strict)
        thinking = {
            "thinking_start_ids": thinking_start_ids,
            "thinking_end_ids": thinking_end_ids,
            "thinking_end_message_ids": thinking_end_message_ids,
        }
        context = Context(owner, ends, vocab_size, max_model_len, strict, thinking)
        given = self._given(request, context)
        with read_by(owner, self._names({*given, *(["eos_ids"] if ends else [])})):
            ours = self._copied(given)
            self.combine(ours, given, context)
            _add_ends(ours, given, context)
            if vocab_size is not None:
                ours["vocab_size"] = vocab_size
            for difference, applies in self.differences.items():
                if strict and applies(ours):
                    context.refuse_strict(difference)
            return SamplingParams(**ours)

    def _given(self, request: object, context: Context) -> Values:
        """Returns the fields that are taken and were given; raises for an unknown or refused one, or a wrong type."""
        values = _values_of(request, context).items()
        given = {name: _without_arrays(value) for name, value in values if value is not None}
        for name, value in given.items():
            if name not in self.fields:
                remedy = nearest(name, self.fields, "Leave it out, or read it as its own engine's.")
                context.refuse("the name of a field", f"be one of {self.source}", name, remedy)
            field = self.fields[name]
            if field.verdict == "refused" and not field.is_off(value):
                context.refuse(name, f"be {' or '.join(map(repr, field.off)) or 'left out'}", value, field.note)
            if field.form is not None:
                field.form.check(context.owner, name, value)
        return {name: value for name, value in given.items() if self.fields[name].is_taken}

    def _copied(self, given: Values) -> Values:
        """Returns our fields of those that are copied, where these ask for something."""
        ours = {}
        for name, value in given.items():
            field = self.fields[name]
            if field.verdict == "copied" and not field.is_off(value):
                ours[field.becomes[0]] = value if field.convert is None else field.convert(value)
        return ours

    def _names(self, given: Collection[str]) -> dict[str, str]:
        """Returns their names of our fields: those that were given, or else the first one."""
        theirs: dict[str, list[str]] = {"stop_token_ids": ["eos_ids"]}
        for name, field in self.fields.items():
            for ours in field.becomes:
                theirs.setdefault(ours, []).append(name)
        return {ours: " or ".join(filter(given.__contains__, names)) or names[0] for ours, names in theirs.items()}


def _add_ends(ours: Values, given: Values, context: Context) -> None:
    """Has the ids that end a text of the model among the stop ids; raises where `min_tokens` has to know them."""
    held = ours.get("min_tokens")
    if held and context.eos_ids is None and "eos_token_id" not in given:
        remedy = "They must not be drawn before either: give them, or [] where the model has none."
        refuse_field("min_tokens", "be 0 where eos_ids are not given", held, remedy)
    if not context.eos_ids:
        return
    if not given.get("ignore_eos"):
        ours["stop_token_ids"] = [*ours.get("stop_token_ids", ()), *context.eos_ids]
    elif held and context.strict:
        context.refuse_strict("The engine holds ignored eos_ids back too; here what ends nothing is not held back.")
    elif held and not (ours.get("stop_token_ids") or ours.get("stop_sequences")):
        del ours["min_tokens"]


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
