"""Requests of vLLM and of OpenAI's API: their fields are those of the real classes, and mean what vLLM makes of them.

`nox -s integrations` runs this in an environment that has vLLM and openai.
"""

from __future__ import annotations

from typing import Any

import pytest
import vllm
from openai.types import chat, completion_create_params

from ascend_sample.integrations.vllm import TESTED_VERSIONS
from ascend_sample.requests import DIALECTS, from_vllm

ASKED: list[dict[str, Any]] = [
    {},
    *({"temperature": number} for number in (0, 1e-6, 2e-5, 0.0099, 0.01, 0.7)),
    *({"seed": number} for number in (-1, 0, 5)),
    *({"top_k": number} for number in (-1, 0, 5)),
    *({"logprobs": number} for number in (True, 0, 3, -1)),
    {"temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1},
    {"repetition_penalty": 1.2, "logit_bias": {3: 1.0}, "allowed_token_ids": [3, 5], "stop": "END"},
    {"min_tokens": 3, "stop_token_ids": [5, 5, 4]},
    {"min_tokens": 3, "stop_token_ids": [5], "ignore_eos": True},
    {"min_tokens": 3, "ignore_eos": True},
]


def test_the_fields_of_vllm_are_known() -> None:
    public = {name for name in vllm.SamplingParams.__struct_fields__ if not name.startswith("_")}
    known = set(DIALECTS["vllm"].fields)
    assert public <= known
    assert public == known or not vllm.__version__.startswith(TESTED_VERSIONS[-1])


def test_the_fields_of_openai_are_known() -> None:
    bases = (chat.completion_create_params, completion_create_params)
    public = {name for module in bases for name in module.CompletionCreateParamsBase.__annotations__}
    assert public | {"stream"} == set(DIALECTS["openai"].fields)


@pytest.mark.parametrize("asked", ASKED)
def test_a_mapping_is_read_as_its_object(asked: dict[str, Any]) -> None:
    made = vllm.SamplingParams(**asked)
    read = from_vllm(asked, eos_ids=[2], vocab_size=9)
    assert read == from_vllm(made, eos_ids=[2], vocab_size=9)
    made.update_from_generation_config({}, 2)
    if read.min_tokens:
        assert set(read.stop_token_ids) == made.all_stop_token_ids - ({2} if asked.get("ignore_eos") else set())
