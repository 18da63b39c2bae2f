"""A step of a sampler that has whole rows: planned for a batch once, drawn, and reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.draws.placed_noise import DrawKeys
from ascend_sample.sampling.draws.weights import StatusConstants
from ascend_sample.sampling.edits.bitmask import Bitmask
from ascend_sample.sampling.edits.row_edits import edits_of_rows
from ascend_sample.sampling.step import routes
from ascend_sample.sampling.step.draw_states import AdaptiveP, StatefulRows, StepStates, stateful_rows
from ascend_sample.sampling.step.kept import KeptRows, KeptSets
from ascend_sample.sampling.step.logprobs import (
    LogprobRows,
    Logprobs,
    LogprobsMode,
    gather_logprobs,
    processed_logprobs,
)
from ascend_sample.sampling.step.output import SamplerOutput
from ascend_sample.sampling.step.serving import Drawn, Placement, draw


class StepPlan(NamedTuple):
    """What stays the same from step to step while the batch does.

    Attributes:
        placement: how the rows are served.
        logprobs: the rows that ask for logprobs; None where none does.
        kept: the rows that ask for kept sets; None where none does.
        states: the rows that remember their draws, by rules.
    """

    placement: Placement
    logprobs: LogprobRows | None
    kept: KeptRows | None
    states: Sequence[StatefulRows]


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
        moved = []
        for rows in plan.states:
            drawn, states = rows.after(drawn, batch, purpose)
            moved.append((rows, states))
        logprobs = None
        if plan.logprobs is not None and drawn.logprobs:
            logprobs = plan.logprobs.report(drawn.logprobs)
        elif plan.logprobs is not None:
            edited = None if logits.is_cpu else drawn.logits
            logprobs = self.logprobs_of(logits, batch, allowed, drawn.token_ids, plan, edited)
        sets = None if plan.kept is None else plan.kept.sets(drawn)
        return SamplerOutput(drawn.token_ids, drawn.status, logprobs, sets, StepStates(moved) if moved else None)

    def draw(
        self, logits: Tensor, batch: SamplingBatch, allowed: Bitmask | None, plan: StepPlan, purpose: Purpose
    ) -> Drawn:
        """Draws the tokens of all rows: those of the CPU kernel from logits as they are, which it edits as it reads."""
        placement = plan.placement
        if placement.is_native:
            edits = batch.native_edits(allowed)
            return draw(logits, placement, batch.position, purpose, edits=edits)
        edited = batch.edited(logits, allowed, placement.columns(batch.vocab_size))
        position, keys = batch.position if logits.is_cpu else None, DrawKeys(batch.host.seed, batch.host.position)
        return draw(logits, placement, position, purpose, keys, edited=edited)

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
        placement = Placement.of(parameters, logits, self.keep_ties, is_edited)
        logprobs = LogprobRows.of_batch(batch, self.logprobs_mode, self.keep_ties)
        kept, rows = None, np.flatnonzero(batch.host.return_sampling_mask)
        states = stateful_rows(batch, self.keep_ties)
        if len(rows):
            kept = KeptRows.of_rows(rows, parameters, batch.vocab_size, self.keep_ties, self._max_kept)
            kept = kept._replace(are_others_listed=bool(states))
        if placement.is_native:
            wanted: dict[str, Any] = {}
            if kept is not None or states:
                is_wanted = (batch.host.return_sampling_mask != 0) | batch.host.is_remembering
                wanted["is_kept_wanted"] = torch.from_numpy(is_wanted)
            if logprobs is not None and not any(isinstance(rows, AdaptiveP) for rows in states):
                wanted |= logprobs.native()
            return StepPlan(placement._replace(wanted=wanted), logprobs, kept, states)
        is_kept_wanted = bool(states) and placement.returns_kept
        is_reported = logprobs is not None and self.logprobs_mode.is_processed
        placement = placement._replace(
            constants=StatusConstants.like(logits.new_empty(0, dtype=torch.float32) if is_edited.any() else logits),
            is_kept_wanted=is_kept_wanted,
            is_read_again=is_reported or kept is not None or (bool(states) and not is_kept_wanted),
        )
        return StepPlan(placement, logprobs, kept, states)

    def sets_of_drafts(
        self, logits: Tensor, places: SamplingBatch, allowed: Bitmask | None, plan: StepPlan, is_reached: Tensor
    ) -> KeptSets | None:
        """Returns what was kept of places of drafts on a CPU, whose verification does not tell it.

        The places are drawn again, by the same noise: the draw of a row tells.

        Args:
            logits: [places, vocab_size].
            places: the batch of them, as it was when they were verified.
            allowed: likewise.
            plan: of the step; None is returned where nobody asks by it.
            is_reached: bool [places], those that gave a token; the others keep nothing.
        """
        if plan.kept is None:
            return None
        rows = (is_reached & plan.kept.is_wanted).nonzero().squeeze(1)
        placement = plan.placement
        given = [column.index_select(0, rows) for column in placement.parameters.tensors_at(places.position)]
        edits = edits_of_rows(places.native_edits(allowed), rows)
        wanted = {"is_kept_wanted": torch.ones_like(rows, dtype=torch.bool)}
        operator = torch.ops.ascend_sample.sample_rows
        token_ids, status, sets, _ = operator(
            logits, rows, *given, int(Purpose.DRAW), placement.keep_ties, **edits, **wanted
        )
        return plan.kept.sets(Drawn(token_ids, status, logits, None, sets)).in_batch(rows, len(logits))

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
        asking = plan.logprobs
        if asking is None:
            return None
        if not asking.mode.is_processed:
            return gather_logprobs(asking, logits, token_ids)
        if logits.is_cpu:
            edits = batch.native_edits(allowed)
            return processed_logprobs(asking, logits, token_ids, edits)
        if edited is None:
            edited = batch.edited(logits, allowed)
        edited = logits if edited is None else edited
        return processed_logprobs(asking, edited, token_ids)
