"""The sampler of a serving engine: one step of a batch of requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from ascend_sample._errors import check_bool, check_instance, check_integer, refuse
from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.drafts.places import DraftPlaces
from ascend_sample.sampling.draws.leftover import Leftover, RankedRows
from ascend_sample.sampling.draws.noise import Purpose, check_purpose
from ascend_sample.sampling.draws.placed_noise import DrawKeys
from ascend_sample.sampling.edits.bitmask import Bitmask, Rows, placed_bitmask
from ascend_sample.sampling.edits.row_edits import edits_of_rows
from ascend_sample.sampling.requests.params import DISTRIBUTION
from ascend_sample.sampling.rows.host_copy import HostCopy
from ascend_sample.sampling.rows.normal_mode import in_normal_mode
from ascend_sample.sampling.rows.parameters import RowsOutput, check_logits, check_uncaptured
from ascend_sample.sampling.step import routes
from ascend_sample.sampling.step.distribution import Distributions
from ascend_sample.sampling.step.draw_states import RememberingRows, StepOfBatch
from ascend_sample.sampling.step.kept import KeptOfStep, KeptRows
from ascend_sample.sampling.step.logprobs import (
    Logprobs,
    LogprobsMode,
    asking_of,
    gather_logprobs,
    leftover_for,
    logprobs_of_leftover,
    processed_logprobs,
)
from ascend_sample.sampling.step.output import RowRoute, SamplerOutput
from ascend_sample.sampling.step.routes import RULES
from ascend_sample.sampling.step.serving import WHOLE, PlacedGroup, Placement, place_groups, serve
from ascend_sample.sampling.step.step_plan import StepPlan
from ascend_sample.sampling.vocabulary_parallel.shard import VocabularyShard
from ascend_sample.sampling.vocabulary_parallel.split_judging import Judged, Judging
from ascend_sample.sampling.vocabulary_parallel.split_steps import SplitSteps


class Sampler:
    """Draws the next token of every request of a batch, each from exactly the distribution that its parameters mean.

    The algorithm, row by row, numbered as in docs/sampling.md:

    1. Logits are converted to float32, and a NaN counts as -inf.
    2. Ids that the request bans (or does not allow, or that would stop it before ``min_tokens``) become -inf, and so do
       those that the step's bitmask does not allow; its bias is added.
    3. Repetition, presence and frequency penalties are applied.
    4. Temperature 0 takes the best logit, the lowest id among equals. Otherwise y = (logit - maximum) / temperature.
    5. Typical sampling, cutoffs of probabilities, mirostat, top-a, top-n-sigma and XTC keep a range of values each.
    6. Top-k keeps the first k of the total order (value descending, id ascending); ``keep_ties`` keeps every logit that
       is equal to the k-th too.
    7. The weights are exp(y), normalised over what is left.
    8. Top-p keeps, in that order, until the sum of the normalised weights exceeds p.
    9. Min-p drops weights below min_p times the largest.
    10. The token is the argmax of weight / noise, where the noise is exponential and a function of the request's seed,
        its position and the rank of the entry: an exact draw that no other row can change. Where no top-k ranks the
        entries, a race of segments of the vocabulary and one of places in a segment are the same (docs/seeds.md).

    On which route a row takes these steps, `explain` tells. It is chosen on the host from what `SamplingBatch` knows
    there; no step waits for the device, but with ``host``.

    Args:
        logprobs_mode: which numbers are reported for requests that ask for logprobs.
        keep_ties: see 6. Rows with top-k then take a slower route.
        round_float32: on a device that has aclnnTopKTopPSample alone, which takes no float32, let it serve rows of
            float32 logits with top-k all the same: shifted by their maximum, divided by the temperature and rounded to
            float16. One launch instead of many, and no longer exact: docs/sampling.md says how far off.
        host: let the CPU kernel sample what a device's model computes: batches are on the CPU, and logits on any
            device. They are copied in blocks of rows, of which one is sampled while the next ones travel. The step
            waits for each of them, and draws the tokens that it draws from logits on the CPU.
        shard: what a rank has whose logits are a part of the vocabulary: every rank then calls its sampler with its own
            part and the same requests, and gets the tokens, statuses and logprobs of logits that are not split.
        max_kept: no kept set is larger: a row that keeps more is told without its ids. With it a step on a device waits
            for nothing, and allocates so much for each row that asks. None: there is no bound, and it waits.

    Example:
        >>> from ascend_sample.sampling import SamplingParams
        >>> batch = SamplingBatch(vocab_size=4)
        >>> greedy = batch.add(SamplingParams(temperature=0))
        >>> seeded = batch.add(SamplingParams(top_k=2, seed=7))
        >>> output = Sampler()(torch.tensor([[1.0, 3.0, 2.0, 3.0], [5.0, -1.0, 5.0, -1.0]]), batch)
        >>> output.token_ids.tolist()[0], output.token_ids.tolist()[1] in (0, 2)
        (1, True)

    Source: docs/sampling.md, sections 1 "What is drawn" and 4 "Routes".
    """

    def __init__(
        self,
        logprobs_mode: str = "raw_logprobs",
        *,
        keep_ties: bool = False,
        round_float32: bool = False,
        host: bool = False,
        shard: VocabularyShard | None = None,
        max_kept: int | None = None,
    ) -> None:
        self.logprobs_mode = LogprobsMode.named("Sampler", logprobs_mode)
        for name, value in (("keep_ties", keep_ties), ("round_float32", round_float32), ("host", host)):
            check_bool("Sampler", name, value)
        if max_kept is not None:
            check_integer("Sampler", "max_kept", max_kept, low=1)
        if shard is not None:
            check_instance("Sampler", "shard", shard, VocabularyShard, "Make one from the rank's part.")
        self.keep_ties = keep_ties
        self.round_float32 = round_float32
        self.host = host
        self.shard = shard
        self.max_kept = max_kept
        is_split = shard is not None and shard.exchange.size > 1
        self._steps = SplitSteps(shard, keep_ties, self.logprobs_mode) if shard is not None and is_split else None

    @in_normal_mode
    def __call__(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        *,
        purpose: Purpose = Purpose.DRAW,
        advance: bool = True,
        bitmask: Tensor | None = None,
        bitmask_rows: Rows | None = None,
    ) -> SamplerOutput:
        """Samples one token for each row of the batch.

        Args:
            logits: float32, float16 or bfloat16 [batch, vocab_size] on the device of the batch; with ``host`` on any;
                with ``shard`` [batch, width].
            batch: the requests, in the order of the rows.
            purpose: which of the independent noises of a seed and a position.
            advance: tell the batch of the tokens, so that the next step is theirs. Without it the same step, given the
                same logits, draws the same tokens again; `SamplingBatch.append` advances, and `StepStates.keep`.
            bitmask: int32 [batch, ceil(vocab_size / 32)], the ids that a grammar allows in this step, 32 in a word with
                the first in the lowest bit, as xgrammar and llguidance pack them; on the device of the batch or on the
                CPU. A row that allows nothing gets `RowStatus.ALL_MASKED`.
            bitmask_rows: the rows of the batch that the bitmask is for, which has a row for each of these then: ints or
                a tensor on the CPU. None: all rows, in order.

        Returns:
            Ids, statuses, logprobs and kept sets.

        Raises:
            TypeError: an argument has the wrong type or dtype.
            ValueError: an argument does not fit the batch, or a graph is captured on the device of the logits.
            IndexError: the bitmask is for a row that does not exist.
        """
        self._check(logits, batch, purpose)
        allowed = None
        if bitmask is not None or bitmask_rows is not None:
            allowed = placed_bitmask(bitmask, bitmask_rows, len(batch), batch.vocab_size, batch.device)
        if len(batch) == 0:
            empty = torch.empty(0, dtype=torch.int64, device=logits.device)
            return SamplerOutput(empty, empty.to(torch.int8), None)
        output = self.draw_split(logits, batch, allowed, purpose)
        if output is not None:
            if advance:
                batch.advance(output.token_ids)
            return output
        if self.shard is not None:
            logits = logits[:, : batch.vocab_size]
        copied = HostCopy(logits) if self.host else None
        here = logits if copied is None else copied.logits
        plan = self.plan_of(here, batch, allowed)
        left = self.leftover_of(plan)
        kept = None
        if plan.kept is not None:
            kept = plan.kept.begun(plan.states.near(batch) if plan.states is not None and here.is_cpu else None)
        blocks = (WHOLE,) if copied is None else copied.blocks()
        left_kept = self._left_for_states(plan, left)
        has_sets = kept is not None and len(kept.asked.asking.rows) > 0
        edited = None
        if not here.is_cpu and (has_sets or self._reads_edited_again(plan, left, left_kept)):
            edited = batch.edited(here, allowed)
        ranked = self._ranked_of(plan) if copied is None else None
        options = (here, batch, allowed, plan, purpose, blocks, left or left_kept)
        drawn = self.draw(*options, kept=kept, edited=edited, ranked=ranked)
        states = None
        if plan.states is not None:
            step = StepOfBatch(batch, here if edited is None else edited, kept, left_kept, purpose)
            drawn, states = plan.states.after(drawn, step)
        logprobs = self.logprobs_of(here, batch, allowed, drawn.token_ids, plan, ranked or left, edited)
        sets = None
        if kept is not None and has_sets:
            sets = kept.sets(here if edited is None else edited, drawn.status)
        if advance:
            batch.advance(drawn.token_ids)
            if states is not None:
                states.keep(batch)
        output = SamplerOutput(*drawn, logprobs, sets, states)
        return output if copied is None else output.sent_to(logits.device)

    def explain(self, batch: SamplingBatch, dtype: torch.dtype) -> list[RowRoute]:
        """Tells which route each row of the batch takes, and why.

        Args:
            batch: the requests.
            dtype: of the logits that they will get.

        Example:
            >>> from ascend_sample.sampling import SamplingParams
            >>> batch = SamplingBatch(vocab_size=32000)
            >>> row = batch.add(SamplingParams(top_p=0.9))
            >>> Sampler().explain(batch, torch.bfloat16)[0].route.value
            'native'
        """
        explained: list[RowRoute] = []
        for is_processed, kind in ((False, dtype), (True, torch.float32)):
            rows = np.flatnonzero(batch.host.is_processed == is_processed)
            abilities = routes.abilities_of(batch.device, kind, self.round_float32)
            facts = {field: getattr(batch.host, field)[rows] for field in DISTRIBUTION}
            chosen = routes.choose_rules(facts, batch.vocab_size, kind, abilities, self.keep_ties)
            for row, rule in zip(rows.tolist(), chosen.tolist(), strict=True):
                reason = RULES[rule].reason + ("; its logits are processed in float32 before" if is_processed else "")
                explained.append(RowRoute(row, RULES[rule].route, reason))
        return sorted(explained)

    def _check(self, logits: Tensor, batch: SamplingBatch, purpose: Purpose) -> None:
        check_logits("Sampler", logits)
        if not isinstance(batch, SamplingBatch) or not isinstance(purpose, Purpose):
            check_instance("Sampler", "batch", batch, SamplingBatch, "Add the requests to one.")
            check_purpose("Sampler", purpose)
        check_uncaptured("Sampler", logits)
        width = self.width_for("Sampler", batch)
        if tuple(logits.shape) != (len(batch), width):
            rule = f"have the shape of the batch, [{len(batch)}, {width}]"
            refuse("Sampler", "logits", rule, list(logits.shape), "Add and remove requests before the step.")
        if self.host and batch.device.type != "cpu":
            remedy = "Make it without a device: the logits alone are on one."
            refuse("Sampler", "batch", "be on the CPU for a sampler with host=True", batch.device, remedy)
        if logits.device != batch.device and not self.host:
            rule = f"be on the device of the batch, {batch.device}"
            refuse("Sampler", "logits", rule, logits.device, "Make the batch with device=logits.device.")

    def width_for(self, owner: str, batch: SamplingBatch) -> int:
        """Returns how many columns logits have, or raises, for ``owner``, where the batch has another vocabulary."""
        if self.shard is None:
            return batch.vocab_size
        if self.shard.vocab_size != batch.vocab_size:
            rule = f"have the vocabulary of the shard, {self.shard.vocab_size}"
            refuse(owner, "batch", rule, batch.vocab_size, "Make it with the vocab_size of the shard.")
        return self.shard.width

    @property
    def is_split(self) -> bool:
        """Tells whether the logits of a row are on several ranks."""
        return self._steps is not None

    def draw_split(
        self, logits: Tensor, batch: SamplingBatch, allowed: Bitmask | None, purpose: Purpose
    ) -> SamplerOutput | None:
        """Draws the tokens of all rows with the other ranks, from logits [batch, width]; None where there are none."""
        return None if self._steps is None else SamplerOutput(*self._steps.draw(self, logits, batch, allowed, purpose))

    def judge_split(
        self, logits: Tensor, places: DraftPlaces, allowed: Bitmask | None, draft_ids: Tensor, judging: Judging
    ) -> Judged | None:
        """Judges drafts that were drawn, with the other ranks; None where there are none."""
        return None if self._steps is None else self._steps.judge(logits, places, allowed, draft_ids, judging)

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
            edits = batch.native_edits(allowed)
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
        options = (logits.dtype, self.keep_ties, self.round_float32, self.max_kept)
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
            KeptRows.of_batch(batch, *options, self.max_kept) if needs_kept.any() else None,
            RememberingRows(batch, self.keep_ties) if is_remembering.any() else None,
        )

    def leftover_of(self, plan: StepPlan) -> Leftover | None:
        """Returns what the draw is to leave for the logprobs: all rows ask, and one call draws from what they need."""
        mode, is_raw = self.logprobs_mode, plan.raw_groups > 0
        if plan.distributions is None or plan.asking is None or plan.asking.there is not None:
            return None
        if not plan.placement.can_leave or mode is LogprobsMode.RAW_LOGITS:
            return None
        # The logits, as they were drawn from, are read again: those that were edited may be overwritten.
        return leftover_for(plan.asking, mode) if is_raw or mode is LogprobsMode.PROCESSED_LOGPROBS else None

    def _ranked_of(self, plan: StepPlan) -> RankedRows | None:
        """Returns what the CPU kernel is to rank as it draws: rows whose tokens nothing changes then."""
        asking, mode = plan.asking, self.logprobs_mode
        if asking is None or plan.kept is not None or not plan.placement.is_native:
            return None
        return RankedRows(asking.there, asking.most, mode.is_normalised, mode.is_processed)

    def _left_for_states(self, plan: StepPlan, left: Leftover | None) -> Leftover | None:
        """Returns where the draw leaves what its filters keep for rows that remember; None: they look for it again."""
        if plan.states is None or not plan.placement.leaves_kept:
            return None
        if left is None:
            return Leftover.of_filters()
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
        if logits.is_cpu and not isinstance(batch, DraftPlaces):  # whose edits depend on drafts, too
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
