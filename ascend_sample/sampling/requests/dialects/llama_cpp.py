"""The request of llama.cpp's server (`/completion`), with its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ascend_sample.sampling.requests.checks import by_id
from ascend_sample.sampling.requests.dialects.conversions import (
    PENALTIES,
    renamed,
    to_seed,
    to_stop_sequences,
    to_top_p,
)
from ascend_sample.sampling.requests.dialects.dialect import (
    Context,
    Dialect,
    Difference,
    engines,
    number,
    refused,
    same,
    taken,
)
from ascend_sample.sampling.requests.dialects.forms import FLAG, LIST, PAIRS
from ascend_sample.sampling.requests.dialects.openai import ANSWER, GRAMMAR, LENGTH, ROWS, STOP

DEFAULTS: Final = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_last_n": 64}
"""What the server takes for what a request leaves out."""
UNSEEDED: Final = (-1, 2**32 - 1)
WHOLE_TEXT: Final = -1

DRY: Final = {"dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 64}
"""The same of the fields of DRY, but for its breakers."""
BREAKERS: Final = ["\n", ":", '"', "*"]

MIROSTAT: Final = {"mirostat_tau": 5.0, "mirostat_eta": 0.1}
"""The same of the fields of mirostat."""
ADAPTIVE_DECAY: Final = 0.9
SAMPLERS: Final = [
    *("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"),
]
"""The default order, in which adaptive_p draws last where it is named, wherever that is."""
BEFORE_XTC: Final = ("top_n_sigma", "top_k", "typical_p", "top_p", "min_p")
"""The filters that come first, in their order."""
OFF: Final = {"top_k": None, "top_p": 1.0, "typical_p": 1.0}
"""Values with which our fields do nothing, where that is not 0."""
NOTHING_ALONE: Final = engines("Of no meaning while the field that switches it on is off; that one is refused.")


def _bias(given: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Returns biases, and bans where a bias is false, of a list of pairs or a mapping."""
    entries = given.get("logit_bias", ())
    bias = by_id(entries.items() if isinstance(entries, Mapping) else entries, "logit_bias")
    banned = {name for name, value in bias.items() if value is False}
    if given.get("ignore_eos"):
        if context.eos_ids is None:
            remedy = "They are banned then: give them, or [] where the model has none."
            context.refuse("ignore_eos", "be False where eos_ids are not given", True, remedy)
        banned |= set(context.eos_ids)
    ours = {"logit_bias": {name: value for name, value in bias.items() if value is not False}}
    return ours | ({"bad_ids": banned} if banned else {})


