"""Logits of a device on their way to the host: in blocks of rows, so that some are sampled while others travel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

BLOCK_BYTES: Final = 2**22
"""About so much of the logits is one block: it travels in the time in which the CPU kernel samples another."""


class HostCopy:
    """A copy of a device's logits in pinned memory, made on a stream of its own.

    Work that is queued on the device's current stream comes first; what follows on it does not wait for the copies.

    Args:
        logits: [rows, vocab_size], on any device.

    Attributes:
        logits: the copy, [rows, vocab_size]: a block of it may be read once `blocks` has named it.

    Example:
        >>> copied = HostCopy(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        >>> [copied.logits[rows].tolist() for rows in copied.blocks()]
        [[[1.0, 2.0], [3.0, 4.0]]]
    """

    def __init__(self, logits: Tensor) -> None:
        self._events: list[torch.Event] = []
        if logits.is_cpu:
            self.logits = logits
            self._starts = [0]
            return
        rows_at_once = max(1, BLOCK_BYTES // max(1, logits.shape[1] * logits.element_size()))
        self._starts = list(range(0, len(logits), rows_at_once)) or [0]
        self.logits = torch.empty(logits.shape, dtype=logits.dtype, pin_memory=True)
        beside = torch.Stream(logits.device)
        beside.wait_stream(torch.accelerator.current_stream(logits.device))
        with beside:
            for start in self._starts:
                rows = slice(start, start + rows_at_once)
                self.logits[rows].copy_(logits[rows], non_blocking=True)
                self._events.append(beside.record_event())
        # The caller may free the logits, and the memory be taken by what runs on the current stream.
        logits.record_stream(beside)

    def blocks(self) -> Iterator[slice]:
        """Yields each block's rows once they have arrived: the only waiting there is."""
        ends = [*self._starts[1:], len(self.logits)]
        for place, (start, end) in enumerate(zip(self._starts, ends, strict=True)):
            if self._events:
                self._events[place].synchronize()
            yield slice(start, end)
