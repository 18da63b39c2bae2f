"""The demo's language model as a `StepModel` with a cache in which each row has a length of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ascend_sample.decoding.model import StepOutput
from benchmarks.cached_steps import CachedSteps, LayerStore, Store, rotate_pairs


class CachedLanguageModel(CachedSteps):
    """The first layers of a `language_model.LanguageModel`, or all; its own cache grows by the same for all rows.

    Args:
        network: the model.
        layers: how many of its layers; None: all. With fewer it is a cheap and bad draft of the whole.
    """

    def __init__(self, network: Any, layers: int | None = None) -> None:
        self.network = network
        self.layers = list(network.blocks)[:layers]

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
        for number, block in enumerate(self.layers):
            parts = block.attention.query_key_value(block.attention_norm(hidden))
            query, key, value = parts.view(batch, count, 3, network.config.heads, -1).permute(2, 0, 3, 1, 4)
            store = LayerStore(cache.keys[number], cache.values[number], rows, places, mask)
            keys, values = store.with_new(rotate_pairs(key, cosine, sine), value)
            query = rotate_pairs(query, cosine, sine)
            mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
            hidden = hidden + block.attention.output(mixed.transpose(1, 2).reshape(batch, count, -1))
            hidden = hidden + block.feed_forward(block.feed_forward_norm(hidden))
        logits = functional.linear(network.norm(hidden), network.embedding.weight)
        return StepOutput(logits, cache._replace(lengths=cache.lengths + count))
