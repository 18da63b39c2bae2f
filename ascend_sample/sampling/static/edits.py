"""What a captured step does to logits before temperature: from buffers at fixed addresses, written between replays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ascend_sample._errors import refuse
from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.drafts.places import NO_TOKEN, PlacesLayout
from ascend_sample.sampling.edits.apply import FRONT, Biases, LogitsEdits, Penalties, apply, with_drafts
from ascend_sample.sampling.edits.bitmask import Bitmask
from ascend_sample.sampling.edits.processing import bits_of_bytes, scaled_by_sign, words_of
from ascend_sample.sampling.edits.value_ranges import RANGE
from ascend_sample.sampling.rows.table import NO_SLOT, to_device

NEUTRAL = (1.0, 0.0, 0.0)
"""Penalties that leave every bit as it is."""
NO_ADDEND = -0.0
"""So does this, of whatever id: 0 would make a zero of a negative one."""
EDIT_BEFORE = "write what SamplingBatch.process returns into its logits and pass is_edited=True."


class _Version:
    """A batch as it is until its rows change."""


class StaticEdits:
    """Biases, bans, penalties and masks of so many rows, each in a list of a fixed length.

    A batch keeps its lists in slots, which move when they grow. `write` copies them to where the graph reads, in a few
    launches: those of biases and masks when the batch has changed, those of penalties in each step.

    Args:
        rows: how many there are.
        vocab_size: the number of columns.
        device: of the logits.
        addends: how many ids of a row may have a bias or a ban, at most.
        history: how many tokens a row with penalties may have seen, at most.
        bitmask: whether rows may have masks.
    """

    def __init__(
        self, rows: int, vocab_size: int, device: torch.device, *, addends: int, history: int, bitmask: bool
    ) -> None:
        self.addends, self.history, self.bitmask = addends, history, bitmask
        self._vocab_size = vocab_size
        self._addend_ids = torch.zeros(rows, addends, dtype=torch.int64, device=device)
        self._addends = torch.full((rows, addends), NO_ADDEND, device=device, dtype=torch.float32)
        self._bases = to_device(FRONT + np.arange(rows)[:, None] * vocab_size, device)
        self._seen = torch.zeros(rows, history, dtype=torch.int64, device=device)
        self._occurrences = torch.zeros(rows, history, dtype=torch.int32, device=device)
        words = words_of(vocab_size) if bitmask else 0
        self._own_words = torch.full((rows, words), -1, dtype=torch.int32, device=device)
        self._words = self._own_words.clone()
        self._bits = bits_of_bytes(device)
        self._is_masked = False  # by the bitmask of the step before
        self._written: tuple[object, bool] | None = None
        self._ruled_lists = 0  # so many the batch had written
        self._penalized: Tensor | None = None
        self._drafts: Tensor | None = None
        self._before: Tensor | None = None

    @property
    def are_on(self) -> bool:
        """Tells whether a step edits anything."""
        return bool(self.addends or self.history or self.bitmask)

    def count_drafts(self, draft_ids: Tensor, layout: PlacesLayout) -> None:
        """Lets rows be the places of drafts: from now on their penalties count the drafts before a place.

        Args:
            draft_ids: int64 [drafts], read in each step where they are.
            layout: which drafts are before which row.
        """
        self._drafts, self._before = draft_ids, to_device(layout.before, draft_ids.device)

    def check(self, name: str, batch: SamplingBatch, instead: str = EDIT_BEFORE) -> None:
        """Raises unless all that the rows of a batch ask for has room.

        Args:
            name: whose messages these are.
            batch: the rows.
            instead: how they are served otherwise.
        """
        if batch.row_edits.rules:
            batch.flush()  # they make their lists then
        edits, host = batch.row_edits, batch.host
        if host.is_ranged.any():
            rule = f"have no {', '.join(RANGE)} that is on"
            remedy = f"A graph has no room for them: {instead}"
            refuse(name, "batch", rule, f"one on row {int(host.is_ranged.argmax())}", remedy)
        for option, column, lengths in (
            ("addends", host.addend_slot, edits.addends.lengths),
            ("history", host.penalty_slot, edits.penalties.lengths),
            ("bitmask", host.mask_slot, np.ones(edits.masks.capacity, np.int64)),
        ):
            rows = np.flatnonzero(column != NO_SLOT)
            needed = lengths[column[rows]]
            room = getattr(self, option)
            if needed.max(initial=0) > room:
                row = int(needed.argmax())
                least = True if option == "bitmask" else int(needed[row])
                rule = f"be {least} at least, for row {rows[row]} of the batch"
                refuse(name, option, rule, room, f"Make the step with it, or {instead}")

    def write(self, batch: SamplingBatch, allowed: Bitmask | None, is_edited: bool) -> None:
        """Copies what the rows of a batch change to where the step reads it.

        Args:
            batch: the rows, which `check` has let pass.
            allowed: a bitmask for this step; None: every id is allowed.
            is_edited: the requests' own edits have been done to the logits.
        """
        batch.flush()
        if batch.row_edits.ruled_lists != self._ruled_lists:
            self._ruled_lists, self._written = batch.row_edits.ruled_lists, None
        # Stands for the batch as it is, which is not to be kept.
        written = (batch.plans.of(_Version, (), _Version), is_edited)
        if written != self._written:
            self._write_rows(batch, is_edited)
            self._written = written
        if self._penalized is not None:
            self._write_seen(batch)
        if allowed is not None:
            self._words[: len(batch)] = allowed.of_all(len(batch))
        elif self._is_masked:
            self._words.fill_(-1)
        self._is_masked = allowed is not None

    def applied_to(self, logits: Tensor, penalties: Tensor) -> Tensor:
        """Returns edited logits, float32: what `SamplingBatch.edited` makes of them, bit for bit.

        Args:
            logits: [rows, vocab_size].
            penalties: float32 [3, rows], `NEUTRAL` for rows without; read only where there is a history.
        """
        edits = LogitsEdits()
        if self.addends:
            edits = edits._replace(biases=Biases((self._addend_ids + self._bases).view(-1), self._addends.view(-1)))
        if self.history:
            ids, occurrences = with_drafts(self._seen, self._occurrences_of, self._drafts_before(), self._vocab_size)
            seen = Penalties(ids, occurrences, self._bases, list(penalties), scaled_by_sign)
            edits = edits._replace(penalties=seen)
        if self.bitmask:
            edits = edits._replace(words=self._own_words & self._words)
        return apply(logits, edits, self._bits)

    def _drafts_before(self) -> Tensor | None:
        if self._drafts is None or self._before is None:
            return None
        padded = torch.cat((self._drafts, self._drafts.new_full((1,), NO_TOKEN)))
        return padded.index_select(0, self._before.view(-1)).view_as(self._before)

    def _occurrences_of(self, ids: Tensor) -> Tensor:
        """Returns what `Penalties` has of ids, of which the first are those of the history: an id that is there twice
        has the same number twice.
        """
        nearest = ids[:, self.history :]
        if not nearest.shape[1]:
            return self._occurrences
        is_same = nearest.unsqueeze(2) == self._seen.unsqueeze(1)
        known = torch.where(is_same, self._occurrences.unsqueeze(1), 0).amax(2)
        return torch.cat((self._occurrences, known), 1)

    def _write_rows(self, batch: SamplingBatch, is_edited: bool) -> None:
        """Copies what stays the same for as long as the batch does."""
        edits, host = batch.row_edits, batch.host
        self._addends.fill_(NO_ADDEND)
        self._own_words.fill_(-1)
        self._penalized = None
        if is_edited:
            return
        if (found := _held(host.addend_slot, batch.device)) is not None:
            assert edits.addends.ids is not None, "slots are written before they are read"
            assert edits.addends.addends is not None, "slots are written before they are read"
            rows, slots = found
            self._addend_ids.index_copy_(0, rows, _fitted(edits.addends.ids, slots, self.addends))
            self._addends.index_copy_(0, rows, _fitted(edits.addends.addends, slots, self.addends))
        if (found := _held(host.mask_slot, batch.device)) is not None:
            assert edits.masks.masks is not None, "slots are written before they are read"
            rows, slots = found
            self._own_words.index_copy_(0, rows, edits.masks.masks.index_select(0, slots))
        self._penalized = _held(host.penalty_slot, batch.device)

    def _write_seen(self, batch: SamplingBatch) -> None:
        """Copies what rows with penalties have seen, and how often each of its ids occurs."""
        assert self._penalized is not None, "some rows have penalties"
        ids, occurrences = batch.row_edits.penalties.ids, batch.row_edits.penalties.occurrences
        assert ids is not None, "slots are written before they are read"
        assert occurrences is not None, "slots are written before they are read"
        rows, slots = self._penalized
        seen = _fitted(ids, slots, self.history)
        places = torch.add(seen, slots.unsqueeze(1), alpha=batch.vocab_size)
        counted = occurrences.view(-1).index_select(0, places.view(-1)).view_as(seen)
        self._seen.index_copy_(0, rows, seen)
        self._occurrences.index_copy_(0, rows, counted)


def _held(column: npt.NDArray[np.int64], device: torch.device) -> Tensor | None:
    """Returns the rows that hold a slot, and the slots, int64 [2, rows] on the device; None if there are none."""
    rows = np.flatnonzero(column != NO_SLOT)
    return to_device(np.stack((rows, column[rows])), device) if len(rows) else None


def _fitted(lists: Tensor, slots: Tensor, length: int) -> Tensor:
    """Returns the lists of some slots, [slots, length]: what is beyond their width repeats the first entry."""
    found = lists.index_select(0, slots)
    missing = length - found.shape[1]
    if missing > 0:
        return torch.cat((found, found[:, :1].expand(-1, missing)), 1)
    return found[:, :length]
