"""Two models side by side, and exported graphs as torch runs them: for the tests of decoding/onnx."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ascend_sample.decoding.model import StepModel
from ascend_sample.decoding.models.layered_decoder import LayeredDecoder
from ascend_sample.decoding.onnx.graphs import DecoderGraph, EncoderGraph
from ascend_sample.decoding.onnx.interface import DECODER_INPUTS
from ascend_sample.decoding.onnx.runtime import OnnxModel

TOLERANCE = 1e-4


class EagerSession:
    """An exported graph as torch runs it, with onnxruntime's interface: to plant faults without exporting anew."""

    def __init__(self, graph: nn.Module, inputs: Sequence[str]) -> None:
        self.graph, self.inputs = graph, inputs

    def run(self, outputs: object, values: dict[str, Any]) -> list[Any]:
        with torch.no_grad():
            results = self.graph(*(torch.from_numpy(np.ascontiguousarray(values[name])) for name in self.inputs))
        return [result.numpy() for result in results]


def eager(encoder: nn.Module, decoder: LayeredDecoder, example: Mapping[str, Tensor]) -> OnnxModel:
    """An `OnnxModel` of graphs that were not exported."""
    found = object.__new__(OnnxModel)
    names = tuple(example)
    found.encoder_inputs = {name: value.dtype for name, value in example.items()}
    found.encoder = EagerSession(EncoderGraph(encoder, decoder, names), names)
    found.decoder = EagerSession(DecoderGraph(decoder), DECODER_INPUTS)
    return found


def compare_operations(
    models: tuple[StepModel, StepModel],
    batch: tuple[Tensor, Tensor, dict[str, Tensor]],
    vocab_size: int,
    operations: str,
    seed: int,
) -> None:
    """The same operations on both, with equal logits each time.

    Args:
        models: what is right, and what is compared with it.
        batch: input_ids, attention_mask, and what the encoder takes.
        vocab_size: of the tokens that are drawn.
        operations: d: decode, e: expand, o: reorder, b: roll back.
        seed: of what is drawn.
    """
    generator = torch.Generator().manual_seed(seed)
    input_ids, mask, encoder = batch
    outputs = [model.prefill(input_ids, mask, **encoder) for model in models]
    lengths = mask.sum(dim=1)
    for operation in operations + "d":
        torch.testing.assert_close(outputs[1].logits, outputs[0].logits, rtol=TOLERANCE, atol=TOLERANCE)
        caches = [output.cache for output in outputs]
        rows = len(lengths)
        if operation == "d":
            tokens = torch.randint(
                vocab_size, (rows, int(torch.randint(1, 4, (), generator=generator))), generator=generator
            )
            outputs = [model.decode(tokens, cache) for model, cache in zip(models, caches, strict=True)]
            lengths = lengths + tokens.shape[1]
            continue
        if operation == "e":
            caches = [model.expand(cache, 2) for model, cache in zip(models, caches, strict=True)]
            lengths = lengths.repeat_interleave(2)
        elif operation == "o":
            index = torch.randint(rows, (int(torch.randint(1, 8, (), generator=generator)),), generator=generator)
            caches = [model.reorder(cache, index) for model, cache in zip(models, caches, strict=True)]
            lengths = lengths[index]
        else:
            lengths = (torch.rand(rows, generator=generator) * (lengths + 1)).long().clamp(1).minimum(lengths)
            caches = [model.rollback(cache, lengths) for model, cache in zip(models, caches, strict=True)]
        outputs = [output._replace(cache=cache) for output, cache in zip(outputs, caches, strict=True)]
    torch.testing.assert_close(outputs[1].logits, outputs[0].logits, rtol=TOLERANCE, atol=TOLERANCE)
