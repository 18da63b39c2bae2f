"""Checks of fields of a request that contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ascend_sample._errors import show
from ascend_sample.sampling.requests.checks import refuse_field

if TYPE_CHECKING:
    from ascend_sample.sampling.requests.params import SamplingParams

WHOLE_TEXT: Final = "Use None for the whole text."


def check_contradictions(params: SamplingParams) -> None:
    """Raises where two fields contradict each other, whatever the vocabulary is."""
    _check_window(params)
    if params.thinking_budget is not None:
        _check_thinking(params)
    if params.mirostat_tau > 0 and params.adaptive_target is not None:
        remedy = "Both steer what is drawn: choose one."
        refuse_field("adaptive_target", "be None beside mirostat_tau", params.adaptive_target, remedy)


def check_something_is_allowed(params: SamplingParams, vocab_size: int | None) -> None:
    """Raises unless some id can be drawn, at first too, while `min_tokens` forbids the stop ids."""
    if params.min_tokens > 0 and not (params.stop_ids or params.stop_sequences):
        rule = "be 0 where stop_ids and stop_sequences are empty"
        refuse_field("min_tokens", rule, params.min_tokens, "Name what ends the text in stop_ids or stop_sequences.")
    forbidden = set(params.bad_ids)
    at_first = forbidden.union(params.stop_ids) if params.min_tokens else forbidden
    if params.allowed_ids is not None:
        if forbidden.issuperset(params.allowed_ids):
            rule = "name at least one id" + (" that is not in bad_ids" if params.bad_ids else "")
            refuse_field("allowed_ids", rule, params.allowed_ids, "Use None to allow all ids.")
        nothing_at_first = at_first.issuperset(params.allowed_ids)
    else:
        if vocab_size is not None and len(forbidden) >= vocab_size:
            rule = f"leave at least one of the {vocab_size} ids of the vocabulary"
            refuse_field("bad_ids", rule, params.bad_ids, "Forbid fewer ids.")
        nothing_at_first = vocab_size is not None and len(at_first) >= vocab_size
    if nothing_at_first:
        rule = "be 0 where nothing but stop_ids may be drawn"
        refuse_field("min_tokens", rule, params.min_tokens, "Allow an id that does not end the sequence.")


def _check_window(params: SamplingParams) -> None:
    window = params.no_repeat_ngram_window
    if window is not None and window < params.no_repeat_ngram_size:
        rule = f"be at least no_repeat_ngram_size, {params.no_repeat_ngram_size}"
        refuse_field("no_repeat_ngram_window", rule, window, WHOLE_TEXT)


def _check_thinking(params: SamplingParams) -> None:
    for name in ("thinking_start", "thinking_end"):
        if not getattr(params, name):
            remedy = "Give the ids of the tags that open and close a thought."
            refuse_field(name, "name at least one id beside thinking_budget", (), remedy)
    end = tuple(params.thinking_end)
    if end == params.thinking_start:
        refuse_field("thinking_end", "be another sequence than thinking_start", end, "Give the tag that closes.")
    name, closing = ("thinking_closing", params.thinking_closing) if params.thinking_closing else ("thinking_end", end)
    if tuple(closing[-len(end) :]) != end:
        refuse_field(name, f"end with thinking_end, {show(end)}", closing, "Append that.")
    lost = set(closing) & {*params.bad_ids, *(params.stop_ids if params.min_tokens else ())}
    if params.allowed_ids is not None:
        lost |= set(closing) - set(params.allowed_ids)
    if lost:
        rule = "hold only ids that allowed_ids, bad_ids and, with min_tokens, stop_ids allow"
        refuse_field(name, rule, min(lost), "It is drawn where the budget ends: allow it.")
    if params.adaptive_target is not None and not params.min_p:
        remedy = "adaptive-p draws ids without any probability too, where no filter drops them."
        refuse_field("min_p", "be above 0 beside thinking_budget and adaptive_target", params.min_p, remedy)
