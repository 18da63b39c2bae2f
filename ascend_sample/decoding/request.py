"""Prompts, stop tokens, lengths and callbacks are checked and converted here, once for all strategies.

A model may say something about its texts itself (`GenerationDefaults`), which counts where a caller says nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypedDict

import torch
from torch import Tensor

from ascend_sample._errors import check_bool, check_integer, is_integer, refuse, refuse_type, show_with_type
from ascend_sample.decoding.checks import check_arguments, has_methods, is_list
from ascend_sample.decoding.streaming import STREAMING, Listener, OnTokens, Streamer, checked_listener
from ascend_sample.sampling import SamplingParams

STEP_METHODS: Final = ("prefill", "decode", "expand", "reorder", "rollback")
"""The methods of `StepModel`."""

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
"""(input_ids int64 [rows, length], scores float32 [rows, vocab_size]) -> scores; transformers' classes are such.

input_ids are the prompts as they were given, with their padding (pad_token_id where that is negative), and what was
generated so far."""
StoppingCriterion = Callable[..., Any]
"""(input_ids int64 [rows, length], scores) -> bool [rows] or bool; transformers' classes are such."""


class GenerationOptions(TypedDict, total=False):
    """Names the keyword arguments that every strategy takes.

    Attributes:
        attention_mask: bool or int64 [batch, length], 0 at padding, on whichever side; None: no padding.
        encoder: what the model's encoder takes, by the model's names, [batch, ...] each.
        eos_token_id: a token, or several, after which a row is done; it is part of the sequence. None: those that the
            model names (`GenerationDefaults`), if it does; (): none.
        pad_token_id: the token that fills the rows after their ends; unless given, the model's, the first stop token,
            or 0.
        logits_processor: functions that are called one after the other on each step's float32 logits (log-probabilities
            in a beam search), before anything is drawn. Those that the model asks for come first.
        stopping_criteria: functions that end a row when one is true for it.
        on_tokens: who listens to the tokens: a function, see `OnTokens`, or a streamer of transformers, for several
            rows a list with one for each. Beam searches and sample_and_rank, where no token is final before the end,
            refuse it.
        progress: whether to show a bar (tqdm) of the steps.
        return_scores: whether to keep what each step drew from, in `DecodeOutput.scores`.
    """

    attention_mask: Tensor | None
    encoder: Mapping[str, Tensor] | None
    eos_token_id: int | Sequence[int] | Tensor | None
    pad_token_id: int | None
    logits_processor: Sequence[LogitsProcessor]
    stopping_criteria: Sequence[StoppingCriterion]
    on_tokens: Listener | None
    progress: bool
    return_scores: bool


@dataclass(frozen=True)
class Request:
    """Holds the prompts and `GenerationOptions` after they were checked."""

    strategy: str  # the name of the function, for messages
    input_ids: Tensor  # int64 [batch, length]
    attention_mask: Tensor  # bool [batch, length], no row without a True
    encoder: Mapping[str, Tensor]  # what the model's encoder takes, as given
    max_new_tokens: Tensor  # int64 [batch] on the device, each at least 1
    max_steps: int  # the largest of them, on the host
    eos_token_ids: Tensor  # int64 [n] on the host; n may be 0
    pad_token_id: int  # the token that fills rows
    logits_processor: Sequence[LogitsProcessor]  # the model's, then those that were given
    stopping_criteria: Sequence[StoppingCriterion]  # those that were given
    on_tokens: OnTokens | tuple[Streamer, ...] | None  # a function, or streamers in a tuple, also one alone
    progress: bool  # whether to show a bar of the steps
    return_scores: bool  # whether to keep what each step drew from

    @property
    def batch_size(self) -> int:
        """Returns how many prompts there are."""
        return len(self.input_ids)

    @property
    def device(self) -> torch.device:
        """Returns where the prompts are, and so everything else."""
        return self.input_ids.device

    def prompt_lengths(self) -> Tensor:
        """Returns the lengths of the prompts, int64 [batch], padding not counted."""
        return self.attention_mask.sum(dim=1)

    def prompts(self) -> list[list[int]]:
        """Returns the tokens of the prompts without padding, on the host."""
        return [row[mask].tolist() for row, mask in zip(self.input_ids.cpu(), self.attention_mask.cpu(), strict=True)]

    @property
    def has_ends(self) -> bool:
        """Tells whether a text may end before its max_new_tokens."""
        return len(self.eos_token_ids) > 0 or len(self.stopping_criteria) > 0

    @property
    def needs_scores(self) -> bool:
        """Tells whether anyone looks at what each step drew from."""
        return self.return_scores or len(self.stopping_criteria) > 0

    def is_eos(self, tokens: Tensor) -> Tensor:
        """Tells which tokens end their row, bool in the shape of tokens."""
        if tokens.is_cpu:
            return torch.isin(tokens, self.eos_token_ids)
        # On a device one launch compares with a number of the host, and torch.isin takes four.
        each = [tokens == token for token in self.eos_token_ids.tolist()]
        return functools.reduce(torch.bitwise_or, each) if each else torch.zeros_like(tokens, dtype=torch.bool)


