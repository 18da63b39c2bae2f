"""Tokens that a device has drawn, on their way to the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


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
