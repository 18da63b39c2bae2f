"""The verb `segments`: rows of which nothing is ranked, decided by races of the vocabulary's segments.

A segment is weighed by the rank that has its first id, which gets the rest of it from the ranks after: a token is that
of whole rows, as its weights are made of the same numbers in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.draws.placed_noise import KnownNoise, sent
from ascend_sample.sampling.draws.segmented import SEGMENT, lanes_of
from ascend_sample.sampling.draws.weights import (
    base_of,
    cleaned,
    cleaned_in_float32,
    drop_below_min_p,
    largest_of,
    scaled,
)
from ascend_sample.sampling.vocabulary_parallel.exchange import Field
from ascend_sample.sampling.vocabulary_parallel.rows_of_verb import OwnPart, RowsOfVerb
from ascend_sample.sampling.vocabulary_parallel.shard import Borders

NO_SCORE: Final = -1.0
"""Less than the score of no weight at all."""


class SegmentRows:
    """Rows without top-k and top-p.

    Args:
        of: The rows.
        borders: Parts of the ranks.
        rank: Rank of the caller.
    """

    def __init__(self, of: RowsOfVerb, borders: Borders, rank: int) -> None:
        self.of, self._vocab_size = of, borders.ends[-1]
        self._parameters = of.parameters.for_operators(self._vocab_size)
        filters = self._parameters.filters()
        temperature, min_p = filters.get("temperature"), filters.get("min_p")
        self._divisor = None if temperature is None else temperature.unsqueeze(1)
        self._min_p = None if min_p is None else min_p.unsqueeze(1)
        first, end = borders.firsts[rank], borders.ends[rank]
        self._segments = range(-(-first // SEGMENT), -(-end // SEGMENT))  # those that begin here
        # The ids of each rank in a segment that begins before: all that another one needs of it.
        each = zip(borders.firsts, borders.ends, strict=True)
        self._heads = [min(end, -(-first // SEGMENT) * SEGMENT) - first for first, end in each]
        self._head = self._heads[rank]
        missing = min(self._segments.stop * SEGMENT, self._vocab_size) - end if len(self._segments) else 0
        self._rest: list[int] = []  # the ranks that have the rest of the last segment
        for after in range(rank + 1, len(self._heads)):
            if missing > 0 and self._heads[after]:
                self._rest.append(after)
                missing -= self._heads[after]

    def fields(self, own: OwnPart) -> list[Field]:
        """Returns the first message of a rank: the head of its part, its largest logit, with NaN and without."""
        logits = self.of.select(own.logits)
        if logits.is_cpu:
            maximum, _, largest = self.of.first(logits, 1)
        else:
            maximum, largest = largest_of(cleaned_in_float32(logits)), largest_of(logits)
        head = logits[:, : self._head]
        return [
            self.of.field("heads", pad(head, (0, max(self._heads) - self._head))),
            self.of.field("maximum", maximum, torch.float32),
            self.of.field("largest", largest),
        ]

    def race(self, fields: Mapping[str, Tensor], own: OwnPart, batch: SamplingBatch, purpose: Purpose) -> list[Field]:
        """Returns the second message of a rank: the winner of its segments by the maxima of whole rows."""
        logits = self.of.select(own.logits)
        if not len(self._segments):
            scores = logits.new_full((len(logits),), NO_SCORE, dtype=torch.float32)
            ids = torch.zeros_like(scores)
        else:
            pieces = [logits[:, self._head :]]
            if self._rest:
                heads = self.of.gathered(fields, "heads")
                pieces += [heads[rank][:, : self._heads[rank]] for rank in self._rest]
            maximum = self.of.gathered(fields, "maximum").amax(0)
            race = self._race_on_cpu if logits.is_cpu else self._race_on_device
            scores, ids = race(pieces, maximum, batch, purpose)
        dtype = torch.float64 if logits.is_cpu else torch.float32
        return [self.of.field("scores", scores, dtype), self.of.field("winners", ids, torch.int32)]

    def draw(self, fields: Mapping[str, Tensor]) -> Tensor:
        """Returns the winners of all segments, int64 [rows]: of equal ones that of the lowest rank, and so id."""
        scores, ids = (self.of.gathered(fields, name).squeeze(2) for name in ("scores", "winners"))
        return ids.gather(0, scores.argmax(0, keepdim=True)).squeeze(0).to(torch.int64)

    def _race_on_cpu(
        self, pieces: list[Tensor], maximum: Tensor, batch: SamplingBatch, purpose: Purpose
    ) -> tuple[Tensor, Tensor]:
        """Returns scores, float64, and ids [rows], by the weights of the CPU kernel."""
        whole = pieces[0].shape[1] // SEGMENT * SEGMENT if len(pieces) > 1 else pieces[0].shape[1]
        seed, position = map(torch.from_numpy, self.of.keys(batch))
        parts = [pieces[0][:, :whole], torch.cat([pieces[0][:, whole:], *pieces[1:]], 1)]
        found, first = [], self._segments.start * SEGMENT
        for part in parts:
            if part.shape[1]:
                scores, ids = torch.ops.ascend_sample.segment_winners(
                    part,
                    first,
                    maximum.squeeze(1),
                    self._parameters.temperature,
                    self._parameters.min_p,
                    seed,
                    position,
                    int(purpose),
                )
                found.append((scores, ids + first))
            first += whole
        scores, ids = (torch.stack(of_parts, 1) for of_parts in zip(*found, strict=True))
        winner = scores.argmax(1, keepdim=True)
        return scores.gather(1, winner), ids.gather(1, winner)

    def _race_on_device(
        self, pieces: list[Tensor], maximum: Tensor, batch: SamplingBatch, purpose: Purpose
    ) -> tuple[Tensor, Tensor]:
        """Returns scores, float32, and ids [rows], by weights and sums of torch."""
        rows, device, own = len(self.of.rows), maximum.device, self._segments
        noise = sent([KnownNoise(self.of.keys(batch), lanes_of(self._vocab_size), purpose)], device)[0]
        room = torch.zeros(rows, len(own) * SEGMENT, dtype=torch.float32, device=device)
        weights, start = room[:, : sum(piece.shape[1] for piece in pieces)], 0
        for piece in pieces:
            weights[:, start : start + piece.shape[1]] = piece
            start += piece.shape[1]
        values = cleaned(weights, weights)
        torch.exp(scaled(values, base_of(maximum), self._divisor, out=weights), out=weights)
        drop_below_min_p(weights, self._min_p)
        segments = room.view(rows, len(own), SEGMENT)
        sums = segments.sum(2) / noise[:, SEGMENT + own.start : SEGMENT + own.stop]
        winner = sums.argmax(1, keepdim=True)
        inside = segments.gather(1, winner.unsqueeze(2).expand(-1, 1, SEGMENT)).squeeze(1)
        place = (inside / noise[:, :SEGMENT]).argmax(1, keepdim=True)
        ids = torch.add(place, winner, alpha=SEGMENT) + own.start * SEGMENT
        return sums.gather(1, winner), ids
