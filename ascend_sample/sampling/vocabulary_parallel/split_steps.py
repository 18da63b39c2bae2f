"""The steps of a sampler that has a shard: what the ranks find together, as the step of whole rows returns it."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ascend_sample._errors import refuse
from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.drafts.places import DraftPlaces
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.edits.bitmask import Bitmask
from ascend_sample.sampling.edits.state_slots import refuse_states
from ascend_sample.sampling.step.logprobs import LogprobRows
from ascend_sample.sampling.step.output import SamplerOutput
from ascend_sample.sampling.step.whole_steps import WholeSteps
from ascend_sample.sampling.vocabulary_parallel.device_step import DeviceSteps
from ascend_sample.sampling.vocabulary_parallel.reported import in_order
from ascend_sample.sampling.vocabulary_parallel.shard import VocabularyShard
from ascend_sample.sampling.vocabulary_parallel.split_judging import Judged, Judging, SplitJudge
from ascend_sample.sampling.vocabulary_parallel.step import ShardedSteps


class SplitSteps:
    """The steps of one rank, wherever its logits are.

    Args:
        shard: what the rank has.
        whole: the steps of rows that are gathered.
    """

    def __init__(self, shard: VocabularyShard, whole: WholeSteps) -> None:
        self._shard = shard
        self._whole = whole
        self._on_cpu = ShardedSteps(shard, whole.keep_ties, whole.logprobs_mode)
        self._on_device = DeviceSteps(shard, whole)

    @property
    def open_rows(self) -> int:
        """Returns how many rows of all steps were gathered because what they draw was too near to another token."""
        return self._on_cpu.open_rows

    def draw(self, logits: Tensor, batch: SamplingBatch, allowed: Bitmask | None, purpose: Purpose) -> SamplerOutput:
        """Takes a step with the other ranks.

        Args:
            logits: floats [batch, width] of this rank.
            batch: the requests, the same on all ranks.
            allowed: a grammar's bitmask; None: all ids.
            purpose: of the noise.

        Returns:
            Ids, statuses and logprobs of all rows.

        Raises:
            ValueError: another rank has other requests.
            RuntimeError: another rank is gone.
        """
        _check_reports(batch)
        refuse_states(
            "Sampler", batch.host, "No rank has all that is kept: gather the logits, and leave the shard out."
        )
        _check_coins(batch)
        if not logits.is_cpu:
            return self._on_device.draw(logits, batch, allowed, purpose)
        drawn = self._on_cpu.draw(logits, batch, batch.native_edits(allowed), purpose)
        found = drawn.logprobs
        if drawn.whole is not None:
            asking = LogprobRows.of_batch(batch, self._whole.keep_ties, drawn.whole_rows)
            plan = self._whole.plan_of(drawn.whole, batch, allowed)._replace(logprobs=asking)
            gathered = self._whole.logprobs_of(drawn.whole, batch, allowed, drawn.output.token_ids, plan)
            assert gathered is not None, "rows ask"
            found.append(gathered)
        return SamplerOutput(*drawn.output, in_order(found) if found else None)

    def judge(
        self, logits: Tensor, places: DraftPlaces, allowed: Bitmask | None, draft_ids: Tensor, judging: Judging
    ) -> Judged:
        """Judges drafts that were drawn, with the other ranks.

        Args:
            logits: floats [places, width] of this rank, on a CPU.
            places: of the drafts, as chains; they are prepared.
            allowed: a grammar's bitmask; None: all ids.
            draft_ids: int64 [drafts].
            judging: by what; its dense proposals are of this rank's part.

        Raises:
            ValueError: another rank has other requests or drafts.
            RuntimeError: another rank is gone.
        """
        _check_coins(places)
        drawn = self._on_cpu.draw(logits, places, places.native_edits(allowed), Purpose.DRAW, judging.digest())
        edits = places.request_edits(allowed)
        judge = SplitJudge(self._shard, self._on_cpu.borders, logits, places, edits, draft_ids, judging)
        return judge.judged(drawn)


def _check_reports(batch: SamplingBatch) -> None:
    """Raises where a row asks for what is kept of it, or names ids: no rank has all of that."""
    for name, off in (("kept", False), ("logprob_ids", ())):
        asked = getattr(batch.host, name)
        if asked.any():
            row = int(asked.argmax())
            got = f"{getattr(batch.params[row], name)} in row {row}"
            remedy = "Gather the logits, and leave the sampler's shard out."
            refuse("Sampler", name, f"be {off} where a sampler has a part of the vocabulary", got, remedy)


def _check_coins(batch: SamplingBatch) -> None:
    """Raises where the ranks would throw different coins: each would have drawn its own seed for the row."""
    if not batch.host.xtc_probability.any():
        return
    for row in np.flatnonzero(batch.host.xtc_probability).tolist():
        if batch.params[row].seed is None:
            rule = "be given with xtc_probability where a sampler has a part of the vocabulary"
            refuse("Sampler", "seed", rule, f"None in row {row}", "Draw one, the same on all ranks.")
