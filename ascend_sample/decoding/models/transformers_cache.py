"""Caches of transformers serve rows of different lengths when these are aligned at the right, holes at the left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer, EncoderDecoderCache

from ascend_sample._errors import refuse
from ascend_sample.decoding.places import is_trimmed_now

_SUPPORTED_LAYERS: Final = (DynamicLayer, DynamicSlidingWindowLayer)


@dataclass(frozen=True)
class AlignedCache:
    """Holds keys and values as one rectangle, [batch, heads, width, head_size] a layer, in which rows end together.

    The tokens of row r are in its last lengths[r] columns. What is left of them are holes, which the attention mask
    hides. That is left padding as transformers knows it, so distances between tokens are distances between columns,
    and a model with relative positions or a sliding window needs to know of nothing else.
    """

    past: Cache  # transformers' cache; an EncoderDecoderCache holds the keys and values of the encoder too
    lengths: Tensor  # int64 [batch], how many tokens each row has
    width: int  # how many columns there are, at least the largest length
    has_holes: bool  # whether some row may be shorter than the width; known on the host
    rollbacks: int = 0  # how many ragged rollbacks there were since the store was trimmed
    # what the encoder returned, [batch, source length, hidden_size]; None for a causal model
    encoder_states: Tensor | None = None
    encoder_mask: Tensor | None = None  # the encoder's attention mask; None where none was given

    def attention_mask(self, new: int) -> Tensor | None:
        """Tells which columns hold tokens, bool [batch, width + new]; None where all do."""
        return live_columns(self.lengths + new, self.width + new) if self.has_holes else None

    def positions(self, new: int) -> Tensor:
        """Returns the positions of the tokens that come next, int64 [batch, new]."""
        first = self.lengths[:, None]
        return first if new == 1 else first + torch.arange(new, device=self.lengths.device)

    def grown(self, past: Cache, new: int) -> AlignedCache:
        """Returns the cache after a pass over new tokens a row."""
        states, mask = self.encoder_states, self.encoder_mask  # once a step: dataclasses.replace would take longer
        return AlignedCache(past, self.lengths + new, self.width + new, self.has_holes, self.rollbacks, states, mask)

    def reordered(self, index: Tensor) -> AlignedCache:
        """Returns a cache of the rows of index, in the same store."""
        for layer in _all_layers(self.past):
            layer.keys = layer.keys.index_select(0, index)
            layer.values = layer.values.index_select(0, index)
        return replace(
            self,
            lengths=self.lengths[index],
            encoder_states=None if self.encoder_states is None else self.encoder_states[index],
            encoder_mask=None if self.encoder_mask is None else self.encoder_mask[index],
        )

    def rolled_back(self, lengths: Tensor) -> AlignedCache:
        """Returns a cache of the first lengths[r] tokens of row r, in the same store.

        On a CPU the store is trimmed to the longest row every time, and cut rather than copied where all rows lose
        equally many tokens. On a device that needs a look at the lengths, which is taken only now and then; in
        between, rows move to the right and the holes at the left grow.
        """
        removed = self.lengths - lengths
        width, has_holes, rollbacks, all_remove = self.width, True, self.rollbacks + 1, None
        if is_trimmed_now(self.lengths, rollbacks):
            ends = torch.stack((*removed.aminmax(), *lengths.aminmax()))
            least_removed, most_removed, shortest, width = ends.tolist()
            if least_removed < 0:
                rule = f"be at most those of the rows, {self.lengths.tolist()}"
                refuse("rollback", "lengths", rule, lengths.tolist(), "Keep what there is.")
            has_holes, rollbacks = shortest < width, 0
            all_remove = least_removed if least_removed == most_removed else None
        # Column c of the new store is column c + shift of the old one; a hole may be filled with anything.
        if all_remove is None:
            shift = self.width - width - removed
            columns = (torch.arange(width, device=lengths.device) + shift[:, None]).clamp_min(0)
            for layer in _self_attention_layers(self.past):
                layer.keys = _take_columns(layer.keys, columns)
                layer.values = _take_columns(layer.values, columns)
        elif all_remove or width < self.width:
            start = self.width - width - all_remove
            for layer in _self_attention_layers(self.past):
                layer.keys = layer.keys[:, :, start : start + width]
                layer.values = layer.values[:, :, start : start + width]
        return replace(self, lengths=lengths, width=width, has_holes=has_holes, rollbacks=rollbacks)


def live_columns(lengths: Tensor, width: int) -> Tensor:
    """Marks the last lengths[r] columns of row r, as bool [batch, width]."""
    return torch.arange(width, device=lengths.device) >= width - lengths[:, None]


def check_layers(owner: str, config: Any) -> None:
    """Refuses a model whose cache has layers that cannot be rolled back a row at a time.

    Sliding windows are no such layers: all tokens are kept, and the model's attention mask has the window.

    Raises:
        ValueError: a layer keeps a recurrent state, or something else than keys and values.
    """
    for layer in DynamicCache(config=config).layers:
        if type(layer) not in _SUPPORTED_LAYERS:
            value = f"a cache layer {type(layer).__name__} in {config.model_type}"
            remedy = (
                "Give a model with full or sliding attention in all layers, or wrap it into a ModuleModel, which "
                "recomputes."
            )
            refuse(owner, "model", "keep keys and values alone", value, remedy)


def _self_attention_layers(past: Cache) -> Iterator[Any]:
    """Yields the self-attention layers that have keys and values; layers that share another one's have none."""
    own: Any = past.self_attention_cache if isinstance(past, EncoderDecoderCache) else past
    yield from (layer for layer in own.layers if layer.keys is not None)


def _all_layers(past: Cache) -> Iterator[Any]:
    yield from _self_attention_layers(past)
    if isinstance(past, EncoderDecoderCache):
        yield from past.cross_attention_cache.layers


def _take_columns(values: Tensor, columns: Tensor) -> Tensor:
    """Takes from each row of values, [batch, heads, width, size], its columns, int64 [batch, new width]."""
    return values.gather(2, columns[:, None, :, None].expand(-1, values.shape[1], -1, values.shape[3]))
