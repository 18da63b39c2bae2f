"""The two graphs are torch modules over any `LayeredDecoder`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ascend_sample.decoding.models.layered_decoder import LayeredDecoder


class EncoderGraph(nn.Module):
    """Computes the encoder, and what all layers of the decoder need of its memory."""

    def __init__(self, encoder: nn.Module, decoder: LayeredDecoder, names: tuple[str, ...]) -> None:
        super().__init__()
        self.encoder, self.decoder, self.names = encoder, decoder, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        memory, lengths = self.encoder(**dict(zip(self.names, inputs, strict=True)))
        visible = torch.arange(memory.shape[1]) < lengths[:, None]
        projected = self.decoder.project_memory(memory, visible)
        # An input that is returned as it is would be no output of its own.
        return projected[:, 0], projected[:, 1], lengths.clone()


class DecoderGraph(nn.Module):
    """Computes a step without side effects: the cache goes in and comes out."""

    def __init__(self, decoder: LayeredDecoder) -> None:
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


def decoder_example(keys: Tensor) -> tuple[tuple[Tensor, ...], tuple[dict[int, Any], ...]]:
    """Returns inputs to trace a step with, whose dynamic sizes differ and are above 1, and which of them are dynamic.

    Args:
        keys: what the encoder's graph returned, floats [layers, memory rows, memory length, hidden_size].
    """
    sizes = {"rows": 4, "count": 2, "past_rows": 5, "past": 6, "memory_rows": 3, "memory_length": 7}
    rows, count, past_rows, past, memory_rows, memory_length = (torch.export.Dim(name) for name in sizes)
    layers, hidden_size = keys.shape[0], keys.shape[3]
    ids = torch.zeros(sizes["rows"], dtype=torch.int64)
    cached = keys.new_zeros(layers, sizes["past_rows"], sizes["past"], hidden_size)
    memory = keys.new_zeros(layers, sizes["memory_rows"], sizes["memory_length"], hidden_size)
    lengths = torch.full((sizes["memory_rows"],), sizes["memory_length"])
    tokens = ids[:, None].repeat(1, sizes["count"])
    tensors = (tokens, ids, cached, cached, ids, memory, memory, lengths, ids)
    of_ids, of_cached, of_memory = {0: rows}, {1: past_rows, 2: past}, {1: memory_rows, 2: memory_length}
    axes = ({0: rows, 1: count}, of_ids, of_cached, of_cached, of_ids, of_memory, of_memory, {0: memory_rows}, of_ids)
    return tensors, axes
