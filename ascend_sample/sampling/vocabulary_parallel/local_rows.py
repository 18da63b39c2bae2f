"""The rows of a shard as they are drawn from: a rank edits the ids that it has, and no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ascend_sample.sampling.edits.processing import MASKED, WORD, add_bias, apply_penalties, bits_of_bytes, words_of
from ascend_sample.sampling.rows.table import NO_SLOT
from ascend_sample.sampling.vocabulary_parallel.kinds import Booleans, Rows

AS_GIVEN, WIDENED, MASKED_ALONE = range(3)


class Chosen(NamedTuple):
    """Those of some rows of a batch that lie in one tensor.

    Attributes:
        tensor: which: the logits as they are given, the float32 copy, or the copy of those that have masks alone.
        rows: int64, where they are in the tensor; None: as many as it has, in order.
        where: int64, which of the chosen rows they are.
        of_batch: int64, which rows of the batch.
    """

    tensor: int
    rows: Tensor | None
    where: Tensor
    of_batch: Tensor


class RowPlaces:
    """Where the rows of a batch lie once they are edited: what stays the same while the batch and its edits do.

    Args:
        edits: arguments of `sample_rows` for the whole vocabulary.
        count: how many rows the batch has.

    Attributes:
        is_wide: bool [count], whether edits make a row float32.
    """

    def __init__(self, edits: Mapping[str, Tensor], count: int) -> None:
        self.is_wide, is_masked = edited_rows(edits, count)
        self._tensor_of_row = np.where(self.is_wide, WIDENED, np.where(is_masked, MASKED_ALONE, AS_GIVEN))
        self.rows = [np.flatnonzero(self._tensor_of_row == tensor) for tensor in range(3)]

    def chosen(self, batch_rows: Rows) -> list[Chosen]:
        """Returns where these rows are, ascending."""
        found = []
        for tensor, rows in enumerate(self.rows):
            where = np.flatnonzero(self._tensor_of_row[batch_rows] == tensor)
            if not len(where):
                continue
            of_batch = batch_rows[where]
            places = of_batch if tensor == AS_GIVEN else np.searchsorted(rows, of_batch)
            has_all = len(of_batch) == (len(self._tensor_of_row) if tensor == AS_GIVEN else len(rows))
            there = None if has_all else torch.from_numpy(places)
            found.append(Chosen(tensor, there, torch.from_numpy(where), torch.from_numpy(of_batch)))
        return found


def local_rows(logits: Tensor, edits: Mapping[str, Tensor], places: RowPlaces, ids: range) -> list[Tensor]:
    """Returns the rows of a batch on one rank as `RowPlaces` numbers tensors: those with edits are copies.

    Args:
        logits: floats [batch, columns] of the rank; what is behind its ids is padding.
        edits: arguments of `sample_rows` for the whole vocabulary.
        places: of the rows.
        ids: those of the rank; at least one.
    """
    own = logits[:, : len(ids)]
    tensors = [own, own, own]
    for tensor, dtype in ((WIDENED, torch.float32), (MASKED_ALONE, logits.dtype)):
        rows = places.rows[tensor]
        if len(rows):
            tensors[tensor] = own[torch.from_numpy(rows)].to(dtype).contiguous()
            _edit(tensors[tensor], edits, rows, ids)
    return tensors


def edited_rows(edits: Mapping[str, Tensor], count: int) -> tuple[Booleans, Booleans]:
    """Tells of each row whether edits make it float32, and whether it has masks."""

    def has(*names: str) -> Booleans:
        held = np.zeros(count, np.bool_)
        for name in names:
            if name in edits:
                held |= edits[name].numpy() != NO_SLOT
        return held

    return has("addend_slot", "penalty_slot"), has("mask_slot", "bitmask_rows")


def _edit(logits: Tensor, edits: Mapping[str, Tensor], rows: Rows, ids: range) -> None:
    """Edits rows in place: ``rows`` of the batch, and of these only ``ids``."""
    flat, there = logits.view(-1), torch.from_numpy(rows)
    for slot_name, ids_name, lengths_name in (
        ("addend_slot", "addend_ids", "addend_lengths"),
        ("penalty_slot", "penalty_ids", "penalty_lengths"),
    ):
        if slot_name not in edits:
            continue
        slots = edits[slot_name][there]
        held = (slots != NO_SLOT).nonzero().view(-1)
        if not len(held):
            continue
        slots = slots[held]
        lists = edits[ids_name][slots]
        is_listed = torch.arange(lists.shape[1], device="cpu") < edits[lengths_name][slots].unsqueeze(1)
        place, entry = (is_listed & (lists >= ids.start) & (lists < ids.stop)).nonzero(as_tuple=True)
        named = lists[place, entry]
        where = held[place] * len(ids) + (named - ids.start)
        if slot_name == "addend_slot":
            changed = add_bias(flat[where], edits["addends"][slots[place], entry])
        else:
            occurrences = edits["occurrences"][slots[place], named]
            penalties = edits["penalties"][:, there[held]][:, place]
            # Entries as rows of one, as each has penalties of its own.
            changed = apply_penalties(
                flat[where].unsqueeze(1),
                (occurrences & 1).bool().unsqueeze(1),
                (occurrences >> 1).unsqueeze(1),
                *penalties,
            ).squeeze(1)
        flat[where] = changed
    for slot_name, words_name in (("mask_slot", "masks"), ("bitmask_rows", "bitmask")):
        if slot_name in edits:
            slots = edits[slot_name][there]
            held = (slots != NO_SLOT).nonzero().view(-1)
            if len(held):
                words = words_of_ids(edits[words_name][slots[held]], ids)
                is_masked = (words.view(torch.uint8).unsqueeze(2) & bits_of_bytes(words.device)).eq_(0).view(torch.bool)
                is_masked = is_masked.view(len(held), -1)[:, : len(ids)]
                logits[held] = logits[held].masked_fill_(is_masked, MASKED)


def words_of_ids(words: Tensor, ids: range) -> Tensor:
    """Returns the words of masks that begin with the first of these ids.

    Args:
        words: int32 [masks, words], 32 ids each from id 0 on.
        ids: at least one.

    Example:
        >>> words_of_ids(torch.tensor([[0b1100], [0b0111]], dtype=torch.int32), range(2, 4)) & 0b11
        tensor([[3],
                [1]], dtype=torch.int32)
    """
    first, shift = divmod(ids.start, WORD)
    count = words_of(len(ids))
    if shift == 0:
        return words[:, first : first + count].contiguous()
    wide = words[:, first : first + count + 1].to(torch.int64) & 0xFFFFFFFF
    high = torch.zeros(len(words), count, dtype=torch.int64, device="cpu")
    high[:, : wide.shape[1] - 1] = wide[:, 1:] << (WORD - shift)
    return ((wide[:, :count] >> shift) | (high & 0xFFFFFFFF)).to(torch.int32)
