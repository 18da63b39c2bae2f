"""Tiny random models of transformers, and what its generate() finds with them."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

from ascend_sample.decoding.module_model import ModuleModel

VOCAB_SIZE = 13
PAD = 0
START = 1
CAUSAL = ("gpt2", "llama")
ENCODER_DECODER = ("bart", "t5", "marian")
ALL = CAUSAL + ENCODER_DECODER

_SMALL = {"vocab_size": VOCAB_SIZE, "pad_token_id": PAD, "bos_token_id": START, "eos_token_id": 2}
_SEQ2SEQ = {
    **_SMALL,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 64,
    "decoder_start_token_id": START,
    "forced_eos_token_id": None,
}


@cache
def make(name: str) -> Any:
    """A model of transformers with weights that make it sure of what it says."""
    torch.manual_seed(sum(map(ord, name)))
    if name == "gpt2":
        config = transformers.GPT2Config(**_SMALL, n_embd=16, n_layer=1, n_head=2, n_positions=64)
        model: Any = transformers.GPT2LMHeadModel(config)
    elif name == "llama":
        config = transformers.LlamaConfig(
            **_SMALL, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
        )
        model = transformers.LlamaForCausalLM(config)
    elif name == "bart":
        model = transformers.BartForConditionalGeneration(transformers.BartConfig(**_SEQ2SEQ))
    elif name == "marian":
        model = transformers.MarianMTModel(transformers.MarianConfig(**_SEQ2SEQ))
    elif name == "t5":
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
        config = transformers.T5Config(**_SMALL, **sizes, decoder_start_token_id=START)
        model = transformers.T5ForConditionalGeneration(config)
    else:
        raise ValueError(name)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.7)
    return model.eval()


def step_model(name: str) -> ModuleModel:
    """The same model, computed anew at every step."""
    model = make(name)
    if name in CAUSAL:
        return ModuleModel(lambda input_ids: model(input_ids=input_ids).logits)

    def logits(input_ids: Tensor, encoder_input_ids: Tensor, encoder_attention_mask: Tensor) -> Tensor:
        encoder = {"input_ids": encoder_input_ids, "attention_mask": encoder_attention_mask}
        return model(decoder_input_ids=input_ids, **encoder).logits

    return ModuleModel(logits)


class Prompts(NamedTuple):
    """A batch for a model: what it starts with, and what its encoder takes."""

    input_ids: Tensor
    attention_mask: Tensor
    encoder: dict[str, Tensor]

    def take(self, rows: slice) -> Prompts:
        """Some of them."""
        encoder = {key: value[rows] for key, value in self.encoder.items()}
        return Prompts(self.input_ids[rows], self.attention_mask[rows], encoder)


def prompts(name: str, batch: int, generator: torch.Generator) -> Prompts:
    """Random prompts of 1 to 5 tokens, padded: on the left for a causal model, on the right for an encoder."""
    ids = torch.randint(3, VOCAB_SIZE, (batch, 5), generator=generator)
    lengths = torch.randint(1, 6, (batch, 1), generator=generator)
    lengths[0] = 5
    places = torch.arange(5)
    if name in CAUSAL:
        mask = places >= 5 - lengths
        return Prompts(ids.where(mask, PAD), mask.long(), {})
    mask = places < lengths
    start = torch.full((batch, 1), START)
    encoder = {"encoder_input_ids": ids.where(mask, PAD), "encoder_attention_mask": mask.long()}
    return Prompts(start, torch.ones_like(start), encoder)


class Found(NamedTuple):
    """What a search returns, row by row."""

    sequences: list[list[int]]
    scores: Tensor
    beam_indices: list[list[int]]


def generate(name: str, given: Prompts, **options: Any) -> Found:
    """transformers' own beam search."""
    if given.encoder:
        inputs = {key.removeprefix("encoder_"): value for key, value in given.encoder.items()}
    else:
        inputs = {"input_ids": given.input_ids, "attention_mask": given.attention_mask}
    output = make(name).generate(
        **inputs, pad_token_id=PAD, do_sample=False, return_dict_in_generate=True, output_scores=True, **options
    )
    start = given.input_ids.shape[1]
    sequences, beams = [], []
    for row, indices in zip(output.sequences.tolist(), output.beam_indices.tolist(), strict=True):
        length = sum(index >= 0 for index in indices)
        sequences.append(row[start : start + length])
        beams.append(indices[:length])
    return Found(sequences, output.sequences_scores, beams)
