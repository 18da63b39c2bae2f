"""What a batch's edits are made of for as long as its rows stay: where the entries of its slots' lists lie."""

from __future__ import annotations

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascend_sample.sampling.edits.apply import FRONT, Biases, Penalties, drafts_before, with_drafts
from ascend_sample.sampling.edits.processing import scaling_of
from ascend_sample.sampling.edits.slots import AddendSlots, MaskSlots, PenaltySlots
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.rows.table import NO_SLOT, PENALTIES, HostMirrors, to_device

Ids = NDArray[numpy.int64]


class PenalizedRows:
    """The rows with penalties: what they have seen, and how tokens that they draw are counted.

    Args:
        host: of the batch.
        slots: what the rows have seen.
        columns: how far the rows of edited copies are apart.
        before: int64 [batch, most], which of a step's drafts are before each row; None: rows have no drafts.

    Attributes:
        rows: which of the batch.
    """

    def __init__(self, host: HostMirrors, slots: PenaltySlots, columns: int, before: Ids | None = None) -> None:
        rows = numpy.flatnonzero(host.penalty_slot != NO_SLOT)
        self._slots, self._held = slots, host.penalty_slot[rows]
        parts = (rows, self._held, self._held * slots.vocab_size, FRONT + rows * columns, self._ends(self._held))
        sent = to_device(numpy.stack(parts), slots.device)
        self.rows = RowSet(rows, sent[0])
        self._held_there, self._counted_from, self._next = sent[1], sent[2], sent[4]
        self._bases = sent[3].unsqueeze(1)
        self._behind = 0  # by how many tokens of every row the next entries are
        self._twos = torch.full((len(rows),), 2, dtype=torch.int32, device=slots.device)
        penalties = host.stacked(PENALTIES)[:, rows]
        is_on = (penalties != [[1.0], [0.0], [0.0]]).any(1).tolist()
        there = to_device(penalties, slots.device)
        self._numbers = [penalty if on else None for penalty, on in zip(there, is_on, strict=True)]
        self._scaled = scaling_of(penalties[0])
        self._before = None
        if before is not None and before.shape[1]:
            self._before = to_device(before[rows], slots.device)

    def seen(self, drafts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns the ids that the rows have seen, and their occurrences, as `Penalties` has them.

        Args:
            drafts: int64 [drafts], those of the step.
        """
        ids = self._slots.ids.index_select(0, self._held_there)
        before = None
        if drafts is not None and self._before is not None:
            before = drafts_before(drafts, self._before)
        return with_drafts(ids, self._occurrences_of, before, self._slots.vocab_size)

    def penalties(self, drafts: Tensor | None) -> Penalties:
        """Returns how entries of the rows are penalised in this step."""
        ids, occurrences = self.seen(drafts)
        return Penalties(ids, occurrences, self._bases, self._numbers, self._scaled)

    def append(self, token_ids: Tensor, are_ids: bool) -> None:
        """Takes in a token of each row of the batch."""
        self._write(self.rows.take(token_ids), self._counted_from, self._twos, self._next, self._behind, are_ids)
        self._slots.lengths[self._held] += 1
        self._behind += 1

    def append_to(self, rows: Ids, token_ids: Tensor) -> None:
        """Takes in tokens of some rows of the batch, in which a row may occur several times; others are ignored."""
        every = numpy.searchsorted(self.rows.host, rows).clip(max=len(self.rows) - 1)
        tokens = numpy.flatnonzero(self.rows.host[every] == rows)
        every = every[tokens]
        if not len(every):
            return
        order = numpy.argsort(every, kind="stable")
        before = numpy.empty_like(every)  # how many tokens of its row each comes after
        before[order] = numpy.arange(len(every)) - numpy.searchsorted(every[order], every[order])
        held = self._held[every]
        parts = (tokens, every, held * self._slots.vocab_size, self._ends(held) + before)
        named, each, counted_from, ends = to_device(numpy.stack(parts), token_ids.device)
        twos, ones = self._twos.new_full((len(every),), 2), torch.ones_like(each)
        self._write(token_ids.index_select(0, named), counted_from, twos, ends, 0, are_ids=False)
        self._next.index_add_(0, each, ones)
        numpy.add.at(self._slots.lengths, held, 1)

    def _ends(self, held: Ids) -> Ids:
        """Returns where the next tokens of slots go in the flattened lists."""
        ends: Ids = held * self._slots.width + self._slots.lengths[held]
        return ends

    def _occurrences_of(self, ids: Tensor) -> Tensor:
        places = (ids + self._counted_from.unsqueeze(1)).view(-1)
        return self._slots.occurrences.view(-1).index_select(0, places).view_as(ids)

    def _write(
        self, token_ids: Tensor, counted_from: Tensor, twos: Tensor, ends: Tensor, behind: int, are_ids: bool
    ) -> None:
        """Counts tokens, and writes them at the ends of the lists; what is no id counts for none."""
        ids = token_ids
        if not are_ids:
            ids = token_ids.clamp(0, self._slots.vocab_size - 1)
            twos = twos.masked_fill(ids != token_ids, 0)
        self._slots.occurrences.view(-1).index_add_(0, ids + counted_from, twos)
        # The host knows how far all lists have grown: nothing has to be added on the device.
        self._slots.ids.view(-1)[behind:].index_copy_(0, ends, ids)


def biases_of(host: HostMirrors, slots: AddendSlots, columns: int) -> Biases | None:
    """Returns what is added to logits of a batch's rows, if any has a list of addends."""
    rows = numpy.flatnonzero(host.addend_slot != NO_SLOT)
    if not len(rows):
        return None
    held, bases = to_device(numpy.stack((host.addend_slot[rows], FRONT + rows * columns)), slots.device)
    places = (slots.ids.index_select(0, held) + bases.unsqueeze(1)).view(-1)
    return Biases(places, slots.addends.index_select(0, held).view(-1))


def masks_of(host: HostMirrors, slots: MaskSlots) -> Tensor | None:
    """Returns the masks of a batch's rows, if any has one, int32 [capacity, words]: others may come without one."""
    rows = numpy.flatnonzero(host.mask_slot != NO_SLOT)
    if not len(rows):
        return None
    held, rows_there = to_device(numpy.stack((host.mask_slot[rows], rows)), slots.device)
    words = slots.masks.new_full((host.capacity, slots.width), -1)
    return words.index_copy_(0, rows_there, slots.masks.index_select(0, held))
