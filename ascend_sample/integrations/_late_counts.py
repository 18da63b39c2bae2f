"""Numbers that a device adds up, and that the host learns of without waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Generator, Tensor

from ascend_sample.sampling._normal_mode import in_normal_mode
from ascend_sample.sampling.row_table import to_device


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
    row_of: WeakKeyDictionary[Generator, int]


class LateCounts:
    """A number for each generator, to which a device adds.

    The host asks whether a copy has arrived, and never waits for it. An engine reads a step's tokens before it begins
    the next one, so the copy has arrived by then; what has not is added on the device.
    """

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Generator, int] = WeakKeyDictionary()
        self._late: list[_Added] = []

    @in_normal_mode
    def add(self, generators: Mapping[int, Generator], numbers: Tensor) -> None:
        """Adds numbers, int64 [rows] on a device, to those of the generators by row; nobody writes to them later."""
        if not generators:
            return
        here = torch.empty(len(numbers), dtype=torch.int64, pin_memory=True)
        here.copy_(numbers, non_blocking=True)
        arrival = torch.get_device_module(numbers.device).Event()
        arrival.record()
        rows = {generator: row for row, generator in generators.items()}
        self._late.append(_Added(numbers, here, arrival, WeakKeyDictionary(rows)))

    def of(self, rows: int, generators: Mapping[int, Generator]) -> tuple[npt.NDArray[np.int64], Tensor | None]:
        """Returns the numbers of rows, 0 without a generator: what the host knows, and what is to be added to that.

        Args:
            rows: how many.
            generators: by row.

        Returns:
            int64 [rows], and int64 [rows] on the device, or None where the first is all.
        """
        while self._late and self._late[0].arrival.query():
            added = self._late.pop(0)
            for generator, row in added.row_of.items():
                self._known[generator] = self._known.get(generator, 0) + int(added.here[row])
        known, late = np.zeros(rows, np.int64), None
        for row, generator in generators.items():
            known[row] = self._known.get(generator, 0)
        for added in self._late:
            pairs = [(row, added.row_of[each]) for row, each in generators.items() if each in added.row_of]
            if pairs:
                to, source = to_device(np.array(pairs).T.copy(), added.there.device)
                late = torch.zeros(rows, dtype=torch.int64, device=added.there.device) if late is None else late
                late.index_add_(0, to, added.there.index_select(0, source))
        return known, late
