"""What stays the same from step to step of a split batch, while its requests and its edits do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.row_parameters import RowParameters
from ascend_sample.sampling.vocabulary_parallel import race
from ascend_sample.sampling.vocabulary_parallel.agreement import digest_of_requests
from ascend_sample.sampling.vocabulary_parallel.cuts import DIGITS
from ascend_sample.sampling.vocabulary_parallel.kinds import Kind, RowKinds, Rows, kinds_of
from ascend_sample.sampling.vocabulary_parallel.local_rows import RowPlaces

FEW: Final = 64
"""Rows that want so many candidates at most are searched apart from those that want more."""


class StepPlan:
    """The rows of each kind, and what is told of them.

    Args:
        batch: the requests.
        edits: what is done to their logits.
        dtype: of the logits.
        keep_ties: as for `Sampler`.
        unknown: the rows whose seeds the ranks do not know yet.
        gathered: the rows whose whole logits are wanted whatever their kind is.

    Attributes:
        kinds: of the rows.
        best: the rows whose best value is wanted: greedy ones, and those that only need their maximum.
        greedy, first, races, late, cut, whole: the rows by kind, ascending.
        gathered: the rows whose logits every rank gets.
        first_k: how many candidates the rows of ``first`` want.
        candidates: int64, their places in [rows of first, most], row by row.
        most: the largest of them.
        maxima: the rows whose maximum is told.
        requests: a digest of what is asked for.
    """

    def __init__(
        self,
        batch: SamplingBatch,
        edits: Mapping[str, Tensor],
        dtype: torch.dtype,
        keep_ties: bool,
        unknown: Rows,
        gathered: Rows,
    ) -> None:
        host = batch.host
        kinds = kinds_of(batch, keep_ties)
        self.unknown = unknown[kinds.is_drawn[unknown]]
        of_row = kinds.of_row.copy()
        of_row[self.unknown[of_row[self.unknown] == Kind.RACE]] = Kind.LATE_RACE
        self.kinds = RowKinds(of_row, kinds.is_drawn)
        self.greedy, self.first, self.races, self.late, self.cut, self.whole = map(self.kinds.rows, Kind)
        self.best = self.kinds.rows(Kind.BEST, Kind.LATE_RACE, Kind.CUT)
        self.maxima = self.kinds.rows(Kind.RACE, Kind.LATE_RACE, Kind.CUT)
        self.gathered = np.union1d(self.whole, gathered)
        self.requests = digest_of_requests(batch, edits)
        self.is_seeded = np.array([params.seed is not None for params in batch.params])
        self.near = np.where(host.temperature == 1, race.NEAR, race.NEAR_DIVIDED)

        k = host.top_k[self.first].astype(np.int64)
        self.most = int(k.max(initial=0))
        self.candidates = torch.from_numpy(np.flatnonzero(np.arange(self.most) < k[:, None]))
        self.places = RowPlaces(edits, len(batch))
        self.best_chosen = self.places.chosen(self.best)
        self.race_chosen = self.places.chosen(self.races)
        self.late_chosen = self.places.chosen(self.late)
        self.first_chosen = [
            (int(k[is_of].max()), np.flatnonzero(is_of), self.places.chosen(self.first[is_of]))
            for is_of in (k <= FEW, k > FEW)
            if is_of.any()
        ]
        self.first_tensors = [
            (torch.from_numpy(np.flatnonzero(is_of)), kind)
            for is_of, kind in (
                (self.places.is_wide[self.first], torch.float32),
                (~self.places.is_wide[self.first], dtype),
            )
            if is_of.any()
        ]
        self.parameters: RowParameters = batch.row_parameters().for_operators(batch.vocab_size)

        is_limited = (host.top_k >= 1) & (host.top_k < batch.vocab_size)
        self.top_k = np.where(is_limited, host.top_k, 0).astype(np.int64)
        self.top_p = host.top_p.astype(np.float64)
        self.is_divided = (host.top_p < 1) & (host.temperature != 1)
        is_float = self.places.is_wide | self.is_divided
        self.digits = np.where(is_float, DIGITS[torch.float32], DIGITS[dtype])
