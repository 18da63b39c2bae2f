"""The rows of an engine's step as a batch of requests, for a sampler that needs to know them on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ascend_sample.sampling import SamplingBatch, SamplingParams
from ascend_sample.sampling.rows.parameters import Facts

WORD: Final = 2**64


class EngineRows(SamplingBatch):
    """Rows whose parameters stay as long as an engine's batch does; their positions are given in each step.

    Rows without a seed get one from the batch, as any request without one, and count their steps themselves.

    Args:
        vocab_size, device: as for `SamplingBatch`.
        facts: a temperature for each row, and its top-k and top-p, where some row has them.
        seeds: by row, of those that have one; int64.

    Example:
        >>> facts = {"temperature": np.ones(2, np.float32), "top_k": np.array([3, 8], np.int32)}
        >>> rows = EngineRows(8, torch.device("cpu"), facts, {1: -1})
        >>> rows.go_to(torch.tensor([0, 5]))
        >>> rows.go_to(torch.tensor([0, 6]))
        >>> rows.position, rows.top_k[0], rows.seed[1], rows.is_for(facts, {1: -1}), rows.is_for(facts, {1: 2})
        (tensor([1, 6]), tensor(3, dtype=torch.int32), tensor(-1), True, False)
    """

    def __init__(self, vocab_size: int, device: torch.device, facts: Facts, seeds: Mapping[int, int]) -> None:
        super().__init__(vocab_size, device)
        self._facts, self._given = facts, dict(seeds)
        count = len(facts["temperature"])
        top_k = facts.get("top_k", np.full(count, vocab_size))
        top_p = facts.get("top_p", np.ones(count))
        self.extend(
            [
                SamplingParams(
                    temperature=float(facts["temperature"][row]),
                    top_k=int(top_k[row]) if 0 < top_k[row] < vocab_size else None,
                    top_p=float(top_p[row]),
                    seed=seeds[row] % WORD if row in seeds else None,
                )
                for row in range(count)
            ]
        )
        self._has_seed = np.isin(np.arange(count), list(seeds))
        self._steps = -1

    def is_for(self, facts: Facts, seeds: Mapping[int, int]) -> bool:
        """Tells whether these are the rows: the very facts, or equal ones, and equal seeds."""
        is_same = facts is self._facts or (
            facts.keys() == self._facts.keys()
            and all(np.array_equal(numbers, self._facts[name]) for name, numbers in facts.items())
        )
        return is_same and self._given == seeds

    def go_to(self, position: Tensor) -> None:
        """Goes on to the next step.

        Args:
            position: int64 [rows] on the CPU; those of rows without a seed do not matter.
        """
        self._steps += 1
        self._table.place_at(np.where(self._has_seed, position.numpy(), self._steps))
