"""What a rank tells the others at once: named numbers in one row of bytes, laid out alike on every rank."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from ascend_sample.sampling.vocabulary_parallel.exchange import Exchange

ALIGNMENT: Final = 8
"""Messages are as long as a multiple of so many bytes, so that numbers of any rank lie where they may be viewed."""


class Part(NamedTuple):
    """Some numbers of a message.

    Attributes:
        name: what they are.
        dtype: in which they are sent.
        numbers: those of this rank, as many as on every other.
    """

    name: str
    dtype: torch.dtype
    numbers: Tensor


def tell(exchange: Exchange, parts: Sequence[Part], device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Sends numbers to all ranks, and returns theirs by name: [ranks, count] each.

    Larger ones come first, so that each lies at a multiple of its size. Empty parts take nothing; where all are empty,
    as all ranks know, nothing is sent.

    Example:
        >>> class Alone:
        ...     rank, size = 0, 1
        ...
        ...     def all_gather(self, message):
        ...         return message.unsqueeze(0)
        >>> parts = [Part("status", torch.int8, torch.tensor([1, 2, 3])), Part("best", torch.float32, torch.ones(1))]
        >>> tell(Alone(), parts)
        {'best': tensor([[1.]]), 'status': tensor([[1, 2, 3]], dtype=torch.int8)}
    """
    ordered = sorted(parts, key=lambda part: -part.dtype.itemsize)
    used = sum(part.numbers.numel() * part.dtype.itemsize for part in parts)
    message = torch.zeros(-(-used // ALIGNMENT) * ALIGNMENT, dtype=torch.uint8, device=device)
    own = _numbers_in(message, ordered)
    for name, _, numbers in ordered:
        if numbers.numel():
            own[name].copy_(numbers.reshape(-1))
    return _numbers_in(exchange.all_gather(message) if used else message.expand(exchange.size, -1), ordered)


def _numbers_in(messages: Tensor, parts: Sequence[Part]) -> dict[str, Tensor]:
    """Returns views of the parts that lie one behind the other in messages, uint8 [..., bytes]: [..., count] each."""
    found, start = {}, 0
    for name, dtype, numbers in parts:
        end = start + numbers.numel() * dtype.itemsize
        there = messages[..., start:end]
        found[name] = there.view(dtype) if numbers.numel() else there.to(dtype)
        start = end
    return found


def digest_of(*parts: bytes) -> bytes:
    """Returns 8 bytes that tell whether ranks were given the same."""
    return hashlib.blake2b(b"".join(parts), digest_size=8).digest()
