"""OpenAI's requests: chat completions, and completions."""

from __future__ import annotations

from typing import Any, Final

from ascend_sample.sampling.requests.dialects.conversions import (
    PENALTIES,
    renamed,
    to_bias,
    to_seed,
    to_stop_sequences,
    to_top_p,
)
from ascend_sample.sampling.requests.dialects.dialect import Context, Dialect, engines, number, taken
from ascend_sample.sampling.requests.dialects.forms import TEXTS

PROMPT: Final = engines("The engine's: what is read, and as whom.")
LENGTH: Final = engines("The engine's: it ends the text.")
STOP: Final = taken(
    "stop_sequences", note="Sequences of ids; texts are left to the engine, which ends the text.", form=TEXTS
)
ROWS: Final = engines("The engine's: a row for each text, with a seed of its own (`derive_seeds`).")
HELD: Final = "Beside eos_ids, which are not drawn before, also with ignore_eos."
GRAMMAR: Final = engines("The engine's grammar makes a bitmask, which `Sampler` takes beside the request.")
ANSWER: Final = engines("The engine's: how the answer is sent, billed or kept.")


def _convert(given: dict[str, Any], context: Context) -> dict[str, Any]:
    ours = renamed(given, "temperature", *PENALTIES) | to_top_p(given)
    ours |= to_seed(given, "seed") | to_bias(given, context) | to_stop_sequences(given)
    reported, best = given.get("logprobs", False), given.get("top_logprobs", 0)
    if reported is True:  # in chat
        return ours | {"logprobs": best}
    if best:
        context.refuse("top_logprobs", "be 0 or left out unless logprobs is true", best, "Set it to true.")
    return ours if reported is False else ours | {"logprobs": reported}


OPENAI: Final = Dialect(
    "openai",
    "OpenAI's API (openai 3.57, chat completions and completions)",
    {
        "temperature": number("temperature"),
        "top_p": number("top_p"),
        "presence_penalty": number("presence_penalty"),
        "frequency_penalty": number("frequency_penalty"),
        "logit_bias": taken("logit_bias", note="Ids may be texts, as JSON has them."),
        "seed": taken("seed", note="A negative one becomes the unsigned number of its 64 bits."),
        "logprobs": taken("logprobs", note="In chat true or false, in completions a number."),
        "top_logprobs": number("logprobs", note="In chat, beside logprobs = true."),
        **dict.fromkeys(("max_completion_tokens", "max_tokens"), LENGTH),
        "stop": STOP,
        **dict.fromkeys(("n", "best_of"), ROWS),
        **dict.fromkeys(("response_format", "tools", "tool_choice", "functions", "function_call"), GRAMMAR),
        **dict.fromkeys(
            ("messages", "model", "prompt", "suffix", "audio", "modalities", "web_search_options", "reasoning_effort"),
            PROMPT,
        ),
        **dict.fromkeys(
            (
                "echo",
                "metadata",
                "moderation",
                "parallel_tool_calls",
                "prediction",
                "prompt_cache_key",
                "prompt_cache_options",
                "prompt_cache_retention",
                "safety_identifier",
                "service_tier",
                "store",
                "stream",
                "stream_options",
                "user",
                "verbosity",
            ),
            ANSWER,
        ),
    },
    _convert,
)
