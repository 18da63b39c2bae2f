"""What one request asks of the sampler. Whatever is wrong with it is said here, before it reaches a batch."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final

from ascend_sample._contract import MAX_VOCAB_SIZE
from ascend_sample._errors import refuse, show
from ascend_sample.sampling._checks import (
    LARGEST,
    LARGEST_COUNT,
    OWNER,
    SMALLEST_POSITIVE,
    refuse_field,
    show_bound,
    to_bias,
    to_id,
    to_ids,
    to_integer,
    to_real,
)

LARGEST_SEED: Final = 2**64 - 1
ID_FIELDS: Final = ("allowed_ids", "bad_ids", "stop_ids")
LARGEST_PENALTY: Final = 2.0  # of presence and frequency, as in OpenAI's interface and vLLM


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """The parameters of one request: checked when it is made, immutable and hashable afterwards.

    The order in which they act on a row of logits: `allowed_ids`, `bad_ids`, `min_tokens`, `logit_bias`; the
    penalties; `temperature`; `top_k`; `top_p`; `min_p`; the draw.

    Args:
        temperature: 0, which is greedy (the best id, the lowest one of several), or the divisor of the logits, within
            float32's normal numbers [2**-126, 3.4028235e38].
        top_k: how many of the best ids stay, from 1; None is off, as is whatever reaches the vocabulary's size.
        top_p: in (0, 1], at least 2**-126: the best ids stay until the sum of their probabilities exceeds it; 1 is
            off. In float32 it stays below 1 when it is below 1.
        min_p: 0, which is off, or in [2**-126, 1]: ids with less than this share of the best one's probability go.
        repetition_penalty: in [2**-126, 3.4028235e38]: divides positive logits of ids that occur in the prompt or the
            output, and multiplies the others; 1 is off.
        presence_penalty: in [-2, 2]: is subtracted from the logits of ids that occur in the output; 0 is off.
        frequency_penalty: in [-2, 2]: is subtracted as often as the id occurs in the output; 0 is off.
        logit_bias: what is added to the logits of some ids: finite, within float32's range, for no id that is
            forbidden by `allowed_ids` or `bad_ids`. It is copied.
        allowed_ids: the only ids that may be drawn, less `bad_ids`; None allows all. Kept as a sorted tuple.
        bad_ids: ids that are never drawn. Kept as a sorted tuple.
        min_tokens: as long as fewer tokens than this were generated, no id of `stop_ids` is drawn.
        stop_ids: the ids that end the sequence. They matter for `min_tokens` alone. Kept as a sorted tuple.
        seed: in [0, 2**64): the same seed gives the same tokens, whatever else is in the batch. None lets the batch
            draw one from its generator.
        logprobs: None, or how many of the best ids are reported with their log-probabilities, beside the drawn one.
        vocab_size: when given, ids are checked against it now; otherwise when a batch takes the request.

    Raises:
        TypeError: a value has the wrong type. A bool is no number here.
        ValueError: a value is out of range, or two contradict each other.

    Example:
        >>> params = SamplingParams(temperature=0.7, top_k=50, bad_ids=[7, 3])
        >>> params.bad_ids
        (3, 7)
        >>> SamplingParams(min_p=1.5)
        Traceback (most recent call last):
        ...
        ValueError: SamplingParams: min_p must be 0 or lie in [2**-126, 1], got 1.5. Use 0 to switch min-p off.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_ids: Collection[int] | None = None
    bad_ids: Collection[int] = ()
    min_tokens: int = 0
    stop_ids: Collection[int] = ()
    seed: int | None = None
    logprobs: int | None = None
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        self._check_scalars()
        size = self.vocab_size
        self._set("logit_bias", MappingProxyType(to_bias(self.logit_bias, "logit_bias", size)))
        if self.allowed_ids is not None:
            self._set("allowed_ids", to_ids(self.allowed_ids, "allowed_ids", size))
        self._set("bad_ids", to_ids(self.bad_ids, "bad_ids", size))
        self._set("stop_ids", to_ids(self.stop_ids, "stop_ids", size))
        self._check_bias_is_not_forbidden()
        self._check_something_is_allowed(size)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Makes the parameters of a request that arrives as a dict, such as parsed JSON.

        Args:
            values: fields by name; those that are absent have their defaults.

        Raises:
            TypeError: not a mapping, or its keys are not strings, or as for the constructor.
            ValueError: a field does not exist (the message names the nearest one that does), or as for the constructor.

        Example:
            >>> SamplingParams.from_mapping({"temprature": 0.5})
            Traceback (most recent call last):
            ...
            ValueError: SamplingParams: 'temprature' must be a known field. Did you mean 'temperature'?
        """
        if not isinstance(values, Mapping):
            refuse(OWNER, "the fields", "be a mapping", type(values).__name__, "Give a dict.", TypeError)
        known = [entry.name for entry in fields(cls)]
        for name in values:
            if not isinstance(name, str):
                refuse(OWNER, "the name of a field", "be a str", show(name), "Give names as strings.", TypeError)
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                remedy = f"Did you mean {near[0]!r}?" if near else f"The fields are {', '.join(known)}."
                raise ValueError(f"{OWNER}: {name!r} must be a known field. {remedy}")
        return cls(**values)

    def to_mapping(self) -> dict[str, Any]:
        """Returns all fields by name, in a dict of its own: what `from_mapping` takes."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return values | {"logit_bias": dict(self.logit_bias)}

    def check_vocab_size(self, vocab_size: int) -> None:
        """Checks the request against the vocabulary of the batch that is to take it.

        Args:
            vocab_size: how many columns the logits have.

        Raises:
            ValueError: the request's own `vocab_size` is another one, an id is out of range, or nothing could be drawn.
        """
        if self.vocab_size is not None:
            if self.vocab_size != vocab_size:
                remedy = "Leave it out, or give the batch's."
                refuse_field("vocab_size", f"be the batch's, {vocab_size}", self.vocab_size, remedy)
            return  # everything was checked against it at construction
        for name in ID_FIELDS:
            ids = getattr(self, name)
            if ids:
                to_id(ids[-1], name, vocab_size)  # they are sorted
        if self.logit_bias:
            to_id(max(self.logit_bias), "logit_bias", vocab_size)
        self._check_logprobs(vocab_size)
        self._check_something_is_allowed(vocab_size)

    def __hash__(self) -> int:
        return hash(tuple(tuple(v.items()) if isinstance(v, dict) else v for v in self.to_mapping().values()))

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy cannot be pickled or copied, and engines send requests from process to process.
        return type(self).from_mapping, (self.to_mapping(),)

    def _set(self, name: str, value: object) -> None:
        """Puts the normal form of a field in its place: the class is frozen for everybody else."""
        object.__setattr__(self, name, value)

    def _check_scalars(self) -> None:
        if self.vocab_size is not None:
            remedy = "It is the number of columns of the logits."
            self._set("vocab_size", to_integer(self.vocab_size, "vocab_size", 1, MAX_VOCAB_SIZE, remedy))
        self._set_real("temperature", 0.0, LARGEST, "Use 0 for greedy sampling.", zero=True)
        self._set_real(
            "top_p", SMALLEST_POSITIVE, 1.0, "Use 1 to switch top-p off, temperature 0 for the best id alone."
        )
        self._set_real("min_p", 0.0, 1.0, "Use 0 to switch min-p off.", zero=True)
        self._set_real("repetition_penalty", SMALLEST_POSITIVE, LARGEST, "Use 1 to switch it off.")
        for name in ("presence_penalty", "frequency_penalty"):
            self._set_real(name, -LARGEST_PENALTY, LARGEST_PENALTY, "Use 0 to switch it off.")
        if self.top_k is not None:
            self._set("top_k", to_integer(self.top_k, "top_k", 1, LARGEST_SEED, "Use None to switch top-k off."))
        self._set("min_tokens", to_integer(self.min_tokens, "min_tokens", 0, LARGEST_COUNT, "Use 0 for no minimum."))
        if self.seed is not None:
            remedy = "Use seed % 2**64, or None for a seed that the batch draws."
            self._set("seed", to_integer(self.seed, "seed", 0, LARGEST_SEED, remedy))
        self._check_logprobs(self.vocab_size)

    def _set_real(self, name: str, low: float, high: float, remedy: str, zero: bool = False) -> None:
        """Checks a float against its range, to which `zero` adds 0, and sets its normal form."""
        value = getattr(self, name)
        lowest = SMALLEST_POSITIVE if zero else low
        rule = f"{'be 0 or lie' if zero else 'lie'} in [{show_bound(lowest)}, {show_bound(high)}]"
        number = to_real(value, name, rule, remedy)
        if not (lowest <= number <= high or (zero and number == 0.0)):
            refuse_field(name, rule, value, remedy)
        self._set(name, number)

    def _check_logprobs(self, vocab_size: int | None) -> None:
        if self.logprobs is not None:
            high = MAX_VOCAB_SIZE if vocab_size is None else vocab_size
            remedy = f"Use None for none, {high} for all."
            self._set("logprobs", to_integer(self.logprobs, "logprobs", 0, high, remedy))

    def _check_bias_is_not_forbidden(self) -> None:
        if not self.logit_bias:
            return
        biased = self.logit_bias.keys()
        in_vain = biased & set(self.bad_ids)
        if self.allowed_ids is not None:
            in_vain |= biased - set(self.allowed_ids)
        if in_vain:
            rule = "bias only ids that allowed_ids and bad_ids allow"
            refuse_field("logit_bias", rule, min(in_vain), "Drop the bias, or allow the id.")

    def _check_something_is_allowed(self, vocab_size: int | None) -> None:
        """Raises unless some id can be drawn, at first too, while `min_tokens` forbids the stop ids."""
        if self.min_tokens > 0 and not self.stop_ids:
            rule = "be 0 where stop_ids is empty"
            refuse_field("min_tokens", rule, self.min_tokens, "Name the ids that end the sequence in stop_ids.")
        forbidden = set(self.bad_ids)
        at_first = forbidden.union(self.stop_ids) if self.min_tokens else forbidden
        if self.allowed_ids is not None:
            allowed = set(self.allowed_ids)
            if not allowed - forbidden:
                rule = "name at least one id that is not in bad_ids"
                refuse_field("allowed_ids", rule, self.allowed_ids, "Use None to allow all ids.")
            nothing_at_first = not allowed - at_first
        else:
            if vocab_size is not None and len(forbidden) >= vocab_size:
                rule = f"leave at least one of the {vocab_size} ids of the vocabulary"
                refuse_field("bad_ids", rule, self.bad_ids, "Forbid fewer ids.")
            nothing_at_first = vocab_size is not None and len(at_first) >= vocab_size
        if nothing_at_first:
            rule = "be 0 where nothing but stop_ids may be drawn"
            refuse_field("min_tokens", rule, self.min_tokens, "Allow an id that does not end the sequence.")
