"""What one request asks of the sampler. Whatever is wrong with it is said here, before it reaches a batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from ascend_sample._contract import MAX_VOCAB_SIZE, SKIP_TOP_K
from ascend_sample._errors import refuse, show
from ascend_sample.sampling.requests.checks import (
    LARGEST,
    LARGEST_COUNT,
    OWNER,
    SMALLEST_POSITIVE,
    by_id,
    check_names,
    integer,
    real,
    refuse_field,
    to_bias,
    to_boolean,
    to_id,
    to_ids,
    to_ids_and_sequences,
    to_sequence,
    to_sequences,
)
from ascend_sample.sampling.requests.fields import KEY, Column, Declaration, Stage, declared, suggesting, to_fraction

LARGEST_SEED: Final = 2**64 - 1
WHOLE_TEXT: Final = "Use None for the whole text."
PENALTY: Final = real(-2.0, 2.0, "Use 0 to switch it off.")
"""Of presence and frequency, as in OpenAI's interface and vLLM."""
SHARE: Final = real(SMALLEST_POSITIVE, 1.0, "Use 0 to switch it off.", or_zero=True)
"""Of filters that compare probabilities."""
HOST_FRACTION: Final = Column("float32", is_on_device=False, convert=to_fraction)
"""Of what the host tells a device in other terms: `value_ranges.py`."""


