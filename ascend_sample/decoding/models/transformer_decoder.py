"""FasterTransformer v2's decoder has pre-norm layers over a memory, and step-major keys and values.

    python examples/faster_transformer.py

`DecoderLayer` is what the document calls Decoder; `Decoder` with `beam_search(..., finished="in_beam")` over it is what
it calls Decoding. The number of beams, steps and words is limited by memory alone.

Source: docs/faster_transformer.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from ascend_sample._errors import check_bool, check_integer, check_number, refuse, refuse_type
from ascend_sample.decoding.model import StepOutput
from ascend_sample.decoding.models.decoder_layer import ACTIVATIONS, DecoderLayer, Memory
from ascend_sample.decoding.models.layered_decoder import LayeredDecoder
from ascend_sample.decoding.models.step_major_cache import DecoderCache
from ascend_sample.decoding.places import at_places, repeated_rows, tokens_first

LONGEST_WAVELENGTH = 10000.0
POSITIONS: Final = ("halves", "interleaved")


@dataclass(frozen=True)
class DecoderConfig:
    """Describes the shape of a `Decoder`.

    Attributes:
        vocab_size: how many tokens there are.
        hidden_size: the size of the layers' vectors; even, at least 4 and a multiple of heads.
        heads: how many heads each attention has.
        layers: how many layers there are.
        memory_size: the size of the memory's vectors; hidden_size unless given.
        layer_norm_eps: what is added to variances.
        initial_steps: for how many tokens a cache has room at first, beyond the prompt; it grows.
        hidden_states: whether each step returns the last layer's hidden states.
        activation: the activation of the feed-forward networks, "relu" or "gelu" (the exact one).
        positions: "halves", sines and then cosines of steps from 1 on, as FasterTransformer has them; "interleaved", a
            sine and a cosine in turn of steps from 0 on, as in "Attention is all you need" (Vaswani et al., 2017).

    Raises:
        TypeError: a value has a wrong type.
        ValueError: a value is out of its range.
    """

    vocab_size: int
    hidden_size: int = 512
    heads: int = 8
    layers: int = 6
    memory_size: int | None = None
    layer_norm_eps: float = 1e-6
    initial_steps: int = 64
    hidden_states: bool = False
    activation: Literal["relu", "gelu"] = "relu"
    positions: Literal["halves", "interleaved"] = "halves"

    def __post_init__(self) -> None:
        name = "DecoderConfig"
        for field in ("vocab_size", "heads", "layers", "initial_steps"):
            check_integer(name, field, getattr(self, field), low=1)
        check_integer(name, "hidden_size", self.hidden_size, low=4)
        if self.memory_size is not None:
            check_integer(name, "memory_size", self.memory_size, low=1)
        if self.hidden_size % 2 or self.hidden_size % self.heads:
            rule = f"be even and a multiple of heads = {self.heads}"
            refuse(name, "hidden_size", rule, self.hidden_size, "Give heads * the size of a head.")
        check_number(name, "layer_norm_eps", self.layer_norm_eps, low=0, above=True)
        check_bool(name, "hidden_states", self.hidden_states)
        for field, values in (("activation", tuple(ACTIVATIONS)), ("positions", POSITIONS)):
            if getattr(self, field) not in values:
                remedy = "Write a StepModel of your own for others, or wrap the module into ModuleModel."
                refuse(name, field, f"be one of {', '.join(values)}", getattr(self, field), remedy)


class Decoder(LayeredDecoder):
    """Computes embedding, positions, layers, a last norm and logits; is a `StepModel`, and a module to train.

    The vector of token t at step s = 1, 2, ... is `embedding[t] * sqrt(h)` plus the sines of `s * r ** i` and then
    their cosines, i = 0 to h / 2 - 1, with `r ** (h / 2 - 1) = 1 / 10000`, unless the config says otherwise. There is
    no table of positions, so no limit.

    Called as a module it computes all places at once, without a cache: `decoder(tokens, memory, memory_lengths)`
    with int64 [rows, length] returns logits [rows, length, vocab_size].

    Args:
        config: the decoder's shape.

    Example:
        >>> decoder = Decoder(DecoderConfig(vocab_size=11, hidden_size=8, heads=2, layers=2)).eval()
        >>> memory = torch.randn(2, 5, 8)
        >>> output = decoder.prefill(torch.tensor([[1], [1]]), memory=memory, memory_lengths=torch.tensor([5, 3]))
        >>> tokens = output.logits.argmax(dim=1)
        >>> decoder.decode(tokens[:, None], output.cache).logits.shape
        torch.Size([2, 1, 11])

    Source: docs/faster_transformer.md.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.memory_size = config.memory_size or config.hidden_size
        self.num_embeddings = config.vocab_size
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        # Vectors have unit length, so that multiplied by sqrt(h) they are as large as the positions are.
        nn.init.normal_(self.embedding.weight, std=config.hidden_size**-0.5)
        self.layers = nn.ModuleList(
            DecoderLayer(config.hidden_size, config.heads, config.memory_size, config.layer_norm_eps, config.activation)
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, input_ids: Tensor, memory: Tensor, memory_lengths: Tensor | None = None) -> Tensor:
        """Returns logits [rows, length, vocab_size] after each of input_ids, int64 [rows, length]; see `prefill`."""
        visible_memory = self._check_memory(input_ids, memory, memory_lengths)
        length = input_ids.shape[1]
        places = torch.arange(length, device=input_ids.device)[None]
        projected = self.project_memory(memory, visible_memory)
        hidden = self.run_layers(
            input_ids, places, length, lambda _, keys, values: (keys, values), lambda n: projected[n], visible_memory
        )
        logits: Tensor = self.head(hidden)
        return logits

    @torch.no_grad()
    def prefill(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        memory: Tensor,
        memory_lengths: Tensor | None = None,
    ) -> StepOutput:
        """See `StepModel.prefill`.

        Args:
            input_ids: int64 [rows, length], what the decoder starts with.
            attention_mask: bool [rows, length], False at padding.
            memory: floats [rows, memory length, memory_size], what the encoder returned.
            memory_lengths: int64 [rows], from 1 to the memory length; None: no padding.

        Raises:
            TypeError: memory or memory_lengths has a wrong type.
            ValueError: memory or memory_lengths has a wrong shape or value.
        """
        visible_memory = self._check_memory(input_ids, memory, memory_lengths)
        rows, length = input_ids.shape
        projected = self.project_memory(memory, visible_memory)
        capacity = length + self.config.initial_steps
        cache = DecoderCache(
            tokens=projected.new_zeros(self.config.layers, 2, capacity, rows, self.config.hidden_size),
            lengths=input_ids.new_zeros(rows),
            extent=0,
            memory=projected,
            memory_visible=visible_memory,
            origins=input_ids.new_zeros(capacity, rows) if input_ids.is_cpu else None,
        )
        if attention_mask is None:
            hidden, cache = self._advance(input_ids, cache)
            last, states = hidden[:, -1], hidden
        else:
            order = tokens_first(attention_mask.bool())  # a row's tokens are its first steps
            tokens = input_ids.where(attention_mask.bool(), 0)  # a masked id may be none of the vocabulary
            hidden, cache = self._advance(tokens.gather(1, order), cache)
            cache = replace(cache, lengths=attention_mask.sum(dim=1))
            last = at_places(hidden, cache.lengths[:, None] - 1).squeeze(1)
            states = at_places(hidden, torch.argsort(order, dim=1))
        return StepOutput(self.head(last), cache, states if self.config.hidden_states else None)

    @torch.no_grad()
    def decode(self, tokens: Tensor, cache: DecoderCache) -> StepOutput:
        """See `StepModel.decode`."""
        hidden, cache = self._advance(tokens, cache)
        return StepOutput(self.head(hidden), cache, hidden if self.config.hidden_states else None)

    def expand(self, cache: DecoderCache, count: int) -> DecoderCache:
        """See `StepModel.expand`."""
        return self.reorder(cache, repeated_rows(cache.lengths, count))

    @torch.no_grad()
    def reorder(self, cache: DecoderCache, index: Tensor) -> DecoderCache:
        """See `StepModel.reorder`."""
        return cache.take_rows(index)

    def rollback(self, cache: DecoderCache, lengths: Tensor) -> DecoderCache:
        """See `StepModel.rollback`."""
        return replace(cache, lengths=lengths)

    def _advance(self, tokens: Tensor, cache: DecoderCache) -> tuple[Tensor, DecoderCache]:
        """Returns hidden states of the tokens after the cached ones, and the cache with them."""
        count = tokens.shape[1]
        grown = cache.with_room_for(count)
        places = grown.places(count)
        grown = grown.numbered(places)
        hidden = self.run_layers(
            tokens,
            places,
            grown.extent,
            lambda number, keys, values: grown.append(number, places, keys, values),
            grown.memory_of,
            grown.visible_memory(),
        )
        return hidden, replace(grown, lengths=grown.lengths + count)

    def _layers(self) -> Iterable[Any]:
        return self.layers

    def _project(self, layer: Any, memory: Tensor) -> Memory:
        projected: Memory = layer.project_memory(memory)
        return projected

    def _embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        hidden: Tensor = self.embedding(tokens) * math.sqrt(self.config.hidden_size)
        return hidden + self._encode_steps(places + 1).to(hidden.dtype)

    def _run_layer(self, layer: Any, *inputs: Any) -> Tensor:
        result: Tensor = layer(*inputs)
        return result

    def _finish(self, hidden: Tensor) -> Tensor:
        normalised: Tensor = self.norm(hidden)
        return normalised

    def _encode_steps(self, steps: Tensor) -> Tensor:
        """Returns sines and cosines, float32 [..., hidden_size], of int64 steps, the first of which is 1."""
        half = self.config.hidden_size // 2
        each = torch.arange(half, device=steps.device, dtype=torch.float32)
        if self.config.positions == "interleaved":
            angles = (steps - 1)[..., None] * LONGEST_WAVELENGTH ** -(each / half)
            return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
        angles = steps[..., None] * LONGEST_WAVELENGTH ** -(each / (half - 1))
        return torch.cat((angles.sin(), angles.cos()), dim=-1)

    def _check_memory(self, input_ids: Tensor, memory: Tensor, lengths: Tensor | None) -> Tensor:
        """Returns which places of the memory are no padding, bool [rows, memory length]."""
        name = "Decoder"
        if not isinstance(memory, Tensor) or not memory.is_floating_point():
            refuse_type(name, "memory", "be a tensor of floats", memory, "Give what the encoder returned.")
        rows = len(input_ids)
        shape = list(memory.shape)
        if memory.dim() != 3 or shape[0] != rows or shape[1] < 1 or shape[2] != self.memory_size:
            rule = f"be [{rows}, at least 1, {self.memory_size}]"
            refuse(name, "memory", rule, shape, "Give one memory for each row of input_ids.")
        if lengths is None:
            return torch.ones(shape[:2], dtype=torch.bool, device=memory.device)
        if not isinstance(lengths, Tensor) or lengths.dtype != torch.int64:
            refuse_type(name, "memory_lengths", "be an int64 tensor", lengths, "Give the lengths before padding.")
        if lengths.shape != (rows,):
            refuse(name, "memory_lengths", f"be [{rows}]", list(lengths.shape), "Give one length for each row.")
        if bool(((lengths < 1) | (lengths > shape[1])).any()):
            rule = f"be from 1 to {shape[1]}, the memory's length"
            refuse(name, "memory_lengths", rule, lengths.tolist(), "Give the lengths before padding.")
        return torch.arange(shape[1], device=memory.device) < lengths[:, None]


