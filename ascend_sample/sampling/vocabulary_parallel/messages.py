"""What a rank tells the others at once: named numbers in one row of bytes, laid out alike on every rank."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
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
        dtype: theirs.
        length: how many each rank sends.
    """

    name: str
    dtype: torch.dtype
    length: int


class Layout:
    """Where the parts of a message lie: larger numbers first, so that each lies at a multiple of its size.

    Args:
        parts: in any order; empty ones take nothing.

    Attributes:
        bytes: the length of a message.

    Example:
        >>> layout = Layout([Part("status", torch.int8, 3), Part("best", torch.float32, 1)])
        >>> message = layout.packed({"status": torch.tensor([1, 2, 3]), "best": torch.tensor([0.5])})
        >>> message.numel(), layout.unpacked(message.expand(2, -1))["status"].tolist()
        (8, [[1, 2, 3], [1, 2, 3]])
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = sorted(parts, key=lambda part: -part.dtype.itemsize)
        self._used = sum(part.length * part.dtype.itemsize for part in parts)
        self.bytes = -(-self._used // ALIGNMENT) * ALIGNMENT

    def packed(self, numbers: Mapping[str, Tensor], device: torch.device | str = "cpu") -> Tensor:
        """Returns the message of numbers by name, each with as many as its part has: uint8 [bytes] on the device."""
        message = torch.zeros(self.bytes, dtype=torch.uint8, device=device)
        start = 0
        for name, dtype, count in self._parts:
            end = start + count * dtype.itemsize
            if count:
                message[start:end].view(dtype).copy_(numbers[name].reshape(-1))
            start = end
        return message

    def unpacked(self, messages: Tensor) -> dict[str, Tensor]:
        """Returns what each rank has told, by name: [ranks, count] each.

        Args:
            messages: uint8 [ranks, bytes].
        """
        found, start = {}, 0
        for name, dtype, count in self._parts:
            end = start + count * dtype.itemsize
            numbers = messages[:, start:end]
            found[name] = numbers.view(dtype) if count else numbers.to(dtype)
            start = end
        return found


def tell(
    exchange: Exchange, parts: Sequence[Part], numbers: Mapping[str, Tensor], device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Sends numbers to all ranks, and returns theirs; where there are none, as all ranks know, nothing is sent."""
    layout = Layout(parts)
    message = layout.packed(numbers, device)
    return layout.unpacked(exchange.all_gather(message) if layout.bytes else message.expand(exchange.size, -1))


def digest_of(*parts: bytes) -> bytes:
    """Returns 8 bytes that tell whether ranks were given the same."""
    return hashlib.blake2b(b"".join(parts), digest_size=8).digest()
