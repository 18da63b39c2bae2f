"""A whole engine, vLLM's on a CPU, with the plugin: the same texts plainly, with n-grams and with a model that drafts.

The model is small and random. Its prompts are read in chunks where they come together.
"""

from __future__ import annotations

import ascend_sample  # isort: skip  the first to import torch, safely  # noqa: F401

from pathlib import Path
from typing import Any

import pytest
from vllm_offline import ids_of, results
from vllm_split import random_llama

VOCAB_SIZE, LENGTH = 20, 60
"""The vocabulary is so small that n-grams are right now and then."""
SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.6, "seed": 11},
    {"temperature": 0.8, "seed": 12, "top_k": 5},
    {"temperature": 0.7, "seed": 13, "top_p": 0.8},
    {"temperature": 0.7, "seed": 14, "top_k": 8, "top_p": 0.9, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    {"temperature": 0.0, "repetition_penalty": 1.3},
)
REQUESTS = [
    {
        "prompt": {"prompt_token_ids": [5, 6, 7, 5, 6, 7, 5 + row]},
        "max_tokens": LENGTH,
        "ignore_eos": True,
        "detokenize": False,
    }
    | asked
    for row, asked in enumerate(SETTINGS)
]
SPECULATION: dict[str, dict[str, Any]] = {
    "n-grams": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1},
    "the model itself": {"method": "draft_model", "num_speculative_tokens": 3},
}
OPTIONS = {"skip_tokenizer_init": True, "max_num_seqs": 8, "async_scheduling": False, "max_num_batched_tokens": 32}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "initializer_range": 0.4}
    return random_llama(tmp_path_factory.mktemp("model"), vocab_size=VOCAB_SIZE, **sizes)


def run(model: Path, folder: Path, speculation: dict[str, Any] | None = None) -> Any:
    return results(folder, REQUESTS, options=OPTIONS | {"speculative_config": speculation}, ENGINES_MODEL=str(model))


@pytest.fixture(scope="module")
def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(model, tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("name", SPECULATION)
def test_texts_are_those_without_speculation(model: Path, plain: Any, name: str, tmp_path: Path) -> None:
    drafter = {} if name == "n-grams" else {"model": str(model)}
    found = run(model, tmp_path, SPECULATION[name] | drafter)
    counted = found["counted"]["verified"]
    assert plain["counted"]["verified"]["requests"] == 0
    assert counted["tokens"] > counted["requests"] > 0, "some drafts are accepted"
    assert ids_of(found["answers"][0]) == ids_of(plain["answers"][0])
