"""Decoders over a memory run their layers in one way, whoever keeps the keys and values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ascend_sample.decoding.models.decoder_layer import Append, Memory, visible_steps


class LayeredDecoder(nn.Module, ABC):
    """Runs layers over tokens, with keys, values and places from outside: from a cache, or a graph's inputs.

    Attributes:
        head: floats [rows, count, hidden_size] of `run_layers` -> logits [rows, count, vocab_size].
    """

    head: Callable[[Tensor], Tensor]

    def project_memory(self, memory: Tensor, visible: Tensor) -> Tensor:
        """Returns each layer's keys and values of a memory.

        Args:
            memory: floats [rows, memory length, memory_size].
            visible: bool [rows, memory length], False at padding.

        Returns:
            Floats [layers, 2 (keys, values), rows, memory length, hidden_size], zero at padding: a weight of zero
            does not make a NaN go away that the encoder left there.
        """
        projected = [torch.stack(self._project(layer, memory)) for layer in self._layers()]
        return torch.stack(projected).masked_fill(~visible[:, :, None], 0)

    def run_layers(
        self,
        tokens: Tensor,
        places: Tensor,
        extent: int,
        append: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]],
        memory_of: Callable[[int], Memory | Tensor],
        memory_visible: Tensor,
    ) -> Tensor:
        """Runs the layers over tokens.

        Args:
            tokens: int64 [rows, count].
            places: int64 [rows or 1, count], how many tokens are in front of each.
            extent: how many steps append returns.
            append: a function like `Append`, with the layer's number in front.
            memory_of: (layer's number) -> its keys and values of the memory, see `Memory`.
            memory_visible: bool [rows, memory length], False at padding.

        Returns:
            The hidden states that `head` takes, floats [rows, count, hidden_size].
        """
        hidden = self._embed(tokens, places)
        visible = self._visible(places, extent)
        for number, layer in enumerate(self._layers()):
            keys, values = memory_of(number)
            grow = partial(append, number)
            hidden = self._run_layer(layer, hidden, grow, visible, (keys, values), memory_visible[:, None, None])
        return self._finish(hidden)

    @abstractmethod
    def _layers(self) -> Iterable[Any]: ...

    @abstractmethod
    def _project(self, layer: Any, memory: Tensor) -> Memory:
        """Returns a layer's keys and values of a memory."""

    @abstractmethod
    def _embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Returns the vectors of tokens, int64 [rows, count], at places, int64 [rows or 1, count]."""

    def _visible(self, places: Tensor, extent: int) -> Tensor:
        """Returns what attention is told of the steps that each token sees, [rows, 1 or heads, count, extent]."""
        return visible_steps(places, extent)

    @abstractmethod
    def _run_layer(
        self, layer: Any, hidden: Tensor, append: Append, visible: Tensor, memory: Memory, memory_visible: Tensor
    ) -> Tensor:
        """Runs a layer, as `DecoderLayer.forward` does."""

    def _finish(self, hidden: Tensor) -> Tensor:
        """Applies what the last layer's states go through before `head`."""
        return hidden
