"""An encoder-decoder as two ONNX graphs, and the same searches over them with onnxruntime.

`export_onnx` writes the encoder, which ends with each layer's keys and values of the memory, and one step of the
decoder, which takes the rows of its cache by a beam index inside the graph. `OnnxModel` is a `StepModel` of the two
files: whatever decodes a torch model decodes it too.

Needs the extra `ascend_sample[onnx]`.
Source: docs/decoding.md, section "ONNX".
"""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ascend_sample.decoding.checks import check_integer, refuse, refuse_type
from ascend_sample.decoding.fused import Decoder, EncoderDecoder
from ascend_sample.decoding.model import StepOutput

ENCODER_FILE = "encoder.onnx"
DECODER_FILE = "decoder.onnx"
DECODER_INPUTS = (
    "tokens",
    "lengths",
    "self_keys",
    "self_values",
    "beam_index",
    "cross_keys",
    "cross_values",
    "memory_lengths",
    "memory_index",
)
DECODER_OUTPUTS = ("logits", "new_self_keys", "new_self_values")
MEMORY_OUTPUTS = ("cross_keys", "cross_values", "memory_lengths")
OPSET = 20
ONNX_TYPES = {
    "tensor(float)": torch.float32,
    "tensor(double)": torch.float64,
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
    "tensor(uint8)": torch.uint8,
    "tensor(bool)": torch.bool,
}
LARGEST_SINGLE_FILE = 1_500_000_000
"""Bytes of weights up to which they are inside the graph's file. Protobuf's own limit is 2 GiB."""


def export_onnx(
    model: EncoderDecoder,
    directory: str | os.PathLike[str],
    example: Mapping[str, Tensor],
    dynamic_axes: Mapping[str, Mapping[int, str]] | None = None,
) -> None:
    """Write a model's two graphs, `encoder.onnx` and `decoder.onnx`.

    The encoder maps its inputs to `cross_keys` and `cross_values`, floats [layers, memory rows, memory length,
    hidden_size], zero at padding, and `memory_lengths`, int64 [memory rows].

    A step of the decoder takes `tokens` int64 [rows, count]; `lengths` int64 [rows], how many tokens each row has;
    `self_keys` and `self_values` [layers, past rows, past, hidden_size], where past may be 0; `beam_index` int64
    [rows], the past row that each row continues; the encoder's three outputs; and `memory_index` int64 [rows], the
    memory that each row looks at. It returns `logits` [rows, count, vocab_size] and `new_self_keys` and
    `new_self_values` [layers, rows, past + count, hidden_size], where row r's new tokens have the places from
    lengths[r] on. All sizes but layers, hidden_size and vocab_size are dynamic.

    Args:
        model: in evaluation mode, on the CPU, float32.
        directory: where the files go; made if it is not there.
        example: what the encoder takes, by name, [batch, ...] each, to trace it with. The batch and the dynamic axes
            must be 2 at least: torch takes a size of 1 for a constant.
        dynamic_axes: by name and dimension, what to call the dimensions that vary; equal names vary together. The
            batch, dimension 0, always does.

    Raises:
        ImportError: onnx or onnxscript is not installed.
        TypeError: the model or an example has a wrong type.
        ValueError: an argument has a wrong value.

    Example:
        >>> export_onnx(model, "speech", {"features": features, "lengths": lengths}, {"features": {1: "frames"}})
        ... # doctest: +SKIP
    """
    _require("onnx")
    _require("onnxscript")
    name = "export_onnx"
    if not isinstance(model, EncoderDecoder):
        refuse_type(name, "model", "be an EncoderDecoder", model, "Put an encoder and a Decoder into one.")
    if model.training:
        refuse(name, "model", "be in evaluation mode", "one in training", "Call model.eval().")
    parameter = next(model.parameters())
    if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
        # onnxruntime 1.31 crashes while it loads these graphs in float16.
        found = f"{parameter.dtype} on {parameter.device}"
        refuse(name, "model", "be float32 on the CPU", found, 'Convert a copy with .to("cpu", torch.float32).')
    axes = _checked_axes(name, example, dynamic_axes or {})
    dims = {label: torch.export.Dim(label) for labels in axes.values() for label in labels.values()}
    shapes = tuple({axis: dims[label] for axis, label in axes[key].items()} for key in example)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    encoder, decoder = _EncoderGraph(model, tuple(example)).eval(), _DecoderGraph(model.decoder).eval()
    tensors = tuple(example.values())
    _export(encoder, tensors, (shapes,), tuple(example), MEMORY_OUTPUTS, directory / ENCODER_FILE)
    step = _decoder_example(model.decoder)
    _export(decoder, *step, DECODER_INPUTS, DECODER_OUTPUTS, directory / DECODER_FILE)


