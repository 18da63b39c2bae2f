"""The cache of the benchmarks' models, and the part of `StepModel` that they have in common."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ascend_sample.decoding.model import StepOutput
from ascend_sample.decoding.places import mask_of, repeated_rows, tokens_first


def rotate_pairs(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turns each pair (i, i + half) of the last dimension by its position's angle."""
    first, second = states.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)


class LayerStore(NamedTuple):
    """Keys and values of a layer during a pass.

    Attributes:
        keys: [batch, heads, context_size, head_size]; row r's tokens are in its first columns.
        values: the same.
        rows: int64 [batch, 1].
        places: int64 [batch, tokens], where the new tokens go.
        mask: bool [batch, 1, tokens, columns], what each of them sees.
    """

    keys: Tensor
    values: Tensor
    rows: Tensor
    places: Tensor
    mask: Tensor

    def with_new(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write those of the new tokens; returns the columns that matter."""
        self.keys[self.rows, :, self.places] = key.transpose(1, 2)
        self.values[self.rows, :, self.places] = value.transpose(1, 2)
        columns = self.mask.shape[3]
        return self.keys[:, :, :columns], self.values[:, :, :columns]


class Store(NamedTuple):
    """The cache: keys and values of all layers, [layers, batch, heads, context_size, head_size], and lengths [batch].

    It is written in place: rolling a row back is forgetting a number.
    """

    keys: Tensor
    values: Tensor
    lengths: Tensor


class CachedSteps(abc.ABC):
    """The part of `StepModel` that is the same for every model whose cache is a `Store`.

    Attributes:
        network: the model; its `config` has the shapes.
        layers: those of its layers that are used.
        rotary: the cosines and sines of all positions.
    """

    network: Any
    layers: list[Any]
    rotary: tuple[Tensor, Tensor]

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None = None, **encoder: Tensor) -> StepOutput:
        """See `StepModel.prefill`."""
        config, batch = self.network.config, len(input_ids)
        mask = mask_of(input_ids, attention_mask)
        shape = (len(self.layers), batch, config.heads, config.context_size, config.width // config.heads)
        store = Store(torch.zeros(shape), torch.zeros(shape), torch.zeros(batch, dtype=torch.int64))
        logits, store, _ = self.decode(input_ids.gather(1, tokens_first(mask)), store)
        lengths = mask.sum(dim=1)
        return StepOutput(logits[torch.arange(batch), lengths - 1], store._replace(lengths=lengths))

    @torch.no_grad()
    def decode(self, tokens: Tensor, cache: Store) -> StepOutput:
        """See `StepModel.decode`."""
        batch, count = tokens.shape
        places = cache.lengths[:, None] + torch.arange(count)
        cosine, sine = (table[places][:, None] for table in self.rotary)
        columns = torch.arange(int(cache.lengths.max()) + count)
        mask = (columns <= places[:, :, None])[:, None]
        rows = torch.arange(batch)[:, None]
        hidden = self.network.embedding(tokens)
        for number, layer in enumerate(self.layers):
            store = LayerStore(cache.keys[number], cache.values[number], rows, places, mask)
            hidden = self.run_layer(layer, hidden, (cosine, sine), store)
        return StepOutput(self.logits_of(hidden), cache._replace(lengths=cache.lengths + count))

    @abc.abstractmethod
    def run_layer(self, layer: Any, hidden: Tensor, rotary: tuple[Tensor, Tensor], store: LayerStore) -> Tensor:
        """Maps [batch, tokens, width] to the same shape, by what the store holds and the new tokens."""

    @abc.abstractmethod
    def logits_of(self, hidden: Tensor) -> Tensor:
        """Returns the logits of what the last layer returned."""

    def expand(self, cache: Store, count: int) -> Store:
        """See `StepModel.expand`."""
        return self.reorder(cache, repeated_rows(cache.lengths, count))

    def reorder(self, cache: Store, index: Tensor) -> Store:
        """See `StepModel.reorder`."""
        return Store(cache.keys[:, index], cache.values[:, index], cache.lengths[index])

    def rollback(self, cache: Store, lengths: Tensor) -> Store:
        """See `StepModel.rollback`."""
        return cache._replace(lengths=lengths)