@dataclass(frozen=True)
class GenerationDefaults:
    """Says what a `StepModel` wants of its texts; the type of its attribute `generation_defaults`.

    Source: docs/decoding.md, section "Models".
    """

    eos_token_id: tuple[int, ...] = ()  # the tokens that end a text, unless the caller names others, or none with ()
    pad_token_id: int | None = None  # the token that fills rows, unless the caller names another one
    rules: tuple[str, ...] = ()  # the settings that the processors come from, for messages: "repetition_penalty=1.2"
    # a function of the request, whose tokens and prompts are checked, that returns what comes before the caller's
    # logits_processor. It is called for each request, so what it returns may know the prompts.
    processors: Callable[[Request], Sequence[LogitsProcessor]] = lambda request: ()


NO_DEFAULTS: Final = GenerationDefaults()


def defaults_of(model: object) -> GenerationDefaults:
    """Returns what the model says, or `NO_DEFAULTS` if it says nothing."""
    found = getattr(model, "generation_defaults", NO_DEFAULTS)
    return found if isinstance(found, GenerationDefaults) else NO_DEFAULTS


def check_request(
    strategy: str,
    model: object,
    input_ids: Tensor,
    max_new_tokens: int | Sequence[int] | Tensor,
    *,
    attention_mask: Tensor | None = None,
    encoder: Mapping[str, Tensor] | None = None,
    eos_token_id: int | Sequence[int] | Tensor | None = None,
    pad_token_id: int | None = None,
    logits_processor: Sequence[LogitsProcessor] = (),
    stopping_criteria: Sequence[StoppingCriterion] = (),
    on_tokens: Listener | None = None,
    progress: bool = False,
    return_scores: bool = False,
    **unknown: object,
) -> Request:
    """Checks what every strategy takes, before the model is called.

    Raises:
        TypeError: an argument has a wrong type or dtype.
        ValueError: an argument has a wrong shape, device or value.
    """
    if unknown:
        rule = f"be parameters of its own, or {', '.join(GenerationOptions.__annotations__)}"
        refuse(strategy, "options", rule, ", ".join(unknown), _advice_on(unknown), TypeError)
    check_model(strategy, "model", model)
    if not isinstance(input_ids, Tensor) or input_ids.dtype != torch.int64:
        remedy = "Convert it with torch.as_tensor(ids, dtype=torch.int64)."
        if isinstance(input_ids, Mapping):
            remedy = f"Give what it holds by name: {strategy}(model, **tokens, ...)."
        refuse_type(strategy, "input_ids", "be an int64 tensor", input_ids, remedy)
    if input_ids.dim() != 2 or 0 in input_ids.shape:
        shape = list(input_ids.shape)
        remedy = "Give at least one prompt of at least one token; pad shorter ones and pass attention_mask."
        refuse(strategy, "input_ids", "be [batch, length] and not empty", shape, remedy)
    given = getattr(model, "num_embeddings", None)
    most: int | None = int(given) if is_integer(given) else None
    is_known = input_ids == input_ids.clamp(0, None if most is None else most - 1)
    mask = _checked_mask(strategy, input_ids, attention_mask, is_known, most)
    encoder = _checked_encoder(strategy, model, input_ids, encoder)
    lengths = _checked_lengths(strategy, input_ids, max_new_tokens)
    defaults = defaults_of(model)
    eos = _checked_eos(strategy, defaults.eos_token_id if eos_token_id is None else eos_token_id)
    if pad_token_id is None:
        pad_token_id = defaults.pad_token_id
    if pad_token_id is None:
        pad_token_id = eos[0] if eos else 0
    check_integer(strategy, "pad_token_id", pad_token_id, low=0)
    for name, values in (("logits_processor", logits_processor), ("stopping_criteria", stopping_criteria)):
        if not isinstance(values, Sequence) or not all(map(callable, values)):
            refuse_type(strategy, name, "be a list of callables", values, "Put a single one into a list.")
    listener = checked_listener(strategy, on_tokens)
    check_bool(strategy, "progress", progress)
    check_bool(strategy, "return_scores", return_scores)
    device = input_ids.device
    request = Request(
        strategy=strategy,
        input_ids=input_ids.where(is_known, pad_token_id),  # no processor could look up a masked -100
        attention_mask=mask,
        encoder=encoder,
        max_new_tokens=torch.tensor(lengths, dtype=torch.int64, device=device),
        max_steps=max(lengths),
        eos_token_ids=torch.tensor(eos, dtype=torch.int64, device="cpu"),
        pad_token_id=pad_token_id,
        logits_processor=logits_processor,
        stopping_criteria=stopping_criteria,
        on_tokens=listener,
        progress=progress,
        return_scores=return_scores,
    )
    check_positions(request, model)
    return replace(request, logits_processor=[*defaults.processors(request), *logits_processor])


