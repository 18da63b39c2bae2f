"""The noise of a step: made on the host where seeds and positions are known there, and sent in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ascend_sample.sampling.draws.noise import Purpose, exponential_noise
from ascend_sample.sampling.rows.row_set import RowSet

ALIGNMENT: Final = 8
"""Each part of a copy begins at a multiple of so many numbers: 32 bytes, which CANN asks for."""
MOST_SENT: Final = 2**24
"""So many numbers, 64 MiB, are sent at once at most, where the device could make them as well."""


class DrawKeys(NamedTuple):
    """What the noise of rows is a function of, on the host: int64 arrays [rows]."""

    seed: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]

    def of_rows(self, rows: npt.NDArray[np.int64]) -> DrawKeys:
        """Returns those of some of the rows."""
        return DrawKeys(self.seed[rows], self.position[rows])


class KnownNoise(NamedTuple):
    """Noise that the host can make.

    Attributes:
        keys: of each row.
        lanes: how many numbers each row gets.
        purpose: of the noise.
    """

    keys: DrawKeys
    lanes: int
    purpose: Purpose

    @property
    def numbers(self) -> int:
        """Returns how many numbers all rows get."""
        return len(self.keys.seed) * self.lanes


class NoiseOfRows(NamedTuple):
    """What a group of rows reads.

    Attributes:
        rows: the rows in the batch.
        seed: int64, of the whole batch, on the device.
        lanes: how many numbers each row reads.
    """

    rows: RowSet
    seed: Tensor
    lanes: int


def noise_of_groups(
    groups: Sequence[NoiseOfRows], position: Tensor | None, keys: DrawKeys | None, purpose: Purpose, room: int = 0
) -> list[Tensor | None]:
    """Makes the noise of all groups.

    Args:
        groups: which rows read how many lanes.
        position: int64 [batch] on the device; read where ``keys`` are not known, or the noise is too much to be sent.
            None: the host knows them.
        keys: of the whole batch.
        purpose: of the noise.
        room: so many numbers that mean nothing follow what is sent.

    Returns:
        For each group float32 [rows, lanes] on its device, or None for one that reads none.
    """
    reading = [group for group in groups if group.lanes > 0]
    known = []
    if keys is not None:
        known = [KnownNoise(keys.of_rows(group.rows.host), group.lanes, purpose) for group in reading]
    if not known or reading[0].seed.is_cpu or not (position is None or can_be_sent(known)):
        made = _made_there(reading, position, purpose)
    else:
        made = sent(known, reading[0].seed.device, room)
    each = iter(made)
    return [next(each) if group.lanes > 0 else None for group in groups]


def _made_there(groups: Sequence[NoiseOfRows], position: Tensor | None, purpose: Purpose) -> list[Tensor]:
    """Makes the noise where the seeds are: all at once, with as many lanes as any group reads."""
    if not groups:
        return []
    assert position is not None, "it is left out where the host knows it"
    lanes = max(group.lanes for group in groups)
    if len(groups) == 1:
        rows, seed, _ = groups[0]
        return [exponential_noise(rows.take(seed), rows.take(position), lanes, purpose=purpose)]
    noise = exponential_noise(groups[0].seed, position, lanes, purpose=purpose)
    return [group.rows.take(noise[:, : group.lanes]) for group in groups]


def can_be_sent(parts: Sequence[KnownNoise]) -> bool:
    """Tells whether it is little enough that it is better made on the host."""
    return sum(part.numbers for part in parts) <= MOST_SENT


def sent(parts: Sequence[KnownNoise], device: torch.device, room: int = 0) -> list[Tensor]:
    """Makes noise on the host and sends it in one copy, which nobody waits for.

    Every step takes new pinned memory: torch's allocator hands it out again only when the copy from it is done.

    Args:
        parts: what is made.
        device: where it is sent.
        room: how many numbers that mean nothing follow in its memory.

    Returns:
        For each part float32 [rows, lanes] on the device.
    """
    ends, end = [], 0
    for part in parts:
        end = -(-end // ALIGNMENT) * ALIGNMENT + part.numbers
        ends.append(end)
    staged = _pinned(end)
    for part, end in zip(parts, ends, strict=True):
        seed, position = map(torch.from_numpy, part.keys)
        noise = exponential_noise(seed, position, part.lanes, purpose=part.purpose)
        staged[end - part.numbers : end] = noise.view(-1)
    there = torch.empty(end + room, dtype=torch.float32, device=device)
    there[:end].copy_(staged, non_blocking=True)
    return [
        there[end - part.numbers : end].view(len(part.keys.seed), part.lanes)
        for part, end in zip(parts, ends, strict=True)
    ]


def _pinned(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.float32, pin_memory=True, device="cpu")
