"""`export_onnx` writes the two graphs."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from ascend_sample._errors import refuse, refuse_type
from ascend_sample.decoding.models.transformer_decoder import EncoderDecoder
from ascend_sample.decoding.models.transformers_positions import most_positions
from ascend_sample.decoding.onnx import interface
from ascend_sample.decoding.onnx.graphs import DecoderGraph, EncoderGraph, decoder_example
from ascend_sample.decoding.onnx.transformers_parts import DECODERS, Parts, is_supported, parts_of

OPSET: Final = 20
LARGEST_SINGLE_FILE = 1_500_000_000
"""The most bytes of weights that are put inside the graph's file. Protobuf's own limit is 2 GiB."""


def export_onnx(
    model: nn.Module,
    directory: str | os.PathLike[str],
    example: Mapping[str, Tensor] | None = None,
    dynamic_axes: Mapping[str, Mapping[int, str]] | None = None,
) -> None:
    """Writes a model's two graphs, `encoder.onnx` and `decoder.onnx`.

    The encoder maps its inputs to `cross_keys` and `cross_values`, floats [layers, memory rows, memory length,
    hidden_size], zero at padding, and `memory_lengths`, int64 [memory rows].

    A step of the decoder takes `tokens` int64 [rows, count]; `lengths` int64 [rows], how many tokens each row has;
    `self_keys` and `self_values` [layers, past rows, past, hidden_size], where past may be 0; `beam_index` int64
    [rows], the past row that each row continues; the encoder's three outputs; and `memory_index` int64 [rows], the
    memory that each row looks at. It returns `logits` [rows, count, vocab_size] and `new_self_keys` and
    `new_self_values` [layers, rows, past + count, hidden_size], where row r's new tokens have the places from
    lengths[r] on. All sizes but layers, hidden_size and vocab_size are dynamic.

    Args:
        model: an `EncoderDecoder`, or of transformers a BartForConditionalGeneration, MarianMTModel,
            T5ForConditionalGeneration or WhisperForConditionalGeneration; in evaluation mode, on the CPU, float32.
        directory: the folder of the files, which is made if it is not there.
        example: what the encoder takes, by name, [batch, ...] each, to trace it with. The batch and the dynamic axes
            must be 2 at least: torch takes a size of 1 for a constant. Left out with models of transformers, whose
            graphs take encoder_input_ids int64 and encoder_attention_mask bool [batch, source] (Whisper's:
            encoder_input_features float32 [batch, bins, frames]), as `EncoderDecoderModel` does.
        dynamic_axes: by name and dimension, what to call the dimensions that vary; equal names vary together. The
            batch, dimension 0, always does. Left out where example is.

    Raises:
        ImportError: onnx or onnxscript is not installed.
        TypeError: the model or an example has a wrong type.
        ValueError: an argument has a wrong value.

    Example:
        >>> export_onnx(model, "speech", {"features": features, "lengths": lengths}, {"features": {1: "frames"}})
        ... # doctest: +SKIP
    """
    interface.require("onnx")
    interface.require("onnxscript")
    name = "export_onnx"
    encoder, decoder, example, dynamic_axes = _checked_parts(name, model, example, dynamic_axes)
    axes = _checked_axes(name, example, dynamic_axes)
    dims = {label: torch.export.Dim(label) for labels in axes.values() for label in labels.values()}
    shapes = tuple({axis: dims[label] for axis, label in axes[key].items()} for key in example)
    tensors = tuple(example.values())
    start, step = EncoderGraph(encoder, decoder, tuple(example)).eval(), DecoderGraph(decoder).eval()
    with torch.no_grad():
        keys, _, _ = start(*tensors)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    _export(start, tensors, (shapes,), tuple(example), interface.MEMORY_OUTPUTS, directory / interface.ENCODER_FILE)
    _export(
        step,
        *decoder_example(keys),
        interface.DECODER_INPUTS,
        interface.DECODER_OUTPUTS,
        directory / interface.DECODER_FILE,
        None if isinstance(model, EncoderDecoder) else most_positions(model),
    )


def _checked_parts(
    name: str,
    model: nn.Module,
    example: Mapping[str, Tensor] | None,
    dynamic_axes: Mapping[str, Mapping[int, str]] | None,
) -> Parts:
    """Returns the parts of a model, if it is one that can be exported."""
    if not isinstance(model, EncoderDecoder) and not is_supported(model):
        rule = f"be an EncoderDecoder or, of transformers, one of {', '.join(DECODERS)}"
        remedy = "Put an encoder and a Decoder with the model's weights into an EncoderDecoder."
        refuse_type(name, "model", rule, model, remedy)
    if model.training:
        refuse(name, "model", "be in evaluation mode", "one in training", "Call model.eval().")
    for parameter in model.parameters():
        if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
            # onnxruntime 1.31 crashes while it loads these graphs in float16.
            found = f"{parameter.dtype} on {parameter.device}"
            refuse(name, "model", "be float32 on the CPU", found, 'Convert a copy with .to("cpu", torch.float32).')
    if isinstance(model, EncoderDecoder):
        return Parts(model.encoder, model.decoder, example or {}, dynamic_axes or {})
    if example is not None or dynamic_axes is not None:
        rule = f"be left out with {type(model).__name__}"
        refuse(name, "example", rule, sorted(example or dynamic_axes or {}), "The names of its inputs are known.")
    return parts_of(model)


def _checked_axes(
    name: str, example: Mapping[str, Tensor], dynamic_axes: Mapping[str, Mapping[int, str]]
) -> dict[str, dict[int, str]]:
    """Returns what each dynamic dimension of each of the encoder's inputs is called."""
    if not isinstance(example, Mapping) or not example:
        refuse_type(name, "example", "be a dict of tensors", example, "Give the encoder's inputs by name.")
    unknown = sorted(set(dynamic_axes) - set(example))
    if unknown:
        refuse(name, "dynamic_axes", f"name inputs of {sorted(example)}", unknown, "Use the names of example.")
    axes: dict[str, dict[int, str]] = {}
    for key, value in example.items():
        if not isinstance(value, Tensor) or value.dim() == 0:
            refuse_type(name, f"example[{key!r}]", "be a tensor [batch, ...]", value, "Give a batch of inputs.")
        axes[key] = {**dynamic_axes.get(key, {}), 0: "batch"}
        for axis, label in axes[key].items():
            if not 0 <= axis < value.dim():
                rule = f"have axes from 0 to {value.dim() - 1}"
                refuse(name, f"dynamic_axes[{key!r}]", rule, axis, "Count from 0; the batch is axis 0.")
            if value.shape[axis] < 2:
                rule = f"have a size of at least 2 in axis {axis} ({label})"
                refuse(name, f"example[{key!r}]", rule, list(value.shape), "torch takes a size of 1 for a constant.")
    return axes


def _export(
    graph: nn.Module,
    example: tuple[Tensor, ...],
    shapes: tuple[Any, ...],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    path: Path,
    most: int | None = None,
) -> None:
    """Writes a graph, and in its file how many tokens a row may have at most."""
    with torch.no_grad(), _without_noise():
        program = torch.onnx.export(
            graph,
            tuple(tensor.clone() for tensor in example),  # what is one tensor twice would become one input
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=OPSET,
            verbose=False,
        )
    weights = sum(parameter.numel() * parameter.element_size() for parameter in graph.parameters())
    # With dynamo=True there always is a program, which torch's annotation leaves open.
    written = cast(torch.onnx.ONNXProgram, program)
    if most is not None:
        written.model.metadata_props[interface.MAX_POSITIONS] = str(most)
    written.save(str(path), external_data=weights > LARGEST_SINGLE_FILE)


@contextmanager
def _without_noise() -> Iterator[None]:
    """Silences what torch's exporter says of itself: torchvision's absence, its own deprecated calls, shared names."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "# The axis name", UserWarning)
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