@dataclass(frozen=True)
class OnnxCache:
    """What an `OnnxModel` remembers, on the host.

    Rows are taken when the next step runs: until then a reorder changes the indices alone.

    Attributes:
        keys_values: numpy floats [layers, past rows, past, hidden_size], the keys, and the values.
        lengths: int64 [rows], the tokens of each row.
        beam_index: int64 [rows], the past row of each row.
        memory: what the encoder returned, by name, numpy.
        memory_index: int64 [rows], the memory of each row.
    """

    keys_values: tuple[Any, Any]
    lengths: Tensor
    beam_index: Tensor
    memory: dict[str, Any]
    memory_index: Tensor


class OnnxModel:
    """A `StepModel` of the graphs that `export_onnx` wrote.

    Args:
        directory: where they are.
        providers: onnxruntime's execution providers, in the order of preference.
        threads: for each operator; onnxruntime's choice unless given.

    Raises:
        ImportError: onnxruntime is not installed.
        FileNotFoundError: a graph is not there.
        ValueError: a graph is not one of `export_onnx`.

    Example:
        >>> output = beam_search(OnnxModel("speech"), start, encoder=features, num_beams=8, max_new_tokens=40)
        ... # doctest: +SKIP
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        providers: Sequence[str] = ("CPUExecutionProvider",),
        threads: int | None = None,
    ) -> None:
        onnxruntime = _require("onnxruntime")
        options = onnxruntime.SessionOptions()
        if threads is not None:
            check_integer("OnnxModel", "threads", threads, low=1)
            options.intra_op_num_threads = threads
        sessions = []
        for file in (ENCODER_FILE, DECODER_FILE):
            path = Path(directory) / file
            if not path.is_file():
                remedy = "Write it with export_onnx."
                raise FileNotFoundError(f"OnnxModel: directory must hold {file}, got {directory}. {remedy}")
            sessions.append(onnxruntime.InferenceSession(str(path), options, providers=list(providers)))
        self.encoder, self.decoder = sessions
        self.encoder_inputs = {value.name: ONNX_TYPES.get(value.type) for value in self.encoder.get_inputs()}
        for session, names in (
            (self.encoder.get_outputs(), MEMORY_OUTPUTS),
            (self.decoder.get_inputs(), DECODER_INPUTS),
        ):
            found = tuple(value.name for value in session)
            if found != names:
                refuse("OnnxModel", "directory", f"hold graphs with {list(names)}", list(found), "Use export_onnx.")

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None = None, /, **encoder: Tensor) -> StepOutput:
        """See `StepModel.prefill`.

        Raises:
            ValueError: the encoder's inputs have other names.
        """
        if sorted(encoder) != sorted(self.encoder_inputs):
            rule, remedy = f"have the names {sorted(self.encoder_inputs)}", "Use those of the export."
            refuse("OnnxModel", "encoder", rule, sorted(encoder), remedy)
        for name, dtype in self.encoder_inputs.items():
            if encoder[name].dtype != dtype:
                refuse_type("OnnxModel", f"encoder[{name!r}]", f"be a tensor of {dtype}", encoder[name], "Convert it.")
        outputs = self.encoder.run(None, {name: value.cpu().numpy() for name, value in encoder.items()})
        memory = dict(zip(MEMORY_OUTPUTS, outputs, strict=True))
        rows = torch.arange(len(input_ids))
        nothing = memory["cross_keys"][:, :, :0]
        cache = OnnxCache((nothing, nothing), torch.zeros_like(rows), rows, memory, rows)
        mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        order = torch.argsort(~mask, dim=1, stable=True)  # a row's tokens are its first steps
        output = self.decode(input_ids.where(mask, 0).gather(1, order), cache)  # a masked id may be anything
        lengths = mask.sum(dim=1)
        logits = output.logits[torch.arange(len(lengths), device=lengths.device), lengths - 1]
        return StepOutput(logits, self.rollback(output.cache, lengths))

    def decode(self, tokens: Tensor, cache: OnnxCache) -> StepOutput:
        """See `StepModel.decode`."""
        past = int(cache.lengths.max())
        keys, values = (stored[:, :, :past] for stored in cache.keys_values)  # less than all after a rollback
        inputs = {
            "tokens": tokens.cpu().numpy(),
            "lengths": cache.lengths.numpy(),
            "self_keys": keys,
            "self_values": values,
            "beam_index": cache.beam_index.numpy(),
            "memory_index": cache.memory_index.numpy(),
            **cache.memory,
        }
        logits, *keys_values = self.decoder.run(list(DECODER_OUTPUTS), inputs)
        grown = replace(
            cache,
            keys_values=tuple(keys_values),
            lengths=cache.lengths + tokens.shape[1],
            beam_index=torch.arange(len(tokens)),
        )
        return StepOutput(torch.from_numpy(logits).to(tokens.device), grown)

    def expand(self, cache: OnnxCache, count: int) -> OnnxCache:
        """See `StepModel.expand`."""
        return self.reorder(cache, torch.arange(len(cache.lengths)).repeat_interleave(count))

    def reorder(self, cache: OnnxCache, index: Tensor) -> OnnxCache:
        """See `StepModel.reorder`. Nothing is copied here: the next step's graph takes the rows."""
        index = index.cpu()
        return replace(
            cache,
            lengths=cache.lengths[index],
            beam_index=cache.beam_index[index],
            memory_index=cache.memory_index[index],
        )

    def rollback(self, cache: OnnxCache, lengths: Tensor) -> OnnxCache:
        """See `StepModel.rollback`."""
        return replace(cache, lengths=lengths.cpu())


