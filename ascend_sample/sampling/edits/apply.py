"""What is done to rows' logits before top-k, and the one function that does it: biases, penalties, masks, then ranges.

A step copies the logits once, as float32, and then reads, computes and writes the entries that lists of ids name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ascend_sample.sampling.edits.processing import add_bias, apply_penalties, mask_out
from ascend_sample.sampling.edits.value_ranges import RangedRows

FRONT: Final = 128
"""So many numbers lie before the logits that are edited: 512 bytes, to which devices align memory."""
UNREAD: Final = 0
"""A place in front, for what must change nothing."""
NEVER: Final = -(2**30)
"""Occurrences of what stands beyond a list: no number of drafts that equal it makes them positive."""


class Biases(NamedTuple):
    """What is added to some entries.

    Attributes:
        places: int64 [entries], in flattened logits that begin after `FRONT` numbers; those that are there twice have
            the same value twice.
        values: float32 [entries].
    """

    places: Tensor
    values: Tensor


class Penalties(NamedTuple):
    """How entries of some rows are penalised.

    Attributes:
        ids: int64 [rows, n], the ids that each has seen, with repeats; also others.
        occurrences: int32 [rows, n], 2 * (how often in the output) + (1 if in the prompt) of each: 0 or less for ids
            that were not seen.
        bases: int64 [rows, 1], what an id becomes a place in flattened logits with, as of `Biases`.
        numbers: float32 [rows] each, of repetition, presence and frequency; None where no row has any.
        scaled: what applies the repetition penalty, from `processing.scaling_of`.
    """

    ids: Tensor
    occurrences: Tensor
    bases: Tensor
    numbers: Sequence[Tensor | None]
    scaled: Callable[[Tensor, Tensor], Tensor]


class LogitsEdits(NamedTuple):
    """What is done to rows' logits, in this order; None: nothing of the kind.

    Attributes:
        biases: what is added.
        penalties: what is penalised.
        words: int32 [rows, words], the ids that are allowed, 32 in a word.
        ranges: what drops values that are out of rows' ranges.
    """

    biases: Biases | None = None
    penalties: Penalties | None = None
    words: Tensor | None = None
    ranges: RangedRows | None = None


def apply(logits: Tensor, edits: LogitsEdits, bits: Tensor, columns: int | None = None) -> Tensor:
    """Returns a float32 copy of rows' logits, with all that is done to them before top-k.

    Args:
        logits: floats [rows, vocab_size].
        edits: what is done.
        bits: from `processing.bits_of_bytes`.
        columns: how far rows of the copy are apart, which the places of edits go by; None: vocab_size.
    """
    rows, vocab_size = logits.shape
    columns = vocab_size if columns is None else columns
    flat = torch.empty(FRONT + rows * columns, dtype=torch.float32, device=logits.device)
    whole = flat[FRONT:].view(rows, columns)[:, :vocab_size]
    whole.copy_(logits)
    if edits.biases is not None:
        places, values = edits.biases
        flat.index_copy_(0, places, add_bias(flat.index_select(0, places), values))
    if edits.penalties is not None:
        _penalize(flat, edits.penalties)
    if edits.words is not None:
        mask_out(whole, edits.words, bits)
    if edits.ranges is not None:
        edits.ranges.apply(whole)
    return whole


def _penalize(flat: Tensor, penalties: Penalties) -> None:
    """Penalises flattened logits in place; an id that was not seen stands for the place that nobody reads."""
    ids, occurrences, bases, (repetition, presence, frequency), scaled = penalties
    places = (ids + bases).masked_fill_(occurrences <= 0, UNREAD)
    counts = torch.div(occurrences, 2.0, rounding_mode="floor")
    seen = flat.index_select(0, places.view(-1)).view_as(places)
    changed = apply_penalties(seen, None, counts, repetition, presence, frequency, scaled)
    flat.index_copy_(0, places.view(-1), changed.view(-1))


def drafts_before(draft_ids: Tensor, before: Tensor) -> Tensor:
    """Returns the drafts before each row, int64 [rows, most]; -1 where a row has fewer.

    Args:
        draft_ids: int64 [drafts].
        before: int64 [rows, most], the numbers of these drafts; where a row has fewer, how many drafts there are.
    """
    return pad(draft_ids, (0, 1), value=-1).index_select(0, before.view(-1)).view_as(before)


def with_drafts(
    ids: Tensor, occurrences_of: Callable[[Tensor], Tensor], drafts: Tensor | None, vocab_size: int
) -> tuple[Tensor, Tensor]:
    """Returns the ids that rows have seen, and their occurrences, with drafts before each counted as output.

    A draft that is no id of the vocabulary stands as the nearest id, and counts for none: that is as it should be for
    an id that was seen and for one that was not.

    Args:
        ids: int64 [rows, n], what `Penalties` has of rows without drafts.
        occurrences_of: returns int32 [rows, m], the occurrences without drafts, of int64 [rows, m].
        drafts: int64 [rows, most]; a negative one where a row has fewer. None: there are none.
        vocab_size: the number of ids.
    """
    if drafts is None:
        return ids, occurrences_of(ids)
    ids = torch.cat((ids, drafts.clamp(0, vocab_size - 1)), 1)
    more = (ids.unsqueeze(2) == drafts.unsqueeze(1)).sum(2, dtype=torch.int32)
    return ids, torch.add(occurrences_of(ids), more, alpha=2)
