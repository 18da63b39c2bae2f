"""The exported graphs become a model to decode with, on onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ascend_sample._errors import check_integer, refuse, refuse_type
from ascend_sample.decoding.checks import is_list
from ascend_sample.decoding.model import ENCODER_IDS, ENCODER_MASK, StepOutput
from ascend_sample.decoding.onnx import interface
from ascend_sample.decoding.places import at_places, mask_of, repeated_rows, tokens_first


@dataclass(frozen=True)
class OnnxCache:
    """Holds what an `OnnxModel` remembers, on the host.

    Rows are taken when the next step runs: until then a reorder changes the indices alone.

    Attributes:
        keys_values: numpy floats [layers, past rows, past, hidden_size], the keys, and the values.
        lengths: int64 [rows], the number of tokens of each row.
        beam_index: int64 [rows], the past row of each row.
        memory: what the encoder returned, numpy arrays by name.
        memory_index: int64 [rows], the memory of each row.
    """

    keys_values: tuple[Any, Any]
    lengths: Tensor
    beam_index: Tensor
    memory: dict[str, Any]
    memory_index: Tensor


class OnnxModel:
    """Makes a `StepModel` of the graphs that `export_onnx` wrote.

    Args:
        directory: the folder where they are.
        providers: onnxruntime's execution providers, in the order of preference.
        threads: how many threads each operator has; onnxruntime's choice unless given.

    Raises:
        ImportError: onnxruntime is not installed.
        TypeError: an argument has a wrong type.
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
        if not is_list(providers):
            refuse_type("OnnxModel", "providers", "be a list of names", providers, "Put a single one into a list.")
        onnxruntime = interface.require("onnxruntime")
        options = onnxruntime.SessionOptions()
        if threads is not None:
            check_integer("OnnxModel", "threads", threads, low=1)
            options.intra_op_num_threads = threads
        sessions = []
        for file in (interface.ENCODER_FILE, interface.DECODER_FILE):
            path = Path(directory) / file
            if not path.is_file():
                remedy = "Write it with export_onnx."
                refuse("OnnxModel", "directory", f"hold {file}", str(directory), remedy, FileNotFoundError)
            sessions.append(onnxruntime.InferenceSession(str(path), options, providers=list(providers)))
        self.encoder, self.decoder = sessions
        for session, names in (
            (self.encoder.get_outputs(), interface.MEMORY_OUTPUTS),
            (self.decoder.get_inputs(), interface.DECODER_INPUTS),
        ):
            found = tuple(value.name for value in session)
            if found != names:
                refuse("OnnxModel", "directory", f"hold graphs with {list(names)}", list(found), "Use export_onnx.")
        # "tensor(int16)": what is in the brackets is a name of torch's too.
        self.encoder_inputs: dict[str, torch.dtype] = {
            value.name: getattr(torch, value.type[len("tensor(") : -1]) for value in self.encoder.get_inputs()
        }
        most = self.decoder.get_modelmeta().custom_metadata_map.get(interface.MAX_POSITIONS)
        self.max_positions = None if most is None else int(most)

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None = None, /, **encoder: Tensor) -> StepOutput:
        """See `StepModel.prefill`.

        encoder_attention_mask may be left out, of integers, and False anywhere, as with `EncoderDecoderModel`.

        Raises:
            TypeError: an input of the encoder has another dtype.
            ValueError: the encoder's inputs have other names, or an input has no place that is not padding.
        """
        if self.encoder_inputs.get(ENCODER_MASK) == torch.bool and ENCODER_IDS in encoder:
            ids = encoder[ENCODER_IDS]
            encoder[ENCODER_MASK] = mask = mask_of(ids, encoder.get(ENCODER_MASK))
            encoder[ENCODER_IDS] = ids.where(mask, 0)  # a masked id may be anything
        if sorted(encoder) != sorted(self.encoder_inputs):
            rule, remedy = f"have the names {sorted(self.encoder_inputs)}", "Use those of the export."
            refuse("OnnxModel", "encoder", rule, sorted(encoder), remedy)
        for name, dtype in self.encoder_inputs.items():
            if encoder[name].dtype != dtype:
                refuse_type("OnnxModel", f"encoder[{name!r}]", f"be a tensor of {dtype}", encoder[name], "Convert it.")
        outputs = self.encoder.run(None, {name: value.cpu().numpy() for name, value in encoder.items()})
        memory = dict(zip(interface.MEMORY_OUTPUTS, outputs, strict=True))
        if memory["memory_lengths"].min() < 1:
            lengths = memory["memory_lengths"].tolist()
            refuse(
                "OnnxModel", "encoder", "have a length of at least 1 in each row", lengths, "Leave out empty inputs."
            )
        rows = torch.arange(len(input_ids), device="cpu")
        empty = memory["cross_keys"][:, :, :0]
        cache = OnnxCache((empty, empty), torch.zeros_like(rows), rows, memory, rows)
        mask = mask_of(input_ids, attention_mask)
        tokens, lengths = input_ids.where(mask, 0), mask.sum(dim=1)
        width = int(lengths.max())  # columns that are padding everywhere might have no position
        output = self.decode(tokens.gather(1, tokens_first(mask)[:, :width]), cache)
        logits = at_places(output.logits, lengths[:, None] - 1).squeeze(1)
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
        logits, *keys_values = self.decoder.run(list(interface.DECODER_OUTPUTS), inputs)
        grown = replace(
            cache,
            keys_values=tuple(keys_values),
            lengths=cache.lengths + tokens.shape[1],
            beam_index=torch.arange(len(tokens), device="cpu"),
        )
        return StepOutput(torch.from_numpy(logits).to(tokens.device), grown)

    def expand(self, cache: OnnxCache, count: int) -> OnnxCache:
        """See `StepModel.expand`."""
        return self.reorder(cache, repeated_rows(cache.lengths, count))

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
