"""Rows of a device that ranks decide together: by the first of each part, or by races among segments.

A token is that of the step that is not split on the same device: what decides is made of the same numbers in the same
order. Nothing here reads a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ascend_sample.sampling.draws.best_tokens import best_entries, chunk_lanes
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.draws.placed_noise import DrawKeys, KnownNoise, sent
from ascend_sample.sampling.draws.segmented import SEGMENT, lanes_of
from ascend_sample.sampling.draws.weights import base_of, cleaned_in_float32, drop_below_min_p, largest_of, scaled
from ascend_sample.sampling.requests.checks import LARGEST_FRACTION
from ascend_sample.sampling.rows.parameters import RowParameters
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.rows.table import to_device
from ascend_sample.sampling.step.serving import Placement, place_groups, serve
from ascend_sample.sampling.vocabulary_parallel.chunks import Chunks
from ascend_sample.sampling.vocabulary_parallel.kinds import Rows
from ascend_sample.sampling.vocabulary_parallel.messages import Part
from ascend_sample.sampling.vocabulary_parallel.shard import Borders


class OwnPart(NamedTuple):
    """The part of rows that a rank has; one column of -inf where it has no ids.

    Attributes:
        rank: of the caller.
        ids: of the part.
        logits: [batch, ids], edited where the rows are.
    """

    rank: int
    ids: range
    logits: Tensor


class RowsOfDevice:
    """Some rows of a batch, which have their logits in one tensor.

    Args:
        name: of what is told of them.
        rows: which, ascending.
        batch_size: how many the batch has.
        parameters: of the batch.
        like: a tensor on the device of the logits, of the dtype of these rows.
    """

    def __init__(self, name: str, rows: Rows, batch_size: int, parameters: RowParameters, like: Tensor) -> None:
        self.name, self.rows, self.dtype, self.device = name, rows, like.dtype, like.device
        self._there = to_device(rows, like.device)
        self._has_all = len(rows) == batch_size
        self.parameters = parameters if self._has_all else parameters.of_rows(RowSet(rows, self._there))

    def of(self, tensor: Tensor) -> Tensor:
        """Returns what a tensor of the batch has for these rows."""
        return tensor if self._has_all else tensor.index_select(0, self._there)


class CandidateRows(RowsOfDevice):
    """Rows that the first ``count`` of each part decide: greedy ones, and those with top-k."""

    def __init__(
        self,
        name: str,
        rows: Rows,
        batch_size: int,
        parameters: RowParameters,
        like: Tensor,
        count: int,
        ranks: int,
    ) -> None:
        super().__init__(name, rows, batch_size, parameters, like)
        self._count, self._lanes = count, chunk_lanes(like.device)
        merged = like.new_empty(()).expand(len(rows), ranks * count)
        groups = place_groups(self.parameters, merged, False)
        self._placement = Placement.of(groups, merged)

    def told(self, own: OwnPart) -> list[Part]:
        """Finds the first of the part, without NaN: 4 bytes and a logit for each candidate, and the largest logit."""
        logits = self.of(own.logits)
        largest = largest_of(logits)
        logits = logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        if self._count == 1:
            ids = logits.argmax(1, keepdim=True)
            values = logits.gather(1, ids)
        else:
            values, ids = best_entries(logits, min(self._count, logits.shape[1]), self._lanes)
        missing = self._count - values.shape[1]
        if missing:
            values, ids = pad(values, (0, missing), value=-torch.inf), pad(ids, (0, missing))
        return [
            Part(f"{self.name}_values", self.dtype, values),
            Part(f"{self.name}_ids", torch.int32, ids + own.ids.start),
            Part(f"{self.name}_largest", self.dtype, largest),
        ]

    def draw(self, told: Mapping[str, Tensor], keys: DrawKeys, purpose: Purpose) -> Tensor:
        """Draws as from rows that have these candidates alone, whose order is that of whole rows.

        Returns:
            int64 [rows].
        """
        values, ids = (
            told[f"{self.name}_{what}"].view(-1, len(self.rows), self._count).transpose(0, 1).flatten(1)
            for what in ("values", "ids")
        )
        logits = [values] * len(self._placement.groups)
        places, _ = serve(logits, self._placement, None, False, purpose, keys.of_rows(self.rows))
        return ids.gather(1, places.unsqueeze(1)).squeeze(1).to(torch.int64)


class SegmentRows(RowsOfDevice):
    """Rows of which nothing is ranked: segments race, and those that cross a border are put together first."""

    def __init__(
        self, name: str, rows: Rows, batch_size: int, parameters: RowParameters, like: Tensor, borders: Borders
    ) -> None:
        super().__init__(name, rows, batch_size, parameters, like)
        self._chunks = Chunks(borders, SEGMENT)
        self._vocab_size = borders.ends[-1]
        filters = self.parameters.filters()
        temperature, min_p = filters.get("temperature"), filters.get("min_p")
        self._divisor = None if temperature is None else temperature.unsqueeze(1)
        self._min_p = None if min_p is None else min_p.clamp(max=LARGEST_FRACTION).unsqueeze(1)
        ranks = range(len(borders.ends))
        starts = [self._chunks.whole[rank].start for rank in ranks] + self._chunks.shared
        self._order = to_device(np.argsort(starts, kind="stable"), like.device)
        self._shared = to_device(np.array(self._chunks.shared, np.int64), like.device)

    def told(self, own: OwnPart) -> list[Part]:
        """Returns what a rank tells of them at first: the pieces of segments that are not its own, and maxima."""
        logits = self.of(own.logits)
        pieces = [
            logits[:, piece.ids.start - own.ids.start : piece.ids.stop - own.ids.start]
            for piece in self._chunks.pieces[own.rank]
        ]
        missing = self._chunks.most_in_pieces - sum(piece.shape[1] for piece in pieces)
        filled = torch.cat([*pieces, logits.new_zeros(len(logits), missing)], 1)
        return [
            Part(f"{self.name}_pieces", self.dtype, filled),
            Part(f"{self.name}_maximum", torch.float32, largest_of(cleaned_in_float32(logits))),
            Part(f"{self.name}_largest", self.dtype, largest_of(logits)),
        ]

    def race(self, told: Mapping[str, Tensor], own: OwnPart, keys: DrawKeys, purpose: Purpose) -> list[Part]:
        """Lets the segments race that the rank has as a whole, when the maxima are known: 8 bytes of the best."""
        self._noise = sent([KnownNoise(keys.of_rows(self.rows), lanes_of(self._vocab_size), purpose)], self.device)[0]
        self._base = base_of(told[f"{self.name}_maximum"].amax(0).unsqueeze(1))
        whole = self._chunks.whole[own.rank]
        if not len(whole):
            # Less than no weight at all.
            none = torch.full((len(self.rows),), -1.0, dtype=torch.float32, device=self.device)
            return self._parts_of_race(none, none)
        columns = slice(whole.start * SEGMENT - own.ids.start, min(whole.stop * SEGMENT, own.ids.stop) - own.ids.start)
        segments = self._weights(self.of(own.logits)[:, columns], len(whole))
        sums = segments.sum(2) / self._noise[:, SEGMENT + whole.start : SEGMENT + whole.stop]
        winner = sums.argmax(1, keepdim=True)
        inside = segments.gather(1, winner.unsqueeze(2).expand(-1, 1, SEGMENT)).squeeze(1)
        place = (inside / self._noise[:, :SEGMENT]).argmax(1)
        lead = torch.add(place, winner.squeeze(1), alpha=SEGMENT) + whole.start * SEGMENT
        return self._parts_of_race(sums.gather(1, winner), lead)

    def _parts_of_race(self, scores: Tensor, leads: Tensor) -> list[Part]:
        return [Part(f"{self.name}_scores", torch.float32, scores), Part(f"{self.name}_leads", torch.int32, leads)]

    def draw(self, told: Mapping[str, Tensor], raced: Mapping[str, Tensor]) -> Tensor:
        """Finds the segment that has won of all, and its place: int64 [rows]."""
        scores, leads = raced[f"{self.name}_scores"].t(), raced[f"{self.name}_leads"].t()
        if self._chunks.shared:
            pieces = told[f"{self.name}_pieces"].view(-1, len(self.rows), self._chunks.most_in_pieces)
            segments = self._weights(self._chunks.put_together(pieces).flatten(1), len(self._chunks.shared))
            noise = self._noise[:, SEGMENT:].index_select(1, self._shared)
            places = (segments / self._noise[:, None, :SEGMENT]).argmax(2)
            ids = torch.add(places, self._shared, alpha=SEGMENT)
            scores, leads = torch.cat((scores, segments.sum(2) / noise), 1), torch.cat((leads.long(), ids), 1)
        # By ascending ids, so that the first of equals is the same as in a whole row.
        winner = scores.index_select(1, self._order).argmax(1, keepdim=True)
        return leads.index_select(1, self._order).gather(1, winner).squeeze(1).to(torch.int64)

    def _weights(self, logits: Tensor, count: int) -> Tensor:
        """Returns the weights of whole segments, float32 [rows, count, 256], with 0 beyond the vocabulary."""
        room = torch.zeros(len(logits), count * SEGMENT, dtype=torch.float32, device=self.device)
        weights = room[:, : logits.shape[1]]
        values = cleaned_in_float32(logits, out=weights)
        torch.exp(scaled(values, self._base, self._divisor, out=weights), out=weights)
        drop_below_min_p(weights, self._min_p)
        return room.view(len(logits), count, SEGMENT)
