"""OpenAI's requests: chat completions, and completions."""

from __future__ import annotations

from typing import Any, Final

from ascend_sample.sampling.dialects.conversions import PENALTIES, renamed, to_bias, to_seed, to_stop_sequences
from ascend_sample.sampling.dialects.dialect import Context, Dialect, engines, number, taken
from ascend_sample.sampling.dialects.forms import TEXTS

PROMPT: Final = engines("The engine's: what is read, and as whom.")
LENGTH: Final = engines("The engine's: it ends the text.")
STOP: Final = taken(
    "stop_sequences", note="Sequences of ids; texts are left to the engine, which ends the text.", form=TEXTS
)
ROWS: Final = engines("The engine's: a row for each text, with a seed of its own.")
GRAMMAR: Final = engines("The engine's grammar makes a bitmask, which `Sampler` takes beside the request.")
ANSWER: Final = engines("The engine's: how the answer is sent, billed or kept.")


def _convert(given: dict[str, Any], context: Context) -> dict[str, Any]:
    ours = renamed(given, temperature="temperature", top_p="top_p", **PENALTIES)
    ours |= to_seed(given, "seed") | to_bias(given, context) | to_stop_sequences(given)
    reported = given.get("logprobs")
    if isinstance(reported, bool):  # in chat
        if reported:
            ours["logprobs"] = given.get("top_logprobs", 0)
        elif given.get("top_logprobs"):
            remedy = "Set logprobs to true, or leave top_logprobs out."
            context.refuse("top_logprobs", "be 0 or left out while logprobs is false", given["top_logprobs"], remedy)
    elif reported is not None:
        ours["logprobs"] = reported
    elif given.get("top_logprobs"):
        remedy = "Set logprobs to true beside it."
        context.refuse("top_logprobs", "be left out while logprobs is", given["top_logprobs"], remedy)
    return ours


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
        "top_logprobs": taken("logprobs", note="In chat, beside logprobs = true."),
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
