"""A whole engine, vLLM's on a CPU, with the plugin: the same texts plainly, with n-grams and with a model that drafts.

The model is small and random. Its prompts are read in chunks where they come together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

VOCAB_SIZE, LENGTH = 20, 60
"""The vocabulary is so small that n-grams are right now and then."""
REQUESTS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.6, "seed": 11},
    {"temperature": 0.8, "seed": 12, "top_k": 5},
    {"temperature": 0.7, "seed": 13, "top_p": 0.8},
    {"temperature": 0.7, "seed": 14, "top_k": 8, "top_p": 0.9, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    {"temperature": 0.0, "repetition_penalty": 1.3},
)
SPECULATION: dict[str, dict[str, Any]] = {
    "n-grams": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1},
    "the model itself": {"method": "draft_model", "num_speculative_tokens": 3},
}


def make_model(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=VOCAB_SIZE, max_position_embeddings=512, initializer_range=0.4, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)


def generate(folder: str, speculation: str | None) -> None:
    """Prints the texts, and how many tokens requests got from how many verifications of their drafts."""
    from vllm import LLM, SamplingParams

    from ascend_sample.integrations import vllm_drafts

    config = None if speculation is None else {"model": folder} | SPECULATION[speculation]
    if config is not None and config["method"] == "ngram":
        del config["model"]
    llm = LLM(
        model=folder,
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=8,
        speculative_config=config,
        async_scheduling=False,
        max_num_batched_tokens=32,
    )
    counts = {"tokens": 0, "verifications": 0}
    own = vllm_drafts._verify

    def counted(*arguments: Any) -> Any:
        output = own(*arguments)
        counts["tokens"] += int((output.sampled_token_ids != -1).sum())
        counts["verifications"] += len(output.sampled_token_ids)
        return output

    vllm_drafts._verify = counted
    params = [SamplingParams(**asked, max_tokens=LENGTH, ignore_eos=True, detokenize=False) for asked in REQUESTS]
    prompts: Any = [{"prompt_token_ids": [5, 6, 7, 5, 6, 7, 5 + row]} for row in range(len(params))]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    texts = [[*output.outputs[0].token_ids] for output in outputs]
    print(json.dumps({"texts": texts} | counts))


def run(folder: Path, speculation: str | None = None) -> Any:
    """Returns what a process of its own prints."""
    variables = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    command = [sys.executable, __file__, str(folder), *filter(None, [speculation])]
    finished = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    make_model(made)
    return made


@pytest.fixture(scope="module")
def plain(folder: Path) -> Any:
    return run(folder)


@pytest.mark.parametrize("speculation", SPECULATION)
def test_texts_are_those_without_speculation(folder: Path, plain: Any, speculation: str) -> None:
    found = run(folder, speculation)
    assert plain["verifications"] == 0
    assert found["tokens"] > found["verifications"] > 0, "some drafts are accepted"
    assert found["texts"] == plain["texts"]


if __name__ == "__main__":
    generate(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
