"""vLLM's SamplingParams, as an object or as a mapping of its fields."""

from __future__ import annotations

from typing import Any, Final

from ascend_sample._errors import is_integer
from ascend_sample.sampling.requests.dialects.conversions import of_engine, renamed
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
from ascend_sample.sampling.requests.dialects.forms import IDS, SEQUENCES
from ascend_sample.sampling.requests.dialects.openai import ANSWER, GRAMMAR, HELD, LENGTH, ROWS, STOP

LOWEST_TEMPERATURE: Final = 1e-2
"""What vLLM makes of a lower one that is not 0."""
EVERYTHING: Final = -1
UNBOUNDED: Final = -1
"""Of thoughts."""


def _convert(given: dict[str, Any], context: Context) -> dict[str, Any]:
    if 0 < given.get("temperature", 0) < LOWEST_TEMPERATURE:
        given = given | {"temperature": LOWEST_TEMPERATURE}
    ours = of_engine(given, context, top_k_off=(0, -1), unseeded=[-1])
    ours |= renamed(given, "logprobs", "bad_words", allowed_token_ids="allowed_ids")
    if given.get("logprobs") is True:
        ours["logprobs"] = 1
    elif ours.get("logprobs") == EVERYTHING:
        if context.vocab_size is None:
            context.refuse("logprobs", "be 0 or more where vocab_size is not given", EVERYTHING, "Give vocab_size.")
        ours["logprobs"] = context.vocab_size
    if given.get("logprob_token_ids"):  # vLLM tells them in the place of the best ones
        ours["logprob_ids"] = ids = given["logprob_token_ids"]
        if ours.pop("logprobs", len(ids)) != len(ids):
            rule = f"be {len(ids)}, as many as logprob_token_ids, or left out"
            context.refuse("logprobs", rule, given["logprobs"], "vLLM tells those ids in the place of the best.")
    if given.get("thinking_token_budget", UNBOUNDED) != UNBOUNDED:
        ours |= {"thinking_budget": given["thinking_token_budget"], **context.thinking}
    return ours


VLLM: Final = Dialect(
    "vllm",
    "vllm.SamplingParams (0.33.0)",
    {
        "temperature": number("temperature", note="0 is greedy; between 0 and 0.01 it is 0.01, as in vLLM."),
        "top_k": number("top_k", note="0 and -1 are off."),
        **same("top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
        "logit_bias": taken("logit_bias"),
        "allowed_token_ids": taken("allowed_ids"),
        "min_tokens": number("min_tokens", note=HELD),
        "stop_token_ids": taken("stop_sequences", "stop_ids", form=IDS),
        "seed": taken("seed", note="-1 is none; another negative one becomes the unsigned number of its 64 bits."),
        "logprobs": taken("logprobs", note="-1 is all of the vocabulary, and true is 1."),
        "logprob_token_ids": taken(
            "logprob_ids", note="In the place of the best ones, of which logprobs has to ask for as many.", form=IDS
        ),
        "bad_words": taken("bad_words", "bad_ids", note="Sequences of ids; texts are refused.", form=SEQUENCES),
        **dict.fromkeys(
            ("prompt_logprobs", "prompt_logprob_token_ids", "prompt_logprob_start"),
            refused("A step sees no logits of the prompt: ascend_sample.sampling.score reports them."),
        ),
        "thinking_token_budget": number(
            "thinking_budget",
            note="-1 is none. The tags, of vLLM's `ReasoningConfig`, are given beside the request: `thinking_start`, "
            "`thinking_end`, `thinking_closing`.",
        ),
        "watermarking": engines(
            "The engine's: True, a default of some versions, asks for the watermark that an engine may have."
        ),
        "extra_args": refused("Only plug-ins of the engine know what is in it.", {}),
        "trace_decode_token_ids": refused("It replaces draws by given ids: replay them without a sampler.", []),
        "structured_outputs": GRAMMAR,
        **dict.fromkeys(("max_tokens", "ignore_eos", "include_stop_str_in_output", "repetition_detection"), LENGTH),
        "stop": STOP,
        "n": ROWS,
        **dict.fromkeys(
            (
                "flat_logprobs",
                "detokenize",
                "skip_special_tokens",
                "spaces_between_special_tokens",
                "output_kind",
                "stream_interval",
                "skip_clone",
                "output_text_buffer_length",
            ),
            ANSWER,
        ),
        **dict.fromkeys(
            ("skip_reading_prefix_cache", "routed_experts_prompt_start"), engines("The engine's: how the model is run.")
        ),
    },
    _convert,
    (
        Difference(
            lambda ours: ours.get("min_p", 0) > 0 and ours.get("top_p", 1) < 1,
            "vLLM applies min_p before top_p, which then sums what min_p keeps; here top_p is first.",
        ),
        Difference(
            lambda ours: any(not is_integer(word) and len(word) > 1 for word in ours.get("bad_words", ())),
            "vLLM looks for the beginnings of bad words in the output alone; here in the prompt too.",
        ),
    ),
)
