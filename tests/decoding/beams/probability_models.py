"""Models that one can work out by hand: the next token's probabilities depend on the last token alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ascend_sample.decoding.models.module_model import ModuleModel

START, A, B, EOS = range(4)
LETTERS = [
    [0.0, 0.5, 0.4, 0.1],  # after the start
    [0.0, 0.1, 0.5, 0.4],  # after a
    [0.0, 0.1, 0.0, 0.9],  # after b
    [0.0, 0.5, 0.5, 0.0],  # after the end: must not matter
]
IMPOSSIBLE = -1e4
"""The logit of what has no probability."""


def table_model(probabilities: Sequence[Sequence[float]] | Tensor, device: str = "cpu") -> ModuleModel:
    """Row t of probabilities is what follows token t."""
    table = torch.as_tensor(probabilities).log().clamp_min(IMPOSSIBLE).to(device)
    return ModuleModel(lambda input_ids: torch.nn.functional.embedding(input_ids, table))


def random_table(vocab_size: int, seed: int, sharpness: float = 2.0) -> Tensor:
    """Probabilities, [vocab_size, vocab_size]."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(vocab_size, vocab_size, generator=generator) * sharpness).softmax(dim=1)