def _dry(given: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Returns the fields of DRY where it is on."""
    asked = {**DRY, **given}
    if asked["dry_multiplier"] == 0 or asked["dry_penalty_last_n"] == 0:
        return {}
    if asked["dry_base"] < 1:  # as the server replaces it
        asked["dry_base"] = DRY["dry_base"]
    if asked["dry_penalty_last_n"] < WHOLE_TEXT:
        context.refuse("dry_penalty_last_n", "be -1 or more", asked["dry_penalty_last_n"], "-1 is the whole text.")
    breakers = given.get("dry_sequence_breakers", BREAKERS)
    if any(isinstance(breaker, str) for breaker in breakers):
        remedy = "Texts must be tokenized: give an id, or a list of them, for each."
        context.refuse("dry_sequence_breakers", "name ids beside dry_multiplier", breakers, remedy)
    ours = {name: asked[name] for name in ("dry_multiplier", "dry_base", "dry_allowed_length")}
    ours["dry_sequence_breakers"] = breakers
    return ours | ({"dry_range": asked["dry_penalty_last_n"]} if asked["dry_penalty_last_n"] > 0 else {})


def _adaptive_p(given: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Returns the fields of adaptive-p where it is on, of which the order of samplers may tell as well."""
    order = given.get("samplers")
    if order is not None and [name for name in order if name != "adaptive_p"] != SAMPLERS:
        remedy = "The order is fixed here (docs/requests.md has it), and a filter is off by its own field."
        context.refuse("samplers", f"be {SAMPLERS}, with or without 'adaptive_p'", order, remedy)
    if given.get("adaptive_target", -1.0) < 0 or (order is not None and "adaptive_p" not in order):
        return {}
    decay = min(max(given.get("adaptive_decay", ADAPTIVE_DECAY), 0.0), 0.99)
    return {"adaptive_target": given["adaptive_target"], "adaptive_decay": decay}


def _penalties(given: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Returns the penalties: of the whole text, as counts of its last tokens alone are kept nowhere here."""
    neutral, window = {"repeat_penalty": 1.0, **dict.fromkeys(PENALTIES, 0.0)}, given["repeat_last_n"]
    if window == 0 or all(given.get(name, off) == off for name, off in neutral.items()):
        return {}
    if window != WHOLE_TEXT and window < context.max_model_len:
        rule = "be 0, -1 or at least max_model_len beside a penalty"
        remedy = "Penalties count the whole text here: give max_model_len, or -1 to have that, or no penalty."
        context.refuse("repeat_last_n", rule, window, remedy)
    return renamed(given, *PENALTIES, repeat_penalty="repetition_penalty")


def _always(given: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Returns what no choice of samplers changes."""
    ours = {"temperature": max(given["temperature"], 0.0)}
    if reported := given.get("n_probs") or given.get("logprobs"):
        ours["logprobs"] = reported
    return ours | to_seed(given, "seed", *UNSEEDED) | _bias(given, context) | to_stop_sequences(given)


def _is_on(ours: Mapping[str, Any], name: str) -> bool:
    """Tells whether one of our filters does anything."""
    off = OFF.get(name, 0.0)
    return bool(ours.get(name, off) != off)


def _mirostat(given: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Returns what is asked beside mirostat, which runs after the biases and the temperature, and nothing else does."""
    if given["mirostat"] != 2:
        remedy = "Version 1 fits its bound to the best tokens' probabilities, which nothing here does."
        context.refuse("mirostat", "be 0 or 2", given["mirostat"], remedy)
    asked = {**MIROSTAT, **given}
    if asked["mirostat_tau"] <= 0:
        context.refuse("mirostat_tau", "be above 0 beside mirostat", asked["mirostat_tau"], "Use temperature 0.")
    return {name: asked[name] for name in MIROSTAT}


def _convert(given: dict[str, Any], context: Context) -> dict[str, Any]:
    given = DEFAULTS | given
    if given.get("mirostat", 0):
        return _always(given, context) | _mirostat(given, context)
    ours = renamed(given, "min_p", "typical_p") | to_top_p(given)
    for switch, names in (("top_k", ()), ("top_n_sigma", ()), ("xtc_probability", ("xtc_threshold",))):
        if given.get(switch, 0) > 0:
            ours |= renamed(given, switch, *names)
    ours |= _penalties(given, context) | _always(given, context)
    return ours | _dry(given, context) | _adaptive_p(given, context)


LLAMA_CPP: Final = Dialect(
    "llama_cpp",
    "llama.cpp's server (as in llama-cpp-python 0.3.36)",
    {
        "temperature": number("temperature", note="0.8 where it is left out; 0 and less is greedy."),
        "top_k": number("top_k", note="40 where it is left out; 0 and less is off."),
        "top_p": number("top_p", note="0.95 where it is left out."),
        "min_p": number("min_p", note="0.05 where it is left out."),
        **same("typical_p", "presence_penalty", "frequency_penalty", "dry_allowed_length"),
        "top_n_sigma": number("top_n_sigma", note="0 and less is off."),
        "xtc_probability": number("xtc_probability", note="The coin is another one: that of the request's seed here."),
        "xtc_threshold": number("xtc_threshold", note="Where xtc_probability is above 0."),
        "repeat_penalty": number("repetition_penalty"),
        "repeat_last_n": number(
            "repetition_penalty",
            note="64 where it is left out, 0 is off. Beside a penalty any other must reach over the whole text: "
            "-1, or at least `max_model_len`.",
        ),
        "logit_bias": taken(
            "logit_bias", "bad_ids", note="Pairs or a mapping; false is a ban. Texts are refused.", form=PAIRS
        ),
        "ignore_eos": taken("bad_ids", note="The server never draws these ids then, so eos_ids are banned.", form=FLAG),
        "seed": taken("seed", note="-1 is none."),
        "dry_multiplier": number("dry_multiplier", note="0 is off."),
        "dry_base": number("dry_base", note="1.75 where it is below 1."),
        "dry_penalty_last_n": number(
            "dry_range", note="64 where it is left out; -1 is the whole text; 0 switches DRY off."
        ),
        "dry_sequence_breakers": taken(
            "dry_sequence_breakers", note="Ids, beside DRY; texts, the default, are refused.", form=LIST
        ),
        "n_probs": number("logprobs", note="0 is none."),
        "logprobs": taken("logprobs", note="Another name of n_probs."),
        "mirostat": number("mirostat_tau", note="0 and 2; beside 2 no filter, penalty or DRY counts, as in llama.cpp."),
        "mirostat_tau": number("mirostat_tau", note="5 where it is left out, beside mirostat."),
        "mirostat_eta": number("mirostat_eta", note="0.1 where it is left out, beside mirostat."),
        "adaptive_target": number(
            "adaptive_target", note="Below 0 it is off; llama.cpp heeds it where samplers names adaptive_p."
        ),
        "adaptive_decay": number("adaptive_decay", note="0.9 where it is left out, beside adaptive_target."),
        "samplers": taken("adaptive_target", note="llama.cpp's default order, with adaptive_p or without.", form=LIST),
        "dynatemp_range": refused("The temperature is one number.", 0.0),
        "min_keep": refused("Filters keep one id at least, and no more for that.", 0, 1),
        "reasoning_budget_tokens": refused("Its tags are texts: give thinking_budget, and their ids.", -1),
        **dict.fromkeys(
            (
                "dynatemp_exponent",
                "reasoning_control",
                "reasoning_budget_start_tag",
                "reasoning_budget_end_tags",
                "reasoning_budget_end_tag",
                "reasoning_budget_message",
            ),
            NOTHING_ALONE,
        ),
        **dict.fromkeys(("grammar", "json_schema", "grammar_type", "grammar_lazy", "grammar_triggers"), GRAMMAR),
        **dict.fromkeys(("n_predict", "max_tokens", "max_completion_tokens", "t_max_predict_ms"), LENGTH),
        "stop": STOP,
        **dict.fromkeys(("n_cmpl", "n"), ROWS),
        **dict.fromkeys(
            (
                "backend_sampling",
                "cache_prompt",
                "chat_format",
                "chat_parser",
                "continue_final_message",
                "generation_prompt",
                "id_slot",
                "lora",
                "n_cache_reuse",
                "n_discard",
                "n_indent",
                "n_keep",
                "parse_tool_calls",
                "preserved_tokens",
                "prompt",
                "reasoning_format",
                "speculative.n_max",
                "speculative.n_min",
                "speculative.ngram_min_hits",
                "speculative.ngram_size_m",
                "speculative.ngram_size_n",
                "speculative.p_min",
                "speculative.type",
            ),
            engines("The engine's: what is read, and how the model is run."),
        ),
        **dict.fromkeys(
            (
                "echo",
                "post_sampling_probs",
                "response_fields",
                "return_progress",
                "return_tokens",
                "sse_ping_interval",
                "stream",
                "stream_options",
                "timings_per_token",
                "verbose",
            ),
            ANSWER,
        ),
    },
    _convert,
    (
        Difference(
            lambda ours: (
                ours["temperature"] not in (0.0, 1.0)
                and any(_is_on(ours, name) for name in ("top_p", "min_p", "typical_p", "xtc_probability"))
            ),
            "llama.cpp filters before it divides by the temperature; here top_p, min_p, typical_p and xtc see the "
            "divided logits.",
        ),
        Difference(
            lambda ours: (
                (_is_on(ours, "typical_p") and any(_is_on(ours, name) for name in ("top_k", "top_n_sigma")))
                or (_is_on(ours, "xtc_probability") and any(_is_on(ours, name) for name in BEFORE_XTC))
            ),
            "llama.cpp measures typical_p among what top_n_sigma and top_k keep, and xtc among what all other filters "
            "do; here both look at all ids, before top_k.",
        ),
        Difference(
            lambda ours: _is_on(ours, "typical_p") and "bad_ids" in ours,
            "llama.cpp's typical_p measures from a NaN where an id has the probability 0; here such ids do not count.",
        ),
        Difference(
            lambda ours: ours.get("presence_penalty", 0.0) != 0 or ours.get("frequency_penalty", 0.0) != 0,
            "llama.cpp counts the prompt's tokens for presence and frequency; here the output's alone.",
        ),
        Difference(
            lambda ours: "dry_multiplier" in ours and ours.get("repetition_penalty", 1.0) != 1,
            "llama.cpp subtracts DRY's penalty after the repetition penalty; here that comes last.",
        ),
    ),
)
