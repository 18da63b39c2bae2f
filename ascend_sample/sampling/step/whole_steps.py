"""A step of a sampler that has whole rows: planned for a batch once, drawn, and reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.draws.placed_noise import DrawKeys
from ascend_sample.sampling.edits.bitmask import Bitmask
from ascend_sample.sampling.step import routes
from ascend_sample.sampling.step.draw_states import StatefulRows
from ascend_sample.sampling.step.kept import KeptRows
from ascend_sample.sampling.step.logprobs import (
    LogprobRows,
    Logprobs,
    LogprobsMode,
    gather_logprobs,
    processed_logprobs,
)
from ascend_sample.sampling.step.output import SamplerOutput
from ascend_sample.sampling.step.serving import Drawn, PlacedGroup, Placement, draw_on_cpu, draw_on_device, place_groups


class StepPlan(NamedTuple):
    """What stays the same from step to step while the batch does.

    Attributes:
        placement: how the rows are served: first those whose logits are sampled from as they come.
        raw_groups: how many groups these are.
        logprobs: the rows that ask for logprobs; None where none does.
        kept: the rows that ask for kept sets; None where none does.
        states: the rows that remember their draws; None where none does.
        wanted: what the CPU kernel returns besides tokens: arguments of its operator.
        is_kept_wanted: a device's draw returns what its filters keep, for states.
        is_read_again: a device's draw does not overwrite edited logits, of which something else is reported.
    """

    placement: Placement
    raw_groups: int
    logprobs: LogprobRows | None
    kept: KeptRows | None
    states: StatefulRows | None
    wanted: Mapping[str, Any]
    is_kept_wanted: bool
    is_read_again: bool


class WholeSteps:
    """The steps of a sampler, whose docstring is the algorithm.

    Args:
        logprobs_mode, keep_ties, max_kept: as for `Sampler`.
    """

    def __init__(self, logprobs_mode: LogprobsMode, keep_ties: bool, max_kept: int | None) -> None:
        self.logprobs_mode = logprobs_mode
        self.keep_ties = keep_ties
        self._max_kept = max_kept

    def take(self, logits: Tensor, batch: SamplingBatch, allowed: Bitmask | None, purpose: Purpose) -> SamplerOutput:
        """Takes a step, of which the batch is not told.

        Args:
            logits: floats [batch, vocab_size] on the device of the batch. They stay as they are.
            batch: the requests.
            allowed: a grammar's bitmask; None: all ids.
            purpose: of the noise.
        """
        plan = self.plan_of(logits, batch, allowed)
        drawn = self.draw(logits, batch, allowed, plan, purpose)
        states = None
        if plan.states is not None:
            drawn, states = plan.states.after(drawn, batch, purpose)
        logprobs = None
        if plan.logprobs is not None and drawn.logprobs:
            logprobs = plan.logprobs.report(drawn.logprobs)
        elif plan.logprobs is not None:
            edited = None if logits.is_cpu else drawn.logits
            logprobs = self.logprobs_of(logits, batch, allowed, drawn.token_ids, plan, edited)
        sets = None if plan.kept is None else plan.kept.sets(drawn)
        return SamplerOutput(drawn.token_ids, drawn.status, logprobs, sets, states)

    def draw(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        allowed: Bitmask | None,
        plan: StepPlan,
        purpose: Purpose,
        keys: DrawKeys | None = None,
    ) -> Drawn:
        """Draws the tokens of all rows: those of the CPU kernel from logits as they are, which it edits as it reads.

        ``keys`` are what the noise of a device is a function of, where that is not what the batch has.
        """
        placement = plan.placement
        if placement.is_native:
            edits = batch.native_edits(allowed)
            return draw_on_cpu(logits, placement, batch.position, self.keep_ties, purpose, edits, plan.wanted)
        groups = placement.groups
        columns = groups[0].columns if len(groups) == 1 and not plan.is_read_again else batch.vocab_size
        edited = batch.edited(logits, allowed, columns)
        sources = [logits if edited is None or place < plan.raw_groups else edited for place in range(len(groups))]
        keys = DrawKeys(batch.host.seed, batch.host.position) if keys is None else keys
        return draw_on_device(
            sources,
            placement,
            batch.position if logits.is_cpu else None,
            purpose,
            keys,
            edited,
            is_read_again=plan.is_read_again,
            is_kept_wanted=plan.is_kept_wanted,
        )

    def plan_of(self, logits: Tensor, batch: SamplingBatch, allowed: Bitmask | None) -> StepPlan:
        """Returns the plan for the batch as it is, made once for as long as it stays so."""
        options = (logits.dtype, self.keep_ties, self._max_kept, self.logprobs_mode)
        if allowed is not None and not logits.is_cpu:
            return self._plan_for(options, logits, batch, batch.host.is_processed | allowed.is_for(len(batch)))
        # Which rows a bitmask is for does not matter here, and which are edited otherwise changes with the batch alone.
        is_masked = allowed is not None
        return batch.plans.of(
            StepPlan,
            (*options, is_masked),
            lambda: self._plan_for(options, logits, batch, batch.host.is_processed | is_masked),
        )

    def _plan_for(
        self, options: tuple[object, ...], logits: Tensor, batch: SamplingBatch, is_edited: routes.Booleans
    ) -> StepPlan:
        """Returns the plan for rows of which these are edited."""
        if is_edited.any() and routes.are_served_alike_in_float32(logits.device, logits.dtype):
            is_edited = np.ones_like(is_edited)  # one call of an operator costs a device less than two
        key = (*options, is_edited.tobytes())
        return batch.plans.of(StepPlan, key, lambda: self._make_plan(logits, batch, is_edited))

    def _make_plan(self, logits: Tensor, batch: SamplingBatch, is_edited: routes.Booleans) -> StepPlan:
        parameters = batch.row_parameters()
        in_float32 = logits.new_empty((), dtype=torch.float32).expand(logits.shape)
        raw_rows, edited_rows = np.flatnonzero(~is_edited), np.flatnonzero(is_edited)
        raw_groups: Sequence[PlacedGroup] = ()
        groups: Sequence[PlacedGroup] = ()
        if len(raw_rows) > 0:
            raw_groups = place_groups(parameters, logits, self.keep_ties, rows=raw_rows)
        if len(edited_rows) > 0:
            groups = place_groups(parameters, in_float32, self.keep_ties, rows=edited_rows)
        placement = Placement.of([*raw_groups, *groups], in_float32 if len(edited_rows) > 0 else logits)
        logprobs = LogprobRows.of_batch(batch, self.keep_ties)
        kept = KeptRows.of_batch(batch, self.keep_ties, self._max_kept)
        states = StatefulRows(batch, self.keep_ties) if batch.host.is_remembering.any() else None
        wanted: dict[str, Any] = {}
        if kept is not None or states is not None:
            wanted["is_kept_wanted"] = torch.from_numpy(
                (batch.host.return_sampling_mask != 0) | batch.host.is_remembering
            )
        if logprobs is not None and (states is None or not states.are_redrawn):
            wanted |= logprobs.native(self.logprobs_mode)
        is_kept_wanted = states is not None and placement.returns_kept
        is_reported = logprobs is not None and self.logprobs_mode.is_processed
        is_read_again = is_reported or kept is not None or (states is not None and not is_kept_wanted)
        return StepPlan(placement, len(raw_groups), logprobs, kept, states, wanted, is_kept_wanted, is_read_again)

    def logprobs_of(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        allowed: Bitmask | None,
        token_ids: Tensor,
        plan: StepPlan,
        edited: Tensor | None = None,
    ) -> Logprobs | None:
        """Returns the logprobs of the rows that ask for them, before the batch advances.

        ``edited`` are the logits of a device after edits; None: they are made where they are needed.
        """
        asking, mode = plan.logprobs, self.logprobs_mode
        if asking is None:
            return None
        if not mode.is_processed:
            return gather_logprobs(asking, logits, mode, token_ids)
        if logits.is_cpu:
            edits = batch.native_edits(allowed)
            return processed_logprobs(asking, logits, mode, token_ids, edits)
        if edited is None:
            edited = batch.edited(logits, allowed)
        edited = logits if edited is None else edited
        return processed_logprobs(asking, edited, mode, token_ids)
