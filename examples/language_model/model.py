"""A small causal transformer in plain torch, with an explicit key-value cache.

Pre-norm blocks, rotary positions, a gated feed-forward layer and an output layer tied to the embedding. It uses only
operators that every backend has (embedding, linear, layer norm, matmul, softmax, silu and elementwise arithmetic), and
it keeps no state between calls, so that the same module runs on any device and in any floating-point type.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

Cache: TypeAlias = tuple[tuple[Tensor, Tensor], ...]
"""Per layer the keys and the values of the tokens so far, each [batch, heads, tokens, head_size]."""

ROTARY_BASE = 10000.0
INITIAL_STANDARD_DEVIATION = 0.02


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The shape of a `LanguageModel`."""

    vocab_size: int = 4096
    context_size: int = 256
    width: int = 192
    layers: int = 4
    heads: int = 3
    feed_forward_width: int = 512

    @property
    def head_size(self) -> int:
        """The width of one attention head."""
        return self.width // self.heads


class LanguageModel(nn.Module):
    """Predicts the next token at every position.

    Example:
        >>> model = LanguageModel(ModelConfig()).eval()
        >>> logits, cache = model(torch.tensor([[5, 7, 11]]))
        >>> logits, cache = model(torch.tensor([[13]]), cache)  # continues after the three tokens
        >>> logits.shape
        torch.Size([1, 1, 4096])
    """

    rotary_cosine: Tensor
    rotary_sine: Tensor
    causal_mask: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        frequencies = ROTARY_BASE ** (-torch.arange(0, config.head_size, 2) / config.head_size)
        angles = torch.arange(config.context_size)[:, None] * frequencies
        future = torch.full((config.context_size, config.context_size), -math.inf).triu(1)
        # Tables instead of arithmetic in forward: they follow the module's device and type, and need few operators.
        self.register_buffer("rotary_cosine", angles.cos(), persistent=False)
        self.register_buffer("rotary_sine", angles.sin(), persistent=False)
        self.register_buffer("causal_mask", future, persistent=False)
        self.apply(_initialize)
        for name, parameter in self.named_parameters():
            if name.endswith("output.weight"):  # 2 * layers terms of the residual stream: keep their sum's variance
                parameter.data /= math.sqrt(2 * config.layers)

    def forward(self, input_ids: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        """Computes the logits of the token after each position.

        Args:
            input_ids: token ids, int64 [batch, tokens]; with a cache, only the tokens that are new.
            cache: what an earlier call returned; None at the start of a text.

        Returns:
            The logits [batch, tokens, vocab_size] in the module's type, and the cache for the next call.

        Raises:
            ValueError: cached and new tokens together exceed the context.
        """
        hidden, grown = self.read(input_ids, cache)
        return functional.linear(hidden, self.embedding.weight), grown

    def read(self, input_ids: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        """Computes what the output layer reads, [batch, tokens, width]; arguments and errors are those of `forward`."""
        start = 0 if cache is None else cache[0][0].shape[2]
        end = start + input_ids.shape[1]
        if end > self.config.context_size:
            raise ValueError(
                f"LanguageModel: input_ids must leave cached and new tokens within context_size "
                f"{self.config.context_size}, got {start} + {input_ids.shape[1]}. Generate fewer tokens."
            )
        rotary = (self.rotary_cosine[start:end], self.rotary_sine[start:end])
        mask = self.causal_mask[start:end, :end]
        hidden = self.embedding(input_ids)
        grown = []
        for layer, block in enumerate(self.blocks):
            hidden, keys_and_values = block(hidden, rotary, mask, None if cache is None else cache[layer])
            grown.append(keys_and_values)
        return self.norm(hidden), tuple(grown)


class Block(nn.Module):
    """Attention and feed-forward layer, each on a normalized copy of the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.LayerNorm(config.width)
        self.feed_forward = FeedForward(config)

    def forward(
        self, hidden: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Returns the new residual stream and this layer's keys and values."""
        attended, keys_and_values = self.attention(self.attention_norm(hidden), rotary, mask, past)
        hidden = hidden + attended
        hidden = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return hidden, keys_and_values


class Attention(nn.Module):
    """Causal multi-head attention with rotary positions, written out so that no fused operator is needed."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.head_size = config.head_size
        self.query_key_value = nn.Linear(config.width, 3 * config.width, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def forward(
        self, hidden: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Returns the attended values [batch, tokens, width] and the keys and values of all tokens so far."""
        batch, tokens, width = hidden.shape
        query, key, value = (
            part.view(batch, tokens, self.heads, self.head_size).transpose(1, 2)
            for part in self.query_key_value(hidden).chunk(3, dim=-1)
        )
        query, key = _rotate(query, *rotary), _rotate(key, *rotary)
        if past is not None:
            key = torch.cat((past[0], key), dim=2)
            value = torch.cat((past[1], value), dim=2)
        scores = torch.matmul(query, key.transpose(2, 3)) * self.head_size**-0.5
        if tokens > 1:  # a single new token sees everything
            scores = scores + mask
        attended = torch.matmul(torch.softmax(scores, dim=-1), value)
        return self.output(attended.transpose(1, 2).reshape(batch, tokens, width)), (key, value)


class FeedForward(nn.Module):
    """The gated feed-forward layer silu(gate) * up."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_and_up = nn.Linear(config.width, 2 * config.feed_forward_width, bias=False)
        self.output = nn.Linear(config.feed_forward_width, config.width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Maps [batch, tokens, width] to the same shape."""
        gate, up = self.gate_and_up(hidden).chunk(2, dim=-1)
        result: Tensor = self.output(functional.silu(gate) * up)
        return result


def _rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turns each pair (i, i + half) of [batch, heads, tokens, head_size] by its position's angle."""
    first, second = states.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STANDARD_DEVIATION)
