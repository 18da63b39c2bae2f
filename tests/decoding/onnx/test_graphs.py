"""What is exported, as torch runs it: the graphs decode as the models do, and what cannot be exported is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from ascend_sample.decoding import EncoderDecoderModel
from ascend_sample.decoding.model import StepModel
from ascend_sample.decoding.models.layered_decoder import LayeredDecoder
from ascend_sample.decoding.onnx import export_onnx
from ascend_sample.decoding.onnx.graphs import DecoderGraph, EncoderGraph
from ascend_sample.decoding.onnx.interface import DECODER_INPUTS
from ascend_sample.decoding.onnx.runtime import OnnxModel
from ascend_sample.decoding.onnx.transformers_parts import parts_of
from tests.decoding import decoder_models
from tests.decoding.decoder_models import encoder_batch, random_encoder_decoder
from tests.decoding.paired_models import ONE_OF_EACH, TOLERANCE, compare_operations, ragged
from tests.decoding.tiny_transformers import KINDS, START, VOCAB_SIZE, encoder_inputs, tiny_transformer

FAMILIES = ("bart", "marian", "t5", "whisper")
EXAMPLE = {"features": torch.zeros(3, 5, 6), "lengths": torch.full((3,), 5)}
DYNAMIC_AXES = {"features": {1: "frames"}}


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


def models_of(model: Any) -> tuple[StepModel, StepModel]:
    """A model of transformers in torch, and its graphs as torch runs them."""
    encoder, decoder, example, _ = parts_of(model)
    return EncoderDecoderModel(model), eager(encoder, decoder, example)


def check(kind: str, model: Any) -> None:
    """Equal logits after decodes, expansions, reorders and rollbacks."""
    for seed, operations in enumerate(ONE_OF_EACH):
        batch = *ragged(2 + seed, 3, VOCAB_SIZE, seed), encoder_inputs(kind, 2 + seed, seed)
        compare_operations(models_of(model), batch, VOCAB_SIZE, operations, seed)


@pytest.mark.parametrize("kind", FAMILIES)
def test_operations_equal_torch(kind: str) -> None:
    check(kind, tiny_transformer(kind))


def test_operations_of_a_decoder_equal_torch() -> None:
    model = random_encoder_decoder()
    graphs = eager(model.encoder, model.decoder, EXAMPLE)
    for seed in range(3):
        for operations in ONE_OF_EACH:
            batch = encoder_batch(3, 7, 4, seed)
            compare_operations((model, graphs), batch, decoder_models.VOCAB_SIZE, operations, seed)


@pytest.mark.parametrize("kind", ["bart", "marian", "t5"])
def test_the_encoders_mask_may_be_anything_that_transformers_takes(kind: str) -> None:
    """None, integers, padding on the left, holes; and what it hides is no token at all."""
    ids, start = torch.tensor([[5, 6, 7], [8, 9, 4]]), torch.full((2, 1), START)
    masks = [[[1, 1, 1], [1, 1, 1]], [[0, 1, 1], [0, 0, 1]], [[1, 0, 1], [0, 1, 0]], [[1, 0, 0], [1, 1, 0]]]
    models = models_of(tiny_transformer(kind))
    for mask in (None, *map(torch.tensor, masks)):
        given_mask = {} if mask is None else {"encoder_attention_mask": mask}
        visible = ids if mask is None else ids.where(mask != 0, -100)
        expected, found = (model.prefill(start, encoder_input_ids=visible, **given_mask).logits for model in models)
        torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    hidden = {"encoder_attention_mask": torch.tensor([[0, 0, 0], [1, 1, 1]])}
    with pytest.raises(ValueError, match=r"encoder must have a length of at least 1 in each row, got \[0, 3"):
        models[1].prefill(start, encoder_input_ids=ids, **hidden)


TWO_VOCABULARIES = {
    "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 17, "tie_word_embeddings": False,
}  # fmt: skip
FEW_BUCKETS = {
    "tie_word_embeddings": False, "relative_attention_num_buckets": 4, "relative_attention_max_distance": 6,
    "num_decoder_layers": 3,
}  # fmt: skip
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("bart", {"scale_embedding": True, "activation_function": "gelu_new", "decoder_ffn_dim": 24, "encoder_layers": 1}),
    ("marian", {"scale_embedding": True, "activation_function": "swish"}),
    ("marian", TWO_VOCABULARIES),
    ("t5", {"feed_forward_proj": "gated-gelu", "d_kv": 6, "num_heads": 3}),
    ("t5", FEW_BUCKETS),
    ("t5", {"attn_implementation": "eager"}),
    ("whisper", {"decoder_layers": 3, "encoder_layers": 1}),
]


@pytest.mark.parametrize(("kind", "changes"), VARIANTS)
def test_variants_of_the_families(kind: str, changes: dict[str, Any]) -> None:
    """BART has a bias of the logits."""
    made = KINDS[kind]
    with mock.patch.dict(KINDS, {"variant": made._replace(values={**made.values, **changes})}):
        model = tiny_transformer.__wrapped__("variant")
    if kind == "bart":
        model.final_logits_bias.copy_(torch.arange(VOCAB_SIZE) / 7)
    check(kind, model)


class Other(transformers.MarianMTModel):
    """Derived from a known one, and therefore another."""


def marian(change: Callable[[Any], Any]) -> dict[str, Any]:
    model = transformers.MarianMTModel(tiny_transformer("marian").config).eval()
    return {"model": change(model), "example": None, "dynamic_axes": None}


FEATURES = {"features": torch.zeros(1, 5, 6)}, {"features": torch.zeros(2, 1, 6)}
THOSE = "BartForConditionalGeneration, MarianMTModel, T5ForConditionalGeneration, WhisperForConditionalGeneration, got"
BAD: list[tuple[Callable[[], dict[str, Any]], type[Exception], str]] = [
    (lambda: {"model": nn.Linear(2, 2)}, TypeError, "model must be an EncoderDecoder or, .*, got Linear"),
    (lambda: {"model": random_encoder_decoder().train()}, ValueError, "model must be in evaluation mode, got one in "),
    (lambda: {"model": random_encoder_decoder().half()}, ValueError, "model must be float32 on the CPU, got .* on cpu"),
    (lambda: {"model": random_encoder_decoder().to("meta")}, ValueError, "model .*, got torch.float32 on meta"),
    (lambda: {"example": {}}, TypeError, "example must be a dict of tensors, got dict {}"),
    (lambda: {"example": {"lengths": 3}, "dynamic_axes": {}}, TypeError,
     r"example\['lengths'\] must be a tensor \[batch, ...\], got int 3"),
    (lambda: {"example": FEATURES[0]}, ValueError,
     r"example\['features'\] must have a size of at least 2 in axis 0 \(batch\), got \[1, 5, 6\]"),
    (lambda: {"example": FEATURES[1]}, ValueError,
     r"example\['features'\] must have a size of at least 2 in axis 1 \(frames\), got \[2, 1, 6\]"),
    (lambda: {"dynamic_axes": {"pixels": {1: "x"}}}, ValueError,
     r"dynamic_axes must name inputs of \['features', 'lengths'\], got \['pixels'\]"),
    (lambda: {"dynamic_axes": {"lengths": {1: "frames"}}}, ValueError,
     r"dynamic_axes\['lengths'\] must have axes from 0 to 0, got 1"),
    (lambda: {"model": tiny_transformer("pegasus")}, TypeError,
     f"model must be an EncoderDecoder or, of transformers, one of {THOSE} PegasusForCond"),
    (lambda: {"model": Other(tiny_transformer("marian").config).eval()}, TypeError, "model must be .*, got Other"),
    (lambda: marian(lambda model: model.train()), ValueError, "model must be in evaluation mode"),
    (lambda: marian(lambda model: model.half()), ValueError, "model must be float32 on the CPU, got torch.float16"),
    (lambda: {**marian(lambda model: model), "example": EXAMPLE}, ValueError, "example must be left out with MarianMT"),
    (lambda: {**marian(lambda model: model), "dynamic_axes": {"x": {1: "y"}}}, ValueError, "example must be left out"),
]  # fmt: skip


def test_bad_exports(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for make, error, message in BAD:
        arguments = {"model": random_encoder_decoder(), "example": EXAMPLE, "dynamic_axes": DYNAMIC_AXES, **make()}
        with subtests.test(msg=message), pytest.raises(error, match=f"export_onnx: {message}"):
            export_onnx(directory=tmp_path / "graphs", **arguments)
        assert not list(tmp_path.iterdir())
