"""Seeds and positions of rows, from the generators that vLLM's V1 runner keeps for requests with a seed."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Generator, Tensor

from ascend_sample.integrations._late_counts import LateCounts
from ascend_sample.sampling.drafts.places import ChainLayout
from ascend_sample.sampling.requests.seeds import random_seeds, seed_bits
from ascend_sample.sampling.rows.parameters import Facts
from ascend_sample.sampling.rows.table import to_device

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
        # Nothing can refer to a generator of torch 2.11 weakly: such ones of the CPU stay as long as this does.
        is_weak = Generator.__weakrefoffset__ > 0
        self._draws: MutableMapping[Generator, int] = WeakKeyDictionary() if is_weak else {}
        self._accepted = LateCounts()

    def take(self, rows: int, generators: Mapping[int, Generator]) -> tuple[Tensor, Tensor]:
        """Returns the seeds and positions of one draw, int64 [rows] each.

        They are on the CPU, but for positions that count drafts of which the host does not know yet whether they are
        accepted.

        Args:
            rows: how many.
            generators: by row. All of them move on by one draw.
        """
        if isinstance(generators, KnownRows):
            return generators.seed, generators.position
        self._accepted.settle(self._advance)
        seed = torch.zeros(rows, dtype=torch.int64, device="cpu") if len(generators) == rows else random_seeds(rows)
        position = torch.zeros(rows, dtype=torch.int64, device="cpu")
        if generators:
            # Host numbers alone, and only of requests with a seed: no noise is drawn here.
            chosen = np.fromiter(generators, dtype=np.int64, count=len(generators))
            seeds = [seed_bits(generator.initial_seed()) for generator in generators.values()]
            seed.numpy()[chosen] = seeds
            position.numpy()[chosen] = [self._advance(generator) for generator in generators.values()]
        late = self._accepted.of(rows, generators)
        return seed, position if late is None else late.add_(to_device(position.numpy(), late.device))

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
