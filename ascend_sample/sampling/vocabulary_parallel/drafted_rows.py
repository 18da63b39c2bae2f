"""What ranks ask of the rows of a step, which may be requests, or the places of their drafts."""

from __future__ import annotations

from torch import Tensor

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.drafts.places import DraftPlaces
from ascend_sample.sampling.edits.bitmask import Bitmask


def proposed_to(rows: SamplingBatch, judging: bytes) -> bytes | None:
    """Returns what all ranks have to be given of drafts: themselves, which are before each place, how they are judged.

    None of rows that have none.
    """
    if not isinstance(rows, DraftPlaces):
        return None
    return rows.padded.numpy().tobytes() + rows.layout.before.tobytes() + judging


def split_edits_of(rows: SamplingBatch, allowed: Bitmask | None) -> dict[str, Tensor]:
    """Returns what is done to logits of the whole vocabulary, as `SamplingBatch.native_edits` does.

    Of places with penalties ``penalty_codes`` are there instead of ``occurrences``: `PlaceEdits.split` has them.
    """
    if not isinstance(rows, DraftPlaces):
        return rows.native_edits(allowed)
    rows.flush()
    edits = rows.row_edits.split()
    return edits if allowed is None else edits | allowed.native_edits(len(rows))
