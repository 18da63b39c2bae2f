"""SGLang's SamplingParams, as an object or as a mapping of its fields."""

from __future__ import annotations

from typing import Any, Final

from ascend_sample.sampling.requests.dialects.conversions import of_engine
from ascend_sample.sampling.requests.dialects.dialect import Context, Dialect, Difference, number, refused, same, taken
from ascend_sample.sampling.requests.dialects.forms import IDS
from ascend_sample.sampling.requests.dialects.openai import ANSWER, GRAMMAR, HELD, LENGTH, ROWS, STOP

GREEDY_BELOW: Final = 1e-6
TOP_K_OFF: Final = (-1, 1 << 30)


def _convert(given: dict[str, Any], context: Context) -> dict[str, Any]:
    if 0 <= given.get("temperature", 1) < GREEDY_BELOW:
        given = given | {"temperature": 0.0}
    return of_engine(given, context, top_k_off=TOP_K_OFF, seed="sampling_seed", least="min_new_tokens")


SGLANG: Final = Dialect(
    "sglang",
    "sglang.srt.sampling.sampling_params.SamplingParams (0.5.23)",
    {
        "temperature": number("temperature", note="Below 1e-6 it is greedy; SGLang's object then has top_k = 1."),
        "top_k": number("top_k", note="-1 and 2**30 are off."),
        **same("top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
        "logit_bias": taken("logit_bias", note="Ids may be texts, as JSON has them."),
        "min_new_tokens": number("min_tokens", note=HELD),
        "stop_token_ids": taken("stop_sequences", "stop_ids", form=IDS),
        "sampling_seed": taken("seed", note="A negative one becomes the unsigned number of its 64 bits."),
        "beam_width": refused("Call ascend_sample.decoding.beam_search.", 1),
        "watermark": refused("Draws are not watermarked here."),
        "custom_params": refused(
            "Only processors of the engine know what is in it: give thinking_budget yourself.", {}
        ),
        **dict.fromkeys(
            ("json_schema", "regex", "ebnf", "structural_tag", "ebnf_full_assistant"),
            GRAMMAR,
        ),
        **dict.fromkeys(
            (
                "max_new_tokens",
                "ignore_eos",
                "stop_regex",
                "stop_strs",
                "stop_regex_strs",
                "stop_str_max_len",
                "stop_regex_max_len",
                "no_stop_trim",
            ),
            LENGTH,
        ),
        "stop": STOP,
        "n": ROWS,
        **dict.fromkeys(
            ("skip_special_tokens", "spaces_between_special_tokens", "stream_interval", "is_normalized"), ANSWER
        ),
    },
    _convert,
    (
        Difference(
            lambda ours: ours.get("top_k") is not None and ours.get("top_p", 1) < 1,
            "SGLang sums for top_p over all ids, beside a top_k too; here over those that top_k keeps.",
        ),
        Difference(
            lambda ours: ours.get("repetition_penalty", 1) != 1,
            "SGLang's repetition penalty looks for ids in the output alone, after the other penalties and before "
            "logit_bias; here in the prompt too, before the other penalties and after logit_bias.",
        ),
    ),
)
