"""A step of ranks whose parts of the logits are on devices: two collectives at most, and no host waits for one.

1. The ranks tell each other the first k of their parts for greedy rows and rows with top-k, the maxima and the pieces
   of segments for rows without one, and the logits of all other rows.
2. For rows without top-k, the best of the segments that each has as a whole, weighed by the maxima of whole rows.

Every rank decides from the same bytes with the routes of a step that is not split. What the ranks have to agree on they
compare when the batch changes, and then they wait for it.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.draws.placed_noise import DrawKeys
from ascend_sample.sampling.draws.weights import StatusConstants, status_of
from ascend_sample.sampling.edits.bitmask import Bitmask
from ascend_sample.sampling.rows.table import to_device
from ascend_sample.sampling.step import routes
from ascend_sample.sampling.step.logprobs import Logprobs
from ascend_sample.sampling.step.output import SamplerOutput
from ascend_sample.sampling.step.whole_steps import WholeSteps
from ascend_sample.sampling.vocabulary_parallel.agreement import (
    Agreement,
    check_digests,
    digest_of_requests,
    digests_of,
)
from ascend_sample.sampling.vocabulary_parallel.device_rows import CandidateRows, OwnPart, SegmentRows
from ascend_sample.sampling.vocabulary_parallel.kinds import Kind, kinds_of
from ascend_sample.sampling.vocabulary_parallel.messages import Part, tell
from ascend_sample.sampling.vocabulary_parallel.shard import Borders, VocabularyShard


class DevicePlan:
    """What stays the same while a batch does: how each of its rows is decided.

    Args:
        batch: the requests.
        logits: of the rank; their dtype and device count.
        is_edited: of each row, whether it is sampled from as float32, edited or not.
        steps: whose options count.
        borders: of the ranks.

    Attributes:
        candidates, segments: the rows that are decided so.
        gathered: the other rows.
        gathered_there: the same on the device; None: all rows.
        order: int64 [batch], where the rows of the batch are when all kinds follow one another.
    """

    def __init__(
        self, batch: SamplingBatch, logits: Tensor, is_edited: routes.Booleans, steps: WholeSteps, borders: Borders
    ) -> None:
        of_row = kinds_of(batch, steps.keep_ties)
        is_gathered = np.isin(of_row, (Kind.CUT, Kind.WHOLE)) | (batch.host.logprobs >= 0)
        parameters, count, ranks = batch.row_parameters(), len(batch), len(borders.ends)
        self.candidates: list[CandidateRows] = []
        self.segments: list[SegmentRows] = []
        for is_wide in (False, True):
            like = logits.new_empty((), dtype=torch.float32) if is_wide else logits.new_empty(())
            are_of = (is_edited == is_wide) & ~is_gathered
            for kind in (Kind.BEST, Kind.FIRST):
                rows = np.flatnonzero((of_row == kind) & are_of)
                if len(rows):
                    most = 1 if kind is Kind.BEST else int(batch.host.top_k[rows].max())
                    options = (rows, count, parameters, like, most, ranks)
                    self.candidates.append(CandidateRows(f"{kind.name} {is_wide}", *options))
            rows = np.flatnonzero(np.isin(of_row, (Kind.RACE, Kind.LATE_RACE)) & are_of)
            if len(rows):
                self.segments.append(SegmentRows(f"segments {is_wide}", rows, count, parameters, like, borders))
        self.gathered = np.flatnonzero(is_gathered)
        self.gathered_there = None if is_gathered.all() else to_device(self.gathered, logits.device)
        in_turn = [kind.rows for kind in (*self.candidates, *self.segments)]
        self.order = to_device(np.argsort(np.concatenate([*in_turn, self.gathered])), logits.device)
        self.constants = {
            kind.dtype: StatusConstants.like(logits.new_empty((), dtype=kind.dtype))
            for kind in (*self.candidates, *self.segments)
        }


class DeviceSteps:
    """The steps of one rank whose logits are on a device.

    Args:
        shard: what the rank has.
        whole: the steps of rows that are gathered.
    """

    def __init__(self, shard: VocabularyShard, whole: WholeSteps) -> None:
        self._shard = shard
        self._whole = whole
        self._borders: Borders | None = None
        self._seeds: WeakKeyDictionary[SamplingBatch, Agreement] = WeakKeyDictionary()
        self._room: Tensor | None = None

    def draw(self, logits: Tensor, batch: SamplingBatch, allowed: Bitmask | None, purpose: Purpose) -> SamplerOutput:
        """Does what `SplitSteps.draw` does."""
        if self._borders is None:
            self._borders = self._shard.find_borders(logits.device)
        is_edited = batch.host.is_processed | (np.False_ if allowed is None else allowed.is_for(len(batch)))
        if is_edited.any() and routes.are_served_alike_in_float32(logits.device, logits.dtype):
            is_edited = np.ones_like(is_edited)
        # Its own: of another sampler's plan these ranks may have agreed on nothing.
        key = (self, logits.dtype, self._whole.keep_ties, is_edited.tobytes())
        if key not in batch.plans:
            self._agree(batch, logits, purpose)
            batch.plans[key] = DevicePlan(batch, logits, is_edited, self._whole, self._borders)
        plan: DevicePlan = batch.plans[key]
        keys = DrawKeys(self._seeds[batch].split(batch)[0], batch.host.position)

        is_edited[plan.gathered] = False  # each rank edits them as a whole
        own = self._own_parts(logits, batch, allowed, is_edited)
        kinds: tuple[CandidateRows | SegmentRows, ...] = (*plan.candidates, *plan.segments)
        parts = [part for kind in kinds for part in kind.told(own[kind.dtype])]
        if len(plan.gathered):
            whole = logits[:, : len(self._shard.ids)]
            whole = whole if plan.gathered_there is None else whole.index_select(0, plan.gathered_there)
            parts.append(Part("whole", logits.dtype, self._borders.padded(whole)))
        told = tell(self._shard.exchange, parts, logits.device)
        drawn = [kind.draw(told, keys, purpose) for kind in plan.candidates]
        if plan.segments:
            parts = [part for kind in plan.segments for part in kind.race(told, own[kind.dtype], keys, purpose)]
            raced = tell(self._shard.exchange, parts, logits.device)
            drawn += [kind.draw(told, raced) for kind in plan.segments]
        status = [
            status_of(told[f"{kind.name}_largest"].amax(0).unsqueeze(1), plan.constants[kind.dtype]) for kind in kinds
        ]
        logprobs = None
        if len(plan.gathered):
            whole = self._borders.joined(told["whole"].view(-1, len(plan.gathered), self._borders.most_ids))
            ids, statuses, logprobs = self._of_whole(whole, batch, allowed, plan, keys, purpose)
            drawn.append(ids)
            status.append(statuses)
        token_ids, statuses = (torch.cat(of_kinds).index_select(0, plan.order) for of_kinds in (drawn, status))
        return SamplerOutput(token_ids, statuses, logprobs)

    def _agree(self, batch: SamplingBatch, logits: Tensor, purpose: Purpose) -> None:
        """Compares the requests of all ranks, if nobody has, and takes the first rank's seeds for those without."""
        agreed = self._seeds.setdefault(batch, Agreement())
        steps = self._whole
        key = (logits.dtype, steps.keep_ties)
        if agreed.compared(batch, key) is not None:
            return
        _, unknown = agreed.split(batch)
        is_seeded = np.array([params.seed is not None for params in batch.params])
        options = f"{steps.keep_ties} {int(purpose)} {logits.dtype} {batch.vocab_size} {steps.logprobs_mode.value}"
        requests = digest_of_requests(batch, {})
        exchange, digests = self._shard.exchange, digests_of(batch, options, is_seeded, requests, {})
        # Messages of other requests have other lengths: they are compared before.
        check_digests(exchange.all_gather(digests.to(logits.device)).cpu(), exchange.rank)
        seeds = Part("seeds", torch.int64, torch.from_numpy(batch.host.seed.copy()))
        of_first = tell(exchange, [seeds], logits.device)["seeds"][0].cpu().numpy()
        agreed.agree(batch, unknown, of_first[unknown])
        agreed.note(batch, key, requests)

    def _own_parts(
        self, logits: Tensor, batch: SamplingBatch, allowed: Bitmask | None, is_edited: routes.Booleans
    ) -> dict[torch.dtype, OwnPart]:
        """Returns this rank's part as it is, and, where rows are edited, the edited one."""
        ids, rank = self._shard.ids, self._shard.exchange.rank

        def part(tensor: Tensor) -> OwnPart:
            if not len(ids):
                tensor = tensor.new_full((len(batch), 1), -torch.inf)
            return OwnPart(rank, ids, tensor)

        parts = {logits.dtype: part(logits[:, : len(ids)])}
        if is_edited.any():
            # Edits are those of whole rows, of which all but the part means nothing.
            shape, room = (len(batch), batch.vocab_size), self._room
            if room is None or (room.shape, room.dtype, room.device) != (shape, logits.dtype, logits.device):
                room = self._room = logits.new_zeros(shape)
            room[:, ids.start : ids.stop] = logits[:, : len(ids)]
            edited = batch.edited(room, allowed, has_ranges=False)
            assert edited is not None, "rows are edited"
            parts[torch.float32] = part(edited[:, ids.start : ids.stop])
        return parts

    def _of_whole(
        self,
        whole: Tensor,
        batch: SamplingBatch,
        allowed: Bitmask | None,
        plan: DevicePlan,
        keys: DrawKeys,
        purpose: Purpose,
    ) -> tuple[Tensor, Tensor, Logprobs | None]:
        """Takes a step that is not split of the gathered rows: others are there too, and mean nothing."""
        there = plan.gathered_there
        if there is not None:
            whole = whole.new_zeros(len(batch), batch.vocab_size).index_copy_(0, there, whole)
        of_batch = self._whole.plan_of(whole, batch, allowed)
        drawn = self._whole.draw(whole, batch, allowed, of_batch, purpose, keys)
        logprobs = self._whole.logprobs_of(whole, batch, allowed, drawn.token_ids, of_batch)
        if there is None:
            return drawn.token_ids, drawn.status, logprobs
        return drawn.token_ids.index_select(0, there), drawn.status.index_select(0, there), logprobs
