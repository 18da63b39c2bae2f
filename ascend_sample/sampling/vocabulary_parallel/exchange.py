"""How ranks tell each other bytes: one kind of collective, whatever is in them."""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

from ascend_sample._errors import refuse
from ascend_sample.sampling.vocabulary_parallel.presence import Presence, own_numbers

# By its newer name where torch has that: the older one warns then.
gather_into: Final = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@runtime_checkable
class Exchange(Protocol):
    """What a step asks of a group of ranks.

    Attributes:
        rank: of the caller, from 0.
        size: how many ranks there are.
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
        group: the ranks; None: all of the default group.

    Attributes:
        rank: of the caller in the group.
        size: how many ranks the group has.
        collectives: how many there were.
        bytes_sent: how many bytes this rank has sent in them.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.collectives = self.bytes_sent = 0
        self._presence: Presence | None = None

    def all_gather(self, message: Tensor) -> Tensor:
        """Does what `Exchange.all_gather` does; with the first message each rank tells which process it is.

        Raises:
            RuntimeError: a rank is gone, or did not come within the group's timeout.
        """
        if self._presence is not None:
            return self._gathered(message)
        own = own_numbers().view(torch.uint8).to(message.device)
        gathered = self._gathered(torch.cat((message, own)))
        self._presence = Presence(gathered[:, len(message) :].cpu().contiguous().view(torch.int64))
        return gathered[:, : len(message)].contiguous()

    def _gathered(self, message: Tensor) -> Tensor:
        self.collectives, self.bytes_sent = self.collectives + 1, self.bytes_sent + len(message)
        gathered = torch.empty(self.size, len(message), dtype=torch.uint8, device=message.device)
        try:
            gather_into(gathered.view(-1), message, group=self._group)
        except RuntimeError as error:
            known = "" if self._presence is None else self._presence.after_failure()
            failed = f"a failed collective on rank {self.rank} of {self.size}{known}: {error}"
            remedy = "Make a new group of the ranks that are left."
            refuse("VocabularyShard", "the ranks", "all take part in a step", failed, remedy, RuntimeError)
        return gathered
