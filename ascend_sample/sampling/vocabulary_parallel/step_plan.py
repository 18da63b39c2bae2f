"""What stays the same from step to step of a split batch, while its requests and its edits do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.rows.parameters import RowParameters, is_limited
from ascend_sample.sampling.vocabulary_parallel import race
from ascend_sample.sampling.vocabulary_parallel.cuts import DIGITS
from ascend_sample.sampling.vocabulary_parallel.kinds import Booleans, Kind, Rows, kinds_of, rows_of
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
        waiting: rows without a filter, whose seeds the ranks do not know yet.
        is_processed: logprobs are those of processed logits.

    Attributes:
        keep_ties: as given.
        best: the rows whose best value is wanted: greedy ones, and those that only need their maximum.
        greedy_among_best: int64 tensor, which of these are greedy.
        greedy, first, races, late, cut, whole: the rows by kind, ascending.
        asking: the rows that ask for logprobs.
        gathered: the rows whose logits every rank gets.
        reported: the rows whose logprobs are made of what the ranks tell of their parts.
        kept: the rows whose logprobs are those of candidates that all ranks know.
        candidates: int64, the places of those that rows of ``first`` want in [rows of first, most], row by row.
        most: how many any of these rows wants at most.
        maxima: the rows whose maximum is told.
    """

    def __init__(
        self,
        batch: SamplingBatch,
        edits: Mapping[str, Tensor],
        dtype: torch.dtype,
        keep_ties: bool,
        waiting: Rows,
        is_processed: bool,
    ) -> None:
        self.keep_ties, host = keep_ties, batch.host
        of_row = kinds_of(batch, keep_ties)
        of_row[waiting] = Kind.LATE_RACE
        self.greedy, self.first, self.races, self.late, self.cut, self.whole = (rows_of(of_row, kind) for kind in Kind)
        self.best = rows_of(of_row, Kind.BEST, Kind.LATE_RACE, Kind.CUT)
        self.greedy_among_best = torch.from_numpy(np.searchsorted(self.best, self.greedy))
        self.maxima = rows_of(of_row, Kind.RACE, Kind.LATE_RACE, Kind.CUT)
        self.asking = asking = np.flatnonzero(host.logprobs >= 0)
        by_parts, by_candidates = self._ways_to_report(of_row, host.top_k, is_processed, batch.vocab_size)
        self.reported, self.kept = asking[by_parts[asking]], asking[by_candidates[asking]]
        self.gathered = np.union1d(self.whole, np.setdiff1d(asking, np.union1d(self.reported, self.kept)))
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
        self.min_p = batch.row_parameters().min_p

        self.top_k = np.where(is_limited(host.top_k, batch.vocab_size), host.top_k, 0).astype(np.int64)
        self.top_p = host.top_p.astype(np.float64)
        self.is_divided = (host.top_p < 1) & (host.temperature != 1)
        is_float = self.places.is_wide | self.is_divided
        self.digits = np.where(is_float, DIGITS[torch.float32], DIGITS[dtype])

    def _ways_to_report(
        self, of_row: Rows, top_k: npt.NDArray[np.int32], is_processed: bool, vocab_size: int
    ) -> tuple[Booleans, Booleans]:
        """Tells of each row whether logprobs are made of parts, or of candidates; else of the gathered row."""
        if not is_processed:
            return of_row != Kind.WHOLE, np.zeros(len(of_row), np.bool_)
        # What a nucleus or ties keep is what a row of all logits keeps: it may end elsewhere than the draw's.
        has_ties = is_limited(top_k, vocab_size) & self.keep_ties
        by_parts = np.isin(of_row, (Kind.RACE, Kind.LATE_RACE))
        return by_parts, np.isin(of_row, (Kind.BEST, Kind.FIRST)) & ~has_ties