def check_positions(request: Request, model: object, name: str = "model", more: int = 0) -> None:
    """Raises where a row would need more positions than the model has, if its attribute max_positions says how many.

    Args:
        request: the prompts, and how many tokens they get. The last of these is never read.
        model: the model that reads the others.
        name: the name of the argument that the model is.
        more: how many tokens more the strategy lets it read.
    """
    most = getattr(model, "max_positions", None)
    if not is_integer(most):
        return
    lengths = request.prompt_lengths()
    needed, row = (lengths + request.max_new_tokens - 1 + more).max(dim=0)
    if needed > most:
        rule = f"need at most the {most} positions of {name}"
        value = (
            f"{int(needed)}, for {int(request.max_new_tokens[row])} after the {int(lengths[row])} of prompt {int(row)}"
        )
        refuse(request.strategy, "max_new_tokens", rule, value, "Generate fewer, or cut the prompt.")


def check_model(strategy: str, name: str, model: object, kind: str = "a StepModel") -> None:
    """Raises unless model is a `StepModel`."""
    if not has_methods(model, STEP_METHODS):
        missing = [method for method in STEP_METHODS if not callable(getattr(model, method, None))]
        value = f"{type(model).__name__} without {', '.join(missing)}"
        remedy = (
            "Wrap a model of transformers into CausalModel or EncoderDecoderModel, any other module into ModuleModel."
        )
        if isinstance(model, type):
            value, remedy = f"the class {model.__name__}", "Make an object of it."
        refuse(strategy, name, f"be {kind}", value, remedy, TypeError)


def _advice_on(unknown: Mapping[str, object]) -> str:
    """Returns what to do with options that no strategy has, but the `generate` of transformers may."""
    in_params = [name for name in unknown if name in SamplingParams.__dataclass_fields__]
    if in_params:
        return f"Put {', '.join(in_params)} into params=SamplingParams(...), which the strategies that draw take."
    return f"Give it as on_tokens to {STREAMING}." if "streamer" in unknown else "Use one of these names."


