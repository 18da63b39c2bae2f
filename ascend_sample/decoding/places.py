"""The places of tokens in rows that have different lengths, and of padding among them."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

ROLLBACKS_BEFORE_TRIM: Final = 8
"""On a device, lengths are read to trim what a model keeps at every n-th rollback only, because that waits for it."""


class Places:
    """Has the places 0, 1, 2, ... on a device, made once for all the steps that ask for them."""

    def __init__(self, device: torch.device) -> None:
        self._all = torch.arange(16, device=device)

    def first(self, count: int) -> Tensor:
        """Returns the first count places, int64 [count]: a view."""
        if count > len(self._all):
            self._all = torch.arange(2 * count, device=self._all.device)
        return self._all[:count]


def is_trimmed_now(lengths: Tensor, rollbacks: int) -> bool:
    """Tells whether rows that were rolled back so often are cut to the longest: reading a CPU's lengths is free."""
    return lengths.is_cpu or rollbacks >= ROLLBACKS_BEFORE_TRIM


def mask_of(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Returns attention_mask as bool [batch, length]; without one, a mask that is True everywhere."""
    return torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()


def tokens_first(mask: Tensor) -> Tensor:
    """Returns the order that puts each row's tokens in front of its padding, int64 [batch, length].

    Example:
        >>> tokens_first(torch.tensor([[False, True, False, True]]))
        tensor([[1, 3, 0, 2]])
    """
    return torch.argsort((~mask).int(), dim=1, stable=True)


def at_places(values: Tensor, places: Tensor) -> Tensor:
    """Takes from each row of values, [batch, length, n], what is at its places, int64 [batch, m]: [batch, m, n]."""
    return values.gather(1, places[:, :, None].expand(-1, -1, values.shape[2]))


def at_tokens(values: Tensor, tokens: Tensor) -> Tensor:
    """Takes values, [..., vocab_size], at tokens, int64 [...], one for each vector of values, or [..., n], several."""
    if tokens.dim() == values.dim():
        return values.gather(-1, tokens)
    return values.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def repeated_rows(lengths: Tensor, count: int) -> Tensor:
    """Returns the index that takes each row count times, one after the other, where lengths has an entry for each row.

    Example:
        >>> repeated_rows(torch.tensor([5, 2]), 3)
        tensor([0, 0, 0, 1, 1, 1])
    """
    return torch.arange(len(lengths), device=lengths.device).repeat_interleave(count)
