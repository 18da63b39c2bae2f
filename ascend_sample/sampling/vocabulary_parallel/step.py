"""Steps of ranks that each have a part of the vocabulary: the ordinary step, of rows that three verbs reduce.

1. `candidates`: the ranks exchange the first k logits of their parts, for greedy rows and rows with top-k up to 1024.
2. `segments`: they exchange the winners of their segments, for rows without a filter and with min-p alone.
3. `gather`: they exchange the logits, for all other rows, and each takes the ordinary step of whole rows.

A step has one collective, or two where rows race by segments. Every rank decides from the same bytes by the code of the
ordinary step. Nothing here waits for a device, but for the requests of a batch that has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.edits.bitmask import Bitmask
from ascend_sample.sampling.rows.parameters import is_limited
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.rows.table import to_device
from ascend_sample.sampling.step import routes
from ascend_sample.sampling.step.output import SamplerOutput
from ascend_sample.sampling.step.whole_steps import WholeSteps
from ascend_sample.sampling.vocabulary_parallel.agreement import RankConsistency
from ascend_sample.sampling.vocabulary_parallel.candidates import CandidateRows
from ascend_sample.sampling.vocabulary_parallel.exchange import Field, gather_fields
from ascend_sample.sampling.vocabulary_parallel.rows_of_verb import OwnPart, Rows, RowsOfVerb
from ascend_sample.sampling.vocabulary_parallel.segments import SegmentRows
from ascend_sample.sampling.vocabulary_parallel.shard import Borders, VocabularyShard, gather_rows

SEGMENTS: Final = 0
GATHER: Final = -1
CANDIDATES: Final = ((1, 1), (2, routes.CANDIDATE_COUNTS[0]), (routes.CANDIDATE_COUNTS[0] + 1, routes.LARGEST_FUSED_K))
"""Rows of each range of k exchange as many candidates as the largest k among them."""


def verbs_of(batch: SamplingBatch, keep_ties: bool) -> Rows:
    """Chooses the verb of each row: the number of its candidates, `SEGMENTS`, or `GATHER`; int64 [batch].

    Example:
        >>> from ascend_sample.sampling import SamplingParams
        >>> batch = SamplingBatch(vocab_size=4)
        >>> batch.extend([SamplingParams(**{name: 0.5}) for name in ("temperature", "min_p", "top_p")])
        range(0, 3)
        >>> batch.extend([SamplingParams(temperature=0), SamplingParams(top_k=2), SamplingParams(logprobs=1)])
        range(3, 6)
        >>> verbs_of(batch, keep_ties=False)
        array([ 0,  0, -1,  1,  2, -1])
    """
    host = batch.host
    is_ranked = is_limited(host.top_k, batch.vocab_size)
    is_greedy = (host.temperature == 0) | (is_ranked & (host.top_k == 1))
    verbs = np.where(is_ranked | (host.top_p < 1), GATHER, SEGMENTS)
    if not keep_ties:
        verbs = np.where(is_ranked & (host.top_k <= routes.LARGEST_FUSED_K), host.top_k, verbs)
    verbs = np.where(is_greedy, 1, verbs)
    needs_whole = (host.logprobs >= 0) | (host.return_sampling_mask != 0) | (host.is_ranged != 0) | host.is_remembering
    return np.where(needs_whole, GATHER, verbs).astype(np.int64)


class SplitPlan:
    """Rows of a batch by their verbs, for as long as the batch stays as it is.

    Args:
        batch: The requests.
        logits: Those of the rank; their dtype and device count.
        is_wide: bool [batch], the rows that are sampled from as float32.
        whole: Steps of rows that are gathered.
        borders: Parts of the ranks.
        rank: Rank of the caller.

    Attributes:
        candidates, segments: The rows of these verbs.
        gathered: The other rows, ascending.
        is_edited: Whether a row of these verbs is sampled from as float32.
        order: int64 [batch], the indices of the batch's rows among those of all verbs in turn; None: all are gathered.
    """

    def __init__(
        self,
        batch: SamplingBatch,
        logits: Tensor,
        is_wide: routes.Booleans,
        whole: WholeSteps,
        borders: Borders,
        rank: int,
    ) -> None:
        verbs = verbs_of(batch, whole.keep_ties)
        self.candidates: list[CandidateRows] = []
        self.segments: list[SegmentRows] = []
        for dtype, is_of in ((logits.dtype, ~is_wide), (torch.float32, is_wide)):
            like = logits.new_empty((), dtype=dtype)
            for least, most in CANDIDATES:
                rows = np.flatnonzero((verbs >= least) & (verbs <= most) & is_of)
                if len(rows):
                    of = RowsOfVerb(f"candidates {len(self.candidates)}", rows, batch, like)
                    options = (int(verbs[rows].max()), len(borders.ends))
                    self.candidates.append(CandidateRows(of, like, *options))
            rows = np.flatnonzero((verbs == SEGMENTS) & is_of)
            if len(rows):
                of = RowsOfVerb(f"segments {len(self.segments)}", rows, batch, like)
                self.segments.append(SegmentRows(of, borders, rank))
        self.gathered = RowSet.of(np.flatnonzero(verbs == GATHER), len(batch), logits.device)
        self.is_edited = bool((is_wide & (verbs != GATHER)).any())
        self.order: Tensor | None = None
        if len(self.gathered) < len(batch):
            in_turn = [*(verb.of.rows.host for verb in self.reduced), self.gathered.host]
            self.order = to_device(np.argsort(np.concatenate(in_turn)), logits.device)

    @property
    def reduced(self) -> list[CandidateRows | SegmentRows]:
        """Returns the rows that are not gathered, in the order in which they are drawn."""
        return [*self.candidates, *self.segments]

    def of_gathered(self, tensor: Tensor) -> Tensor:
        """Returns the gathered rows of a tensor of the batch."""
        return self.gathered.take(tensor)

    def in_batch(self, gathered: Tensor) -> Tensor:
        """Returns the logits of a whole batch, [batch, vocab_size], of which the rows of other verbs are not used."""
        if self.order is None:
            return gathered
        return self.gathered.put(gathered, gathered.new_full((len(self.order), gathered.shape[1]), -torch.inf))


class SplitSteps:
    """Steps of one rank.

    Args:
        shard: Part of the rank.
        whole: Steps of rows that are gathered.
    """

    def __init__(self, shard: VocabularyShard, whole: WholeSteps) -> None:
        self._shard, self._whole = shard, whole
        self._consistency = RankConsistency(shard.exchange, f"{whole.keep_ties} {whole.logprobs_mode.value}")
        self._borders: Borders | None = None
        self._room: Tensor | None = None

    def agree(self, batch: SamplingBatch, logits: Tensor) -> None:
        """Compares the requests of all ranks if the batch has changed: see `RankConsistency.agree`."""
        self._borders_on(logits.device)
        self._consistency.agree(batch, logits)

    def draw(self, logits: Tensor, batch: SamplingBatch, allowed: Bitmask | None, purpose: Purpose) -> SamplerOutput:
        """Takes a step with the other ranks.

        Args:
            logits: floats [batch, width] of this rank.
            batch: The requests, or the places of their drafts, the same on all ranks.
            allowed: A grammar's bitmask; None: all ids.
            purpose: Purpose of the noise.

        Returns:
            The output of the ordinary step of whole rows.

        Raises:
            ValueError: Another rank has other requests.
            RuntimeError: Another rank is gone.
        """
        self.agree(batch, logits)
        is_wide = batch.host.is_processed | (np.False_ if allowed is None else allowed.is_for(len(batch)))
        if is_wide.any() and routes.are_served_alike_in_float32(logits.device, logits.dtype):
            is_wide = np.ones_like(is_wide)
        plan = self._plan_of(batch, logits, is_wide)
        own = self._own_parts(logits, batch, allowed, plan)
        fields = [field for verb in plan.reduced for field in verb.fields(own[verb.of.dtype])]
        borders = self._borders_on(logits.device)
        if len(plan.gathered):
            part = plan.of_gathered(logits[:, : len(self._shard.ids)])
            fields.append(Field("logits", logits.dtype, borders.padded(part)))
        if logits.is_cpu:
            fields.append(Field("digests", torch.uint8, self._consistency.digests(batch, logits, allowed, purpose)))
        found = gather_fields(self._shard.exchange, fields, logits.device)
        if logits.is_cpu:
            self._consistency.check(found["digests"])
        drawn = [verb.draw(found, batch, purpose) for verb in plan.candidates]
        if plan.segments:
            fields = [field for verb in plan.segments for field in verb.race(found, own[verb.of.dtype], batch, purpose)]
            raced = gather_fields(self._shard.exchange, fields, logits.device)
            drawn += [verb.draw(raced) for verb in plan.segments]
        status = [verb.of.status(found) for verb in plan.reduced]
        output = None
        if len(plan.gathered):
            whole = plan.in_batch(borders.joined(found["logits"].view(-1, len(plan.gathered), borders.most_ids)))
            output = self._whole.take(whole, batch, allowed, purpose)
            if plan.order is None:
                return output
            drawn.append(plan.of_gathered(output.token_ids))
            status.append(plan.of_gathered(output.status))
        assert plan.order is not None, "rows of several verbs are put in order"
        token_ids, statuses = (torch.cat(of_verbs).index_select(0, plan.order) for of_verbs in (drawn, status))
        if output is None:
            return SamplerOutput(token_ids, statuses, None)
        return output._replace(token_ids=token_ids, status=statuses)

    def gather_rows(self, batch: SamplingBatch, same: Sequence[object], *parts: Tensor) -> list[Tensor]:
        """Gathers rows of the whole vocabulary for the verification of drafts that were sampled.

        Args:
            batch: The requests, on which the ranks agree.
            same: Arguments that have to be the same on all ranks, which they compare on a CPU: a device would have to
                be waited for.
            parts: Tensors [rows, width] of this rank.

        Returns:
            Tensors [rows, vocab_size].

        Raises:
            ValueError: Another rank has other arguments.
            RuntimeError: Another rank is gone.
        """
        logits = parts[0]
        if logits.is_cpu:
            given = [each.numpy().tobytes() if isinstance(each, Tensor) else str(each).encode() for each in same]
            digests = self._consistency.digests(batch, logits, drafts=b" ".join(given))
            self._consistency.compare(digests, logits.device)
        return gather_rows(self._shard, self._borders_on(logits.device), *parts)

    def _borders_on(self, device: torch.device) -> Borders:
        if self._borders is None:
            self._borders = self._shard.find_borders(device)
        return self._borders

    def _plan_of(self, batch: SamplingBatch, logits: Tensor, is_wide: routes.Booleans) -> SplitPlan:
        # Its own: of another sampler's plan these ranks may have agreed on nothing.
        key = (self, logits.dtype, is_wide.tobytes())
        borders, rank = self._borders_on(logits.device), self._shard.exchange.rank
        return batch.plans.of(SplitPlan, key, lambda: SplitPlan(batch, logits, is_wide, self._whole, borders, rank))

    def _own_parts(
        self, logits: Tensor, batch: SamplingBatch, allowed: Bitmask | None, plan: SplitPlan
    ) -> dict[torch.dtype, OwnPart]:
        """Returns this rank's part as it is, and, where rows are edited, the edited one."""
        ids = self._shard.ids

        def part(tensor: Tensor) -> OwnPart:
            return OwnPart(ids, tensor if len(ids) else tensor.new_full((len(batch), 1), -torch.inf))

        parts = {logits.dtype: part(logits[:, : len(ids)])}
        if plan.is_edited:
            # Edits are those of whole rows, of which all but the part means nothing.
            shape, room = (len(batch), batch.vocab_size), self._room
            if room is None or (room.shape, room.dtype, room.device) != (shape, logits.dtype, logits.device):
                room = self._room = logits.new_zeros(shape)
            room[:, ids.start : ids.stop] = logits[:, : len(ids)]
            edited = batch.edited(room, allowed, has_ranges=False)
            assert edited is not None, "rows are edited"
            parts[torch.float32] = part(edited[:, ids.start : ids.stop])
        return parts
