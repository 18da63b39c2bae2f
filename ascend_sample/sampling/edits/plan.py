"""What is done to a batch's logits before top-k: only where something changes; made again when rows change.

A step copies the logits once, as float32, and then reads, computes and writes the entries that lists of ids name. Where
these lie is found out at the first step after rows have changed.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascend_sample.sampling.edits.processing import add_bias, apply_penalties, mask_out, scaling_of
from ascend_sample.sampling.edits.slots import AddendSlots, MaskSlots, PenaltySlots, StateSlots
from ascend_sample.sampling.edits.value_ranges import RangedRows
from ascend_sample.sampling.rows.table import NO_SLOT, PENALTIES, HostMirrors, to_device

Ids = NDArray[numpy.int64]
FRONT: Final = 128
"""So many numbers lie before the logits that are edited: 512 bytes, to which devices align memory."""
UNREAD: Final = 0
"""A place in front, for what must change nothing."""


class Addends:
    """What is added to some entries of the logits.

    Args:
        host: of the batch.
        lists: the rows' biases and bans.
        columns: of the logits.
    """

    def __init__(self, host: HostMirrors, lists: AddendSlots, columns: int) -> None:
        assert lists.ids is not None, "slots are written before they are read"
        assert lists.addends is not None, "slots are written before they are read"
        rows = numpy.flatnonzero(host.addend_slot != NO_SLOT)
        slots, bases = to_device(numpy.stack((host.addend_slot[rows], FRONT + rows * columns)), lists.device)
        self._places = (lists.ids.index_select(0, slots) + bases.unsqueeze(1)).view(-1)
        self._addends = lists.addends.index_select(0, slots).view(-1)

    def apply(self, logits: Tensor) -> None:
        """Adds them to flattened float32 logits that begin after `FRONT` numbers, in place."""
        biased = add_bias(logits.index_select(0, self._places), self._addends)
        logits.index_copy_(0, self._places, biased)


class _Places(NamedTuple):
    """Where tokens are written: int64 [3, tokens] each, for the three parts of `PenaltySlots.lists`.

    Attributes:
        entries: in the flattened lists.
        bases: what a token's id becomes an entry with.
    """

    entries: Tensor
    bases: Tensor


class PenalizedRows:
    """The rows with penalties, and what is done to logits of tokens that they have seen.

    Args:
        host: of the batch.
        lists: what the rows have seen.
        columns: of the logits.

    Attributes:
        rows: int64, the rows of the batch, ascending.
    """

    def __init__(self, host: HostMirrors, lists: PenaltySlots, columns: int) -> None:
        self.rows = numpy.flatnonzero(host.penalty_slot != NO_SLOT)
        self._slots = host.penalty_slot[self.rows]
        self._lists, self._columns = lists, columns
        penalties = host.stacked(PENALTIES)[:, self.rows]
        is_on = (penalties != [[1.0], [0.0], [0.0]]).any(1).tolist()
        there = to_device(penalties, lists.device)
        self._repetition, self._presence, self._frequency = (
            penalty if on else None for penalty, on in zip(there, is_on, strict=True)
        )
        self._scaled = scaling_of(penalties[0])

    def _bases(self, every: Ids) -> Ids:
        """Returns what ids of these of the rows become places of lists, of counts and of logits with."""
        slots, rows = self._slots[every], self.rows[every]
        return numpy.stack((0 * slots, slots * self._lists.vocab_size, FRONT + rows * self._columns))

    def apply(self, logits: Tensor) -> None:
        """Penalises flattened float32 logits that begin after `FRONT` numbers, in place."""
        raise NotImplementedError

    def _occurrences(self) -> Tensor:
        assert self._lists.occurrences is not None, "slots are written before they are read"
        return self._lists.occurrences.view(-1)

    def _penalize(self, logits: Tensor, places: Tensor, codes: Tensor) -> None:
        """Penalises, in place, the logits at places, whose tokens have occurred as `codes` have it, each [rows, n]."""
        counts = torch.div(codes, 2.0, rounding_mode="floor")
        seen = logits.index_select(0, places.view(-1)).view_as(places)
        changed = apply_penalties(seen, None, counts, self._repetition, self._presence, self._frequency, self._scaled)
        logits.index_copy_(0, places.view(-1), changed.view(-1))


class Penalties(PenalizedRows):
    """The rows with penalties: where the tokens that they have seen are counted, and penalised.

    What a list holds beyond its end is penalised in the place that nobody reads, and so is a token that is no id.

    Args:
        host, lists, columns: as for `PenalizedRows`.
    """

    def __init__(self, host: HostMirrors, lists: PenaltySlots, columns: int) -> None:
        super().__init__(host, lists, columns)
        every = numpy.arange(len(self.rows))
        sent = to_device(
            numpy.stack((self.rows, self._slots, *self._entries(every), *self._bases(every))), lists.device
        )
        self._rows_there, self._slots_there = sent[:2]
        self._next = _Places(sent[2:5], sent[5:])
        self._twos = torch.full((len(self.rows),), 2, dtype=torch.int32, device=lists.device)
        self._behind = 0  # by how many tokens of every row the next entries are
        self._is_placed = False

    def apply(self, logits: Tensor) -> None:
        """See `PenalizedRows.apply`."""
        if not self._is_placed:
            self._place()
        _, counted, penalized = self._parts()
        self._penalize(logits, penalized, self._occurrences().index_select(0, counted.view(-1)).view_as(penalized))

    def append(self, token_ids: Tensor, are_ids: bool) -> None:
        """Takes in a token of each row of the batch."""
        self._write(token_ids.index_select(0, self._rows_there), self._twos, self._next, self._behind, are_ids)
        self._lists.lengths[self._slots] += 1
        self._behind += 1

    def append_to(self, rows: Ids, token_ids: Tensor) -> None:
        """Takes in tokens of some rows of the batch, in which a row may occur several times; others are ignored."""
        every = numpy.searchsorted(self.rows, rows).clip(max=len(self.rows) - 1)
        tokens = numpy.flatnonzero(self.rows[every] == rows)
        every = every[tokens]
        if not len(every):
            return
        order = numpy.argsort(every, kind="stable")
        before = numpy.empty_like(every)  # how many tokens of its row each comes after
        before[order] = numpy.arange(len(every)) - numpy.searchsorted(every[order], every[order])
        parts = (tokens, every, *(self._entries(every) + before), *self._bases(every))
        sent = to_device(numpy.stack(parts), token_ids.device)
        twos, ones = self._twos.new_full((len(every),), 2), torch.ones_like(sent[2:5])
        self._write(token_ids.index_select(0, sent[0]), twos, _Places(sent[2:5], sent[5:]), 0, are_ids=False)
        self._next.entries.index_add_(1, sent[1], ones)
        numpy.add.at(self._lists.lengths, self._slots[every], 1)

    def _entries(self, every: Ids) -> Ids:
        """Returns where the next token goes in the three parts of the flattened lists, for these of the rows."""
        width = self._lists.width
        part = self._lists.capacity * width
        starts = numpy.stack((self._slots[every] * width, part + every * width, 2 * part + every * width))
        entries: Ids = starts + self._lists.lengths[self._slots[every]]
        return entries

    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the slots' ids [capacity, width], and where these of the rows are counted and penalised."""
        assert self._lists.lists is not None, "slots are written before they are read"
        ids, counted, penalized = self._lists.lists
        return ids, counted[: len(self.rows)], penalized[: len(self.rows)]

    def _place(self) -> None:
        """Finds out where the entries of the lists lie."""
        ids, counted, penalized = self._parts()
        ids = ids.index_select(0, self._slots_there)
        counted_from, penalized_from = self._next.bases[1:].unsqueeze(2)
        torch.add(ids, counted_from, out=counted)
        torch.add(ids, penalized_from, out=penalized)
        penalized.masked_fill_((self._occurrences().index_select(0, counted.view(-1)) == 0).view_as(ids), UNREAD)
        self._is_placed = True

    def _write(self, token_ids: Tensor, twos: Tensor, places: _Places, behind: int, are_ids: bool) -> None:
        """Counts tokens, and writes them at the ends of the lists."""
        assert self._lists.lists is not None, "slots are written before they grow"
        places_of_ids = token_ids if are_ids else token_ids.clamp(0, self._lists.vocab_size - 1)
        entries = places_of_ids + places.bases
        if not are_ids:
            is_none = places_of_ids != token_ids
            twos = twos.masked_fill(is_none, 0)
            entries[2].masked_fill_(is_none, UNREAD)
        self._occurrences().index_add_(0, entries[1], twos)
        # The host knows how far all lists have grown: nothing has to be added on the device.
        self._lists.lists.view(-1)[behind:].index_copy_(0, places.entries.flatten(), entries.view(-1))


