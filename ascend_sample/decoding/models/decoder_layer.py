"""A decoder over a memory consists of such layers; here are the layer and its attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

FEED_FORWARD_FACTOR: Final = 4
ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {"relu": functional.relu, "gelu": functional.gelu}

Append: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(keys, values of the new tokens [rows, count, hidden_size]) -> keys, values of all [rows, steps, hidden_size]."""
Memory: TypeAlias = tuple[Tensor, Tensor]
"""The keys and values of a memory for a layer, [rows, memory length, hidden_size] each."""


class DecoderLayer(nn.Module):
    """Adds self attention, attention to the memory and a feed-forward network of 4 h, each of a normalised copy.

    Args:
        hidden_size: h, the size of the tokens' vectors.
        heads: how many heads both attentions have; hidden_size is a multiple of it.
        memory_size: the size of the memory's vectors; hidden_size unless given.
        layer_norm_eps: what is added to variances.
        activation: the activation of the feed-forward network.

    Example:
        >>> layer = DecoderLayer(hidden_size=8, heads=2)
        >>> keys, values = layer.project_memory(torch.randn(3, 5, 8))
        >>> causal = torch.ones(4, 4, dtype=torch.bool).tril()
        >>> alone = lambda keys, values: (keys, values)  # there are no tokens before those that are given
        >>> layer(torch.randn(3, 4, 8), alone, causal, (keys, values), torch.ones(1, 1, 1, 5, dtype=torch.bool)).shape
        torch.Size([3, 4, 8])

    Source: docs/faster_transformer.md.
    """

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        memory_size: int | None = None,
        layer_norm_eps: float = 1e-6,
        activation: Literal["relu", "gelu"] = "relu",
    ) -> None:
        super().__init__()
        self.heads = heads
        self.activation = ACTIVATIONS[activation]
        self.self_norm = nn.LayerNorm(hidden_size, layer_norm_eps)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.self_output = nn.Linear(hidden_size, hidden_size)
        self.cross_norm = nn.LayerNorm(hidden_size, layer_norm_eps)
        self.cross_query = nn.Linear(hidden_size, hidden_size)
        self.memory_key_value = nn.Linear(hidden_size if memory_size is None else memory_size, 2 * hidden_size)
        self.cross_output = nn.Linear(hidden_size, hidden_size)
        self.feed_forward_norm = nn.LayerNorm(hidden_size, layer_norm_eps)
        self.feed_forward_inner = nn.Linear(hidden_size, FEED_FORWARD_FACTOR * hidden_size)
        self.feed_forward_output = nn.Linear(FEED_FORWARD_FACTOR * hidden_size, hidden_size)

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values [rows, memory length, hidden_size] of memory [rows, memory length, memory_size]."""
        keys, values = self.memory_key_value(memory).chunk(2, dim=-1)
        return keys, values

    def forward(
        self, hidden: Tensor, append: Append, visible: Tensor, memory: Memory, memory_visible: Tensor
    ) -> Tensor:
        """Processes tokens.

        Args:
            hidden: floats [rows, count, hidden_size].
            append: takes the new keys and values, returns those of all steps.
            visible: bool, broadcast to [rows, heads, count, steps]: which steps each token sees; at least one.
            memory: the memory's keys and values [rows, memory length, hidden_size], from `project_memory`.
            memory_visible: bool, broadcast to [rows, heads, count, memory length]: which places each token sees.

        Returns:
            Floats [rows, count, hidden_size].
        """
        query, key, value = self.query_key_value(self.self_norm(hidden)).chunk(3, dim=-1)
        hidden = hidden + self.self_output(attend(self.heads, query, *append(key, value), visible))
        query = self.cross_query(self.cross_norm(hidden))
        hidden = hidden + self.cross_output(attend(self.heads, query, *memory, memory_visible))
        inner = self.activation(self.feed_forward_inner(self.feed_forward_norm(hidden)))
        result: Tensor = hidden + self.feed_forward_output(inner)
        return result


def attend(
    heads: int, query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scale: float | None = None
) -> Tensor:
    """Computes the attention of several heads.

    Args:
        heads: how many heads there are.
        query: floats [rows, count, size].
        keys: floats [rows, steps, size].
        values: floats [rows, steps, size].
        visible: bool or floats, broadcast to [rows, heads, count, steps]: what each query sees, or what is added.
        scale: what scores are multiplied by; 1 / sqrt(size / heads) unless given.

    Returns:
        Floats [rows, count, size].
    """
    query, keys, values = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in (query, keys, values))
    attended = functional.scaled_dot_product_attention(query, keys, values, attn_mask=visible, scale=scale)
    return attended.transpose(1, 2).flatten(2)


def visible_steps(places: Tensor, extent: int) -> Tensor:
    """Tells which of extent steps the tokens at places, int64 [rows, count], see: bool [rows, 1, count, extent]."""
    return (torch.arange(extent, device=places.device) <= places[:, :, None])[:, None]
