"""A verification of drafts at fixed addresses, so that a device's graph can hold it and replay it."""

from __future__ import annotations

from typing import Final

import numpy
import torch
from torch import Tensor

from ascend_sample._errors import check_bool, check_instance, check_integer, refuse
from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.drafts.arguments import VerificationRule, check_rule
from ascend_sample.sampling.drafts.judging import JudgingNoise, Proposals, judge_with, never_empty, noise_of
from ascend_sample.sampling.drafts.places import NO_TOKEN, ChainLayout
from ascend_sample.sampling.edits.apply import drafts_before
from ascend_sample.sampling.edits.bitmask import BitmaskRows
from ascend_sample.sampling.rows.normal_mode import in_normal_mode
from ascend_sample.sampling.rows.parameters import RowStatus, check_uncaptured
from ascend_sample.sampling.rows.table import NO_SLOT, to_device
from ascend_sample.sampling.static.step import StaticStep, copy_each
from ascend_sample.sampling.step.routes import LARGEST_FUSED_K
from ascend_sample.sampling.verify import VerifiedDrafts, cut, places_of

NAME: Final = "StaticVerification"
WITHOUT: Final = "Verify its drafts outside of a graph, by verify_drafts."


class StaticVerification:
    """What `verify_drafts` does for so many requests with so many drafts each: the same operators on the same memory.

    `prepare` writes what changes from pass to pass: parameters and noise of all places, and what requests edit. `run`
    judges `draft_ids` by `logits`, and is what a graph captures, with the model in front of it if that is wanted.
    Requests may join, leave and change between two passes, as long as there are no more than ``requests``. A request
    that has fewer drafts ends them with -1. Requests that nobody has are greedy and mean nothing.

    Tokens are those of `verify_drafts`, as those of `StaticStep` are those of `Sampler`. All places are read, and
    whatever requests may ask for costs each pass its launches, asked for or not. Chains of drafts only: trees are
    others in each pass, and a graph has one. Requests that ask for logprobs, and those with rules that look at the
    text, which need the drafts on the host, are refused.

    Args:
        requests: how many there is room for.
        drafts: how many each has.
        vocab_size: the number of columns.
        dtype: of the logits: float32, float16 or bfloat16.
        device: where the model is.
        rule: as for `verify_drafts`.
        is_drawn: drafts were drawn from known distributions, for the rules standard and block.
        candidates: of so many ids a draft's distribution has the probabilities; None: of the whole vocabulary.
        largest_k: no request's top_k, where it is on, is larger.
        keep_ties: as for `Sampler`.
        only_top_k: every request has a top_k, or the temperature 0, as for `StaticStep`.
        addends: how many ids of a request may be biased, banned or held back by ``min_tokens``, at most.
        history: how many tokens a request with penalties may have seen, at most, drafts aside.
        bitmask: whether requests may have masks: allowed ids, more bans than a mask has words, or a grammar's bitmask.
        max_kept: how many ids the kept set of a place has at most, as for `Sampler`; None: no kept sets.

    Attributes:
        logits: [requests * (drafts + 1), vocab_size], which the model writes; the batch's places are the first ones.
        draft_ids: int64 [requests * drafts], which the drafter writes.
        draft_probabilities: float32 [requests * drafts, vocab_size or candidates], the same; None without.
        draft_candidates: int64 [requests * drafts, candidates], the same; None without.
        token_ids, accepted, status: of all requests as `VerifiedDrafts` has them, written by `run`. So are the kept
            sets of all their places, asked for or not, which `verified` returns.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range.

    Example:
        >>> from ascend_sample.sampling import SamplingParams
        >>> step = StaticVerification(requests=4, drafts=2, vocab_size=3, dtype=torch.float32, device="cpu")
        >>> batch = SamplingBatch(3)
        >>> row = batch.add(SamplingParams(temperature=0))
        >>> step.prepare(batch)
        >>> _ = step.draft_ids[:2].copy_(torch.tensor([1, 0]))
        >>> _ = step.logits[:3].copy_(torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))
        >>> step.run()  # on a device: graph.replay()
        >>> verified = step.verified(batch)
        >>> verified.token_ids, verified.accepted
        (tensor([[ 1,  2, -1]]), tensor([1]))
        >>> verified.append_to(batch)

    Source: docs/drafts.md, section "Verifying drafts in a graph".
    """

    @in_normal_mode
    def __init__(
        self,
        requests: int,
        drafts: int,
        vocab_size: int,
        dtype: torch.dtype,
        device: str | torch.device,
        *,
        rule: VerificationRule = "match",
        is_drawn: bool = False,
        candidates: int | None = None,
        largest_k: int = LARGEST_FUSED_K,
        keep_ties: bool = False,
        only_top_k: bool = False,
        addends: int = 0,
        history: int = 0,
        bitmask: bool = False,
        max_kept: int | None = None,
    ) -> None:
        self.requests = check_integer(NAME, "requests", requests, low=1)
        self.drafts = check_integer(NAME, "drafts", drafts, low=1)
        check_rule(NAME, rule)
        check_bool(NAME, "is_drawn", is_drawn)
        if is_drawn and rule == "match":
            refuse(NAME, "is_drawn", "be False for the rule 'match'", "True", "It looks at tokens alone.")
        if candidates is not None:
            check_integer(NAME, "candidates", candidates, low=1)
            if not is_drawn:
                refuse(NAME, "candidates", "be None for drafts that were not drawn", candidates, "Pass is_drawn=True.")
        self.rule, places = rule, self.requests * (self.drafts + 1)
        self._step = StaticStep(
            places,
            vocab_size,
            dtype,
            device,
            largest_k=largest_k,
            keep_ties=keep_ties,
            only_top_k=only_top_k,
            addends=addends,
            history=history,
            bitmask=bitmask,
            max_kept=max_kept,
        )
        self.logits = self._step.logits
        self._layout = ChainLayout(numpy.full(self.requests, self.drafts), self.logits.device)
        many = self.requests * self.drafts
        self.token_ids = self._step.token_ids.new_full((self.requests, self.drafts + 1), NO_TOKEN)
        self.status = torch.zeros_like(self.token_ids, dtype=torch.int8)
        self.accepted = self.token_ids.new_zeros(self.requests)
        self.draft_ids = self.token_ids.new_full((many,), NO_TOKEN)
        self.draft_probabilities = self.draft_candidates = None
        if is_drawn:
            columns = vocab_size if candidates is None else candidates
            self.draft_probabilities = torch.zeros(many, columns, device=device, dtype=torch.float32)
        if candidates is not None:
            self.draft_candidates = self.token_ids.new_full((many, candidates), NO_TOKEN)
        self._noise: JudgingNoise | None = None
        if rule != "match":
            ones = torch.ones(self.requests, vocab_size, device=device, dtype=torch.float32)
            self._noise = JudgingNoise(torch.ones(many, device=device, dtype=torch.float32), ones)
        self._before = to_device(self._layout.before, self.logits.device)

    @in_normal_mode
    def prepare(
        self, batch: SamplingBatch, *, bitmask: Tensor | None = None, bitmask_rows: BitmaskRows | None = None
    ) -> None:
        """Writes the parameters and the noise of the places of a batch, and what they edit; nobody waits for it.

        Under the rules standard and block what drafts are judged with is sent too, a number for each id of each
        request.

        Args:
            batch: the requests, as they are now.
            bitmask: the ids that a grammar allows at each place, as `verify_drafts` takes them.
            bitmask_rows: the places that it is for.

        Raises:
            TypeError: the batch is none; the bitmask is no int32 tensor, or its rows are no ints.
            ValueError: a graph is captured; the batch has too many requests, another vocabulary or device, or requests
                that ask for what there is no room for, or what a graph cannot serve; or the bitmask does not fit.
            IndexError: the bitmask is for a place that does not exist.
        """
        self._check(batch)
        places = places_of(batch, numpy.full(len(batch), self.drafts), None)
        try:
            places.follow_requests()
            self._step.prepare(places, bitmask=bitmask, bitmask_rows=bitmask_rows)
            if self._noise is not None and len(batch):
                for kept, new in zip(self._noise, noise_of(self.rule, places, batch.vocab_size), strict=True):
                    kept[: len(new)].copy_(new)
        finally:
            places.take_back()

    @in_normal_mode
    def run(self) -> None:
        """Judges `draft_ids` by `logits`, writes what the attributes say, and waits for nothing."""
        step, layout, drafts = self._step, self._layout, None
        if step.edits.history:
            drafts = drafts_before(self.draft_ids, self._before)
        edited = step.draw(drafts)
        if self._noise is None:
            tokens = layout.table(step.token_ids)
            accepted = layout.accepted(tokens, self.draft_ids)
        else:
            probabilities = never_empty(step.distributions().probabilities(edited))
            proposals = Proposals(self.draft_probabilities, self.draft_candidates)
            given = (self.rule, probabilities, step.token_ids, self.draft_ids, layout, proposals, self._noise)
            tokens, accepted = judge_with(*given)
        found = cut(layout, tokens, accepted, step.status, None)
        if step.kept is not None:
            is_unreached = layout.of_places(found.token_ids == NO_TOKEN)
            step.list_kept(edited, is_unreached.logical_or_(step.status != RowStatus.OK))
        copy_each(found[:3], (self.token_ids, self.accepted, self.status))

    def verified(self, batch: SamplingBatch) -> VerifiedDrafts:
        """Returns what the last pass has told of a batch's requests: `VerifiedDrafts.append_to` advances them.

        The next pass writes over it.
        """
        count, kept = len(batch), self._step.kept
        if kept is not None:
            places = count * (self.drafts + 1)
            kept = kept._replace(offsets=kept.offsets[: places + 1], counts=kept.counts[:places])
        return VerifiedDrafts(self.token_ids[:count], self.accepted[:count], self.status[:count], None, kept=kept)

    def _check(self, batch: SamplingBatch) -> None:
        check_uncaptured(NAME, self.logits)  # first: places that are made while one is captured are not there
        check_instance(NAME, "batch", batch, SamplingBatch, "Add the requests to one.")
        host = batch.host
        is_ruled = numpy.isin(host.addend_slot, list(batch.row_edits.rules))
        for asked, what in (
            (host.logprobs >= 0, "that asks for logprobs"),
            (is_ruled, "with rules that look at its text, for which drafts have to be read"),
        ):
            if asked.any():
                refuse(NAME, "batch", f"hold no request {what}", f"row {int(asked.argmax())}", WITHOUT)
        is_penalized = host.penalty_slot != NO_SLOT
        if is_penalized.any() and not self._step.edits.history:  # for its drafts, if for nothing else
            rule = f"be 1 at least, for row {int(is_penalized.argmax())} of the batch"
            refuse(NAME, "history", rule, 0, f"Make the step with it. {WITHOUT}")
        instead = f"{WITHOUT[0].lower()}{WITHOUT[1:]}"
        self._step.check(NAME, batch, self.requests, instead=instead)