class ProcessedRows(NamedTuple):
    """The rows whose logits masks, biases, penalties or ranges change.

    Attributes:
        logits: float32 [processed rows, vocab_size], what becomes of their logits.
        rows: int64 [processed rows] on the device, which rows of the batch they are, ascending.
        host_rows: the same on the host.
    """

    logits: Tensor
    rows: Tensor
    host_rows: list[int]


class ProcessingPlan:
    """The rows whose logits change, and how.

    Args:
        host: of the batch.
        addends, masks, states: the slots that its rows hold.
        penalties: the rows with penalties; None if there are none.
        columns: how far the rows of the edited copy are apart.

    Attributes:
        host_rows: the rows, ascending.
        penalties: as they were given.
    """

    def __init__(
        self,
        host: HostMirrors,
        addends: AddendSlots,
        penalties: PenalizedRows | None,
        masks: MaskSlots,
        states: StateSlots,
        columns: int,
    ) -> None:
        self.host_rows = numpy.flatnonzero(host.is_processed)
        self._host, self._addend_slots, self._mask_slots = host, addends, masks
        self._states, self._columns = states, columns
        self._has_masks = bool((host.mask_slot != NO_SLOT).any())
        self._words: Tensor | None = None
        self.penalties = penalties

    @cached_property
    def rows(self) -> Tensor:
        """Returns the rows on the device."""
        return to_device(self.host_rows, self._mask_slots.device)

    @cached_property
    def addends(self) -> Addends | None:
        """Returns the addends, if any row has some."""
        has_some = bool((self._host.addend_slot != NO_SLOT).any())
        return Addends(self._host, self._addend_slots, self._columns) if has_some else None

    def forget_addends(self) -> None:
        """Lets the addends be looked up again: the lists of rows have changed, but not which rows have lists."""
        vars(self).pop("addends", None)

    @cached_property
    def ranges(self) -> RangedRows | None:
        """Returns the rows that keep a range of their values, if any does."""
        return RangedRows(self._host, self._states) if self._host.is_ranged.any() else None

    def words(self) -> Tensor | None:
        """Returns the masks of all rows, int32 [batch, words], if any row has one."""
        if self._has_masks and (self._words is None or len(self._words) < self._host.length):
            rows = numpy.flatnonzero(self._host.mask_slot != NO_SLOT)
            assert self._mask_slots.masks is not None, "slots are written before they are read"
            slots, rows_there = to_device(numpy.stack((self._host.mask_slot[rows], rows)), self._mask_slots.device)
            # With room for rows that come without a mask.
            words = self._mask_slots.masks.new_full((self._host.capacity, self._mask_slots.width), -1)
            self._words = words.index_copy_(0, rows_there, self._mask_slots.masks.index_select(0, slots))
        return None if self._words is None else self._words[: self._host.length]


