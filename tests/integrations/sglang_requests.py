"""Requests of SGLang: their fields are those of the real class, and mean what SGLang makes of them.

`nox -s integrations` runs this in an environment that has SGLang; the modules need no accelerator.
"""

from __future__ import annotations

import torchvision_without_cuda  # noqa: F401  # isort: skip  before SGLang

from types import SimpleNamespace
from typing import Any

import pytest
import sglang
import torch
from sglang.srt.sampling import penaltylib
from sglang.srt.sampling import sampling_params as of_sglang
from torch import Tensor

from ascend_sample.integrations.sglang import TESTED_VERSIONS
from ascend_sample.requests import DIALECTS, from_sglang

VOCAB_SIZE, END = 9, 2
ASKED: list[dict[str, Any]] = [
    {},
    *({"temperature": number} for number in (1e-6, 2e-5, 0.7)),
    *({"top_k": number} for number in (-1, 1 << 30, 5)),
    {"temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1},
    {"repetition_penalty": 1.2, "logit_bias": {"3": 1.0}, "stop": "x", "sampling_seed": -2},
    {"min_new_tokens": 3, "stop_token_ids": {5, 4}},
    {"min_new_tokens": 3, "stop_token_ids": {5}, "ignore_eos": True},
    {"min_new_tokens": 3, "ignore_eos": True},
]


class Batch(SimpleNamespace):
    """SGLang refers to it weakly."""


def penalized(asked: dict[str, Any]) -> Tensor:
    """Returns what SGLang makes of logits of 1, before any token is generated."""
    tokenizer = SimpleNamespace(additional_stop_token_ids=None, eos_token_id=END)
    request = SimpleNamespace(
        sampling_params=of_sglang.SamplingParams(**asked), eos_token_ids=None, tokenizer=tokenizer, origin_input_ids=[3]
    )
    penalizers = {penaltylib.BatchedMinNewTokensPenalizer, penaltylib.BatchedRepetitionPenalizer}
    batch = Batch(reqs=[request], device="cpu")
    logits = torch.ones(1, VOCAB_SIZE)
    penaltylib.BatchedPenalizerOrchestrator(VOCAB_SIZE, batch, penalizers).apply(logits)
    return logits[0]


def test_the_fields_of_sglang_are_known() -> None:
    public, known = set(of_sglang.SamplingParams.__struct_fields__), set(DIALECTS["sglang"].fields)
    assert public <= known
    assert public == known or not sglang.__version__.startswith(TESTED_VERSIONS[-1])


@pytest.mark.parametrize("asked", ASKED)
def test_a_mapping_is_read_as_its_object(asked: dict[str, Any]) -> None:
    read = from_sglang(asked, eos_ids=[END], vocab_size=VOCAB_SIZE)
    assert read == from_sglang(of_sglang.SamplingParams(**asked), eos_ids=[END], vocab_size=VOCAB_SIZE)
    if read.min_tokens:
        ignored = {END} if asked.get("ignore_eos") else set()
        assert set(penalized(asked).isinf().nonzero().view(-1).tolist()) - ignored == set(read.stop_token_ids)


def test_the_repetition_penalty_looks_at_the_output_alone() -> None:
    asked = {"repetition_penalty": 2.0}
    assert penalized(asked).tolist() == [1] * VOCAB_SIZE  # an id of the prompt among them
    with pytest.raises(ValueError, match=r"strict must be False .* in the output alone"):
        from_sglang(asked, strict=True)
