"""Logits for `score` where each rank has a part of the vocabulary: those of a block of places are gathered."""

from __future__ import annotations

import hashlib
from typing import Final

import torch
from torch import Tensor

from ascend_sample._errors import refuse
from ascend_sample.sampling.vocabulary_parallel.shard import VocabularyShard, gather_rows

BLOCK_BYTES: Final = 2**26
"""Of gathered logits, at most, unless a single place has more."""


class SplitLogits:
    """Logits of a sequence on one rank.

    The ranks exchange their borders, and, of each block of places, the arguments, which have to be the same, and then
    the logits.

    Args:
        shard: Part of the rank.
        device: Device of the logits.
        options: Other arguments of the call, as text.

    Raises:
        ValueError: The parts of the ranks are not those of one vocabulary.
        RuntimeError: Another rank is gone.
    """

    def __init__(self, shard: VocabularyShard, device: torch.device, options: str) -> None:
        self._shard, self._options, self._borders = shard, options, shard.find_borders(device)

    def rows_at_once(self, logits: Tensor) -> int:
        """Returns the number of places of a block."""
        return max(1, BLOCK_BYTES // (logits.dtype.itemsize * self._shard.vocab_size))

    def gather(self, logits: Tensor, token_ids: Tensor, start: int) -> Tensor:
        """Returns the logits of the whole vocabulary, [places, vocab_size].

        Args:
            logits: floats [places, width] of this rank.
            token_ids: int64 [places], the given tokens.
            start: Number of places before.

        Raises:
            ValueError: Another rank has other arguments.
            RuntimeError: Another rank is gone.
        """
        given = f"{self._options} {start} {len(logits)} {logits.dtype}".encode() + token_ids.cpu().numpy().tobytes()
        digest = torch.frombuffer(bytearray(hashlib.blake2b(given, digest_size=8).digest()), dtype=torch.uint8)
        found = self._shard.exchange.all_gather(digest.to(logits.device))
        others = (found != found[:1]).any(1).nonzero().view(-1).tolist()
        if others:
            ranks = ", ".join(map(str, others))
            got = f"another one on rank {ranks} than on rank 0 (this is rank {self._shard.exchange.rank})"
            remedy = (
                "Give all ranks the same ids, n and entropy, and logits of one dtype in chunks of the same lengths."
            )
            refuse("score", "the call", "be the same on all ranks of the shard", got, remedy)
        return gather_rows(self._shard, self._borders, logits)[0]
