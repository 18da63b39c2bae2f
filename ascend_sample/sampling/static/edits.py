"""What a captured step does to logits before temperature: from buffers at fixed addresses, written between replays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ascend_sample._errors import refuse
from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.edits.apply import FRONT, NEVER, UNREAD, Biases, LogitsEdits, Penalties, apply, with_drafts
from ascend_sample.sampling.edits.bitmask import Bitmask
from ascend_sample.sampling.edits.processing import bits_of_bytes, scaled_by_sign, words_of
from ascend_sample.sampling.edits.value_ranges import RANGE
from ascend_sample.sampling.rows.table import NO_SLOT, to_device

NO_ID: Final = -1
EDIT_BEFORE: Final = "write what SamplingBatch.process returns into its logits and pass is_edited=True."


class StaticEdits:
    """The `LogitsEdits` of so many rows, each in lists of a fixed length: `write` copies those of a batch to them.

    That takes a few launches: biases and masks are copied when the batch has changed, what rows with penalties have
    seen in each step.

    Args:
        rows: how many there are.
        vocab_size: the number of columns.
        penalties: float32 [rows] each, on the device of the logits: as `Penalties.numbers`, for rows without any those
            that change nothing.
        addends: how many ids of a row may have a bias or a ban, at most.
        history: how many tokens a row with penalties may have seen, at most.
        bitmask: whether rows may have masks.
    """

    def __init__(
        self, rows: int, vocab_size: int, penalties: Sequence[Tensor], *, addends: int, history: int, bitmask: bool
    ) -> None:
        self.addends, self.history, self.bitmask = addends, history, bitmask
        self._vocab_size, device = vocab_size, penalties[0].device
        self._biases = Biases(
            torch.full((rows, addends), UNREAD, dtype=torch.int64, device=device),
            torch.zeros(rows, addends, dtype=torch.float32, device=device),
        )
        self._penalties = Penalties(
            torch.full((rows, history), NO_ID, dtype=torch.int64, device=device),
            torch.full((rows, history), NEVER, dtype=torch.int32, device=device),
            to_device(FRONT + np.arange(rows)[:, None] * vocab_size, device),
            penalties,
            scaled_by_sign,
        )
        words = words_of(vocab_size) if bitmask else 0
        self._words = torch.full((rows, words), -1, dtype=torch.int32, device=device)
        self._bits = bits_of_bytes(device)
        self._written: object = None  # the `RowEdits.lists` whose biases are there
        self._masked: object = None  # the same of masks; another object where a bitmask is there as well

    @property
    def are_on(self) -> bool:
        """Tells whether a step edits anything."""
        return bool(self.addends or self.history or self.bitmask)

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
        own = batch.row_edits
        own.use_columns(self._vocab_size)
        batch.flush()
        words = None if allowed is None else allowed.of_all(len(batch))
        edits, lists = LogitsEdits(words=words), None
        if own.is_on and not is_edited:
            edits, lists = own.edits(words, has_ranges=False, drafts=None), own.lists
        if lists is not self._written:
            self._write_biases(edits.biases, own.addends.width)
            self._penalties.ids.fill_(NO_ID)
            self._penalties.occurrences.fill_(NEVER)
            self._written = lists
        if own.penalized is not None and edits.penalties is not None:
            for kept, seen in zip(self._penalties[:2], edits.penalties[:2], strict=True):
                width = min(self.history, seen.shape[1])
                own.penalized.rows.put(seen[:, :width], kept[:, :width])
        masked = lists if allowed is None else object()
        if masked is not self._masked:
            if allowed is None:  # else no row of the batch keeps what was there
                self._words.fill_(-1)
            if edits.words is not None:
                self._words[: len(batch)] = edits.words
            self._masked = masked

    def _write_biases(self, biases: Biases | None, width: int) -> None:
        """Copies what is added, in lists of such a width."""
        self._biases.places.fill_(UNREAD)
        for kept, new in zip(self._biases, biases or (), strict=False):
            lists = new.view(-1, width)[:, : self.addends]
            kept[: len(lists), : lists.shape[1]] = lists

    def applied_to(self, logits: Tensor, drafts: Tensor | None = None) -> Tensor:
        """Returns edited logits, float32: what `SamplingBatch.edited` makes of them, bit for bit.

        Args:
            logits: [rows, vocab_size].
            drafts: int64 [rows, most], those before each row, which its penalties count; None: there are none.
        """
        (places, values), seen = self._biases, self._penalties
        ids, occurrences = with_drafts(seen.ids, self._occurrences_of, drafts, self._vocab_size)
        edits = LogitsEdits(
            Biases(places.view(-1), values.view(-1)) if self.addends else None,
            seen._replace(ids=ids, occurrences=occurrences) if self.history else None,
            self._words if self.bitmask else None,
        )
        return apply(logits, edits, self._bits)

    def _occurrences_of(self, ids: Tensor) -> Tensor:
        """Returns what `Penalties` has of ids, of which the first are those of the history: an id that is there twice
        has the same number twice.
        """
        seen, nearest = self._penalties, ids[:, self.history :]
        if not nearest.shape[1]:
            return seen.occurrences
        is_same = nearest.unsqueeze(2) == seen.ids.unsqueeze(1)
        known = torch.where(is_same, seen.occurrences.unsqueeze(1), 0).amax(2)
        return torch.cat((seen.occurrences, known), 1)