@suggesting
@dataclass(frozen=True, kw_only=True, repr=False)
class SamplingParams:
    """The parameters of one request: checked when it is made, immutable and hashable afterwards.

    The order in which they act on a row of logits: `allowed_token_ids`, `suppress_token_ids`, `bad_words`,
    `no_repeat_ngram_size`, `min_tokens`, `logit_bias`, DRY, `thinking_token_budget`; the penalties; `temperature`;
    `typical_p`; the cutoffs, mirostat, `top_a` and `top_n_sigma`; the exclusion of top choices; `top_k`; `top_p`;
    `min_p`; the draw.

    Args:
        temperature: 0, which is greedy (the best id, the lowest one of several), or the divisor of the logits, within
            float32's normal numbers [2**-126, 3.4028235e38].
        top_k: how many of the best ids stay, from 1; None is off, as is whatever reaches the vocabulary's size.
        top_p: in (0, 1], at least 2**-126: the best ids stay until the sum of their probabilities exceeds it; 1 is
            off. In float32 it stays below 1 when it is below 1.
        min_p: 0, which is off, or in [2**-126, 1]: ids with less than this share of the best one's probability go.
        typical_p: in [2**-126, 1]: the ids whose information, -log(probability), is nearest to the entropy stay until
            their probabilities reach this sum; 1 is off. The best id may go.
        epsilon_cutoff: 0, which is off, or in [2**-126, 1]: ids with a smaller probability go, but the best one.
        eta_cutoff: 0, which is off, or in [2**-126, 1]: ids go, but the best one, whose probability is below this and
            below sqrt(eta_cutoff) * exp(-entropy).
        top_a: 0, which is off, or in [2**-126, 1]: ids with a probability below top_a times the square of the best
            one's go, but the best one.
        top_n_sigma: 0, which is off, or in [2**-126, 3.4028235e38]: ids whose logits are more than so many standard
            deviations of the row's logits below the best one go.
        xtc_probability: in [2**-126, 1], how often the top choices are excluded, by the request's own noise: of the ids
            that have at least `xtc_threshold`, only the least probable ones stay; 0 is off.
        xtc_threshold: in [2**-126, 1], a probability. Of no meaning while `xtc_probability` is 0.
        mirostat_tau: 0, which is off, or in [2**-126, 64]. Mirostat 2: how many bits of surprise, -log2(probability),
            tokens are to have on average. Ids go, but the best one, that have more than a bound, which begins at
            2 mirostat_tau and moves with each draw: the request remembers it.
        mirostat_eta: in [0, 1]: by how much of the difference of a surprise from `mirostat_tau` the bound moves.
        adaptive_target: in [0, 1], the probability that drawn tokens are to have on average, before adaptive-p draws
            them: of what all filters keep, ids near to what is missing for that are drawn more often. The request
            remembers the average. None is off.
        adaptive_decay: in [0, 0.99], what the average of `adaptive_target` keeps of itself with each token.
        repetition_penalty: in [2**-126, 3.4028235e38]: divides positive logits of ids that occur in the prompt or the
            output, and multiplies the others; 1 is off.
        presence_penalty: in [-2, 2]: is subtracted from the logits of ids that occur in the output; 0 is off.
        frequency_penalty: in [-2, 2]: is subtracted as often as the id occurs in the output; 0 is off.
        logit_bias: what is added to the logits of some ids: finite, within float32's range. Of an id that is forbidden
            it changes nothing. It is copied.
        allowed_token_ids: the only ids that may be drawn, less `suppress_token_ids`; None allows all. Kept as a sorted
            tuple, in which each id stands once, as in all such tuples.
        suppress_token_ids: ids that are never drawn. Kept as a sorted tuple.
        bad_words: sequences of ids that the text, prompt and output, never comes to hold: the last id of one is not
            drawn where the ones before it end the text. Sequences of one id become `suppress_token_ids`. Kept as sorted
            tuples.
        no_repeat_ngram_size: n: no id is drawn that repeats n tokens of the text in a row; 0 is off.
        no_repeat_ngram_window: of how many of the last tokens n in a row must not be repeated, at least n; None: all.
        no_repeat_ngram_whitelist: ids that may be drawn all the same, such as tags of tables. Kept as a sorted tuple.
        dry_multiplier: 0, which is off, or in [2**-126, 3.4028235e38]. DRY: where the last n tokens of the text are
            somewhere in it already, dry_multiplier * dry_base**(n - dry_allowed_length), at most 3.4028235e38, is
            subtracted from the logit of the id that follows there; of several places the longest match counts.
        dry_base: in [1, 3.4028235e38].
        dry_allowed_length: shorter matches cost nothing; from 1.
        dry_sequence_breakers: ids, or sequences of them, that no match goes beyond: it begins after the last one. An
            id that is one itself costs nothing. Kept as sorted tuples of tuples.
        dry_penalty_last_n: in how many of the last tokens matches are looked for; None: in all.
        thinking_token_budget: how many tokens a thought may have, from 0; None: any number. A thought is what follows
            the last `thinking_start_ids` of the text, prompt and output, until `thinking_end_ids`. One that has so many
            is closed: the next tokens are `thinking_end_message_ids`, as 1e9 is added to the logit of each in its turn,
            whatever `bad_words`, `no_repeat_ngram_size` and DRY say of it. Beside `adaptive_target` it needs a `min_p`.
        thinking_start_ids: the ids that open a thought.
        thinking_end_ids: the ids that close one.
        thinking_end_message_ids: what ends a thought that is too long, the last of it being `thinking_end_ids`; of what
            the thought ends with already only the rest is drawn. Empty: `thinking_end_ids` alone.
        min_tokens: as long as fewer tokens than this were generated, no id of `stop_token_ids` is drawn, and nothing
            ends.
        stop_token_ids: ids that end the text where the output has one: `SamplingBatch.ended` tells of it. Kept as a
            sorted tuple.
        stop_sequences: sequences of ids that end it as well. Those of one id become `stop_token_ids`. Kept as sorted
            tuples.
        seed: in [0, 2**64): the same seed gives the same tokens, whatever else is in the batch. None lets the batch
            draw one from its generator.
        logprob_token_ids: ids whose log-probabilities are reported, in this order, beside the drawn one: a `logprobs`
            of None becomes 0.
        logprobs: None, or how many of the best ids are reported with their log-probabilities, beside the drawn one.
        return_sampling_mask: whether it is reported which ids all filters leave, with the log-probabilities that they
            are drawn with.
        vocab_size: when given, ids are checked against it now; otherwise when a batch takes the request.

    Raises:
        TypeError: a value has the wrong type, where a bool is no number; or a field does not exist.
        ValueError: a value is out of range, or two contradict each other.

    Example:
        >>> params = SamplingParams(temperature=0.7, top_k=50, suppress_token_ids=[7, 3])
        >>> params.suppress_token_ids
        (3, 7)
        >>> SamplingParams(min_p=1.5)
        Traceback (most recent call last):
        ...
        ValueError: SamplingParams: min_p must be 0 or lie in [2**-126, 1], got 1.5. Use 0 to switch min-p off.
    """

    temperature: float = declared(
        1.0,
        real(SMALLEST_POSITIVE, LARGEST, "Use 0 for greedy sampling.", or_zero=True),
        Stage.DISTRIBUTION,
        Column("float32"),
    )
    top_k: int | None = declared(
        None,
        integer(1, LARGEST_SEED, "Use None to switch top-k off."),
        Stage.DISTRIBUTION,
        Column("int32", off=SKIP_TOP_K, convert=lambda k, vocab_size: k if k < vocab_size else SKIP_TOP_K),
    )
    top_p: float = declared(
        1.0,
        real(SMALLEST_POSITIVE, 1.0, "Use 1 to switch top-p off, temperature 0 for the best id alone."),
        Stage.DISTRIBUTION,
        Column("float32", convert=to_fraction),
    )
    min_p: float = declared(
        0.0,
        real(SMALLEST_POSITIVE, 1.0, "Use 0 to switch min-p off.", or_zero=True),
        Stage.DISTRIBUTION,
        Column("float32", convert=to_fraction),
    )
    typical_p: float = declared(
        1.0, real(SMALLEST_POSITIVE, 1.0, "Use 1 to switch it off."), Stage.RANGE, HOST_FRACTION
    )
    epsilon_cutoff: float = declared(0.0, SHARE, Stage.RANGE, HOST_FRACTION)
    eta_cutoff: float = declared(0.0, SHARE, Stage.RANGE, HOST_FRACTION)
    top_a: float = declared(0.0, SHARE, Stage.RANGE, HOST_FRACTION)
    top_n_sigma: float = declared(
        0.0,
        real(SMALLEST_POSITIVE, LARGEST, "Use 0 to switch it off.", or_zero=True),
        Stage.RANGE,
        Column("float32", is_on_device=False),
    )
    xtc_probability: float = declared(0.0, SHARE, Stage.RANGE, HOST_FRACTION)
    xtc_threshold: float = declared(
        0.1, real(SMALLEST_POSITIVE, 1.0, "Use xtc_probability=0 to switch it off."), Stage.RANGE, HOST_FRACTION
    )
    mirostat_tau: float = declared(
        0.0,
        real(SMALLEST_POSITIVE, 64.0, "Use 0 to switch mirostat off.", or_zero=True),
        Stage.STATE,
        Column("float32", is_on_device=False),
    )
    mirostat_eta: float = declared(
        0.1,
        real(SMALLEST_POSITIVE, 1.0, "Use 0 for a bound that stays.", or_zero=True),
        Stage.STATE,
        Column("float32", is_on_device=False),
    )
    adaptive_target: float | None = declared(
        None, real(0.0, 1.0, "Use None to switch adaptive-p off."), Stage.STATE, Column("float32", -1.0, False)
    )
    adaptive_decay: float = declared(
        0.9, real(0.0, 0.99, "Use 0 for the last token alone."), Stage.STATE, Column("float32", is_on_device=False)
    )
    repetition_penalty: float = declared(
        1.0, real(SMALLEST_POSITIVE, LARGEST, "Use 1 to switch it off."), Stage.LOGITS, Column("float32")
    )
    presence_penalty: float = declared(0.0, PENALTY, Stage.LOGITS, Column("float32"))
    frequency_penalty: float = declared(0.0, PENALTY, Stage.LOGITS, Column("float32"))
    logit_bias: Mapping[int, float] = declared(dict, to_bias, Stage.LOGITS)
    allowed_token_ids: Collection[int] | None = declared(None, to_ids, Stage.LOGITS)
    suppress_token_ids: Collection[int] = declared((), to_ids, Stage.LOGITS)
    bad_words: Collection[Sequence[int]] = declared((), to_sequences, Stage.LOGITS)
    no_repeat_ngram_size: int = declared(0, integer(0, LARGEST_COUNT, "Use 0 to switch it off."), Stage.LOGITS)
    no_repeat_ngram_window: int | None = declared(None, integer(1, LARGEST_COUNT, WHOLE_TEXT), Stage.LOGITS)
    no_repeat_ngram_whitelist: Collection[int] = declared((), to_ids, Stage.LOGITS)
    dry_multiplier: float = declared(
        0.0, real(SMALLEST_POSITIVE, LARGEST, "Use 0 to switch DRY off.", or_zero=True), Stage.LOGITS
    )
    dry_base: float = declared(1.75, real(1.0, LARGEST, "Use 1 for the same penalty at any length."), Stage.LOGITS)
    dry_allowed_length: int = declared(2, integer(1, LARGEST_COUNT, "Use 1 for the shortest."), Stage.LOGITS)
    dry_sequence_breakers: Collection[int | Sequence[int]] = declared((), to_ids_and_sequences, Stage.LOGITS)
    dry_penalty_last_n: int | None = declared(None, integer(1, LARGEST_COUNT, WHOLE_TEXT), Stage.LOGITS)
    thinking_token_budget: int | None = declared(
        None, integer(0, LARGEST_COUNT, "Use None for thoughts of any length."), Stage.LOGITS
    )
    thinking_start_ids: Sequence[int] = declared((), to_sequence, Stage.LOGITS)
    thinking_end_ids: Sequence[int] = declared((), to_sequence, Stage.LOGITS)
    thinking_end_message_ids: Sequence[int] = declared((), to_sequence, Stage.LOGITS)
    min_tokens: int = declared(0, integer(0, LARGEST_COUNT, "Use 0 for no minimum."), Stage.LOGITS)
    stop_token_ids: Collection[int] = declared((), to_ids, Stage.LOGITS)
    stop_sequences: Collection[Sequence[int]] = declared((), to_sequences, Stage.REPORT)
    seed: int | None = declared(
        None,
        integer(0, LARGEST_SEED, "Use seed % 2**64, or None for a seed that the batch draws."),
        Stage.DRAW,
        Column("int64", off=0),
    )
    logprob_token_ids: Sequence[int] = declared(
        (),
        to_sequence,
        Stage.REPORT,
        Column("int32", off=0, is_on_device=False, convert=lambda ids, vocab_size: len(ids)),
    )
    logprobs: int | None = declared(
        None,
        integer(0, None, "Use None for none, {high} for all."),
        Stage.REPORT,
        Column("int32", off=-1, is_on_device=False),
    )
    return_sampling_mask: bool = declared(False, to_boolean, Stage.REPORT, Column("int32", is_on_device=False))
    vocab_size: int | None = declared(
        None, integer(1, MAX_VOCAB_SIZE, "It is the number of columns of the logits."), None
    )

    def __post_init__(self) -> None:
        for name in ("vocab_size", *FIELDS):  # ids are checked against it
            value = getattr(self, name)
            if value is not DEFAULTS[name]:  # a default is in its normal form
                normal = FIELDS[name].check(value, name, self.vocab_size)
                object.__setattr__(self, name, normal)  # the class is frozen for everybody else
        self._move_single_ids("bad_words", "suppress_token_ids")
        self._move_single_ids("stop_sequences", "stop_token_ids")
        if self.logprob_token_ids and self.logprobs is None:
            object.__setattr__(self, "logprobs", 0)
        _check_contradictions(self)
        _check_something_is_allowed(self, self.vocab_size)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Makes the parameters of a request that arrives as a dict, such as parsed JSON.

        Args:
            values: fields by name; those that are absent have their defaults. The ids of `logit_bias` may be texts, as
                JSON has them for keys.

        Raises:
            TypeError: not a mapping, or its keys are not strings, or as for the constructor.
            ValueError: a field does not exist (the message names the nearest one that does), or as for the constructor.

        Example:
            >>> SamplingParams.from_mapping({"temprature": 0.5})
            Traceback (most recent call last):
            ...
            ValueError: SamplingParams: 'temprature' must be a known field. Did you mean 'temperature'?
            >>> SamplingParams.from_mapping({"logit_bias": {"5": 1.0}})
            SamplingParams(logit_bias={5: 1.0})
        """
        if not isinstance(values, Mapping):
            refuse(OWNER, "the fields", "be a mapping", type(values).__name__, "Give a dict.", TypeError)
        check_names(values, FIELDS, ValueError)
        bias = values.get("logit_bias")
        if isinstance(bias, Mapping) and str in map(type, bias):
            values = {**values, "logit_bias": by_id(bias.items(), "logit_bias")}
        return cls(**values)

    def to_mapping(self) -> dict[str, Any]:
        """Returns all fields by name, in a dict of its own: what `from_mapping` takes."""
        return {name: getattr(self, name) for name in FIELDS} | {"logit_bias": dict(self.logit_bias)}

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
        for name in WITH_IDS:
            ids = getattr(self, name)
            if ids:
                largest = max(map(max, ids)) if FIELDS[name].check in CHECKS_OF_SEQUENCES else max(ids)
                to_id(largest, name, vocab_size)
        if self.logprobs is not None:
            FIELDS["logprobs"].check(self.logprobs, "logprobs", vocab_size)
        _check_something_is_allowed(self, vocab_size)

    def __repr__(self) -> str:
        """Shows what differs from the defaults."""
        values = self.to_mapping().items()
        shown = [f"{name}={value!r}" for name, value in values if value != DEFAULTS[name] and value != {}]
        return f"{type(self).__name__}({', '.join(shown)})"

    def __hash__(self) -> int:
        return hash(tuple(tuple(v.items()) if isinstance(v, dict) else v for v in self.to_mapping().values()))

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy cannot be pickled or copied, and engines send requests from process to process.
        return type(self).from_mapping, (self.to_mapping(),)

    def _move_single_ids(self, sequences: str, ids: str) -> None:
        """Moves the sequences of one id to the ids of another field."""
        given = getattr(self, sequences)
        single = {sequence[0] for sequence in given if len(sequence) == 1}
        if single:
            object.__setattr__(self, ids, tuple(sorted(single.union(getattr(self, ids)))))
            object.__setattr__(self, sequences, tuple(sequence for sequence in given if len(sequence) > 1))


FIELDS: Final[Mapping[str, Declaration]] = {entry.name: entry.metadata[KEY] for entry in fields(SamplingParams)}
"""The declaration of each field, in the order of the fields."""
DEFAULTS: Final[Mapping[str, Any]] = {entry.name: entry.default for entry in fields(SamplingParams)}
"""Theirs, but for `logit_bias`, which gets a new one each time."""
CHECKS_OF_SEQUENCES: Final = (to_sequences, to_ids_and_sequences)
CHECKS_OF_IDS: Final = (to_ids, to_bias, to_sequence, *CHECKS_OF_SEQUENCES)
WITH_IDS: Final = [name for name, declaration in FIELDS.items() if declaration.check in CHECKS_OF_IDS]


def fields_of(*stages: Stage) -> tuple[str, ...]:
    """Returns the names of the fields that act on any of these, in the order of the fields.

    Example:
        >>> fields_of(Stage.DISTRIBUTION, Stage.DRAW)
        ('temperature', 'top_k', 'top_p', 'min_p', 'seed')
    """
    return tuple(name for name, declaration in FIELDS.items() if declaration.stage in stages)


DISTRIBUTION: Final = fields_of(Stage.DISTRIBUTION)
"""The fields that shape what is drawn from: all that routes, filters and strategies go by."""


def _check_contradictions(params: SamplingParams) -> None:
    """Raises where two fields contradict each other, whatever the vocabulary is."""
    _check_window(params)
    if params.thinking_token_budget is not None:
        _check_thinking(params)
    if params.mirostat_tau > 0 and params.adaptive_target is not None:
        remedy = "Both steer what is drawn: choose one."
        refuse_field("adaptive_target", "be None beside mirostat_tau", params.adaptive_target, remedy)


def _check_something_is_allowed(params: SamplingParams, vocab_size: int | None) -> None:
    """Raises unless some id can be drawn, at first too, while `min_tokens` forbids the stop ids."""
    if params.min_tokens > 0 and not (params.stop_token_ids or params.stop_sequences):
        rule = "be 0 where stop_token_ids and stop_sequences are empty"
        refuse_field(
            "min_tokens", rule, params.min_tokens, "Name what ends the text in stop_token_ids or stop_sequences."
        )
    forbidden = set(params.suppress_token_ids)
    at_first = forbidden.union(params.stop_token_ids) if params.min_tokens else forbidden
    if params.allowed_token_ids is not None:
        if forbidden.issuperset(params.allowed_token_ids):
            rule = "name at least one id" + (" that is not in suppress_token_ids" if params.suppress_token_ids else "")
            refuse_field("allowed_token_ids", rule, params.allowed_token_ids, "Use None to allow all ids.")
        nothing_at_first = at_first.issuperset(params.allowed_token_ids)
    else:
        if vocab_size is not None and len(forbidden) >= vocab_size:
            rule = f"leave at least one of the {vocab_size} ids of the vocabulary"
            refuse_field("suppress_token_ids", rule, params.suppress_token_ids, "Forbid fewer ids.")
        nothing_at_first = vocab_size is not None and len(at_first) >= vocab_size
    if nothing_at_first:
        rule = "be 0 where nothing but stop_token_ids may be drawn"
        refuse_field("min_tokens", rule, params.min_tokens, "Allow an id that does not end the sequence.")


def _check_window(params: SamplingParams) -> None:
    window = params.no_repeat_ngram_window
    if window is not None and window < params.no_repeat_ngram_size:
        rule = f"be at least no_repeat_ngram_size, {params.no_repeat_ngram_size}"
        refuse_field("no_repeat_ngram_window", rule, window, WHOLE_TEXT)


def _check_thinking(params: SamplingParams) -> None:
    for name in ("thinking_start_ids", "thinking_end_ids"):
        if not getattr(params, name):
            remedy = "Give the ids of the tags that open and close a thought."
            refuse_field(name, "name at least one id beside thinking_token_budget", (), remedy)
    end = tuple(params.thinking_end_ids)
    if end == params.thinking_start_ids:
        refuse_field(
            "thinking_end_ids", "be another sequence than thinking_start_ids", end, "Give the tag that closes."
        )
    name, closing = (
        ("thinking_end_message_ids", params.thinking_end_message_ids)
        if params.thinking_end_message_ids
        else ("thinking_end_ids", end)
    )
    if tuple(closing[-len(end) :]) != end:
        refuse_field(name, f"end with thinking_end_ids, {show(end)}", closing, "Append that.")
    lost = set(closing) & {*params.suppress_token_ids, *(params.stop_token_ids if params.min_tokens else ())}
    if params.allowed_token_ids is not None:
        lost |= set(closing) - set(params.allowed_token_ids)
    if lost:
        rule = "hold only ids that allowed_token_ids, suppress_token_ids and, with min_tokens, stop_token_ids allow"
        refuse_field(name, rule, min(lost), "It is drawn where the budget ends: allow it.")
    if params.adaptive_target is not None and not params.min_p:
        remedy = "adaptive-p draws ids without any probability too, where no filter drops them."
        refuse_field("min_p", "be above 0 beside thinking_token_budget and adaptive_target", params.min_p, remedy)
