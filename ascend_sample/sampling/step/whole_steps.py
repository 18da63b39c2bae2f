"""A step of a sampler that has whole rows: planned for a batch once, drawn, and reported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.draws.leftover import Leftover, RankedRows
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.draws.placed_noise import DrawKeys
from ascend_sample.sampling.edits.bitmask import Bitmask
from ascend_sample.sampling.edits.row_edits import edits_of_rows
from ascend_sample.sampling.rows.parameters import RowParameters, RowsOutput
from ascend_sample.sampling.step import routes
from ascend_sample.sampling.step.distribution import Distributions
from ascend_sample.sampling.step.draw_states import RememberingRows, StepOfBatch
from ascend_sample.sampling.step.kept import KeptOfStep, KeptRows
from ascend_sample.sampling.step.logprobs import (
    AskingRows,
    Logprobs,
    LogprobsMode,
    asking_of,
    gather_logprobs,
    logprobs_of_leftover,
    processed_logprobs,
)
from ascend_sample.sampling.step.output import SamplerOutput
from ascend_sample.sampling.step.serving import WHOLE, PlacedGroup, Placement, place_groups, serve


class StepPlan(NamedTuple):
    """What stays the same from step to step while the batch does.

    Attributes:
        placement: how the rows are served: first those whose logits are sampled from as they come.
        raw_groups: how many groups these are.
        asking: the rows that ask for logprobs; None where none does.
        logprobs_parameters: theirs.
        distributions: theirs, on a device whose operators find what is kept.
        kept: the rows that ask for kept sets; None where none does, and on the CPU none remembers its draws.
        states: the rows that remember their draws; None where none does.
    """

    placement: Placement
    raw_groups: int
    asking: AskingRows | None
    logprobs_parameters: RowParameters
    distributions: Distributions | None
    kept: KeptRows | None
    states: RememberingRows | None


class WholeSteps:
    """The steps of a sampler, whose docstring is the algorithm.

    Args:
        logprobs_mode, keep_ties, round_float32, max_kept: as for `Sampler`.
    """

    def __init__(self, logprobs_mode: LogprobsMode, keep_ties: bool, round_float32: bool, max_kept: int | None) -> None:
        self.logprobs_mode = logprobs_mode
        self.keep_ties = keep_ties
        self.round_float32 = round_float32
        self._max_kept = max_kept

    def take(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        allowed: Bitmask | None,
        purpose: Purpose,
        blocks: Iterable[slice] | None = None,
    ) -> SamplerOutput:
        """Takes a step, of which the batch is not told.

        Args:
            logits: floats [batch, vocab_size] on the device of the batch. They stay as they are.
            batch: the requests.
            allowed: a grammar's bitmask; None: all ids.
            purpose: of the noise.
            blocks: the rows that are there by and by; None: all are.
        """
        plan = self.plan_of(logits, batch, allowed)
        left = self.leftover_of(plan)
        kept = None
        if plan.kept is not None:
            kept = plan.kept.begun(plan.states.near(batch) if plan.states is not None and logits.is_cpu else None)
        left_kept = self._left_for_states(plan, batch, left)
        has_sets = kept is not None and len(kept.asked.asking.rows) > 0
        edited = None
        if not logits.is_cpu and (has_sets or self._reads_edited_again(plan, left, left_kept)):
            edited = batch.edited(logits, allowed)
        ranked = self._ranked_of(plan) if blocks is None and batch.has_native_edits_alone else None
        options = (logits, batch, allowed, plan, purpose, (WHOLE,) if blocks is None else blocks, left or left_kept)
        drawn = self.draw(*options, kept=kept, edited=edited, ranked=ranked)
        states = None
        if plan.states is not None:
            step = StepOfBatch(batch, logits if edited is None else edited, kept, left_kept, purpose)
            drawn, states = plan.states.after(drawn, step)
        logprobs = self.logprobs_of(logits, batch, allowed, drawn.token_ids, plan, ranked or left, edited)
        sets = None
        if kept is not None and has_sets:
            sets = kept.sets(logits if edited is None else edited, drawn.status)
        return SamplerOutput(*drawn, logprobs, sets, states)

    def draw(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        allowed: Bitmask | None,
        plan: StepPlan,
        purpose: Purpose,
        blocks: Iterable[slice] = (WHOLE,),
        left: Leftover | None = None,
        keys: DrawKeys | None = None,
        kept: KeptOfStep | None = None,
        edited: Tensor | None = None,
        ranked: RankedRows | None = None,
    ) -> RowsOutput:
        """Draws the tokens of all rows: those of the CPU kernel from logits as they are, which it edits as it reads.

        ``keys`` are what the noise of a device is a function of, where that is not what the batch has; ``kept`` is
        where the CPU kernel leaves what it draws from, and ``ranked`` what it reports of the tokens. ``edited`` are the
        logits of a device after edits, which stay as they are; None: they are made here, and overwritten.
        """
        options = (plan.placement, batch.position if logits.is_cpu else None, self.keep_ties, purpose)
        if plan.placement.is_native:
            edits: dict[str, Tensor] = {}
            if batch.has_native_edits_alone:
                edits = batch.native_edits(allowed)
            elif (after_edits := batch.edited(logits, allowed)) is not None:
                logits = after_edits
            return serve([logits], *options, native_edits=edits, blocks=blocks, kept=kept, ranked=ranked)
        groups = plan.placement.groups
        is_read_again = edited is not None
        if edited is None:
            edited = batch.edited(logits, allowed, groups[0].columns if len(groups) == 1 else batch.vocab_size)
        sources = [logits if edited is None or place < plan.raw_groups else edited for place in range(len(groups))]
        keys = DrawKeys(batch.host.seed, batch.host.position) if keys is None else keys
        return serve(sources, *options, keys, edited, left=left, is_read_again=is_read_again)

    def plan_of(self, logits: Tensor, batch: SamplingBatch, allowed: Bitmask | None) -> StepPlan:
        """Returns the plan for the batch as it is, made once for as long as it stays so."""
        options = (logits.dtype, self.keep_ties, self.round_float32, self._max_kept)
        if allowed is not None and not logits.is_cpu:
            return self._plan_for(options, logits, batch, batch.host.is_processed | allowed.is_for(len(batch)))
        # Which rows a bitmask is for does not matter here, and which are edited otherwise changes with the batch alone.
        key = (*options, allowed is None)
        found: StepPlan | None = batch.plans.get(key)
        if found is None:
            is_edited = batch.host.is_processed | (allowed is not None)
            found = batch.plans[key] = self._plan_for(options, logits, batch, is_edited)
        return found

    def _plan_for(
        self, options: tuple[object, ...], logits: Tensor, batch: SamplingBatch, is_edited: routes.Booleans
    ) -> StepPlan:
        """Returns the plan for rows of which these are edited."""
        if is_edited.any() and routes.are_served_alike_in_float32(logits.device, logits.dtype):
            is_edited = np.ones_like(is_edited)  # one call of an operator costs a device less than two
        key = (*options, is_edited.tobytes())
        if key not in batch.plans:
            batch.plans[key] = self._make_plan(logits, batch, is_edited)
        plan: StepPlan = batch.plans[key]
        return plan

    def _make_plan(self, logits: Tensor, batch: SamplingBatch, is_edited: routes.Booleans) -> StepPlan:
        parameters = batch.row_parameters()
        options = (self.keep_ties, self.round_float32)
        in_float32 = logits.new_empty((), dtype=torch.float32).expand(logits.shape)
        raw_rows, edited_rows = np.flatnonzero(~is_edited), np.flatnonzero(is_edited)
        raw_groups: Sequence[PlacedGroup] = ()
        groups: Sequence[PlacedGroup] = ()
        if len(raw_rows) > 0:
            raw_groups = place_groups(parameters, logits, *options, rows=raw_rows)
        if len(edited_rows) > 0:
            groups = place_groups(parameters, in_float32, *options, rows=edited_rows)
        rows = np.flatnonzero(batch.host.logprobs >= 0)
        asking, asked, distributions = None, parameters, None
        if len(rows):
            asking, asked = asking_of(batch, rows)
            if batch.device.type != "cpu" and not self.keep_ties:
                distributions = Distributions(asked, batch.vocab_size)
        is_remembering = batch.host.is_remembering
        needs_kept = batch.host.kept | (is_remembering if logits.is_cpu else 0)
        return StepPlan(
            Placement.of([*raw_groups, *groups], in_float32 if len(edited_rows) > 0 else logits),
            len(raw_groups),
            asking,
            asked,
            distributions,
            KeptRows.of_batch(batch, *options, self._max_kept) if needs_kept.any() else None,
            RememberingRows(batch, self.keep_ties) if is_remembering.any() else None,
        )

    def leftover_of(self, plan: StepPlan) -> Leftover | None:
        """Returns what the draw is to leave for the logprobs: all rows ask, and one call draws from what they need."""
        mode, is_raw = self.logprobs_mode, plan.raw_groups > 0
        if plan.distributions is None or plan.asking is None or plan.asking.there is not None:
            return None
        if not plan.placement.can_leave or mode is LogprobsMode.RAW_LOGITS:
            return None
        if not is_raw and not mode.is_processed:  # what is reported is not what is drawn from
            return None
        return Leftover(plan.asking.at_least_one, plan.asking.lanes, mode.is_processed)

    def _ranked_of(self, plan: StepPlan) -> RankedRows | None:
        """Returns what the CPU kernel is to rank as it draws: rows whose tokens nothing changes then."""
        asking, mode = plan.asking, self.logprobs_mode
        if asking is None or asking.named is not None or plan.kept is not None or not plan.placement.is_native:
            return None
        return RankedRows(asking.there, asking.most, mode.is_normalised, mode.is_processed)

    def _left_for_states(self, plan: StepPlan, batch: SamplingBatch, left: Leftover | None) -> Leftover | None:
        """Returns where the draw leaves what its filters keep for rows that remember; None: they look for it again."""
        if plan.states is None or not plan.placement.leaves_kept:
            return None
        if left is None:
            return Leftover(0, None, is_filtered=True, weighing=plan.states.weighing(batch))
        return left if left.is_filtered else None

    def logprobs_of(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        allowed: Bitmask | None,
        token_ids: Tensor,
        plan: StepPlan,
        left: Leftover | RankedRows | None = None,
        edited: Tensor | None = None,
    ) -> Logprobs | None:
        """Returns the logprobs of the rows that ask for them, before the batch advances.

        ``edited`` are the logits of a device after edits; None: they are made where they are needed.
        """
        asking = plan.asking
        if asking is None:
            return None
        if isinstance(left, RankedRows):
            return Logprobs(asking.rows, left.token_ids, left.values, left.ranks)
        if left is not None:
            assert plan.distributions is not None, "a device has them"
            return logprobs_of_leftover(asking, logits, self.logprobs_mode, token_ids, left, plan.distributions.divisor)
        if not self.logprobs_mode.is_processed:
            return gather_logprobs(asking, logits, self.logprobs_mode, token_ids)
        edits: dict[str, Tensor] = {}
        if logits.is_cpu and batch.has_native_edits_alone:
            edits = batch.native_edits(allowed)
            edits = edits if asking.there is None else edits_of_rows(edits, asking.there)
        elif edited is None:
            edited = batch.edited(logits, allowed)
        return processed_logprobs(
            asking,
            asking.of_batch(logits if edited is None else edited),
            self.logprobs_mode,
            asking.of_batch(token_ids),
            plan.logprobs_parameters,
            plan.distributions,
            self.keep_ties,
            edits,
        )

    def _reads_edited_again(self, plan: StepPlan, left: Leftover | None, left_kept: Leftover | None) -> bool:
        """Tells whether logprobs or states of a device are made of edited logits: its draw is not to overwrite them."""
        is_reported = plan.asking is not None and left is None and self.logprobs_mode.is_processed
        return is_reported or (plan.states is not None and left_kept is None)
