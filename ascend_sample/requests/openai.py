"""OpenAI's requests: chat completions, and completions."""

from __future__ import annotations

from typing import Final

from ascend_sample.requests.dialect import (
    ANSWER,
    BIAS,
    GRAMMAR,
    LENGTH,
    ROWS,
    STOP,
    Context,
    Dialect,
    Values,
    copied,
    each,
    engines,
    same,
    seed,
    taken,
)
from ascend_sample.requests.values import above_zero

PROMPT: Final = engines("The engine's: what is read, and as whom.")


def _combine(ours: Values, given: Values, context: Context) -> None:
    reported, best = given.get("logprobs", False), given.get("top_logprobs", 0)
    if reported is True:  # in chat
        ours["logprobs"] = best
    elif best:
        context.refuse("top_logprobs", "be 0 or left out unless logprobs is true", best, "Set it to true.")
    elif reported is not False:
        ours["logprobs"] = reported


OPENAI: Final = Dialect(
    "openai",
    "OpenAI's API (openai 3.57, chat completions and completions)",
    {
        "temperature": copied("temperature"),
        "top_p": copied("top_p", convert=above_zero),
        **same("presence_penalty", "frequency_penalty"),
        "logit_bias": BIAS,
        "seed": seed(),
        "logprobs": taken("logprobs", note="In chat true or false, in completions a number.", form=None),
        "top_logprobs": taken("logprobs", note="In chat, beside logprobs = true."),
        **each("max_completion_tokens max_tokens", LENGTH),
        "stop": STOP,
        **each("n best_of", ROWS),
        **each("response_format tools tool_choice functions function_call", GRAMMAR),
        **each(
            "messages model prompt suffix audio modalities web_search_options reasoning_effort",
            PROMPT,
        ),
        **each(
            "echo metadata moderation parallel_tool_calls prediction prompt_cache_key prompt_cache_options "
            "prompt_cache_retention safety_identifier service_tier store stream stream_options user "
            "verbosity",
            ANSWER,
        ),
    },
    _combine,
)
