"""A step of a rank that has a part of the vocabulary: few bytes go around, and all ranks find the same tokens.

1. The ranks tell each other the best values of their parts, the first k for rows with top-k, and their leads in the
   segmented draw for rows without a filter. Greedy rows and rows with top-k are decided then, by the code of a step
   that is not split, and most rows without a filter.
2. Rows with top-p alone, or a top-k that is not ranked, take a round for each digit of the order of values.
3. Now the maxima of rows and the ends of what they keep are known: the ranks tell each other their leads again.
4. Rows that are still open are gathered, and drawn as if they were not split. Of rows that ask for logprobs the ranks
   tell what these are made of, and then, where the best do not tell it, how many logits stand before the token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.edits.row_edits import edits_of_rows
from ascend_sample.sampling.requests.params import DISTRIBUTION
from ascend_sample.sampling.rows.parameters import RowsOutput
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.rows.table import NO_ROWS
from ascend_sample.sampling.step.distribution import undivided_logits
from ascend_sample.sampling.step.logprobs import Logprobs, LogprobsMode
from ascend_sample.sampling.vocabulary_parallel import race
from ascend_sample.sampling.vocabulary_parallel.agreement import (
    Agreement,
    check_digests,
    digest_of_requests,
    digests_of,
)
from ascend_sample.sampling.vocabulary_parallel.candidates import merged, status_of_parts
from ascend_sample.sampling.vocabulary_parallel.cuts import BINS, CutSearch
from ascend_sample.sampling.vocabulary_parallel.drafted_rows import proposed_to
from ascend_sample.sampling.vocabulary_parallel.kinds import Rows
from ascend_sample.sampling.vocabulary_parallel.local_part import LocalPart
from ascend_sample.sampling.vocabulary_parallel.local_rows import edited_rows
from ascend_sample.sampling.vocabulary_parallel.messages import Part, tell
from ascend_sample.sampling.vocabulary_parallel.reported import ReportedRows, Scales, report_kept, without_rows
from ascend_sample.sampling.vocabulary_parallel.shard import Borders, VocabularyShard
from ascend_sample.sampling.vocabulary_parallel.step_plan import StepPlan


class Drawn(NamedTuple):
    """What a step of all ranks finds.

    Attributes:
        output: ids and statuses of all rows.
        logprobs: of rows that ask for them, as far as no whole logits are needed.
        whole_rows: the other rows that ask for them, ascending.
        whole: the logits of the whole vocabulary of these: [batch, vocab_size], in which other rows mean nothing; None
            where there are none.
        open_rows: how many rows had to be gathered because what they draw was too near to another token.
        candidates: of rows that are drawn from the first few, which these are: float32 and int64 [rows, n].
        seeds: int64 [batch], those that all ranks have drawn with.
    """

    output: RowsOutput
    logprobs: list[Logprobs]
    whole_rows: Rows
    whole: Tensor | None
    open_rows: int
    candidates: list[tuple[Rows, Tensor, Tensor]]
    seeds: Tensor


class ShardedSteps:
    """The steps of one rank.

    Args:
        shard: what the rank has.
        keep_ties: as for `Sampler`.
        mode: of logprobs.

    Attributes:
        open_rows: how many rows of all steps were gathered whole because what they draw was too near to another token.
    """

    def __init__(self, shard: VocabularyShard, keep_ties: bool, mode: LogprobsMode) -> None:
        self._shard, self._keep_ties, self._mode = shard, keep_ties, mode
        self._borders: Borders | None = None
        self._seeds: WeakKeyDictionary[SamplingBatch, Agreement] = WeakKeyDictionary()
        self.open_rows = 0

    def draw(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        edits: Mapping[str, Tensor],
        purpose: Purpose,
        judging: bytes = b"",
    ) -> Drawn:
        """Draws the tokens of all rows.

        Args:
            logits: floats [batch, width] of this rank.
            batch: the requests, the same on all ranks.
            edits: from `SamplingBatch.native_edits`.
            purpose: of the noise.
            judging: how drafts are judged behind the step; all ranks have to be given the same.

        Raises:
            ValueError: another rank has other requests.
            RuntimeError: another rank is gone.
        """
        if self._borders is None:
            self._borders = self._shard.find_borders()
        agreed = self._seeds.setdefault(batch, Agreement())
        seeds, unknown = agreed.split(batch)
        plan = self._plan_of(batch, edits, logits.dtype, NO_ROWS)
        if len(waiting := np.intersect1d(unknown, plan.races)):
            plan = self._plan_of(batch, edits, logits.dtype, waiting)
        options = f"{self._keep_ties} {int(purpose)} {logits.dtype} {batch.vocab_size} {self._mode.value}"
        asked = (logits.dtype, self._keep_ties, self._mode)
        compared = agreed.compared(batch, asked)
        requests = digest_of_requests(batch, edits) if compared is None else compared
        digests = digests_of(batch, options, plan.is_seeded, requests, edits, proposed_to(batch, judging))
        if compared is None:  # messages of other requests have other lengths: they are compared before
            check_digests(self._shard.exchange.all_gather(digests), self._shard.exchange.rank)
            agreed.note(batch, asked, requests)
        step = _Step(
            self._shard, self._borders, logits, batch, edits, purpose, plan, digests, self._mode, seeds, unknown
        )
        drawn = step.run(agreed)
        self.open_rows += drawn.open_rows
        return drawn

    def _plan_of(
        self, batch: SamplingBatch, edits: Mapping[str, Tensor], dtype: torch.dtype, waiting: Rows
    ) -> StepPlan:
        """Returns the plan for the batch as it is, in which some rows race once their seeds are known."""
        are_edited = b"".join(each.tobytes() for each in edited_rows(edits, len(batch)))
        key = ("shard", dtype, self._keep_ties, self._mode, waiting.tobytes(), are_edited)
        if key not in batch.plans:
            batch.plans[key] = StepPlan(batch, edits, dtype, self._keep_ties, waiting, self._mode.is_processed)
        plan: StepPlan = batch.plans[key]
        return plan

    @property
    def borders(self) -> Borders:
        """Returns those of the ranks, which are known after a step."""
        assert self._borders is not None, "a step was taken"
        return self._borders


class _Step:
    """One step."""

    def __init__(
        self,
        shard: VocabularyShard,
        borders: Borders,
        logits: Tensor,
        batch: SamplingBatch,
        edits: Mapping[str, Tensor],
        purpose: Purpose,
        plan: StepPlan,
        digests: Tensor,
        mode: LogprobsMode,
        seeds: Rows,
        unknown: Rows,
    ) -> None:
        self._mode = mode
        self._exchange, self._borders, self._batch, self._plan = shard.exchange, borders, batch, plan
        self._digests = digests
        self._logits, self._edits, self._purpose = logits, edits, purpose
        self._ids = shard.ids
        self._position = batch.position
        self._part = LocalPart(plan, logits, edits, self._ids, self._position, purpose)
        self._seeds, self._unknown = torch.from_numpy(seeds), unknown
        self._token_ids = torch.zeros(len(batch), dtype=torch.int64, device="cpu")
        self._status = torch.empty(len(batch), dtype=torch.int8, device="cpu")
        self._wholes: list[tuple[Rows, Tensor]] = []
        self._logprobs: list[Logprobs] = []
        self._candidates: list[tuple[Rows, Tensor, Tensor]] = []

    def run(self, agreed: Agreement) -> Drawn:
        """Takes all rounds."""
        plan, batch = self._plan, self._batch
        told = self._first_round()
        if len(self._unknown):
            of_first = told["seeds"][0]
            agreed.agree(batch, self._unknown, of_first.numpy())
            self._seeds[torch.from_numpy(self._unknown)] = of_first
        self._status = status_of_parts(told["status"])
        self._take_best(told)
        self._take_first(told)
        if len(plan.gathered):
            whole = self._whole_of(plan.gathered, told["whole"])
            self._draw_gathered(whole, plan.whole)
        still_open = [NO_ROWS]
        maxima = np.full(len(batch), -np.inf, np.float32)
        maxima[plan.maxima] = told["maxima"].amax(0).numpy()
        if len(plan.races):
            own = told["maxima"][:, torch.from_numpy(np.searchsorted(plan.maxima, plan.races))].numpy()
            still_open.append(self._take_races(plan.races, told, own, maxima[plan.races], plan.near[plan.races]))
        if len(plan.late) or len(plan.cut):
            still_open += self._later_rounds(maxima)
        open_rows = np.sort(np.concatenate(still_open))
        count = len(open_rows)
        if count and len(plan.gathered):
            self._draw_gathered(whole, np.intersect1d(open_rows, plan.gathered))
            open_rows = np.setdiff1d(open_rows, plan.gathered)
        if len(open_rows) or len(plan.reported):
            self._last_rounds(open_rows, maxima)
        return self._drawn(count)

    def _first_round(self) -> dict[str, Tensor]:
        plan, batch = self._plan, self._batch
        parts = [
            Part("digests", torch.uint8, self._digests),
            Part("seeds", torch.int64, torch.from_numpy(batch.host.seed[self._unknown])),
            *self._part.first(),
            *self._whole_parts(plan.gathered),
        ]
        maxima = torch.full((len(batch),), -torch.inf, dtype=torch.float32, device="cpu")
        if len(plan.best):
            values, ids = self._part.best()
            maxima[torch.from_numpy(plan.best)] = values
            parts += [
                Part("best_values", torch.float32, values[plan.greedy_among_best]),
                Part("best_ids", torch.int32, ids[plan.greedy_among_best] + self._ids.start),
            ]
        if len(plan.races):
            near = torch.from_numpy(plan.near[plan.races])
            leads, lead_ids, maxima[torch.from_numpy(plan.races)] = self._part.leads(self._seeds, None)
            parts += race.told(leads, lead_ids, self._ids.start, near)
        parts += [
            Part("maxima", torch.float32, maxima[torch.from_numpy(plan.maxima)]),
            Part("status", torch.int8, self._part.status),
        ]
        told = tell(self._exchange, parts)
        check_digests(told["digests"], self._exchange.rank)
        return told

    def _later_rounds(self, maxima: race.Singles) -> list[Rows]:
        """Draws the rows whose maximum has to be known first; returns those that are open."""
        plan = self._plan
        is_infinite = np.isposinf(maxima[plan.cut])
        cut = plan.cut[np.isfinite(maxima[plan.cut])]
        relative = np.where(plan.is_divided[cut], 0.0, maxima[cut]).astype(np.float32)
        search = CutSearch(plan.top_k[cut], plan.top_p[cut], relative, plan.digits[cut], plan.keep_ties)
        parts = self._part.cut_rows(cut, maxima)
        for digit in range(search.rounds):
            rows = search.rows_of_round(digit)
            bins = self._part.histograms(parts, search, digit)[torch.from_numpy(rows)]
            told = tell(self._exchange, [Part("bins", torch.float64, bins)])
            search.take(digit, told["bins"].view(-1, len(rows), BINS))
        late_leads, late_ids, _ = self._part.leads(self._seeds, torch.from_numpy(maxima[plan.late]))
        leads, ids = self._part.cut_leads(self._exchange.rank, self._seeds, parts, search)
        rows = np.concatenate((plan.late, cut))
        near = np.full(len(rows), race.NEAR)
        leads, ids = torch.cat((late_leads, leads)), torch.cat((late_ids, ids))
        told = tell(self._exchange, race.told(leads, ids, self._ids.start, torch.from_numpy(near)))
        most = maxima[rows]
        of_all = np.broadcast_to(most, (self._exchange.size, len(rows)))
        return [plan.cut[is_infinite], self._take_races(rows, told, of_all, most, near)]

    def _last_rounds(self, open_rows: Rows, maxima: race.Singles) -> None:
        """Draws the rows that are open, and reports those whose logprobs are made of parts."""
        parts = self._whole_parts(open_rows)
        rows = np.setdiff1d(self._plan.reported, open_rows)
        report = None
        if len(rows):
            rank = self._exchange.rank
            of_rank, is_unsure = self._part.reported(rows, self._mode, maxima)
            dtype = torch.float32 if self._mode.is_processed else self._logits.dtype
            tokens = self._token_ids[torch.from_numpy(rows)]
            scales = Scales(maxima[rows], self._batch.host.temperature[rows]) if self._mode.is_processed else None
            options = (dtype, self._most_reported, self._mode.is_normalised, tokens)
            report = ReportedRows(self._borders, rank, rows, of_rank, *options, scales=scales)
            parts += [*report.told(), Part("is_unsure", torch.bool, is_unsure)]
        told = tell(self._exchange, parts)
        if len(open_rows):
            self._draw_whole(self._whole_of(open_rows, told["whole"]), open_rows)
        if report is None:
            return
        report.take(told)
        unsure = rows[told["is_unsure"].any(0).numpy()]
        parts = self._whole_parts(unsure)
        if report.is_counted.any():
            parts.append(report.counts())
        told = tell(self._exchange, parts)
        if report.is_counted.any():
            report.take_counts(told)
        if len(unsure):
            self._whole_of(unsure, told["whole"])
        self._logprobs.append(without_rows(report.logprobs(), unsure))

    def _drawn(self, open_rows: int) -> Drawn:
        output, more = RowsOutput(self._token_ids, self._status), (open_rows, self._candidates, self._seeds)
        if not len(self._plan.asking):
            return Drawn(output, [], NO_ROWS, None, *more)
        wholes = [(np.isin(rows, self._plan.asking), rows, whole) for rows, whole in self._wholes]
        rows = np.concatenate([NO_ROWS, *(rows[is_asking] for is_asking, rows, _ in wholes)])
        wanted = None
        if len(rows):
            wanted = self._logits.new_zeros(len(self._batch), self._batch.vocab_size)
            for is_asking, of_batch, whole in wholes:
                wanted[torch.from_numpy(of_batch[is_asking])] = whole[torch.from_numpy(is_asking)]
        return Drawn(output, self._logprobs, np.sort(rows), wanted, *more)

    @property
    def _most_reported(self) -> int:
        """Returns how many of the best tokens rows ask for at most."""
        return int(self._batch.host.logprobs.max())

    def _report_kept(self, rows: Rows, values: Tensor, ids: Tensor) -> None:
        """Keeps the candidates of some rows, which all ranks have, and reports those: floats and int64 [rows, n]."""
        self._candidates.append((rows, values, ids))
        if not len(self._plan.kept):
            return
        asking = np.flatnonzero(np.isin(rows, self._plan.kept))
        if not len(asking):
            return
        here, of_batch = torch.from_numpy(asking), torch.from_numpy(rows[asking])
        parameters = self._batch.row_parameters().of_rows(RowSet(rows[asking], of_batch))
        kept = undivided_logits(values[here], parameters)
        options = (self._token_ids[of_batch], self._batch.vocab_size, self._most_reported, self._mode)
        self._logprobs.append(report_kept(rows[asking], kept, ids[here], *options, parameters.temperature))

    def _take_best(self, told: Mapping[str, Tensor]) -> None:
        if len(self._plan.greedy):
            rank = told["best_values"].argmax(0, keepdim=True)  # the lowest among equals, whose ids are the lowest
            best, ids = told["best_values"].gather(0, rank), told["best_ids"].gather(0, rank).to(torch.int64)
            self._token_ids[torch.from_numpy(self._plan.greedy)] = ids.masked_fill_(best == -torch.inf, 0)[0]
            self._report_kept(self._plan.greedy, best.t(), ids.t())

    def _take_first(self, told: Mapping[str, Tensor]) -> None:
        plan = self._plan
        if not len(plan.first):
            return
        ranks, rows, most = len(told["first_values"]), len(plan.first), plan.most
        values, ids = told["first_values"], told["first_ids"].to(torch.int64)
        if len(plan.candidates) < rows * most:
            some_values, some_ids = values, ids
            values, ids = values.new_full((ranks, rows * most), -torch.inf), ids.new_zeros(ranks, rows * most)
            values[:, plan.candidates], ids[:, plan.candidates] = some_values, some_ids
        values, ids = merged(values.view(ranks, rows, most), ids.view(ranks, rows, most), most)
        ids.masked_fill_(values == -torch.inf, 0)
        for here, dtype in plan.first_tensors:
            of_batch = torch.from_numpy(plan.first)[here]
            place, _ = self._sample(values[here].to(dtype), of_batch, False, {})
            self._token_ids[of_batch] = ids[here].gather(1, place.unsqueeze(1)).squeeze(1)
        self._report_kept(plan.first, values, ids)

    def _take_races(
        self, rows: Rows, told: Mapping[str, Tensor], own: race.Singles, most: race.Singles, near: race.Floats
    ) -> Rows:
        """Notes the winners; returns the rows that are open."""
        temperature = self._batch.host.temperature[rows].astype(np.float64)
        with np.errstate(invalid="ignore"):
            difference = own.astype(np.float64) - most.astype(np.float64)
            log_scales = np.where(own == most, 0.0, difference / temperature)
        found = race.decide(told, log_scales, near, self._borders)
        is_masked = np.isneginf(most)
        self._token_ids[torch.from_numpy(rows)] = torch.from_numpy(np.where(is_masked, 0, found.token_ids))
        still_open: Rows = rows[found.is_open & ~is_masked]
        return still_open

    def _whole_parts(self, rows: Rows) -> list[Part]:
        if not len(rows):
            return []
        own = self._logits[torch.from_numpy(rows), : len(self._ids)]
        return [Part("whole", self._logits.dtype, self._borders.padded(own))]

    def _whole_of(self, rows: Rows, told: Tensor) -> Tensor:
        """Returns the logits of the whole vocabulary of rows, of what all ranks have told, and keeps them."""
        whole = self._borders.joined(told.view(len(told), len(rows), self._borders.most_ids))
        self._wholes.append((rows, whole))
        return whole

    def _draw_gathered(self, whole: Tensor, rows: Rows) -> None:
        """Draws rows of those that were gathered in the first round: ``whole`` has all of these."""
        if len(rows):
            self._draw_whole(whole[torch.from_numpy(np.searchsorted(self._plan.gathered, rows))], rows)

    def _draw_whole(self, whole: Tensor, rows: Rows) -> None:
        there = torch.from_numpy(rows)
        edits = edits_of_rows(self._edits, there)
        self._token_ids[there], self._status[there] = self._sample(whole, there, self._plan.keep_ties, edits)

    def _sample(
        self, logits: Tensor, of_batch: Tensor, keep_ties: bool, edits: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Draws as a step that is not split does, from rows of a batch."""
        numbers = [getattr(self._plan.parameters, name)[of_batch] for name in DISTRIBUTION]
        keys = (self._seeds[of_batch], self._position[of_batch], int(self._purpose))
        drawn: tuple[Tensor, Tensor] = torch.ops.ascend_sample.sample_rows(
            logits, None, *numbers, *keys, keep_ties, **edits
        )[:2]
        return drawn
