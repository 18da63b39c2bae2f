"""The demo's language model as a `StepModel` with a cache in which each row has a length of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ascend_sample.decoding.model import StepOutput
from benchmarks.draft_and_target import LayerStore, Store


class CachedLanguageModel:
    """The first layers of a `language_model.LanguageModel`, or all; its own cache grows by the same for all rows.

    Args:
        network: the model.
        layers: how many of its layers; None: all. With fewer it is a cheap and bad draft of the whole.
    """

    def __init__(self, network: Any, layers: int | None = None) -> None:
        self.network = network
        self.blocks = list(network.blocks)[:layers]

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None = None, **encoder: Tensor) -> StepOutput:
        """See `StepModel.prefill`."""
        config, batch = self.network.config, len(input_ids)
        mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        to_the_left = torch.argsort((~mask).int(), dim=1, stable=True)
        shape = (len(self.blocks), batch, config.heads, config.context_size, config.head_size)
        store = Store(torch.zeros(shape), torch.zeros(shape), torch.zeros(batch, dtype=torch.int64))
        logits, store, _ = self.decode(input_ids.gather(1, to_the_left), store)
        lengths = mask.sum(dim=1)
        return StepOutput(logits[torch.arange(batch), lengths - 1], store._replace(lengths=lengths))

    @torch.no_grad()
    def decode(self, tokens: Tensor, cache: Store) -> StepOutput:
        """See `StepModel.decode`."""
        network, (batch, count) = self.network, tokens.shape
        places = cache.lengths[:, None] + torch.arange(count)
        cosine, sine = network.rotary_cosine[places][:, None], network.rotary_sine[places][:, None]
        columns = torch.arange(int(cache.lengths.max()) + count)
        mask = (columns <= places[:, :, None])[:, None]
        rows = torch.arange(batch)[:, None]
        hidden = network.embedding(tokens)
        for number, block in enumerate(self.blocks):
            parts = block.attention.query_key_value(block.attention_norm(hidden))
            query, key, value = parts.view(batch, count, 3, network.config.heads, -1).permute(2, 0, 3, 1, 4)
            store = LayerStore(cache.keys[number], cache.values[number], rows, places, mask)
            keys, values = store.with_new(_rotate(key, cosine, sine), value)
            query = _rotate(query, cosine, sine)
            mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
            hidden = hidden + block.attention.output(mixed.transpose(1, 2).reshape(batch, count, -1))
            hidden = hidden + block.feed_forward(block.feed_forward_norm(hidden))
        logits = functional.linear(network.norm(hidden), network.embedding.weight)
        return StepOutput(logits, cache._replace(lengths=cache.lengths + count))

    def expand(self, cache: Store, count: int) -> Store:
        """See `StepModel.expand`."""
        return self.reorder(cache, torch.arange(len(cache.lengths)).repeat_interleave(count))

    def reorder(self, cache: Store, index: Tensor) -> Store:
        """See `StepModel.reorder`."""
        return Store(cache.keys[:, index], cache.values[:, index], cache.lengths[index])

    def rollback(self, cache: Store, lengths: Tensor) -> Store:
        """See `StepModel.rollback`."""
        return cache._replace(lengths=lengths)


def _rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = states.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)
