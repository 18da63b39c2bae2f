"""vLLM's SamplingParams, as an object or as a mapping of its fields."""

from __future__ import annotations

from typing import Any, Final

from ascend_sample._errors import is_integer
from ascend_sample.requests.dialect import (
    ANSWER,
    BIAS,
    GRAMMAR,
    HELD,
    IGNORE_EOS,
    LENGTH,
    ROWS,
    STOP,
    STOP_IDS,
    Context,
    Dialect,
    Values,
    copied,
    each,
    engines,
    refused,
    same,
    seed,
    taken,
)
from ascend_sample.requests.values import IDS, SEQUENCES

LOWEST_TEMPERATURE: Final = 1e-2
"""What vLLM makes of a lower one that is not 0."""
EVERYTHING: Final = -1
UNBOUNDED: Final = -1
"""Of thoughts."""


def _warm(temperature: Any) -> Any:
    return LOWEST_TEMPERATURE if 0 < temperature < LOWEST_TEMPERATURE else temperature


def _combine(ours: Values, given: Values, context: Context) -> None:
    if "logprobs" in given:
        ours["logprobs"] = 1 if given["logprobs"] is True else given["logprobs"]
    if ours.get("logprobs") == EVERYTHING:
        if context.vocab_size is None:
            context.refuse("logprobs", "be 0 or more where vocab_size is not given", EVERYTHING, "Give vocab_size.")
        ours["logprobs"] = context.vocab_size
    ids = ours.get("logprob_token_ids")
    if ids and ours.pop("logprobs", len(ids)) != len(ids):
        rule = f"be {len(ids)}, as many as logprob_token_ids, or left out"
        context.refuse("logprobs", rule, given["logprobs"], "vLLM tells those ids in the place of the best.")
    if "thinking_token_budget" in ours:
        ours |= context.thinking


VLLM: Final = Dialect(
    "vllm",
    "vllm.SamplingParams (0.33.0)",
    {
        "temperature": copied(
            "temperature", note="0 is greedy; between 0 and 0.01 it is 0.01, as in vLLM.", convert=_warm
        ),
        "top_k": copied("top_k", note="0 and -1 are off.", off=(0, -1)),
        **same("top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
        "logit_bias": BIAS,
        "allowed_token_ids": copied("allowed_token_ids", form=None),
        "min_tokens": HELD,
        "stop_token_ids": STOP_IDS,
        "ignore_eos": IGNORE_EOS,
        "seed": seed("-1 is none; another negative one becomes the unsigned number of its 64 bits.", -1),
        "logprobs": taken("logprobs", note="-1 is all of the vocabulary, and true is 1.", form=None),
        "logprob_token_ids": copied(
            "logprob_token_ids",
            note="In the place of the best ones, of which logprobs has to ask for as many.",
            form=IDS,
        ),
        "bad_words": copied(
            "bad_words", "suppress_token_ids", note="Sequences of ids; texts are refused.", form=SEQUENCES
        ),
        **each(
            "prompt_logprobs prompt_logprob_token_ids prompt_logprob_start",
            refused("A step sees no logits of the prompt: ascend_sample.sampling.score reports them."),
        ),
        "thinking_token_budget": copied(
            "thinking_token_budget",
            note="-1 is none. The tags, of vLLM's `ReasoningConfig`, are given beside the request: "
            "`thinking_start_ids`, `thinking_end_ids`, `thinking_end_message_ids`.",
            off=(UNBOUNDED,),
        ),
        "watermarking": engines(
            "The engine's: True, a default of some versions, asks for the watermark that an engine may have."
        ),
        "extra_args": refused("Only plug-ins of the engine know what is in it.", {}),
        "trace_decode_token_ids": refused("It replaces draws by given ids: replay them without a sampler.", []),
        "structured_outputs": GRAMMAR,
        **each("max_tokens include_stop_str_in_output repetition_detection", LENGTH),
        "stop": STOP,
        "n": ROWS,
        **each(
            "flat_logprobs detokenize skip_special_tokens spaces_between_special_tokens output_kind "
            "stream_interval skip_clone output_text_buffer_length",
            ANSWER,
        ),
        **each("skip_reading_prefix_cache routed_experts_prompt_start", engines("The engine's: how the model is run.")),
    },
    _combine,
    {
        "vLLM applies min_p before top_p, which then sums what min_p keeps; here top_p is first.": (
            lambda ours: ours.get("min_p", 0) > 0 and ours.get("top_p", 1) < 1
        ),
        "vLLM looks for the beginnings of bad words in the output alone; here in the prompt too.": (
            lambda ours: any(not is_integer(word) and len(word) > 1 for word in ours.get("bad_words", ()))
        ),
    },
)
