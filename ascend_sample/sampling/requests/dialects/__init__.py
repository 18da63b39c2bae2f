"""How other engines spell a request: each of their fields is taken, left to the engine, or refused by name.

A dialect is a table of fields and a function that makes ours of those that are taken. `SamplingParams.from_vllm` and
its sisters read requests by them; docs/requests.md shows the same tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ascend_sample.sampling.requests.dialects.dialect import Dialect
from ascend_sample.sampling.requests.dialects.generation_config import GENERATION_CONFIG
from ascend_sample.sampling.requests.dialects.llama_cpp import LLAMA_CPP
from ascend_sample.sampling.requests.dialects.openai import OPENAI
from ascend_sample.sampling.requests.dialects.sglang import SGLANG
from ascend_sample.sampling.requests.dialects.vllm import VLLM

DIALECTS: Final[Mapping[str, Dialect]] = {
    dialect.name: dialect for dialect in (OPENAI, VLLM, SGLANG, GENERATION_CONFIG, LLAMA_CPP)
}
"""By the name that `SamplingParams.from_...` has for them."""
