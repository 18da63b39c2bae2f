"""Which part of the vocabulary a rank has."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from ascend_sample._contract import MAX_VOCAB_SIZE
from ascend_sample._errors import check_integer, refuse
from ascend_sample.sampling.vocabulary_parallel.exchange import (
    Exchange,
    Field,
    ProcessGroupExchange,
    gather_fields,
)

OWNER: Final = "VocabularyShard"


class Borders(NamedTuple):
    """The parts of all ranks.

    Attributes:
        firsts: the first id of each rank, ascending; that of one without ids is where it would have some.
        ends: behind the last id of each.
    """

    firsts: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def counts(self) -> list[int]:
        """Returns how many ids each rank has."""
        return [end - first for first, end in zip(self.firsts, self.ends, strict=True)]

    @property
    def most_ids(self) -> int:
        """Returns how many ids any rank has at most."""
        return max(self.counts)

    def padded(self, part: Tensor) -> Tensor:
        """Returns what a rank tells of its part of rows, [rows, ids], with as many columns as any rank tells."""
        return pad(part, (0, self.most_ids - part.shape[1]))

    def joined(self, told: Tensor) -> Tensor:
        """Returns rows of the whole vocabulary, of what all ranks have told of theirs: [ranks, rows, most_ids]."""
        return torch.cat([part[:, :count] for part, count in zip(told, self.counts, strict=True)], 1)


@dataclass(frozen=True)
class VocabularyShard:
    """The part of the vocabulary whose logits a rank has.

    The ranks of a group have ascending parts without gaps. Columns for ids from ``vocab_size`` on are padding: they may
    hold anything, and are never drawn.

    Args:
        first_id: the id of the first column of this rank's logits.
        width: how many columns they have, padding included.
        vocab_size: of the whole vocabulary, without padding: the batch's.
        group: the ranks: a process group of torch, or an `Exchange` of your own; None: torch's default group.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a number is out of range.

    Example:
        >>> class Alone:
        ...     rank, size = 0, 1
        ...
        ...     def all_gather(self, message):
        ...         return message.unsqueeze(0)
        >>> shard = VocabularyShard(first_id=0, width=64, vocab_size=50, group=Alone())
        >>> shard.ids
        range(0, 50)

    Source: docs/vocabulary_parallel.md.
    """

    first_id: int
    width: int
    vocab_size: int
    group: dist.ProcessGroup | Exchange | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, least, most in (
            ("first_id", 0, 2 * MAX_VOCAB_SIZE),
            ("width", 1, MAX_VOCAB_SIZE),
            ("vocab_size", 1, MAX_VOCAB_SIZE),
        ):
            object.__setattr__(self, name, check_integer(OWNER, name, getattr(self, name), low=least, high=most))

    @property
    def ids(self) -> range:
        """Returns the ids that are no padding."""
        return range(min(self.first_id, self.vocab_size), min(self.first_id + self.width, self.vocab_size))

    @cached_property
    def exchange(self) -> Exchange:
        """Returns what the ranks tell each other bytes by.

        Raises:
            ValueError: the caller is none of the ranks, or alone with a part.
        """
        found = self.group if isinstance(self.group, Exchange) else ProcessGroupExchange(self.group)
        if not 0 <= found.rank < found.size:  # torch gives those who are not in a group one of -1 ranks
            got, remedy = f"rank {found.rank} of {found.size}", "Give the group that this rank is in."
            refuse(OWNER, "group", "have the caller among its ranks", got, remedy)
        if found.size == 1 and len(self.ids) < self.vocab_size:
            rule = f"be all of the vocabulary, range(0, {self.vocab_size}), for a rank that is alone"
            refuse(OWNER, "ids", rule, self.ids, "Give the group of all ranks that have parts.")
        return found

    def find_borders(self, device: torch.device | str = "cpu") -> Borders:
        """Returns the parts of all ranks, which tell each other: a collective of its own, once a sampler.

        Args:
            device: where what is told is to be: that of the logits.

        Raises:
            ValueError: the parts are not those of one vocabulary.
        """
        own = torch.tensor([self.first_id, self.width, self.vocab_size], device="cpu").view(torch.uint8).to(device)
        told = self.exchange.all_gather(own).cpu().view(torch.int64).numpy()
        others = np.flatnonzero(told[:, 2] != self.vocab_size)
        if len(others):
            rule = f"be the same on all ranks, as rank {self.exchange.rank} has {self.vocab_size}"
            refuse(OWNER, "vocab_size", rule, f"{told[others[0], 2]} on rank {others[0]}", "Leave out padding alone.")
        expected = 0
        for rank, (first, width, _) in enumerate(told.tolist()):
            if first != expected:
                rule = f"be {expected} on rank {rank}, where the ranks before end"
                refuse(OWNER, "first_id", rule, first, "Give ascending parts without gaps, in the order of the ranks.")
            expected = first + width
        if expected < self.vocab_size:
            remedy = "Give each id to a rank."
            refuse(OWNER, "width", f"add up to vocab_size, {self.vocab_size}, at least", expected, remedy)
        firsts = np.minimum(told[:, 0], self.vocab_size)
        ends = np.minimum(told[:, 0] + told[:, 1], self.vocab_size)
        return Borders(tuple(firsts.tolist()), tuple(ends.tolist()))


def gather_rows(shard: VocabularyShard, borders: Borders, *parts: Tensor) -> list[Tensor]:
    """Gathers rows of the whole vocabulary in one collective: [rows, vocab_size] each.

    Args:
        shard: Part of the rank.
        borders: Parts of all ranks.
        parts: Tensors [rows, width] of the rank, on one device.
    """
    own = [borders.padded(part[:, : len(shard.ids)]) for part in parts]
    fields = [Field(str(index), part.dtype, part) for index, part in enumerate(own)]
    found = gather_fields(shard.exchange, fields, parts[0].device)
    return [
        borders.joined(found[name].view(shard.exchange.size, *part.shape))
        for (name, *_), part in zip(fields, own, strict=True)
    ]
