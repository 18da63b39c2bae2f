"""Tensors for the rows of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from ascend_sample.sampling.batch import SamplingBatch


def ids(device: str, *values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64).to(device)


def zeros(batch: SamplingBatch) -> Tensor:
    return torch.zeros(len(batch), batch.vocab_size, device=batch.device)
