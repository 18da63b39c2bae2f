"""The noise of a step: made on the host where seeds and positions are known there, and sent in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ascend_sample.sampling.noise import Purpose, exponential_noise

ALIGNMENT: Final = 8
"""Each part of a copy begins at a multiple of so many numbers: 32 bytes, which CANN asks for."""


class DrawKeys(NamedTuple):
    """What the noise of a batch's rows is a function of, on the host: int64 arrays [rows]."""

    seed: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]


class NoiseOfRows(NamedTuple):
    """What a group of rows reads.

    Attributes:
        rows: the rows in the batch, on the host.
        rows_there: the same on the device; None: all rows, in order.
        seed: int64, on the device.
        lanes: how many numbers each row reads.
    """

    rows: npt.NDArray[np.int64]
    rows_there: Tensor | None
    seed: Tensor
    lanes: int


def noise_of_groups(
    groups: Sequence[NoiseOfRows], position: Tensor | None, keys: DrawKeys | None, purpose: Purpose
) -> list[Tensor | None]:
    """Makes the noise of all groups.

    Args:
        groups: which rows read how many lanes.
        position: int64 [batch] on the device; read where ``keys`` are not known.
        keys: of the whole batch.
        purpose: of the noise.

    Returns:
        For each group float32 [rows, lanes] on its device, or None for one that reads none.
    """
    reading = [group for group in groups if group.lanes > 0]
    if keys is None or not reading or reading[0].seed.is_cpu:
        made = [_made_there(group, position, purpose) for group in reading]
    else:
        made = _sent(reading, keys, purpose)
    each = iter(made)
    return [next(each) if group.lanes > 0 else None for group in groups]


def _made_there(group: NoiseOfRows, position: Tensor | None, purpose: Purpose) -> Tensor:
    """Makes the noise where the seeds are."""
    assert position is not None, "it is left out where the host knows it"
    of_rows = position if group.rows_there is None else position[group.rows_there]
    return exponential_noise(group.seed, of_rows, group.lanes, purpose=purpose)


def _sent(groups: Sequence[NoiseOfRows], keys: DrawKeys, purpose: Purpose) -> list[Tensor]:
    """Makes the noise on the host and sends it in one copy, which nobody waits for.

    Every step takes new pinned memory: torch's allocator hands it out again only when the copy from it is done.
    """
    ends, end = [], 0
    for group in groups:
        end = -(-end // ALIGNMENT) * ALIGNMENT + len(group.rows) * group.lanes
        ends.append(end)
    staged = _pinned(end)
    for group, end in zip(groups, ends, strict=True):
        seed, position = (torch.from_numpy(of_batch[group.rows]) for of_batch in keys)
        noise = exponential_noise(seed, position, group.lanes, purpose=purpose)
        staged[end - noise.numel() : end] = noise.view(-1)
    there = staged.to(groups[0].seed.device, non_blocking=True)
    return [
        there[end - len(group.rows) * group.lanes : end].view(-1, group.lanes)
        for group, end in zip(groups, ends, strict=True)
    ]


def _pinned(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.float32, pin_memory=True)
