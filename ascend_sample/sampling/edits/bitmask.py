"""A grammar's bitmask as a step is given it: checked, and on the device of the batch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascend_sample._errors import refuse, show
from ascend_sample.sampling.edits.processing import words_of
from ascend_sample.sampling.rows.arguments import host_ints
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.rows.table import to_device

BitmaskRows = Sequence[int] | NDArray[Any] | Tensor


class Bitmask(NamedTuple):
    """The ids that a grammar allows in some rows.

    Attributes:
        words: int32 [rows, words] on the device of the batch, 32 ids each.
        rows: the rows of the batch, in any order.
    """

    words: Tensor
    rows: RowSet

    def of_all(self, count: int) -> Tensor:
        """Returns the words of all ``count`` rows of the batch: those without a mask allow every id."""
        if self.rows.device is None:
            return self.words
        return self.rows.put(self.words, self.words.new_full((count, self.words.shape[1]), -1))

    def native_edits(self, count: int) -> dict[str, Tensor]:
        """Returns what the CPU kernel is told of it, for a batch of ``count`` rows."""
        return {"bitmask_rows": _places_of(self.rows.host.tobytes(), count), "bitmask": self.words}

    def is_for(self, count: int) -> NDArray[numpy.bool_]:
        """Tells of each of ``count`` rows whether it has a mask."""
        has_mask: NDArray[numpy.bool_] = _places_of(self.rows.host.tobytes(), count).numpy() >= 0
        return has_mask


def placed_bitmask(
    owner: str, bitmask: Tensor | None, rows: BitmaskRows | None, count: int, vocab_size: int, device: torch.device
) -> Bitmask | None:
    """Checks what a step is given, and sends what the device has not, in one copy that nobody waits for.

    Args:
        owner: what messages begin with.
        bitmask: int32 [n, ceil(vocab_size / 32)], on the device or the CPU.
        rows: the rows of the batch that it is for, each once, on the host; None: all, in order.
        count: how many rows the batch has.
        vocab_size: of the batch.
        device: of the batch.

    Returns:
        The bitmask on the device; None if there is none, or for no row.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument has the wrong shape or device, or names a row twice.
        IndexError: there is no such row.
    """
    if bitmask is None:
        if rows is not None:
            refuse(owner, "bitmask_rows", "be left out without a bitmask", show(rows), "Give the bitmask, too.")
        return None
    if not isinstance(bitmask, Tensor) or bitmask.dtype != torch.int32:
        remedy = "Pack 32 ids in each word, the first in the lowest bit, as xgrammar and llguidance do."
        refuse(owner, "bitmask", "be an int32 tensor", show(bitmask), remedy, TypeError)
    host_rows = None
    if rows is not None:
        given = host_ints(owner, "bitmask_rows", rows, "Name a row of the batch for each of the bitmask's.")
        host_rows = _checked_rows(owner, given.tobytes(), count)
    shape = [count if host_rows is None else len(host_rows), words_of(vocab_size)]
    if list(bitmask.shape) != shape:
        remedy = "Give a row for each of the batch's, or name those it is for in bitmask_rows."
        if bitmask.dim() == 2 and bitmask.shape[1] != shape[1]:
            remedy = f"Allocate it for {vocab_size} ids, or cut it to bitmask[:, :{shape[1]}]."
        refuse(owner, "bitmask", f"have the shape {shape}", list(bitmask.shape), remedy)
    if bitmask.device != device and not bitmask.is_cpu:
        rule = f"be on the device of the batch, {device}, or on the CPU"
        refuse(owner, "bitmask", rule, bitmask.device, "Move it with .to().")
    if shape[0] == 0:
        return None
    if bitmask.device == device:
        of_words = RowSet.all(count) if host_rows is None else RowSet(host_rows, to_device(host_rows, device))
        return Bitmask(bitmask.contiguous(), of_words)
    # Sent together; the rows are first, as int64 have to lie at multiples of their size.
    front = numpy.zeros(0, numpy.int32) if host_rows is None else host_rows.view(numpy.int32)
    sent = to_device(numpy.concatenate((front, bitmask.numpy().reshape(-1))), device)
    there = sent[len(front) :].view(bitmask.shape)
    if host_rows is None:
        return Bitmask(there, RowSet.all(count))
    return Bitmask(there, RowSet(host_rows, sent[: len(front)].view(torch.int64)))


@functools.lru_cache(maxsize=64)  # most steps are for the same rows as the one before
def _checked_rows(owner: str, rows: bytes, count: int) -> NDArray[numpy.int64]:
    """Returns rows, given as the bytes of int64, or raises unless they are there, each once."""
    given = numpy.frombuffer(rows, numpy.int64)
    if len(given) and not 0 <= given.min() <= given.max() < count:
        remedy = "Rows move when others are removed."
        refuse(owner, "bitmask_rows", f"be in [0, {count})", show(given.tolist()), remedy, IndexError)
    if len(numpy.unique(given)) < len(given):
        refuse(owner, "bitmask_rows", "name each row once", show(given.tolist()), "Combine masks of one row with &.")
    return given


@functools.lru_cache(maxsize=64)
def _places_of(rows: bytes, count: int) -> Tensor:
    """Returns which of the rows, given as the bytes of int64, each of a batch is, int64 [count]; -1 for none."""
    given = numpy.frombuffer(rows, numpy.int64)
    places = numpy.full(count, -1)
    places[given] = numpy.arange(len(given))
    return torch.from_numpy(places)
