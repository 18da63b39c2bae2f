"""Models whose logits are rows of a table: the same bits in any batch and on any device, and quick to work out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ascend_sample.decoding.models.module_model import ModuleModel


def table_model(table: Tensor) -> ModuleModel:
    """What follows a token depends on it alone: its row of table, float [vocab_size, vocab_size]."""
    return ModuleModel(lambda input_ids: table[input_ids])


class WithoutCache:
    """The part of a `StepModel` that is about a cache, of a model that keeps nothing there."""

    def expand(self, cache: Any, count: int) -> Any:
        return cache

    def reorder(self, cache: Any, index: Tensor) -> Any:
        return cache

    def rollback(self, cache: Any, lengths: Tensor) -> Any:
        return cache


def _never(input_ids: Tensor) -> Tensor:
    raise AssertionError("the model was called")


UNCALLED = ModuleModel(_never)
"""A model that must not be called."""


def random_table(vocab_size: int = 11, seed: int = 0, spread: float = 2.0) -> Tensor:
    """Random logits, float32 [vocab_size, vocab_size]."""
    return torch.randn(vocab_size, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


def probability_table(rows: Sequence[Sequence[float]]) -> Tensor:
    """The logits of given probabilities."""
    return torch.tensor(rows).log()
