"""Tiny random models of transformers, made from configurations: nothing is downloaded."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

from ascend_sample import decoding
from ascend_sample.decoding.models.module_model import ModuleModel

VOCAB_SIZE = 13
PAD = 0
START = 1
"""What the decoder of an encoder-decoder starts with."""
LONGEST_SOURCE = 5
NO_SPECIAL_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": PAD}
SMALL = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL_PAIR = {
    "d_model": 8, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "decoder_start_token_id": START, "forced_eos_token_id": None,
}  # fmt: skip
PAIR_OF_96 = {**SMALL_PAIR, "max_position_embeddings": 96}
SMALL_T5 = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": START}
WHISPER_FRAMES = 8


class Kind(NamedTuple):
    """How a tiny model is made.

    Attributes:
        model: the name of the class in transformers.
        config: the name of its configuration.
        values: what the configuration is given.
    """

    model: str
    config: str
    values: dict[str, Any]

    @property
    def has_encoder(self) -> bool:
        return self.model.endswith(("ForConditionalGeneration", "MTModel"))


ONE_KEY_HEAD = {**SMALL, "num_key_value_heads": 1}
WHISPER = {"num_mel_bins": 4, "max_source_positions": WHISPER_FRAMES // 2, "max_target_positions": 96}
GEMMA = {"head_dim": 4, "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
LLAMA4 = {"head_dim": 4, "intermediate_size_mlp": 16, "num_local_experts": 2, "attention_chunk_size": 3}
KINDS = {
    "gpt2": Kind("GPT2LMHeadModel", "GPT2Config", {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 96}),
    "llama": Kind("LlamaForCausalLM", "LlamaConfig", ONE_KEY_HEAD),
    "qwen2": Kind("Qwen2ForCausalLM", "Qwen2Config", ONE_KEY_HEAD),
    "mistral with a window": Kind("MistralForCausalLM", "MistralConfig", {**ONE_KEY_HEAD, "sliding_window": 3}),
    "bloom": Kind("BloomForCausalLM", "BloomConfig", {"hidden_size": 8, "n_layer": 2, "n_head": 2}),
    "t5": Kind("T5ForConditionalGeneration", "T5Config", SMALL_T5),
    "bart": Kind("BartForConditionalGeneration", "BartConfig", PAIR_OF_96),
    "marian": Kind("MarianMTModel", "MarianConfig", PAIR_OF_96),
    "whisper": Kind("WhisperForConditionalGeneration", "WhisperConfig", {**SMALL_PAIR, **WHISPER}),
    "m2m100": Kind("M2M100ForConditionalGeneration", "M2M100Config", PAIR_OF_96),
    "gemma3": Kind("Gemma3ForCausalLM", "Gemma3TextConfig", {**ONE_KEY_HEAD, **GEMMA}),
    "llama4": Kind("Llama4ForCausalLM", "Llama4TextConfig", {**ONE_KEY_HEAD, **LLAMA4}),
    "mpt": Kind("MptForCausalLM", "MptConfig", {"d_model": 8, "n_layers": 2, "n_heads": 2, "max_seq_len": 96}),
    "umt5": Kind("UMT5ForConditionalGeneration", "UMT5Config", SMALL_T5),
    "pegasus": Kind("PegasusForConditionalGeneration", "PegasusConfig", PAIR_OF_96),
}


@functools.lru_cache
def tiny_transformer(kind: str, seed: int = 0, spread: float = 0.5) -> Any:
    """A random model of transformers, in evaluation mode; the same one for the same arguments."""
    made = KINDS[kind]
    config = getattr(transformers, made.config)(vocab_size=VOCAB_SIZE, **{**NO_SPECIAL_TOKENS, **made.values})
    model = getattr(transformers, made.model)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    return model


def adapted(model: Any, **options: Any) -> decoding.CausalModel | decoding.EncoderDecoderModel:
    """A model of transformers as a `StepModel`."""
    has_encoder = model.config.is_encoder_decoder
    return (decoding.EncoderDecoderModel if has_encoder else decoding.CausalModel)(model, **options)


def step_model(kind: str, seed: int = 0, spread: float = 0.5) -> decoding.CausalModel | decoding.EncoderDecoderModel:
    """A tiny model with its cache, which returns hidden states; of transformers 5 alone."""
    return adapted(tiny_transformer(kind, seed, spread), hidden_states=True)


def recomputing_model(kind: str, seed: int = 0, spread: float = 0.5) -> ModuleModel:
    """The same without a cache."""
    model = tiny_transformer(kind, seed, spread)

    def compute(input_ids: Tensor, **encoder: Tensor) -> tuple[Tensor, Tensor]:
        if not encoder:
            output = model(input_ids=input_ids, use_cache=False, output_hidden_states=True)
            return output.logits, output.hidden_states[-1]
        inputs = {name.removeprefix("encoder_"): value for name, value in encoder.items()}
        output = model(decoder_input_ids=input_ids, use_cache=False, output_hidden_states=True, **inputs)
        return output.logits, output.decoder_hidden_states[-1]

    return ModuleModel(compute)


def encoder_inputs(kind: str, batch_size: int, seed: int = 0) -> dict[str, Tensor]:
    """What the encoder of a model takes, of several lengths; nothing for a causal one."""
    if not KINDS[kind].has_encoder:
        return {}
    generator = torch.Generator().manual_seed(seed)
    if kind == "whisper":
        return {"encoder_input_features": torch.randn(batch_size, 4, WHISPER_FRAMES, generator=generator)}
    lengths = torch.randint(1, LONGEST_SOURCE + 1, (batch_size, 1), generator=generator)
    mask = torch.arange(LONGEST_SOURCE) < lengths
    tokens = torch.randint(1, VOCAB_SIZE, (batch_size, LONGEST_SOURCE), generator=generator)
    return {"encoder_input_ids": tokens.where(mask, PAD), "encoder_attention_mask": mask}


class Prompts(NamedTuple):
    """A batch: int64 [rows, length], bool [rows, length], and what an encoder takes."""

    input_ids: Tensor
    attention_mask: Tensor
    encoder: dict[str, Tensor]
