"""What ranks ask of the rows of a step, which may be requests, or the places of their drafts."""

from __future__ import annotations

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.drafts.places import DraftPlaces


def proposed_to(rows: SamplingBatch, judging: bytes) -> bytes | None:
    """Returns what all ranks have to be given of drafts: themselves, which are before each place, how they are judged.

    None of rows that have none.
    """
    if not isinstance(rows, DraftPlaces):
        return None
    return rows.padded.numpy().tobytes() + rows.layout.before.tobytes() + judging
