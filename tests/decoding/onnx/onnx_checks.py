"""Exported graphs as torch runs them: for the tests of decoding/onnx."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ascend_sample.decoding.models.layered_decoder import LayeredDecoder
from ascend_sample.decoding.onnx.graphs import DecoderGraph, EncoderGraph
from ascend_sample.decoding.onnx.interface import DECODER_INPUTS
from ascend_sample.decoding.onnx.runtime import OnnxModel


class EagerSession:
    """An exported graph as torch runs it, with onnxruntime's interface, which takes no half minute to export."""

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
