"""What a rank finds of its part of the rows: nothing here knows of other ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.rows.parameters import RowStatus
from ascend_sample.sampling.step.logprobs import LogprobsMode
from ascend_sample.sampling.vocabulary_parallel import race
from ascend_sample.sampling.vocabulary_parallel.candidates import first_of
from ascend_sample.sampling.vocabulary_parallel.cuts import BINS, CutSearch
from ascend_sample.sampling.vocabulary_parallel.kinds import Rows
from ascend_sample.sampling.vocabulary_parallel.local_rows import local_rows
from ascend_sample.sampling.vocabulary_parallel.messages import Part
from ascend_sample.sampling.vocabulary_parallel.reported import PartOfRows, processed_part
from ascend_sample.sampling.vocabulary_parallel.step_plan import StepPlan


class CutRows(NamedTuple):
    """The rows whose ends are searched, as far as they lie in one tensor.

    Attributes:
        tensor: [rows of the tensor, ids of the part], divided by their temperatures where top-p asks for that.
        rows: int64, where they are in the tensor; None: as many as it has, in order.
        where: int64, their places in the search.
        of_batch: int64, which rows of the batch they are.
        maximum, temperature: float32, what their weights are relative to, and still to be divided by.
        digits: int64, how many each has.
    """

    tensor: Tensor
    rows: Tensor | None
    where: Tensor
    of_batch: Tensor
    maximum: Tensor
    temperature: Tensor
    digits: Tensor


class LocalPart:
    """The part of a step's rows that a rank has.

    Args:
        plan: of the step.
        logits: floats [batch, columns].
        edits: what is done to logits of the whole vocabulary.
        ids: of the part.
        position: int64 [batch].
        purpose: of the noise.

    Attributes:
        status: int8 [batch], of the part of each row that was looked at.
    """

    def __init__(
        self,
        plan: StepPlan,
        logits: Tensor,
        edits: Mapping[str, Tensor],
        ids: range,
        position: Tensor,
        purpose: Purpose,
    ) -> None:
        self._plan, self._ids, self._position, self._purpose = plan, ids, position, purpose
        self._own = logits[:, : len(ids)]
        self._rows = local_rows(logits, edits, plan.places, ids) if len(ids) else []
        without_ids = int(RowStatus.ALL_MASKED)
        self.status = torch.full((len(logits),), without_ids, dtype=torch.int8, device="cpu")

    def best(self) -> tuple[Tensor, Tensor]:
        """Finds the best value of rows of this part."""
        count = len(self._plan.best)
        values = torch.full((count,), -torch.inf, dtype=torch.float32, device="cpu")
        ids = torch.zeros(count, dtype=torch.int64, device="cpu")
        if self._rows:
            for chosen in self._plan.best_chosen:
                first, first_ids, status = first_of(self._rows[chosen.tensor], chosen.rows, 1)
                values[chosen.where], ids[chosen.where] = first[:, 0], first_ids[:, 0]
                self.status[chosen.of_batch] = status
        return values, ids

    def first(self) -> list[Part]:
        """Finds the first k of this part, for rows that want them."""
        plan = self._plan
        if not len(plan.first):
            return []
        values = torch.full((len(plan.first), plan.most), -torch.inf, dtype=torch.float32, device="cpu")
        ids = torch.zeros(len(plan.first), plan.most, dtype=torch.int64, device="cpu")
        if self._rows:
            for most, among_first, of_tensors in plan.first_chosen:
                for chosen in of_tensors:
                    found = first_of(self._rows[chosen.tensor], chosen.rows, most)
                    where = torch.from_numpy(among_first)[chosen.where]
                    values[where, :most], ids[where, :most], self.status[chosen.of_batch] = found
        return [
            Part("first_values", torch.float32, values.view(-1)[plan.candidates]),
            Part("first_ids", torch.int32, ids.view(-1)[plan.candidates] + self._ids.start),
        ]

    def leads(self, seeds: Tensor, maxima: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Finds the leads of rows without a filter, and of those with min-p when the maxima of whole rows are known.

        Args:
            seeds: int64 [batch].
            maxima: float32, of the plan's ``late`` rows; None: for its ``races``, relative to the maxima of the part.

        Returns:
            Leads and ids, as `shard_leads` has them, and the maxima of the part.
        """
        plan = self._plan
        count, of_tensors = (
            (len(plan.races), plan.race_chosen) if maxima is None else (len(plan.late), plan.late_chosen)
        )
        leads, ids = race.no_leads(count)
        own = torch.full((count,), -torch.inf, dtype=torch.float32, device="cpu")
        if not self._rows:
            return leads, ids, own
        slack = float(plan.near.max()) if maxima is None else race.NEAR
        for chosen in of_tensors:
            min_p = plan.parameters.min_p[chosen.of_batch]
            leads[chosen.where], ids[chosen.where], own[chosen.where], status = torch.ops.ascend_sample.shard_leads(
                self._rows[chosen.tensor],
                chosen.rows,
                self._ids.start,
                plan.parameters.temperature[chosen.of_batch],
                torch.zeros_like(min_p) if maxima is None else min_p,
                seeds[chosen.of_batch],
                self._position[chosen.of_batch],
                int(self._purpose),
                slack,
                None if maxima is None else maxima[chosen.where],
            )
            if maxima is None:
                self.status[chosen.of_batch] = status
        return leads, ids, own

    def cut_rows(self, cut: Rows, maxima: race.Singles) -> list[CutRows]:
        """Returns the rows whose ends are searched.

        Args:
            cut: which rows of the batch, ascending.
            maxima: of the whole rows of the batch.
        """
        if not self._rows or not len(cut):
            return []
        plan, found = self._plan, []
        is_divided = plan.is_divided[cut]
        for divides in (False, True):
            of_kind = np.flatnonzero(is_divided == divides)
            for chosen in plan.places.chosen(cut[of_kind]):
                tensor, rows = self._rows[chosen.tensor], chosen.rows
                maximum = torch.from_numpy(maxima)[chosen.of_batch]
                temperature = plan.parameters.temperature[chosen.of_batch]
                if divides:
                    logits = (tensor if rows is None else tensor[rows]).float()
                    tensor, rows = (logits - maximum.unsqueeze(1)) / temperature.unsqueeze(1), None
                    maximum, temperature = torch.zeros_like(maximum), torch.ones_like(temperature)
                where = torch.from_numpy(of_kind)[chosen.where]
                digits = torch.from_numpy(plan.digits)[chosen.of_batch]
                found.append(CutRows(tensor, rows, where, chosen.of_batch, maximum, temperature, digits))
        return found

    def reported(self, rows: Rows, mode: LogprobsMode, maxima: race.Singles) -> tuple[list[PartOfRows], Tensor]:
        """Returns this part of rows whose logprobs are wanted.

        Args:
            rows: which rows of the batch, ascending.
            mode: which numbers are: in a processed one, of what temperature and min-p leave.
            maxima: of the whole rows of the batch.

        Returns:
            The parts, and of each row whether what it leaves is not sure.
        """
        is_unsure = torch.zeros(len(rows), dtype=torch.bool, device="cpu")
        if not self._rows:
            return [], is_unsure
        if not mode.is_processed:
            there = None if len(rows) == len(self.status) else torch.from_numpy(rows)
            return [PartOfRows(self._own, there, torch.arange(len(rows), device="cpu"))], is_unsure
        parts = []
        for chosen in self._plan.places.chosen(rows):
            tensor = self._rows[chosen.tensor]
            kept, weighed, is_unsure[chosen.where] = processed_part(
                tensor if chosen.rows is None else tensor[chosen.rows],
                torch.from_numpy(maxima)[chosen.of_batch],
                self._plan.parameters.temperature[chosen.of_batch],
                self._plan.min_p[chosen.of_batch],
            )
            parts.append(PartOfRows(kept, None, chosen.where, weighed))
        return parts, is_unsure

    def histograms(self, parts: Sequence[CutRows], search: CutSearch, digit: int) -> Tensor:
        """Returns what the rows weigh by the next digit: float64 [rows of the search, 256]."""
        bins = torch.zeros(len(search.prefix), BINS, dtype=torch.float64, device="cpu")
        counts, prefix = torch.from_numpy(search.counts_in(digit)), torch.from_numpy(search.prefix)
        for part in parts:
            has_digit = (part.digits > digit).nonzero().view(-1)
            if len(has_digit):
                there = part.where[has_digit]
                rows = has_digit if part.rows is None else part.rows[has_digit]
                bins[there] = torch.ops.ascend_sample.shard_histogram(
                    part.tensor, rows, part.maximum[has_digit], counts[there], prefix[there], digit
                )
        return bins

    def cut_leads(self, rank: int, seeds: Tensor, parts: Sequence[CutRows], search: CutSearch) -> tuple[Tensor, Tensor]:
        """Finds the leads of the rows whose ends are known."""
        leads, ids = race.no_leads(len(search.prefix))
        for part in parts:
            leads[part.where], ids[part.where], _, _ = torch.ops.ascend_sample.shard_leads(
                part.tensor,
                part.rows,
                self._ids.start,
                part.temperature,
                self._plan.parameters.min_p[part.of_batch],
                seeds[part.of_batch],
                self._position[part.of_batch],
                int(self._purpose),
                race.NEAR,
                part.maximum,
                *search.local_cuts(rank, part.where.numpy(), part.tensor, part.rows),
            )
        return leads, ids
