"""What a device has made on its way to the host: tokens, and logits in blocks of rows, of which some are sampled
while others travel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

BLOCK_BYTES: Final = 2**22
"""About so much of the logits is one block: it travels in the time in which the CPU kernel samples another."""


class HostTokens:
    """Tokens that were drawn, on their way to the host: nobody waits for them before they are read.

    Args:
        token_ids: int64 [tokens], on any device; they may change afterwards.

    Example:
        >>> HostTokens(torch.tensor([3, 1])).read()
        [3, 1]
    """

    def __init__(self, token_ids: Tensor) -> None:
        self._event: torch.Event | None = None
        if token_ids.is_cpu:
            self._tokens = token_ids.clone()
            return
        self._tokens = torch.empty(token_ids.shape, dtype=token_ids.dtype, pin_memory=True, device="cpu")
        self._tokens.copy_(token_ids, non_blocking=True)
        self._event = torch.accelerator.current_stream(token_ids.device).record_event()

    def __getstate__(self) -> dict[str, Any]:
        """Waits for them: what has arrived can be copied."""
        self.read()
        return vars(self) | {"_event": None}

    @property
    def has_arrived(self) -> bool:
        """Tells whether `read` would not wait."""
        if self._event is not None and self._event.query():
            self._event = None
        return self._event is None

    def read(self) -> list[int]:
        """Returns them, once they have arrived."""
        if self._event is not None:
            self._event.synchronize()
        tokens: list[int] = self._tokens.tolist()
        return tokens


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
        self.logits = torch.empty(logits.shape, dtype=logits.dtype, pin_memory=True, device="cpu")
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