def edited(
    logits: Tensor,
    plan: ProcessingPlan | None,
    columns: int,
    bitmask: Tensor | None,
    bits: Tensor,
    has_ranges: bool = True,
) -> Tensor:
    """Returns a float32 copy of a batch's logits, with all that is done to them before top-k.

    Args:
        logits: floats [batch, vocab_size].
        plan: what the requests change; None: nothing.
        columns: how far rows of the copy are apart; as the plan has it.
        bitmask: int32 [batch, words], the ids that a grammar allows; None: all.
        bits: from `processing.bits_of_bytes`.
        has_ranges: whether rows lose what is outside of their ranges.
    """
    rows, vocab_size = logits.shape
    flat = torch.empty(FRONT + rows * columns, dtype=torch.float32, device=logits.device)
    whole = flat[FRONT:].view(rows, columns)[:, :vocab_size]
    whole.copy_(logits)
    words = bitmask
    if plan is not None:
        if plan.addends is not None:
            plan.addends.apply(flat)
        if plan.penalties is not None:
            plan.penalties.apply(flat)
        own = plan.words()
        words = bitmask if own is None else own if bitmask is None else own & bitmask
    if words is not None:
        mask_out(whole, words, bits)
    if has_ranges and plan is not None and plan.ranges is not None:
        plan.ranges.apply(whole)
    return whole
