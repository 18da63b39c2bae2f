"""Writes the demo's language model as a checkpoint of transformers, with its tokenizer, and compares their logits.

The model has LayerNorms with biases, so what it is in transformers is StableLM: Llama's architecture but for the norms,
RMSNorms without biases there. A logit's share of the last bias cannot be put anywhere in a Llama.
"""

from __future__ import annotations

import ascend_sample  # noqa: F401  isort: skip  the first to import torch, safely

import argparse
import shutil
from pathlib import Path
from typing import Final

import torch
from language_model import END_OF_TEXT, END_OF_TEXT_ID, LanguageModel, load_or_train
from language_model.model import ROTARY_BASE
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast, StableLmConfig, StableLmForCausalLM

TOLERANCE: Final = 2e-4
"""Of logits, which are about as large as 20: both add up the same products, in other orders."""
TEMPLATE: Final = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
"""The model knows no roles: a chat is the text of its messages."""


def converted(model: LanguageModel) -> StableLmForCausalLM:
    """Returns the model as one of transformers, in float32 and in evaluation mode."""
    shape = model.config
    config = StableLmConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.width,
        intermediate_size=shape.feed_forward_width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context_size,
        layer_norm_eps=model.norm.eps,
        rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE, "partial_rotary_factor": 1.0},
        tie_word_embeddings=False,  # they are equal, and SGLang's StableLM cannot share them
        bos_token_id=END_OF_TEXT_ID,
        eos_token_id=END_OF_TEXT_ID,
        dtype="float32",
    )
    made = StableLmForCausalLM(config).eval()
    made.load_state_dict(weights(model), strict=True)
    return made


def weights(model: LanguageModel) -> dict[str, Tensor]:
    """Returns the weights by their names in transformers."""
    embedding = model.embedding.weight
    found = {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding}
    norms = {"model.norm": model.norm}
    for place, block in enumerate(model.blocks):
        layer = f"model.layers.{place}"
        norms |= {f"{layer}.input_layernorm": block.attention_norm}
        norms |= {f"{layer}.post_attention_layernorm": block.feed_forward_norm}
        query_key_value = block.attention.query_key_value.weight.chunk(3)
        found |= {
            f"{layer}.self_attn.{name}_proj.weight": part for name, part in zip("qkv", query_key_value, strict=True)
        }
        found[f"{layer}.self_attn.o_proj.weight"] = block.attention.output.weight
        gate, up = block.feed_forward.gate_and_up.weight.chunk(2)
        found |= {f"{layer}.mlp.gate_proj.weight": gate, f"{layer}.mlp.up_proj.weight": up}
        found[f"{layer}.mlp.down_proj.weight"] = block.feed_forward.output.weight
    for name, norm in norms.items():
        found |= {f"{name}.weight": norm.weight, f"{name}.bias": norm.bias}
    return found


@torch.inference_mode()
def largest_difference(model: LanguageModel, made: StableLmForCausalLM) -> float:
    """Returns by how much logits differ, at most, over texts of random tokens as long as the context."""
    shape = model.config
    tokens = torch.randint(shape.vocab_size, (4, shape.context_size), generator=torch.Generator().manual_seed(1))
    return float((model(tokens)[0] - made(tokens).logits).abs().max())


def export(folder: Path) -> float:
    """Writes the checkpoint; returns by how much its logits differ from the model's, at most.

    Args:
        folder: is made anew.

    Raises:
        RuntimeError: the logits are others.
    """
    model, tokenizer = load_or_train()
    shutil.rmtree(folder, ignore_errors=True)
    converted(model).save_pretrained(folder)
    wrapped(tokenizer, model.config.context_size).save_pretrained(folder)
    difference = largest_difference(model, StableLmForCausalLM.from_pretrained(folder).eval())
    if not difference <= TOLERANCE:
        raise RuntimeError(f"export: the checkpoint's logits differ from the model's by {difference:.2g}")
    return difference


def wrapped(tokenizer: Tokenizer, context_size: int) -> PreTrainedTokenizerFast:
    """Returns the tokenizer with what an engine asks of one."""
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), END_OF_TEXT)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=context_size, **special)
    made.chat_template = TEMPLATE
    return made


def main() -> None:
    """Write the checkpoint into a folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    print(f"the checkpoint's logits differ from the model's by {export(folder):.2g} at most")


if __name__ == "__main__":
    main()