def _checked_mask(
    strategy: str, input_ids: Tensor, attention_mask: Tensor | None, is_known: Tensor, num_embeddings: int | None
) -> Tensor:
    """Returns the mask, or raises where it is none, or shows the model what it does not know."""
    if attention_mask is None:
        attention_mask = torch.ones_like(input_ids, dtype=torch.bool)
    is_tensor = isinstance(attention_mask, Tensor)
    if not is_tensor or attention_mask.dtype.is_floating_point or attention_mask.dtype.is_complex:
        remedy = "Give True (1) at tokens and False (0) at padding."
        refuse_type(strategy, "attention_mask", "be a bool or int64 tensor", attention_mask, remedy)
    if attention_mask.shape != input_ids.shape:
        shape, rule = list(attention_mask.shape), f"have the shape of input_ids, {list(input_ids.shape)}"
        refuse(strategy, "attention_mask", rule, shape, "Use the tokenizer's.")
    if attention_mask.device != input_ids.device:
        rule = f"be on the device of input_ids, {input_ids.device}"
        refuse(strategy, "attention_mask", rule, attention_mask.device, "Move it with .to().")
    mask = attention_mask.bool()
    is_odd, is_unknown = attention_mask != mask, mask > is_known
    of_rows = torch.stack((is_odd.any(dim=1), ~mask.any(dim=1), is_unknown.any(dim=1)))
    odd, empty, unknown = ([row for row, it in enumerate(found) if it] for found in of_rows.tolist())
    if odd:
        value = f"{attention_mask[is_odd].unique().tolist()} in the rows {odd}"
        refuse(strategy, "attention_mask", "be 0 or 1", value, "Give True (1) at tokens and False (0) at padding.")
    if empty:
        remedy = "A prompt needs a token, for example the model's start token."
        refuse(strategy, "attention_mask", "leave each row a token", f"none in the rows {empty}", remedy)
    if unknown:
        rule = "be at least 0" if num_embeddings is None else f"be in [0, {num_embeddings}), the model's embeddings"
        value = f"{input_ids[is_unknown].unique().tolist()} in the rows {unknown}"
        refuse(strategy, "input_ids", rule, value, "Pass attention_mask, with 0 at padding.")
    return mask


def _checked_encoder(
    strategy: str, model: Any, input_ids: Tensor, encoder: Mapping[str, Tensor] | None
) -> dict[str, Tensor]:
    if not (encoder is None or isinstance(encoder, Mapping)):
        refuse_type(strategy, "encoder", "be a dict of tensors", encoder, "Give the encoder's inputs by name.")
    given = dict(encoder or {})
    for name, value in given.items():
        if not isinstance(name, str):
            refuse_type(strategy, "the name of an input of encoder", "be a str", name, "Name what the model takes.")
        if not isinstance(value, Tensor) or value.dim() == 0 or len(value) != len(input_ids):
            rule, remedy = f"be a tensor [{len(input_ids)}, ...]", "Give one row for each prompt."
            refuse(strategy, f"encoder[{name!r}]", rule, show_with_type(value), remedy)
        if name.endswith("attention_mask") and bool((value != value.bool()).any()):
            value = value.unique().tolist()
            refuse(strategy, f"encoder[{name!r}]", "be 0 or 1", value, "Give 1 at what counts and 0 at padding.")
    check_arguments(strategy, model.prefill, (input_ids, None), given)
    return given


def _checked_lengths(strategy: str, input_ids: Tensor, value: int | Sequence[int] | Tensor) -> list[int]:
    if isinstance(value, Tensor):
        value = value.tolist()
    batch_size = len(input_ids)
    rule = f"be an int, or one for each of {batch_size} prompts"
    if not (is_list(value) or is_integer(value)):
        refuse_type(strategy, "max_new_tokens", rule, value, "Say how many tokens a row may get at most.")
    lengths = value if is_list(value) else [value] * batch_size
    if len(lengths) != batch_size:
        refuse(strategy, "max_new_tokens", rule, f"{len(lengths)} values", "Give as many as there are prompts.")
    return [check_integer(strategy, "max_new_tokens", length, low=1) for length in lengths]


def _checked_eos(strategy: str, value: int | Sequence[int] | Tensor | None) -> list[int]:
    if isinstance(value, Tensor):
        value = value.tolist()
    if value is None:
        return []
    if not (is_list(value) or is_integer(value)):
        refuse_type(strategy, "eos_token_id", "be an int, or a list of them", value, "Give the tokens' ids.")
    tokens = value if is_list(value) else [value]
    # A token that is named twice is one: beams have candidates for each.
    return list(dict.fromkeys(check_integer(strategy, "eos_token_id", token, low=0) for token in tokens))
