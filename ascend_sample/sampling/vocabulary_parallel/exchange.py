"""Sends bytes between the ranks of a group: named fields, packed into one message for each collective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

from ascend_sample._errors import refuse

# By its newer name where torch has that: the older one warns then.
gather_into: Final = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
ALIGNMENT: Final = 8
"""Messages are padded to a multiple of so many bytes, so that the fields of every rank are aligned."""


@runtime_checkable
class Exchange(Protocol):
    """A group of ranks, as a step uses it.

    Attributes:
        rank: Rank of the caller, from 0.
        size: Number of ranks.
    """

    rank: int
    size: int

    def all_gather(self, message: Tensor) -> Tensor:
        """Gives every rank the messages of all.

        Args:
            message: uint8 [bytes], as many on every rank.

        Returns:
            uint8 [size, bytes], in the order of the ranks.
        """
        ...


class ProcessGroupExchange:
    """Ranks of a process group of torch: gloo on CPUs, the device's own elsewhere.

    Args:
        group: The ranks; None: all of the default group.

    Attributes:
        rank: Rank of the caller in the group.
        size: Number of ranks of the group.
        collectives: Number of collectives so far.
        bytes_sent: Number of bytes that this rank has sent in them.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.collectives = self.bytes_sent = 0

    def all_gather(self, message: Tensor) -> Tensor:
        """See `Exchange.all_gather`.

        Raises:
            RuntimeError: A rank is gone, or did not come within the group's timeout.
        """
        self.collectives, self.bytes_sent = self.collectives + 1, self.bytes_sent + len(message)
        gathered = torch.empty(self.size, len(message), dtype=torch.uint8, device=message.device)
        try:
            gather_into(gathered.view(-1), message, group=self._group)
        except RuntimeError as error:
            failed = f"a failed collective on rank {self.rank} of {self.size}: {error}"
            remedy = "Make a new group of the ranks that are left."
            refuse("VocabularyShard", "the ranks", "all take part in a step", failed, remedy, RuntimeError)
        return gathered


class Field(NamedTuple):
    """Some values of a message.

    Attributes:
        name: Key of the values in `gather_fields`' result.
        dtype: Type in which they are sent.
        values: Those of this rank, as many as on every other.
    """

    name: str
    dtype: torch.dtype
    values: Tensor


def gather_fields(exchange: Exchange, fields: Sequence[Field], device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Sends fields to all ranks, and returns theirs by name: [ranks, values] each.

    Larger dtypes come first, so that each field is aligned. Empty fields take nothing; where all are empty, as all
    ranks know, nothing is sent.

    Example:
        >>> class Alone:
        ...     rank, size = 0, 1
        ...
        ...     def all_gather(self, message):
        ...         return message.unsqueeze(0)
        >>> fields = [Field("status", torch.int8, torch.tensor([1, 2, 3])), Field("best", torch.float32, torch.ones(1))]
        >>> gather_fields(Alone(), fields)
        {'best': tensor([[1.]]), 'status': tensor([[1, 2, 3]], dtype=torch.int8)}
    """
    ordered = sorted(fields, key=lambda field: -field.dtype.itemsize)
    used = sum(field.values.numel() * field.dtype.itemsize for field in fields)
    message = torch.zeros(-(-used // ALIGNMENT) * ALIGNMENT, dtype=torch.uint8, device=device)
    own = _unpack(message, ordered)
    for name, _, values in ordered:
        if values.numel():
            own[name].copy_(values.reshape(-1))
    return _unpack(exchange.all_gather(message) if used else message.expand(exchange.size, -1), ordered)


def _unpack(messages: Tensor, fields: Sequence[Field]) -> dict[str, Tensor]:
    """Returns views of the fields, which follow one another in messages uint8 [..., bytes]: [..., values] each."""
    found, start = {}, 0
    for name, dtype, values in fields:
        end = start + values.numel() * dtype.itemsize
        there = messages[..., start:end]
        found[name] = there.view(dtype) if values.numel() else there.to(dtype)
        start = end
    return found
