"""Scores of given tokens by ranks that have parts of the vocabulary: those of whole logits, bit for bit."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ascend_sample._errors import refuse
from ascend_sample.sampling.vocabulary_parallel.messages import digest_of, tell
from ascend_sample.sampling.vocabulary_parallel.reported import PartOfRows, ReportedRows
from ascend_sample.sampling.vocabulary_parallel.shard import VocabularyShard


class SplitScores:
    """The scores of a text on one rank.

    The ranks tell each other their parts once. Of each block of places they compare what they are asked, tell what
    logprobs are made of, and then, where the best do not tell a token's rank, how many logits stand before it.

    Args:
        shard: what the rank has.
        most: how many of the best tokens are told of each place.
        entropy: entropies are told as well.

    Raises:
        ValueError: the parts of the ranks are not those of one vocabulary.
        RuntimeError: another rank is gone.
    """

    def __init__(self, shard: VocabularyShard, most: int, entropy: bool) -> None:
        self._shard, self._most, self._entropy = shard, most, entropy
        self._borders = shard.find_borders()

    def of_places(self, logits: Tensor, token_ids: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns what `row_logprobs` does of whole logits.

        Args:
            logits: floats [places, width] of this rank.
            token_ids: int64 [places]; what is no id of the vocabulary gets the numbers of the nearest one.
            start: how many places there were before.

        Raises:
            ValueError: another rank is asked something else.
            RuntimeError: another rank is gone.
        """
        self._compare(logits.dtype, token_ids, start)
        rows, ids = np.arange(len(logits)), self._shard.ids
        parts = [PartOfRows(logits[:, : len(ids)], None, torch.arange(len(logits), device="cpu"))] if len(ids) else []
        report = ReportedRows(
            self._borders,
            self._shard.exchange.rank,
            rows,
            parts,
            logits.dtype,
            self._most,
            True,
            token_ids.clamp(0, self._shard.vocab_size - 1),
            self._entropy,
        )
        report.take(tell(self._shard.exchange, report.told()))
        if report.is_counted.any():
            report.take_counts(tell(self._shard.exchange, [report.counts()]))
        _, named, values, ranks = report.logprobs()
        return values, named, ranks, report.entropies

    def _compare(self, dtype: torch.dtype, token_ids: Tensor, start: int) -> None:
        """Raises unless all ranks are asked the same of the same places; the lengths of messages follow from that."""
        asked = f"{start} {len(token_ids)} {dtype} {self._most} {self._entropy}".encode()
        digest = digest_of(asked, token_ids.numpy().tobytes())
        told = self._shard.exchange.all_gather(torch.frombuffer(bytearray(digest), dtype=torch.uint8))
        others = (told != told[:1]).any(1).nonzero().view(-1).tolist()
        if others:
            ranks = ", ".join(map(str, others))
            got = f"another one on rank {ranks} than on rank 0 (this is rank {self._shard.exchange.rank})"
            remedy = (
                "Give all ranks the same ids, n and entropy, and logits of one dtype in chunks of the same lengths."
            )
            refuse("score", "the call", "be the same on all ranks of the shard", got, remedy)
