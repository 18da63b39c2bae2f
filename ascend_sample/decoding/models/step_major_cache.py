"""A `Decoder` remembers keys and values of its own tokens, step by step, and of the memory, projected once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

MOST_CHANGED: Final = 0.5
"""The share of a cache's places beyond which a reorder moves all of them, and not only those that change."""


@dataclass(frozen=True)
class DecoderCache:
    """Holds the keys and values of a batch, for all layers.

    Those of the tokens are step-major: a step of all rows lies together, so that a step is written, and the steps so
    far are taken into another order of rows, without touching the room for later ones. A row's tokens are its first
    `lengths[r]` steps whatever the other rows have; what follows is finite, and no query sees it.

    The memory is stored once for each encoded input, whatever the number of beams that look at it.

    Beams of a prompt share most of their past. So on a CPU, where a copy costs more than knowing what to copy, each
    place has a number for what was written there, and a reorder copies only where the number is another one.

    Source: docs/faster_transformer.md.
    """

    tokens: Tensor  # floats [layers, 2 (keys, values), capacity, rows, hidden_size]
    lengths: Tensor  # int64 [rows], the number of tokens of each row
    extent: int  # a length that no row exceeds; known without a look at the device
    memory: Tensor  # floats [layers, 2, memory rows, memory length, hidden_size], zero at padding
    memory_visible: Tensor  # bool [memory rows, memory length], False at padding
    # int64 [rows], the memory that each row looks at; None where row r looks at memory r
    memory_rows: Tensor | None = None
    # another buffer in the shape of `tokens`, which the next whole reorder writes to; None before the first
    spare: Tensor | None = None
    # int64 [capacity, rows], numbers that are equal where keys and values are; None on a device
    origins: Tensor | None = None
    written: int = 0  # the number up to which numbers were given

    @property
    def capacity(self) -> int:
        """Returns how many steps there is room for."""
        return self.tokens.shape[2]

    def with_room_for(self, count: int) -> DecoderCache:
        """Returns a cache whose rows can each take count tokens more; its extent is right for that many."""
        extent = self.extent
        if extent + count > self.capacity:
            # After rollbacks rows may be shorter than the host knows. It looks only here, where it costs least.
            extent = int(self.lengths.max())
        tokens, spare, origins = self.tokens, self.spare, self.origins
        if extent + count > self.capacity:
            room = max(extent + count, 2 * self.capacity) - self.capacity
            tokens, spare = torch.nn.functional.pad(tokens, (0, 0, 0, 0, 0, room)), None
            origins = None if origins is None else torch.nn.functional.pad(origins, (0, 0, 0, room))
        return replace(self, tokens=tokens, spare=spare, origins=origins, extent=extent + count)

    def numbered(self, places: Tensor) -> DecoderCache:
        """Returns a cache that knows of new tokens at places, int64 [rows, count]."""
        if self.origins is None:
            return self
        rows = torch.arange(len(places), device="cpu")[:, None]
        self.origins[places, rows] = torch.arange(places.numel(), device="cpu").view(places.shape) + self.written
        return replace(self, written=self.written + places.numel())

    def places(self, count: int) -> Tensor:
        """Returns the steps of the next count tokens of each row, int64 [rows, count]."""
        return self.lengths[:, None] + torch.arange(count, device=self.lengths.device)

    def append(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Writes keys and values, [rows, count, hidden_size] each, at places [rows, count] of a layer.

        Returns:
            All of the layer's keys, and its values, [rows, extent, hidden_size] each.
        """
        rows = torch.arange(len(places), device=places.device)[:, None]
        for buffer, new in zip(self.tokens[layer], (keys, values), strict=True):
            buffer[places, rows] = new
        all_keys, all_values = self.tokens[layer, :, : self.extent].transpose(1, 2)
        return all_keys, all_values

    def memory_of(self, layer: int) -> tuple[Tensor, Tensor]:
        """Returns the memory's keys and values for a layer, [rows, memory length, hidden_size] each."""
        keys, values = self.memory[layer]
        if self.memory_rows is None:
            return keys, values
        return keys.index_select(0, self.memory_rows), values.index_select(0, self.memory_rows)

    def visible_memory(self) -> Tensor:
        """Tells which places of its memory each row sees, bool [rows, memory length]."""
        return self.memory_visible if self.memory_rows is None else self.memory_visible[self.memory_rows]

    def take_rows(self, index: Tensor) -> DecoderCache:
        """Returns a cache of the rows of index, int64 [rows], on the device."""
        taken = replace(
            self,
            lengths=self.lengths[index],
            memory_rows=index if self.memory_rows is None else self.memory_rows[index],
            origins=None if self.origins is None else self.origins[:, index],
        )
        if self.origins is not None and len(index) == len(self.lengths):
            changed = self.origins[: self.extent] != self.origins[: self.extent, index]
            if int(changed.sum()) <= changed.numel() * MOST_CHANGED:
                move_places(self.tokens.flatten(0, 1), changed, index)
                return taken
        shape = (*self.tokens.shape[:3], len(index), self.tokens.shape[4])
        target = self.spare
        if target is None or target.shape != shape:
            target = self.tokens.new_zeros(shape)
        torch.index_select(self.tokens[:, :, : self.extent], 3, index, out=target[:, :, : self.extent])
        return replace(taken, tokens=target, spare=self.tokens)


def move_places(buffers: Tensor, changed: Tensor, index: Tensor) -> None:
    """Takes rows in place, but only where something changes.

    Args:
        buffers: [buffers, capacity, rows, size].
        changed: bool [steps, rows], the places whose contents are not those of the row that is taken.
        index: int64 [rows], the rows that are taken.
    """
    steps, rows = changed.nonzero(as_tuple=True)
    places = steps * buffers.shape[2]
    for buffer in buffers.flatten(1, 2):
        buffer.index_copy_(0, places + rows, buffer.index_select(0, places + index[rows]))
