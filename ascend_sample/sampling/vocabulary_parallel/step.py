"""A step of a rank that has a part of the vocabulary: few bytes go around, and all ranks find the same tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.noise import Purpose
from ascend_sample.sampling.row_parameters import RowParameters, RowsOutput
from ascend_sample.sampling.serving import EDITS_OF_ROWS
from ascend_sample.sampling.vocabulary_parallel import race
from ascend_sample.sampling.vocabulary_parallel.agreement import DIGESTS_BYTES, AgreedSeeds, check_digests, digests_of
from ascend_sample.sampling.vocabulary_parallel.candidates import best_of, first_of, merged, status_of_parts
from ascend_sample.sampling.vocabulary_parallel.kinds import Kind, RowKinds, Rows, kinds_of
from ascend_sample.sampling.vocabulary_parallel.local_rows import LocalRows, edited_rows
from ascend_sample.sampling.vocabulary_parallel.messages import Layout, Part
from ascend_sample.sampling.vocabulary_parallel.shard import Borders, VocabularyShard

TENSORS: Final = ("temperature", "top_k", "top_p", "min_p", "seed", "position")
ALL_MASKED: Final = 1


class Drawn(NamedTuple):
    """What a step of all ranks finds.

    Attributes:
        output: ids and statuses of all rows.
        whole: the logits of the whole vocabulary of the rows that were asked for: [batch, vocab_size], in which other
            rows mean nothing; None if none were.
        open_rows: how many rows had to be gathered because what they draw was too near to another token.
    """

    output: RowsOutput
    whole: Tensor | None
    open_rows: int


class ShardedSteps:
    """The steps of one rank.

    Args:
        shard: what the rank has.
        keep_ties: as for `Sampler`.

    Attributes:
        open_rows: how many rows of all steps were gathered whole because what they draw was too near to another token.
    """

    def __init__(self, shard: VocabularyShard, keep_ties: bool) -> None:
        self._shard, self._keep_ties = shard, keep_ties
        self._borders: Borders | None = None
        self._seeds: WeakKeyDictionary[SamplingBatch, AgreedSeeds] = WeakKeyDictionary()
        self.open_rows = 0

    def draw(
        self, logits: Tensor, batch: SamplingBatch, edits: Mapping[str, Tensor], purpose: Purpose, whole_rows: Rows
    ) -> Drawn:
        """Draws the tokens of all rows.

        Args:
            logits: floats [batch, width] of this rank.
            batch: the requests, the same on all ranks.
            edits: what the CPU kernel does to logits of the whole vocabulary.
            purpose: of the noise.
            whole_rows: those of which every rank needs the whole logits afterwards.

        Raises:
            ValueError: another rank has other requests.
            RuntimeError: another rank is gone.
        """
        if self._borders is None:
            self._borders = self._shard.find_borders()
        step = _Step(
            self._shard, self._borders, self._seeds.setdefault(batch, AgreedSeeds()), logits, batch, edits, purpose
        )
        drawn = step.run(kinds_of(batch, self._keep_ties), self._keep_ties, whole_rows)
        self.open_rows += drawn.open_rows
        return drawn


class _Step:
    """One step."""

    def __init__(
        self,
        shard: VocabularyShard,
        borders: Borders,
        seeds: AgreedSeeds,
        logits: Tensor,
        batch: SamplingBatch,
        edits: Mapping[str, Tensor],
        purpose: Purpose,
    ) -> None:
        self._shard, self._borders, self._agreed, self._batch = shard, borders, seeds, batch
        self._logits, self._edits, self._purpose = logits, edits, purpose
        self._ids = shard.ids
        self._local = LocalRows(logits, edits, self._ids) if len(self._ids) else None
        self._parameters: RowParameters = batch.row_parameters().for_operators(batch.vocab_size)
        count = len(batch)
        self._is_wide = edited_rows(edits, count)[0]
        self._token_ids = torch.zeros(count, dtype=torch.int64)
        self._status = torch.zeros(count, dtype=torch.int8)

    def run(self, kinds: RowKinds, keep_ties: bool, whole_rows: Rows) -> Drawn:
        """Takes all rounds."""
        batch, rank = self._batch, self._shard.exchange.rank
        seeds, unknown = self._agreed.split(batch)
        unknown = unknown[kinds.is_drawn[unknown]]
        self._set_seeds(seeds)
        of_row = kinds.of_row.copy()
        unknown_races = unknown[of_row[unknown] == Kind.RACE]
        of_row[unknown_races] = Kind.LATE_RACE
        kinds = RowKinds(of_row, kinds.is_drawn)
        best_rows, first_rows = kinds.rows(Kind.BEST, Kind.FIRST), kinds.rows(Kind.FIRST)
        races, late = kinds.rows(Kind.RACE), kinds.rows(Kind.LATE_RACE)
        running = kinds.rows(Kind.RACE, Kind.LATE_RACE)
        gathered = np.union1d(kinds.rows(Kind.WHOLE), whole_rows)

        # First round.
        k = batch.host.top_k[first_rows].astype(np.int64)
        chosen = np.arange(k.max(initial=0)) < k[:, None]  # of [rows, most], row by row
        places = torch.from_numpy(np.flatnonzero(chosen))
        known = [params.seed is not None for params in batch.params]
        options = f"{keep_ties} {int(self._purpose)} {self._logits.dtype} {batch.vocab_size}"
        parts = [
            Part("digests", torch.uint8, DIGESTS_BYTES),
            Part("seeds", torch.int64, len(unknown)),
            Part("status", torch.int8, len(batch)),
            Part("best_values", torch.float32, len(kinds.rows(Kind.BEST))),
            Part("best_ids", torch.int32, len(kinds.rows(Kind.BEST))),
            Part("first_values", torch.float32, len(places)),
            Part("first_ids", torch.int32, len(places)),
            Part("maxima", torch.float32, len(running)),
            *race.parts_of("race", len(races)),
            *self._whole_parts(gathered),
        ]
        numbers = {
            "digests": digests_of(batch, options, np.array(known)),
            "seeds": torch.from_numpy(batch.host.seed[unknown]),
        }
        near = np.where(batch.host.temperature == 1, race.NEAR, race.NEAR_DIVIDED)
        numbers |= self._local_best(best_rows, kinds.rows(Kind.BEST), first_rows, chosen.shape[1], places)
        numbers |= self._local_races(running, races, near)
        numbers |= self._whole_numbers(gathered)
        numbers["status"] = self._status
        told = self._tell(parts, numbers)
        check_digests(told["digests"], rank)
        whole = self._whole_of(gathered, told["whole"]) if len(gathered) else None
        if len(unknown):
            of_first = told["seeds"][0].numpy()
            self._agreed.agree(batch, unknown, of_first)
            self._set_seeds(self._agreed.split(batch)[0])

        self._status = status_of_parts(told["status"])
        self._take_best(kinds.rows(Kind.BEST), told)
        self._take_first(first_rows, chosen, places, told)
        maxima = told["maxima"].amax(0)
        open_rows = [np.empty(0, np.int64)]
        if len(races):
            where = np.searchsorted(running, races)
            own = told["maxima"][:, where].numpy().astype(np.float64)
            open_rows.append(self._take_races("race", races, told, own, maxima[where].numpy(), near[races]))
        if len(late):
            most = maxima[torch.from_numpy(np.searchsorted(running, late))]
            told = self._tell(race.parts_of("late", len(late)), self._late_races(late, most))
            of_all = np.broadcast_to(most.numpy(), (self._shard.exchange.size, len(late)))
            near_late = np.full(len(late), race.NEAR)
            open_rows.append(self._take_races("late", late, told, of_all, of_all[0], near_late))
        # What is left open.
        still_open = np.sort(np.concatenate(open_rows))
        drawn_whole = kinds.rows(Kind.WHOLE)
        if len(drawn_whole):
            assert whole is not None, "they were gathered"
            here = torch.from_numpy(np.searchsorted(gathered, drawn_whole))
            self._draw_whole(whole[here], drawn_whole, keep_ties)
        if len(still_open):
            told = self._tell(self._whole_parts(still_open), self._whole_numbers(still_open))
            self._draw_whole(self._whole_of(still_open, told["whole"]), still_open, keep_ties)
        result = None
        if len(whole_rows):
            assert whole is not None, "they were gathered"
            result = whole.new_zeros(len(batch), batch.vocab_size)
            result[torch.from_numpy(gathered)] = whole
        return Drawn(RowsOutput(self._token_ids, self._status), result, len(still_open))

    def _tell(self, parts: list[Part], numbers: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sends numbers to all ranks, and returns theirs."""
        layout = Layout(parts)
        return layout.unpacked(self._shard.exchange.all_gather(layout.packed(numbers)))

    def _set_seeds(self, seeds: Rows) -> None:
        self._drawn_seeds = torch.from_numpy(seeds)

    def _local_best(
        self, best_rows: Rows, greedy: Rows, first_rows: Rows, most: int, places: Tensor
    ) -> dict[str, Tensor]:
        """Finds the best of rows of this part, and the first k of those that want them."""
        count = len(self._batch)
        values, ids = torch.full((count,), -torch.inf), torch.zeros(count, dtype=torch.int64)
        self._status.fill_(ALL_MASKED)
        first_values = torch.full((len(first_rows), most), -torch.inf)
        first_ids = torch.zeros(len(first_rows), most, dtype=torch.int64)
        if self._local is not None:
            for source in self._local.sources(best_rows):
                there = torch.from_numpy(source.batch_rows)
                values[there], ids[there], self._status[there] = best_of(source)
            for source in self._local.sources(first_rows):
                there = torch.from_numpy(np.searchsorted(first_rows, source.batch_rows))
                best = ids[torch.from_numpy(source.batch_rows)]
                first_values[there], first_ids[there] = first_of(source, best, most)
        of_greedy = torch.from_numpy(greedy)
        return {
            "best_values": values[of_greedy],
            "best_ids": ids[of_greedy] + self._ids.start,
            "first_values": first_values.view(-1)[places],
            "first_ids": first_ids.view(-1)[places] + self._ids.start,
        }

    def _leads(self, rows: Rows, near: Tensor, maximum: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Finds the leads of rows of this part: leads, ids, and the maxima of the part."""
        count = len(rows)
        leads = torch.zeros(count, race.LEADS, 6, dtype=torch.float64)
        ids = torch.zeros(count, race.LEADS, dtype=torch.int64)
        maxima = torch.full((count,), -torch.inf)
        if self._local is not None and count:
            parameters = self._parameters
            for source in self._local.sources(rows):
                there = torch.from_numpy(np.searchsorted(rows, source.batch_rows))
                of_batch = torch.from_numpy(source.batch_rows)
                leads[there], ids[there], maxima[there], self._status[of_batch] = torch.ops.ascend_sample.shard_leads(
                    source.logits,
                    source.rows,
                    self._ids.start,
                    parameters.temperature[of_batch],
                    parameters.min_p[of_batch] if maximum is not None else torch.zeros(len(of_batch)),
                    self._drawn_seeds[of_batch],
                    parameters.position[of_batch],
                    int(self._purpose),
                    float(near.max()),
                    None if maximum is None else maximum[there],
                )
        return leads, ids, maxima

    def _local_races(self, running: Rows, races: Rows, near: race.Floats) -> dict[str, Tensor]:
        of_rows = torch.from_numpy(near[running])
        leads, ids, maxima = self._leads(running, of_rows, None)
        now = torch.from_numpy(np.searchsorted(running, races))
        return {"maxima": maxima} | race.told("race", leads[now], ids[now], self._ids.start, of_rows[now])

    def _late_races(self, late: Rows, maximum: Tensor) -> dict[str, Tensor]:
        near = torch.full((len(late),), race.NEAR, dtype=torch.float64)
        status = self._status.clone()
        leads, ids, _ = self._leads(late, near, maximum)
        self._status = status
        return race.told("late", leads, ids, self._ids.start, near)

    def _take_best(self, rows: Rows, told: dict[str, Tensor]) -> None:
        if len(rows):
            rank = told["best_values"].argmax(0, keepdim=True)
            best, ids = told["best_values"].gather(0, rank), told["best_ids"].gather(0, rank).to(torch.int64)
            self._token_ids[torch.from_numpy(rows)] = ids.masked_fill_(best == -torch.inf, 0)[0]

    def _take_first(self, rows: Rows, chosen: race.Booleans, places: Tensor, told: dict[str, Tensor]) -> None:
        if not len(rows):
            return
        ranks, shape = len(told["first_values"]), chosen.shape
        values = torch.full((ranks, chosen.size), -torch.inf)
        ids = torch.zeros(ranks, chosen.size, dtype=torch.int64)
        values[:, places], ids[:, places] = told["first_values"], told["first_ids"].to(torch.int64)
        values, ids = merged(values.view(ranks, *shape), ids.view(ranks, *shape), shape[1])
        ids.masked_fill_(values == -torch.inf, 0)
        for is_of, dtype in ((self._is_wide[rows], torch.float32), (~self._is_wide[rows], self._logits.dtype)):
            if is_of.any():
                here = torch.from_numpy(np.flatnonzero(is_of))
                of_batch = torch.from_numpy(rows[is_of])
                place, _ = self._sample(values[here].to(dtype), of_batch, False, {})
                self._token_ids[of_batch] = ids[here].gather(1, place.unsqueeze(1)).squeeze(1)

    def _take_races(
        self, name: str, rows: Rows, told: dict[str, Tensor], own: race.Floats, most: race.Floats, near: race.Floats
    ) -> Rows:
        """Notes the winners; returns the rows that are open."""
        temperature = self._batch.host.temperature[rows].astype(np.float64)
        with np.errstate(invalid="ignore"):
            log_scales = np.where(own == most, 0.0, (own - most) / temperature)
        found = race.decide(name, told, log_scales, near, self._borders)
        is_masked = most == -np.inf
        self._token_ids[torch.from_numpy(rows)] = torch.from_numpy(np.where(is_masked, 0, found.token_ids))
        still_open: Rows = rows[found.is_open & ~is_masked]
        return still_open

    def _whole_parts(self, rows: Rows) -> list[Part]:
        return [Part("whole", self._logits.dtype, len(rows) * self._columns)] if len(rows) else []

    def _whole_numbers(self, rows: Rows) -> dict[str, Tensor]:
        if not len(rows):
            return {}
        padded = self._logits.new_zeros(len(rows), self._columns)
        padded[:, : len(self._ids)] = self._logits[torch.from_numpy(rows), : len(self._ids)]
        return {"whole": padded}

    @property
    def _columns(self) -> int:
        borders = self._borders
        return max(end - first for first, end in zip(borders.firsts, borders.ends, strict=True))

    def _whole_of(self, rows: Rows, told: Tensor) -> Tensor:
        """Returns the logits of the whole vocabulary of rows, of what all ranks have told."""
        borders = self._borders
        parts = told.view(len(told), len(rows), self._columns)
        ends = [end - first for first, end in zip(borders.firsts, borders.ends, strict=True)]
        return torch.cat([part[:, :end] for part, end in zip(parts, ends, strict=True)], 1)

    def _draw_whole(self, whole: Tensor, rows: Rows, keep_ties: bool) -> None:
        there = torch.from_numpy(rows)
        edits = {name: each[..., there] if name in EDITS_OF_ROWS else each for name, each in self._edits.items()}
        self._token_ids[there], self._status[there] = self._sample(whole, there, keep_ties, edits)

    def _sample(
        self, logits: Tensor, of_batch: Tensor, keep_ties: bool, edits: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Draws as a step that is not split does, from rows of a batch."""
        parameters = self._parameters
        numbers = [getattr(parameters, name)[of_batch] for name in ("temperature", "top_k", "top_p", "min_p")]
        drawn: tuple[Tensor, Tensor] = torch.ops.ascend_sample.sample_rows(
            logits,
            None,
            *numbers,
            self._drawn_seeds[of_batch],
            parameters.position[of_batch],
            int(self._purpose),
            keep_ties,
            **edits,
        )
        return drawn
