"""vLLM with two ranks that share a vocabulary, and draw from their parts of the logits: ASCEND_SAMPLE_VLLM_SHARDS=1."""

from __future__ import annotations

import ascend_sample  # isort: skip  the first to import torch, safely  # noqa: F401

from pathlib import Path
from typing import Any, Final

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm_offline import ids_of, results

RANKS: Final = 2
VOCAB_SIZE: Final = 1000  # the ranks' parts end with padding
TOKENS: Final = 40
OPTIONS: Final = {
    "tensor_parallel_size": RANKS,
    "distributed_executor_backend": "mp",
    "skip_tokenizer_init": True,
    "enable_prefix_caching": False,
}
SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {"temperature": 0.9},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.1, "top_k": 50, "top_p": 0.95},
    {"temperature": 0.0},
)
"""What the ranks draw from their parts."""


def requests(settings: tuple[dict[str, Any], ...], **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "prompt": {"prompt_token_ids": [7 + place, 11, 13 + place]},
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "detokenize": False,
            "seed": 100 + place,
        }
        | settings[place % len(settings)]
        | more
        for place in range(10)
    ]


SPLIT: Final = requests(SETTINGS)
GATHERED: Final = requests(SETTINGS, repetition_penalty=1.3)
"""What asks for more: their logits are gathered."""


def random_llama(folder: Path, **sizes: Any) -> Path:
    """Writes a small Llama of random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(intermediate_size=128, num_hidden_layers=2, max_position_embeddings=512, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its heads two ranks can share."""
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 0.2}
    return random_llama(tmp_path_factory.mktemp("model"), vocab_size=VOCAB_SIZE, **sizes)


def answers(model: Path, folder: Path, switch: str) -> Any:
    return results(folder, SPLIT, GATHERED, options=OPTIONS, ENGINES_MODEL=str(model), ASCEND_SAMPLE_VLLM_SHARDS=switch)


def test_ranks_draw_what_is_drawn_from_gathered_logits(model: Path, tmp_path: Path) -> None:
    split, gathered = (answers(model, tmp_path, switch) for switch in "10")
    print(split["of_workers"], gathered["of_workers"])
    for mine, others in zip(split["answers"], gathered["answers"], strict=True):
        assert ids_of(mine) == ids_of(others)
    assert len({tuple(ids) for ids in ids_of(split["answers"][0])}) == len(SPLIT)
    # vLLM's sampler is not asked where ranks draw from their parts.
    for found, from_parts in ((split, TOKENS), (gathered, 0)):
        steps = [counted["served"]["steps"] - counted["sampled"]["steps"] for counted in found["of_workers"]]
        assert steps == [from_parts] * RANKS
