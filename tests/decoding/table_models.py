"""Small models: tables, which have the same bits in any batch and on any device, and a random network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ascend_sample.decoding.models.module_model import ModuleModel

START, A, B, EOS = range(4)
IMPOSSIBLE = -1e4
"""The logit of what has no probability."""


def table_model(table: Tensor, device: str | None = None) -> ModuleModel:
    """What follows a token is its row of table, [vocab_size, vocab_size]; each token has a state of its own."""
    logits = table if device is None else table.to(device)
    states = torch.eye(len(table), device=logits.device)
    return ModuleModel(lambda input_ids: (logits[input_ids], states[input_ids]))


def random_table(vocab_size: int = 11, seed: int = 0, spread: float = 2.0) -> Tensor:
    """Random logits, float32 [vocab_size, vocab_size]."""
    return torch.randn(vocab_size, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


def probability_table(rows: Sequence[Sequence[float]]) -> Tensor:
    """The logits of given probabilities."""
    return torch.tensor(rows).log().clamp_min(IMPOSSIBLE)


LETTERS = probability_table(
    [
        [0.0, 0.5, 0.4, 0.1],  # after the start
        [0.0, 0.1, 0.5, 0.4],  # after a
        [0.0, 0.1, 0.0, 0.9],  # after b
        [0.0, 0.5, 0.5, 0.0],  # after the end: must not matter
    ]
)
"""A table that one can work out by hand."""
SUCCESSOR = table_model(torch.eye(10).roll(1, dims=1) * 90.0)
"""After t comes t + 1, after 9 comes 0."""


def _never(input_ids: Tensor) -> Tensor:
    raise AssertionError("the model was called")


UNCALLED = ModuleModel(_never)
"""A model that must not be called."""


class WithoutCache:
    """The part of a `StepModel` that is about a cache, of a model that keeps nothing there."""

    def expand(self, cache: Any, count: int) -> Any:
        return cache

    def reorder(self, cache: Any, index: Tensor) -> Any:
        return cache

    def rollback(self, cache: Any, lengths: Tensor) -> Any:
        return cache


class TinyCausal(nn.Module):
    """A random recurrent network: input_ids int64 [batch, length] -> logits and hidden states.

    Args:
        vocab_size: how many tokens there are.
        seed: of its weights.
        sharpness: by what logits are multiplied; the larger, the surer the model is.
    """

    def __init__(self, vocab_size: int = 13, seed: int = 0, sharpness: float = 4.0) -> None:
        super().__init__()
        generator, hidden_size = torch.Generator().manual_seed(seed), 16
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        self.cell = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.head = nn.Linear(hidden_size, vocab_size)
        self.sharpness = sharpness
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.7)

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        hidden, _ = self.cell(self.embedding(input_ids))
        return self.head(hidden) * self.sharpness, hidden


def tiny_model(vocab_size: int = 13, seed: int = 0, sharpness: float = 4.0) -> ModuleModel:
    """A `StepModel` of a `TinyCausal`."""
    return ModuleModel(TinyCausal(vocab_size, seed, sharpness))
