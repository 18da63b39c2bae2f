"""Numbers that a device adds up, and that the host learns of without waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from ascend_sample.sampling.rows.normal_mode import in_normal_mode
from ascend_sample.sampling.rows.table import to_device


class _Added(NamedTuple):
    """What one call has added.

    Attributes:
        there: int64 [rows] on the device.
        here: the same in pinned memory, as soon as it has arrived.
        arrival: the event behind the copy.
        row_of: which row each generator had.
    """

    there: Tensor
    here: Tensor
    arrival: Any
    row_of: dict[Generator, int]


class LateCounts:
    """Numbers of generators that are on a device, until the host has learned of them.

    The host asks whether a copy has arrived, and never waits for it. An engine waits for what a step has accepted
    before it samples the next one, so the copy has arrived by then; what has not is added on the device.
    """

    def __init__(self) -> None:
        self._late: list[_Added] = []

    @in_normal_mode
    def add(self, generators: Mapping[int, Generator], numbers: Tensor) -> None:
        """Takes numbers, int64 [rows] on a device, of generators by row; nobody writes to them later."""
        if not generators:
            return
        here = torch.empty(len(numbers), dtype=torch.int64, pin_memory=True, device="cpu")
        here.copy_(numbers, non_blocking=True)
        arrival = torch.get_device_module(numbers.device).Event()
        arrival.record()
        self._late.append(_Added(numbers, here, arrival, {generator: row for row, generator in generators.items()}))

    def settle(self, move: Callable[[Generator, int], object]) -> None:
        """Calls ``move`` with each generator and its number, where that has arrived, and forgets both."""
        while self._late and self._late[0].arrival.query():
            added = self._late.pop(0)
            for generator, row in added.row_of.items():
                move(generator, int(added.here[row]))

    def of(self, rows: int, generators: Mapping[int, Generator]) -> Tensor | None:
        """Returns what has not arrived of the rows' generators, int64 [rows] on the device; None where all has.

        Args:
            rows: how many.
            generators: by row.
        """
        late = None
        for added in self._late:
            pairs = [(row, added.row_of[each]) for row, each in generators.items() if each in added.row_of]
            if pairs:
                to, source = to_device(np.array(pairs).T.copy(), added.there.device)
                late = torch.zeros(rows, dtype=torch.int64, device=added.there.device) if late is None else late
                late.index_add_(0, to, added.there.index_select(0, source))
        return late