class _EncoderGraph(nn.Module):
    """The encoder, and what all layers of the decoder need of its memory."""

    def __init__(self, model: EncoderDecoder, names: tuple[str, ...]) -> None:
        super().__init__()
        self.encoder, self.decoder, self.names = model.encoder, model.decoder, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        memory, lengths = self.encoder(**dict(zip(self.names, inputs, strict=True)))
        visible = torch.arange(memory.shape[1]) < lengths[:, None]
        projected = self.decoder.project_memory(memory, visible)
        # An input that is returned as it is would be no output of its own.
        return projected[:, 0], projected[:, 1], lengths.clone()


class _DecoderGraph(nn.Module):
    """A step without side effects: the cache goes in and comes out."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self,
        tokens: Tensor,
        lengths: Tensor,
        self_keys: Tensor,
        self_values: Tensor,
        beam_index: Tensor,
        cross_keys: Tensor,
        cross_values: Tensor,
        memory_lengths: Tensor,
        memory_index: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        count = tokens.shape[1]
        places = lengths[:, None] + torch.arange(count)
        grown: list[tuple[Tensor, Tensor]] = []

        def append(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            both = []
            for past, new in ((self_keys[layer], keys), (self_values[layer], values)):
                room = torch.cat((past.index_select(0, beam_index), torch.zeros_like(new)), dim=1)
                both.append(room.scatter(1, places[:, :, None].expand_as(new), new))
            grown.append((both[0], both[1]))
            return grown[-1]

        def memory_of(layer: int) -> tuple[Tensor, Tensor]:
            keys, values = cross_keys[layer], cross_values[layer]
            return keys.index_select(0, memory_index), values.index_select(0, memory_index)

        memory_visible = torch.arange(cross_keys.shape[2]) < memory_lengths.index_select(0, memory_index)[:, None]
        extent = self_keys.shape[2] + count
        hidden = self.decoder.run_layers(tokens, places, extent, append, memory_of, memory_visible)
        new_keys, new_values = (torch.stack(part) for part in zip(*grown, strict=True))
        return self.decoder.head(hidden), new_keys, new_values


def _decoder_example(decoder: Decoder) -> tuple[tuple[Tensor, ...], tuple[dict[int, Any], ...]]:
    """Inputs to trace a step with, whose dynamic sizes differ and are above 1, and which of them are dynamic."""
    sizes = {"rows": 4, "count": 2, "past_rows": 5, "past": 6, "memory_rows": 3, "memory_length": 7}
    rows, count, past_rows, past, memory_rows, memory_length = (torch.export.Dim(name) for name in sizes)
    weight, layers, hidden_size = decoder.head.weight, decoder.config.layers, decoder.config.hidden_size
    ids = torch.zeros(sizes["rows"], dtype=torch.int64)
    cached = weight.new_zeros(layers, sizes["past_rows"], sizes["past"], hidden_size)
    memory = weight.new_zeros(layers, sizes["memory_rows"], sizes["memory_length"], hidden_size)
    lengths = torch.full((sizes["memory_rows"],), sizes["memory_length"])
    tokens = ids[:, None].repeat(1, sizes["count"])
    tensors = (tokens, ids, cached, cached, ids, memory, memory, lengths, ids)
    of_ids, of_cached, of_memory = {0: rows}, {1: past_rows, 2: past}, {1: memory_rows, 2: memory_length}
    return tensors, (
        {0: rows, 1: count},
        of_ids,
        of_cached,
        of_cached,
        of_ids,
        of_memory,
        of_memory,
        {0: memory_rows},
        of_ids,
    )


def _checked_axes(
    name: str, example: Mapping[str, Tensor], dynamic_axes: Mapping[str, Mapping[int, str]]
) -> dict[str, dict[int, str]]:
    """What each dynamic dimension of each of the encoder's inputs is called."""
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
) -> None:
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
    cast(torch.onnx.ONNXProgram, program).save(str(path), external_data=weights > LARGEST_SINGLE_FILE)


@contextmanager
def _without_noise() -> Iterator[None]:
    """Without what torch's exporter says of itself: torchvision's absence, its own deprecated calls, shared names."""
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


def _require(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        remedy = "Install the extra: pip install 'ascend_sample[onnx]'"
        raise ImportError(f"decoding.onnx: {module} must be installed, got: {error}. {remedy}") from error
