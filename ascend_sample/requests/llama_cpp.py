"""The request of llama.cpp's server (`/completion`), with its defaults."""

from __future__ import annotations

from typing import Final

from ascend_sample.requests.dialect import (
    ANSWER,
    GRAMMAR,
    LENGTH,
    ROWS,
    STOP,
    Context,
    Dialect,
    Values,
    each,
    engines,
    refused,
    seed,
    taken,
)
from ascend_sample.requests.values import FLAG, LIST, PAIRS, above_zero, integer_ids

NEUTRAL: Final = {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Penalties that change nothing."""
DEFAULTS: Final[Values] = {
    **{"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical_p": 1.0, "top_n_sigma": 0.0},
    **{"xtc_probability": 0.0, "xtc_threshold": 0.1},
    **NEUTRAL,
    "repeat_last_n": 64,
    **{"dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 64},
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
    **{"mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1},
    **{"adaptive_target": -1.0, "adaptive_decay": 0.9},
}
"""What the server takes for what a request leaves out."""
UNSEEDED: Final = (-1, 2**32 - 1)
WHOLE_TEXT: Final = -1
SAMPLERS: Final = [
    *("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"),
]
"""The default order, in which adaptive_p draws last where it is named, wherever that is."""
BEFORE_XTC: Final = ("top_n_sigma", "top_k", "typical_p", "top_p", "min_p")
"""The filters that come first, in their order."""
OFF: Final = {"top_k": None, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0}
"""Values with which our fields do nothing, where that is not 0."""
NOTHING_ALONE: Final = engines("Of no meaning while the field that switches it on is off; that one is refused.")


def _bias(ours: Values, given: Values, context: Context) -> None:
    """Takes biases, and bans where a bias is false, of a list of pairs or a mapping."""
    bias = integer_ids(given.get("logit_bias", ()))
    banned = {token_id for token_id, value in bias.items() if value is False}
    if given.get("ignore_eos"):
        if context.eos_ids is None:
            remedy = "They are banned then: give them, or [] where the model has none."
            context.refuse("ignore_eos", "be False where eos_ids are not given", True, remedy)
        banned |= set(context.eos_ids)
    ours["logit_bias"] = {token_id: value for token_id, value in bias.items() if value is not False}
    if banned:
        ours["suppress_token_ids"] = banned


def _penalties(ours: Values, given: Values, context: Context) -> None:
    """Takes the penalties: of the whole text, as counts of its last tokens alone are kept nowhere here."""
    window = given["repeat_last_n"]
    if window == 0 or all(given[name] == off for name, off in NEUTRAL.items()):
        return
    if window != WHOLE_TEXT and window < context.max_model_len:
        rule = "be 0, -1 or at least max_model_len beside a penalty"
        remedy = "Penalties count the whole text here: give max_model_len, or -1 to have that, or no penalty."
        context.refuse("repeat_last_n", rule, window, remedy)
    ours["repetition_penalty"] = given["repeat_penalty"]
    ours |= {name: given[name] for name in ("presence_penalty", "frequency_penalty")}


def _dry(ours: Values, given: Values, context: Context) -> None:
    """Takes the fields of DRY where it is on."""
    window = given["dry_penalty_last_n"]
    if given["dry_multiplier"] == 0 or window == 0:
        return
    if window < WHOLE_TEXT:
        context.refuse("dry_penalty_last_n", "be -1 or more", window, "-1 is the whole text.")
    breakers = given["dry_sequence_breakers"]
    if any(isinstance(breaker, str) for breaker in breakers):
        remedy = "Texts must be tokenized: give an id, or a list of them, for each."
        context.refuse("dry_sequence_breakers", "name ids beside dry_multiplier", breakers, remedy)
    ours |= {name: given[name] for name in ("dry_multiplier", "dry_allowed_length", "dry_sequence_breakers")}
    ours["dry_base"] = given["dry_base"] if given["dry_base"] >= 1 else DEFAULTS["dry_base"]  # as the server has it
    ours["dry_penalty_last_n"] = window if window > 0 else None


def _adaptive_p(ours: Values, given: Values, context: Context) -> None:
    """Takes the fields of adaptive-p where it is on, of which the order of samplers may tell as well."""
    order = given.get("samplers")
    if order is not None and [name for name in order if name != "adaptive_p"] != SAMPLERS:
        remedy = "The order is fixed here (docs/requests.md has it), and a filter is off by its own field."
        context.refuse("samplers", f"be {SAMPLERS}, with or without 'adaptive_p'", order, remedy)
    if given["adaptive_target"] >= 0 and (order is None or "adaptive_p" in order):
        ours["adaptive_target"] = given["adaptive_target"]
        ours["adaptive_decay"] = min(max(given["adaptive_decay"], 0.0), 0.99)


def _mirostat(ours: Values, given: Values, context: Context) -> None:
    """Takes mirostat, which runs after the biases and the temperature, and nothing else does."""
    if given["mirostat"] != 2:
        remedy = "Version 1 fits its bound to the best tokens' probabilities, which nothing here does."
        context.refuse("mirostat", "be 0 or 2", given["mirostat"], remedy)
    if given["mirostat_tau"] <= 0:
        context.refuse("mirostat_tau", "be above 0 beside mirostat", given["mirostat_tau"], "Use temperature 0.")
    ours |= {name: given[name] for name in ("mirostat_tau", "mirostat_eta")}


def _combine(ours: Values, given: Values, context: Context) -> None:
    given = DEFAULTS | given
    ours["temperature"] = max(given["temperature"], 0.0)
    if reported := given.get("n_probs") or given.get("logprobs"):
        ours["logprobs"] = reported
    _bias(ours, given, context)
    if given["mirostat"]:
        _mirostat(ours, given, context)
        return
    ours |= {"top_p": above_zero(given["top_p"]), "min_p": given["min_p"], "typical_p": given["typical_p"]}
    ours |= {name: given[name] for name in ("top_k", "top_n_sigma", "xtc_probability") if given[name] > 0}
    if "xtc_probability" in ours:
        ours["xtc_threshold"] = given["xtc_threshold"]
    _penalties(ours, given, context)
    _dry(ours, given, context)
    _adaptive_p(ours, given, context)


def _is_on(ours: Values, name: str) -> bool:
    """Tells whether one of our filters does anything."""
    off = OFF.get(name, 0.0)
    return bool(ours.get(name, off) != off)


LLAMA_CPP: Final = Dialect(
    "llama_cpp",
    "llama.cpp's server (as in llama-cpp-python 0.3.36)",
    {
        "temperature": taken("temperature", note="0.8 where it is left out; 0 and less is greedy."),
        "top_k": taken("top_k", note="40 where it is left out; 0 and less is off."),
        "top_p": taken("top_p", note="0.95 where it is left out."),
        "min_p": taken("min_p", note="0.05 where it is left out."),
        **{name: taken(name) for name in ("typical_p", "presence_penalty", "frequency_penalty", "dry_allowed_length")},
        "top_n_sigma": taken("top_n_sigma", note="0 and less is off."),
        "xtc_probability": taken("xtc_probability", note="The coin is another one: that of the request's seed here."),
        "xtc_threshold": taken("xtc_threshold", note="Where xtc_probability is above 0."),
        "repeat_penalty": taken("repetition_penalty"),
        "repeat_last_n": taken(
            "repetition_penalty",
            note="64 where it is left out, 0 is off. Beside a penalty any other must reach over the whole text: "
            "-1, or at least `max_model_len`.",
        ),
        "logit_bias": taken(
            "logit_bias",
            "suppress_token_ids",
            note="Pairs or a mapping; false is a ban. Texts are refused.",
            form=PAIRS,
        ),
        "ignore_eos": taken(
            "suppress_token_ids", note="The server never draws these ids then, so eos_ids are banned.", form=FLAG
        ),
        "seed": seed("-1 is none.", *UNSEEDED),
        "dry_multiplier": taken("dry_multiplier", note="0 is off."),
        "dry_base": taken("dry_base", note="1.75 where it is below 1."),
        "dry_penalty_last_n": taken(
            "dry_penalty_last_n", note="64 where it is left out; -1 is the whole text; 0 switches DRY off."
        ),
        "dry_sequence_breakers": taken(
            "dry_sequence_breakers", note="Ids, beside DRY; texts, the default, are refused.", form=LIST
        ),
        "n_probs": taken("logprobs", note="0 is none."),
        "logprobs": taken("logprobs", note="Another name of n_probs."),
        "mirostat": taken("mirostat_tau", note="0 and 2; beside 2 no filter, penalty or DRY counts, as in llama.cpp."),
        "mirostat_tau": taken("mirostat_tau", note="5 where it is left out, beside mirostat."),
        "mirostat_eta": taken("mirostat_eta", note="0.1 where it is left out, beside mirostat."),
        "adaptive_target": taken(
            "adaptive_target", note="Below 0 it is off; llama.cpp heeds it where samplers names adaptive_p."
        ),
        "adaptive_decay": taken("adaptive_decay", note="0.9 where it is left out, beside adaptive_target."),
        "samplers": taken("adaptive_target", note="llama.cpp's default order, with adaptive_p or without.", form=LIST),
        "dynatemp_range": refused("The temperature is one number.", 0.0),
        "min_keep": refused("Filters keep one id at least, and no more for that.", 0, 1),
        "reasoning_budget_tokens": refused("Its tags are texts: give thinking_token_budget, and their ids.", -1),
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
        **each("grammar json_schema grammar_type grammar_lazy grammar_triggers", GRAMMAR),
        **each("n_predict max_tokens max_completion_tokens t_max_predict_ms", LENGTH),
        "stop": STOP,
        **each("n_cmpl n", ROWS),
        **each(
            "backend_sampling cache_prompt chat_format chat_parser continue_final_message generation_prompt "
            "id_slot lora n_cache_reuse n_discard n_indent n_keep parse_tool_calls preserved_tokens prompt "
            "reasoning_format speculative.n_max speculative.n_min speculative.ngram_min_hits "
            "speculative.ngram_size_m speculative.ngram_size_n speculative.p_min speculative.type",
            engines("The engine's: what is read, and how the model is run."),
        ),
        **each(
            "echo post_sampling_probs response_fields return_progress return_tokens sse_ping_interval stream "
            "stream_options timings_per_token verbose",
            ANSWER,
        ),
    },
    _combine,
    {
        "llama.cpp filters before it divides by the temperature; here top_p, min_p, typical_p and xtc see the divided "
        "logits.": lambda ours: (
            ours["temperature"] not in (0.0, 1.0)
            and any(_is_on(ours, name) for name in ("top_p", "min_p", "typical_p", "xtc_probability"))
        ),
        "llama.cpp measures typical_p among what top_n_sigma and top_k keep, and xtc among what all other filters do; "
        "here both look at all ids, before top_k.": lambda ours: (
            (_is_on(ours, "typical_p") and any(_is_on(ours, name) for name in ("top_k", "top_n_sigma")))
            or (_is_on(ours, "xtc_probability") and any(_is_on(ours, name) for name in BEFORE_XTC))
        ),
        "llama.cpp's typical_p measures from a NaN where an id has the probability 0; here such ids do not count.": (
            lambda ours: _is_on(ours, "typical_p") and "suppress_token_ids" in ours
        ),
        "llama.cpp counts the prompt's tokens for presence and frequency; here the output's alone.": (
            lambda ours: _is_on(ours, "presence_penalty") or _is_on(ours, "frequency_penalty")
        ),
        "llama.cpp subtracts DRY's penalty after the repetition penalty; here that comes last.": (
            lambda ours: "dry_multiplier" in ours and _is_on(ours, "repetition_penalty")
        ),
    },
)
