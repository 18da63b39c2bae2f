"""Faults of the draw by segment and place, of a grammar's bitmask, and of the buffers in which noise travels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from faults import Noise, around_noise
from planting import Plant, Planter
from torch import Tensor

from ascend_sample.sampling.draws.segmented import SEGMENT
from ascend_sample.sampling.edits.bitmask import Bitmask
from ascend_sample.sampling.step import device_routes

Sums = Callable[[Tensor, int], Tensor]


def draw_with_sums(weights: Tensor, vocab_size: int, noise: Tensor, change: Sums) -> Tensor:
    """The draw from segments, step by step; the sums are changed in between."""
    weights[:, vocab_size:] = 0
    segments = weights.view(len(weights), -1, SEGMENT)
    winner = (change(segments.sum(2), vocab_size) / noise[:, SEGMENT:]).argmax(1)
    inside = segments[torch.arange(len(weights)), winner]
    return winner * SEGMENT + (inside / noise[:, :SEGMENT]).argmax(1)


def of_sums(change: Sums) -> Plant:
    """Lets something happen to the sums of all segments before one of these wins."""

    def drawn(weights: Tensor, vocab_size: int, noise: Tensor) -> Tensor:
        return draw_with_sums(weights, vocab_size, noise, change)

    return lambda planter: planter.replace(device_routes, "draw_from_segments", drawn)


def of_the_row_before(sums: Tensor, vocab_size: int) -> Tensor:
    return sums.roll(1, 0)


def without_a_short_end(sums: Tensor, vocab_size: int) -> Tensor:
    return sums * (torch.arange(sums.shape[1]) < vocab_size // SEGMENT)


def full_ends(sums: Tensor, vocab_size: int) -> Tensor:
    """The mean of each segment's entries, as if all had as many."""
    sums = sums.clone()
    sums[:, -1] *= SEGMENT / (vocab_size % SEGMENT)
    return sums


def never_nothing(sums: Tensor, vocab_size: int) -> Tensor:
    """A segment without mass may win, and its first id is drawn."""
    return sums.clamp_min(0.01 * float(sums.max()))


def shared_noise(planter: Planter) -> None:
    """The lanes of segments are read where those of places begin."""
    original = device_routes.draw_from_segments

    def drawn(weights: Tensor, vocab_size: int, noise: Tensor) -> Tensor:
        segments = noise.shape[1] - SEGMENT
        return original(weights, vocab_size, torch.cat((noise[:, :SEGMENT], noise[:, :segments]), 1))

    planter.replace(device_routes, "draw_from_segments", drawn)


def stale_buffer() -> Plant:
    """The second half of a step's noise is that of the step before: its copy was still under way."""
    before = torch.empty(0)

    def half_of_it(noise: Noise, seed: Tensor, position: Tensor, lanes: int, **options: Any) -> Tensor:
        nonlocal before
        made = noise(seed, position, lanes, **options)
        late, before = before, made.clone()
        if late.shape == made.shape:
            made[len(made) // 2 :] = late[len(made) // 2 :]
        return made

    return around_noise(half_of_it)


def _roll_bitmasks(planter: Planter, dim: int) -> None:
    """Moves the words of a device's bitmasks by one."""
    original = Bitmask.of_all
    planter.replace(Bitmask, "of_all", lambda self, count: original(self, count).roll(1, dim))


def bitmasks_one_word_late(planter: Planter) -> None:
    _roll_bitmasks(planter, 1)


def bitmasks_of_the_row_before(planter: Planter) -> None:
    _roll_bitmasks(planter, 0)


def native_bitmasks_one_word_late(planter: Planter) -> None:
    original = Bitmask.native_edits

    def late(self: Bitmask, count: int) -> dict[str, Tensor]:
        return original(self._replace(words=self.words.roll(1, 1)), count)

    planter.replace(Bitmask, "native_edits", late)


def native_bitmasks_of_the_row_before(planter: Planter) -> None:
    original = Bitmask.native_edits

    def of_others(self: Bitmask, count: int) -> dict[str, Tensor]:
        edits = original(self, count)
        return edits | {"bitmask_rows": edits["bitmask_rows"].roll(1)}

    planter.replace(Bitmask, "native_edits", of_others)
