"""Tiny models for the tests of decoding: random, causal, and quick to compute anew."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ascend_sample.decoding.models.module_model import ModuleModel


class TinyCausal(nn.Module):
    """A random recurrent network: input_ids int64 [batch, length] -> logits and hidden states.

    Args:
        vocab_size: how many tokens there are.
        seed: of its weights.
        sharpness: by what logits are multiplied; the larger, the surer the model is.
    """

    def __init__(self, vocab_size: int = 13, seed: int = 0, sharpness: float = 4.0, hidden_size: int = 16) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
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
