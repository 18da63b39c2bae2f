"""The demo's language model as a `StepModel` with a cache in which each row has a length of its own."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from benchmarks.cached_steps import CachedSteps, LayerStore, rotate_pairs


class CachedLanguageModel(CachedSteps):
    """The first layers of a `language_model.LanguageModel`, or all; its own cache grows by the same for all rows.

    Args:
        network: the model.
        layers: how many of its layers; None: all. With fewer it is a cheap and bad draft of the whole.
    """

    def __init__(self, network: Any, layers: int | None = None) -> None:
        self.network = network
        self.layers = list(network.blocks)[:layers]
        self.rotary = network.rotary_cosine, network.rotary_sine

    def run_layer(self, layer: Any, hidden: Tensor, rotary: tuple[Tensor, Tensor], store: LayerStore) -> Tensor:
        """See `CachedSteps.run_layer`."""
        batch, count, _ = hidden.shape
        parts = layer.attention.query_key_value(layer.attention_norm(hidden))
        query, key, value = parts.view(batch, count, 3, self.network.config.heads, -1).permute(2, 0, 3, 1, 4)
        keys, values = store.with_new(rotate_pairs(key, *rotary), value)
        query = rotate_pairs(query, *rotary)
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=store.mask)
        hidden = hidden + layer.attention.output(mixed.transpose(1, 2).reshape(batch, count, -1))
        return hidden + layer.feed_forward(layer.feed_forward_norm(hidden))

    def logits_of(self, hidden: Tensor) -> Tensor:
        """See `CachedSteps.logits_of`."""
        return functional.linear(self.network.norm(hidden), self.network.embedding.weight)
