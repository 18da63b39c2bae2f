"""Says that the logits of an engine are broken: its tokens do not show it, and no engine looks at statuses."""

from __future__ import annotations

import warnings
from contextvars import ContextVar
from typing import Final

import torch
from torch import Tensor

from ascend_sample.sampling.draws.weights import StatusConstants, status_of
from ascend_sample.sampling.rows.parameters import RowStatus

MEANINGS: Final = {
    RowStatus.ALL_MASKED: "-inf alone, so that its token is 0",
    RowStatus.NAN_SEEN: "a NaN, which a draw counts as -inf",
    RowStatus.INF_SEEN: "+inf, which takes the whole mass",
}
has_nan: Final[ContextVar[bool | None]] = ContextVar("has_nan", default=None)
"""Whether a row had a NaN since somebody made this False; None where nobody did."""
_seen: Final[set[RowStatus]] = set()


def say_seen(status: Tensor) -> None:
    """Warns, once a process for each kind, of what was wrong with rows.

    Args:
        status: int8 [rows] on the CPU, a `RowStatus` each.
    """
    if not status.any():
        return
    for number in status.unique().tolist():
        kind = RowStatus(number)
        if kind is RowStatus.NAN_SEEN and has_nan.get() is False:
            has_nan.set(True)
        if kind in MEANINGS and kind not in _seen:
            _seen.add(kind)
            warnings.warn(f"ascend_sample: a row of the engine's logits has {MEANINGS[kind]}.", stacklevel=2)


def say_seen_at(logits: Tensor, best_ids: Tensor) -> None:
    """Does what `say_seen` does, by the logits that an argmax has found: a NaN where a row has one.

    Args:
        logits: float [rows, vocab_size] on the CPU.
        best_ids: [rows], what the argmax found.
    """
    largest = logits.gather(1, best_ids.to(torch.int64).view(-1, 1))
    if not largest.isfinite().all():
        say_seen(status_of(largest, StatusConstants.like(largest)))
