"""SGLang's SamplingParams, as an object or as a mapping of its fields."""

from __future__ import annotations

from typing import Any, Final

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
    Dialect,
    copied,
    each,
    refused,
    same,
    seed,
)

GREEDY_BELOW: Final = 1e-6
TOP_K_OFF: Final = (-1, 1 << 30)


def _cold(temperature: Any) -> Any:
    return 0.0 if 0 <= temperature < GREEDY_BELOW else temperature


SGLANG: Final = Dialect(
    "sglang",
    "sglang.srt.sampling.sampling_params.SamplingParams (0.5.23)",
    {
        "temperature": copied(
            "temperature", note="Below 1e-6 it is greedy; SGLang's object then has top_k = 1.", convert=_cold
        ),
        "top_k": copied("top_k", note="-1 and 2**30 are off.", off=TOP_K_OFF),
        **same("top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
        "logit_bias": BIAS,
        "min_new_tokens": HELD,
        "stop_token_ids": STOP_IDS,
        "ignore_eos": IGNORE_EOS,
        "sampling_seed": seed(),
        "beam_width": refused("Call ascend_sample.decoding.beam_search.", 1),
        "watermark": refused("Draws are not watermarked here."),
        "custom_params": refused(
            "Only processors of the engine know what is in it: give thinking_token_budget yourself.", {}
        ),
        **each("json_schema regex ebnf structural_tag ebnf_full_assistant", GRAMMAR),
        **each(
            "max_new_tokens stop_regex stop_strs stop_regex_strs stop_str_max_len stop_regex_max_len no_stop_trim",
            LENGTH,
        ),
        "stop": STOP,
        "n": ROWS,
        **each("skip_special_tokens spaces_between_special_tokens stream_interval is_normalized", ANSWER),
    },
    differences={
        "SGLang sums for top_p over all ids, beside a top_k too; here over those that top_k keeps.": (
            lambda ours: ours.get("top_k") is not None and ours.get("top_p", 1) < 1
        ),
        "SGLang's repetition penalty looks for ids in the output alone, after the other penalties and before "
        "logit_bias; here in the prompt too, before the other penalties and after logit_bias.": (
            lambda ours: ours.get("repetition_penalty", 1) != 1
        ),
    },
)
