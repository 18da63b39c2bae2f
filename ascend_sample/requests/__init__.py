"""Requests that were written for other engines, as `SamplingParams`.

A module for each engine has a table of its fields: each is taken, left to the engine, or refused by name, so nothing
is dropped in silence. docs/requests.md shows the same tables.

Example:
    >>> from ascend_sample.requests import from_llama_cpp, from_openai
    >>> from_openai({"temperature": 0.7, "seed": -1, "max_tokens": 9, "logit_bias": {"5": 1}})
    SamplingParams(temperature=0.7, logit_bias={5: 1.0}, seed=18446744073709551615)
    >>> from_llama_cpp({"dynatemp_range": 1})
    Traceback (most recent call last):
    ...
    ValueError: from_llama_cpp: dynatemp_range must be 0.0, got 1. The temperature is one number.
"""

from collections.abc import Mapping
from typing import Final

from ascend_sample.requests.dialect import Dialect
from ascend_sample.requests.llama_cpp import LLAMA_CPP
from ascend_sample.requests.openai import OPENAI
from ascend_sample.requests.sglang import SGLANG
from ascend_sample.requests.transformers import GENERATION_CONFIG
from ascend_sample.requests.vllm import VLLM

__all__ = ["from_generation_config", "from_llama_cpp", "from_openai", "from_sglang", "from_vllm"]

DIALECTS: Final[Mapping[str, Dialect]] = {
    dialect.name: dialect for dialect in (OPENAI, VLLM, SGLANG, GENERATION_CONFIG, LLAMA_CPP)
}
"""By the name that `from_...` has for them."""

from_openai = OPENAI.read
from_vllm = VLLM.read
from_sglang = SGLANG.read
from_generation_config = GENERATION_CONFIG.read
from_llama_cpp = LLAMA_CPP.read
