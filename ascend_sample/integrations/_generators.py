"""Seeds and positions of rows, from the generators that vLLM's V1 runner keeps for requests with a seed."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Generator, Tensor

from ascend_sample.sampling._normal_mode import in_normal_mode
from ascend_sample.sampling.draft_places import ChainLayout
from ascend_sample.sampling.row_parameters import Facts
from ascend_sample.sampling.row_table import to_device
from ascend_sample.sampling.seeds import random_seeds, seed_bits

OFFSET_OF_A_DRAW: Final = 4
"""By how much a draw moves a generator's offset; vLLM moves it back by as much when it throws a draw away."""


class CountedGenerator(Generator):
    """A generator of the CPU with an offset, as those of devices have one.

    vLLM moves a generator back by `OFFSET_OF_A_DRAW` where it throws a draw away, as it does after each part of a
    prompt but the last. torch's generators of the CPU refuse that.

    Args:
        seed: of the generator.

    Example:
        >>> generator = CountedGenerator(11)
        >>> _ = generator.set_offset(generator.get_offset() + 8)
        >>> generator.initial_seed(), generator.get_offset(), generator.device.type
        (11, 8, 'cpu')
    """

    def __new__(cls, seed: int) -> CountedGenerator:
        """Makes torch's generator, which takes no seed."""
        return super().__new__(cls)

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.manual_seed(seed)
        self._offset = 0

    def get_offset(self) -> int:
        """Returns the offset."""
        return self._offset

    def set_offset(self, offset: int) -> CountedGenerator:
        """Moves to an offset, forth or back; what torch draws from the generator does not depend on it."""
        self._offset = offset
        return self


class KnownRows(dict[int, Generator]):
    """Stands in the place of a step's generators where the rows' seeds and positions are known.

    Attributes:
        seed, position: int64 [rows], on any device.
        facts: what the host knows of the rows.
    """

    def __init__(self, seed: Tensor, position: Tensor, facts: Facts | None) -> None:
        super().__init__()
        self.seed, self.position, self.facts = seed, position, facts


class SeedSource:
    """Seeds and positions of rows, from the generators that vLLM keeps for requests with a seed.

    The seed of such a row is the generator's initial one. Its position is the generator's offset, which is advanced;
    torch's own of the CPU have none, and are counted here. Rows without a generator get random seeds.

    A step that verifies drafts advances a request by one draw, as any other, and by the drafts that it accepts: so the
    position is the number of the request's tokens, whatever was proposed.

    Example:
        >>> source, generator = SeedSource(), torch.Generator().manual_seed(11)
        >>> seed, position = source.take(3, {1: generator})
        >>> seed[1].item(), position.tolist(), source.take(1, {0: generator})[1].tolist()
        (11, [0, 0, 0], [1])
    """

    def __init__(self) -> None:
        self._draws: WeakKeyDictionary[Generator, int] = WeakKeyDictionary()
        self._accepted = DeviceCounts()

    def take(self, rows: int, generators: Mapping[int, Generator]) -> tuple[Tensor, Tensor]:
        """Returns the seeds and positions of one draw, int64 [rows] each.

        They are on the CPU, but for positions that count drafts which a device has accepted.

        Args:
            rows: how many.
            generators: by row. All of them move on by one draw.
        """
        if isinstance(generators, KnownRows):
            return generators.seed, generators.position
        seed = torch.zeros(rows, dtype=torch.int64) if len(generators) == rows else random_seeds(rows)
        position = torch.zeros(rows, dtype=torch.int64)
        if generators:
            # Host numbers alone, and only of requests with a seed: no noise is drawn here.
            chosen = np.fromiter(generators, dtype=np.int64, count=len(generators))
            seeds = [seed_bits(generator.initial_seed()) for generator in generators.values()]
            seed.numpy()[chosen] = seeds
            position.numpy()[chosen] = [self._advance(generator) for generator in generators.values()]
        accepted = self._accepted.of(rows, generators)
        return seed, position if accepted is None else accepted.add_(to_device(position.numpy(), accepted.device))

    def take_places(self, layout: ChainLayout, generators: Mapping[int, Generator], facts: Facts | None) -> KnownRows:
        """Returns the seeds and positions of the places of drafts; generators move on as for one draw.

        Args:
            layout: where the places are.
            generators: by request.
            facts: what the host knows of the requests.
        """
        seed, position = self.take(len(layout.counts), generators)
        of_places = None if facts is None else {name: numbers[layout.request] for name, numbers in facts.items()}
        request, column = to_device(np.stack((layout.request, layout.column)), position.device)
        return KnownRows(seed[torch.from_numpy(layout.request)], position.index_select(0, request) + column, of_places)

    def accept(self, generators: Mapping[int, Generator], accepted: Tensor) -> None:
        """Moves the generators on by drafts that were accepted, int64 [requests]; nothing is read from a device."""
        if not accepted.is_cpu:
            self._accepted.add(generators, accepted)
            return
        for request, generator in generators.items():
            self._advance(generator, int(accepted[request]))

    def _advance(self, generator: Generator, draws: int = 1) -> int:
        if generator.device.type == "cpu" and not isinstance(generator, CountedGenerator):  # has no offset
            drawn = self._draws.get(generator, 0)
            self._draws[generator] = drawn + draws
            return drawn
        offset = generator.get_offset()
        generator.set_offset(offset + draws * OFFSET_OF_A_DRAW)
        return offset // OFFSET_OF_A_DRAW


class DeviceCounts:
    """A number for each generator that is added up on a device, and never read by the host."""

    def __init__(self) -> None:
        self._numbers: Tensor | None = None  # the first is that of all generators to which nothing was added: 0
        self._slots: WeakKeyDictionary[Generator, int] = WeakKeyDictionary()
        self._free: list[int] = []

    @in_normal_mode
    def add(self, generators: Mapping[int, Generator], numbers: Tensor) -> None:
        """Adds numbers, int64 [rows] on the device, to those of the generators by row."""
        if not generators:
            return
        fresh = [generator for generator in generators.values() if generator not in self._slots]
        taken = [self._take_slot(generator, numbers.device) for generator in fresh]
        assert self._numbers is not None
        if taken:
            there = to_device(np.array(taken), numbers.device)
            self._numbers.index_copy_(0, there, torch.zeros_like(there))  # torch_npu's index_fill_ would read them back
        slots = [self._slots[generator] for generator in generators.values()]
        rows, there = to_device(np.array([list(generators), slots]), numbers.device)
        self._numbers.index_add_(0, there, numbers.index_select(0, rows))

    @in_normal_mode
    def of(self, rows: int, generators: Mapping[int, Generator]) -> Tensor | None:
        """Returns the numbers of rows, int64 [rows] on the device; None where nothing was ever added to any of them."""
        slots = np.zeros(rows, np.int64)
        for row, generator in generators.items():
            slots[row] = self._slots.get(generator, 0)
        if self._numbers is None or not slots.any():
            return None
        return self._numbers.index_select(0, to_device(slots, self._numbers.device))

    def _take_slot(self, generator: Generator, device: torch.device) -> int:
        if not self._free:
            old = 1 if self._numbers is None else len(self._numbers)
            grown = torch.zeros(max(64, 2 * old), dtype=torch.int64, device=device)
            if self._numbers is not None:
                grown[:old] = self._numbers
            self._numbers = grown
            self._free.extend(range(old, len(grown)))
        slot = self._free.pop()
        self._slots[generator] = slot
        weakref.finalize(generator, self._free.append, slot)
        return slot