class EncoderDecoder(nn.Module):
    """Makes a `StepModel` of an encoder and a `Decoder`.

    Args:
        encoder: a module that is called with what `prefill` is given by name, [rows, ...] each; it returns a memory,
            floats [rows, memory length, memory_size], and its lengths, int64 [rows].
        decoder: the decoder that looks at that memory.
    """

    def __init__(self, encoder: nn.Module, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, input_ids: Tensor, **encoder: Tensor) -> Tensor:
        """Returns logits [rows, length, vocab_size] after each of input_ids, without a cache."""
        logits: Tensor = self.decoder(input_ids, *self.encoder(**encoder))
        return logits

    @torch.no_grad()
    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None = None, /, **encoder: Tensor) -> StepOutput:
        """See `StepModel.prefill`."""
        memory, lengths = self.encoder(**encoder)
        return self.decoder.prefill(input_ids, attention_mask, memory=memory, memory_lengths=lengths)

    def decode(self, tokens: Tensor, cache: DecoderCache) -> StepOutput:
        """See `StepModel.decode`."""
        return self.decoder.decode(tokens, cache)

    def expand(self, cache: DecoderCache, count: int) -> DecoderCache:
        """See `StepModel.expand`."""
        return self.decoder.expand(cache, count)

    def reorder(self, cache: DecoderCache, index: Tensor) -> DecoderCache:
        """See `StepModel.reorder`."""
        return self.decoder.reorder(cache, index)

    def rollback(self, cache: DecoderCache, lengths: Tensor) -> DecoderCache:
        """See `StepModel.rollback`."""
        return self.decoder.rollback(cache, lengths)
