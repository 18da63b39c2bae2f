"""Verifies drafts after the target's pass: what speculation proposes stays where it is what would have been drawn."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy
import torch
from torch import Tensor

from ascend_sample._errors import check_instance, refuse
from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.drafts.arguments import (
    NAME,
    RULES,
    Counts,
    VerificationRule,
    check_law,
    check_places,
    check_proposals,
    checked_counts,
    checked_parents,
)
from ascend_sample.sampling.drafts.judging import Proposals, judge, target_probabilities
from ascend_sample.sampling.drafts.places import NO_TOKEN, ChainLayout, DraftPlaces, Ids, KeptPlaces, PlacesLayout
from ascend_sample.sampling.drafts.trees import Followed, TreeLayout
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.edits.bitmask import Bitmask, BitmaskRows, placed_bitmask
from ascend_sample.sampling.rows.normal_mode import in_normal_mode
from ascend_sample.sampling.rows.parameters import RowStatus
from ascend_sample.sampling.rows.table import to_device
from ascend_sample.sampling.sampler import Sampler, columns_of
from ascend_sample.sampling.step.kept import KeptSets
from ascend_sample.sampling.step.logprobs import Logprobs
from ascend_sample.sampling.step.serving import Drawn
from ascend_sample.sampling.step.whole_steps import StepPlan

MOST_KEPT: Final = 16
"""How many layouts of a batch's places are kept, so that trees that are others in each step do not pile up."""

PLAIN: Final = Sampler()
"""What says how logprobs are reported and ties are kept, where nobody else does."""


class VerifiedDrafts(NamedTuple):
    """What `verify_drafts` returns, on the device of the logits.

    Attributes:
        token_ids: int64 [requests, most drafts + 1]: a request's accepted drafts, the token after them, then -1. Of
            trees the deepest counts.
        accepted: int64 [requests], how many of its drafts each keeps; it gets one token more.
        status: int8 [requests, most drafts + 1], a `RowStatus` for each token; 0 where there is none.
        logprobs: of all places of requests that asked for them; its rows are their numbers in the logits. What it has
            of places that are not reached says nothing. None where no request asked.
        path: int64 like the tokens, of trees: the number of the place where each was drawn, among its request's places,
            then -1. These have to stay in the model's cache. None of chains, where they are 0, 1, 2, ...
        kept: what the filters left at the places that are reached, of requests that asked for it; its rows are all
            places. None where no request asked.
    """

    token_ids: Tensor
    accepted: Tensor
    status: Tensor
    logprobs: Logprobs | None
    path: Tensor | None = None
    kept: KeptSets | None = None

    def append_to(self, batch: SamplingBatch, accepted: Counts | None = None) -> None:
        """Tells the batch of the tokens, so that the next step is theirs: each row by its own number of them.

        Args:
            batch: the one that was verified.
            accepted: the same as the attribute, where the caller has read it already. None reads it, which waits for
                the device: rows advance on the host too, by numbers that nobody there knows before.
        """
        check_instance(NAME, "batch", batch, SamplingBatch, "Give the requests' own.")
        read = self.accepted.cpu() if accepted is None else accepted
        counts = checked_counts("accepted", read, len(batch)) + 1
        width = self.token_ids.shape[1]
        if counts.max(initial=0) > width:
            remedy = "Give the attribute of these drafts."
            refuse(NAME, "accepted", f"be less than the tokens of a request, {width}", int(counts.max()) - 1, remedy)
        rows = numpy.repeat(numpy.arange(len(counts)), counts)
        columns = numpy.arange(len(rows)) - numpy.repeat(numpy.cumsum(counts) - counts, counts)
        cells = to_device(rows * width + columns, self.token_ids.device)
        batch.append(self.token_ids.view(-1).index_select(0, cells), rows)


@in_normal_mode
def verify_drafts(
    logits: Tensor,
    draft_ids: Tensor,
    batch: SamplingBatch,
    *,
    counts: Counts,
    parents: Counts | None = None,
    rule: VerificationRule = "match",
    draft_probabilities: Tensor | None = None,
    draft_candidates: Tensor | None = None,
    sampler: Sampler | None = None,
    bitmask: Tensor | None = None,
    bitmask_rows: BitmaskRows | None = None,
) -> VerifiedDrafts:
    """Judges drafts by the logits of the pass that has read them: a request gets what it would get without drafts.

    Penalties count the drafts before a place, and `min_tokens` are counted by place. The rules:

    - "match": each place, that of each draft and the one behind them, gets the token that `Sampler` draws there when
      the request comes to it token by token: with the same noise, since that is a function of the request's seed and
      the position. A draft stays where it is that token. The first that is not is replaced by it, and what follows is
      dropped. So the texts are those of plain decoding with the same seeds, token for token, whatever the drafter
      proposes. A draft is accepted with the probability that the target gives to it.
    - "standard": a draft x that was drawn from q stays where u q(x) < p(x), for a uniform u of its own; the first that
      does not is replaced by a token drawn from max(p - q, 0). So tokens have the target's distribution, and a draft is
      accepted with the probability that p and q have in common. Drafts without probabilities are certain: q(x) = 1.
    - "block": the same by the joint ratio of a draft and those before it, which accepts at least as many.

    Drafts may branch (`parents`): then a place is followed by several, and the token that is drawn there leads to the
    first of them that equals it.

    Under all of them a request of which every draft stays gets one token more, the one that `Sampler` draws there.

    Args:
        logits: float32, float16 or bfloat16 [places, vocab_size] on the device of the batch, request by request: of a
            request with d drafts, the d places of its drafts and the one behind them.
        draft_ids: int64 [drafts] on the device of the batch, request by request. What is no id of the vocabulary is
            never accepted. A negative one, a placeholder, ends the drafts of its request.
        batch: the requests. They stay as they are: `VerifiedDrafts.append_to` advances them.
        counts: how many drafts each request has, from 0, on the host.
        parents: for drafts that are trees, under the rule match: of each place the number of the one that it follows
            among its request's places, on the host; -1 for the first, the root, which follows no draft. Place i follows
            draft i - 1 of the request and those on the way to it; numbers grow from the root on. None: place i follows
            place i - 1.
        rule: "match", "standard" or "block".
        draft_probabilities: what each draft was drawn from, for the rules standard and block: float32
            [drafts, vocab_size], or [drafts, candidates]; on the device of the batch. None: drafts were not drawn. They
            are at least 0, and add up to 1 within 0.01: logits give tokens of another distribution. On a CPU they are
            looked at, dense ones of large vocabularies in part; on a device nobody looks.
        draft_candidates: int64 [drafts, candidates], the ids whose probabilities these are, each once; what is no id of
            the vocabulary does not count. All others have none. None: they are those of the whole vocabulary.
        sampler: what says how logprobs are reported, ties are kept and kept sets bounded; None is ``Sampler()``. One
            with a shard takes logits and dense ``draft_probabilities`` of its part, [places, width] and
            [drafts, width], and on every rank the same drafts.
        bitmask: int32 [places, ceil(vocab_size / 32)], the ids that a grammar allows at each place, as for `Sampler`.
        bitmask_rows: the places that it is for; None: all.

    Returns:
        Tokens, how many drafts stay, statuses, logprobs and kept sets. Nothing was read from the device but, for kept
        sets that the sampler does not bound, how large they are.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument does not fit the batch, a graph is captured on the device of the logits, or what drafts
            were drawn from is no distribution.
        IndexError: the bitmask is for a place that does not exist.

    Example:
        >>> from ascend_sample.sampling import SamplingParams
        >>> batch = SamplingBatch(vocab_size=3)
        >>> batch.add(SamplingParams(temperature=0))
        0
        >>> logits = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
        >>> verified = verify_drafts(logits, torch.tensor([1, 0]), batch, counts=[2])
        >>> verified.token_ids, verified.accepted
        (tensor([[ 1,  2, -1]]), tensor([1]))
        >>> verified.append_to(batch)
        >>> batch.position
        tensor([2])
        >>> drafts = torch.tensor([0, 1])  # two that may follow the root
        >>> verified = verify_drafts(logits, drafts, batch, counts=[2], parents=[-1, 0, 0])
        >>> verified.token_ids, verified.path
        (tensor([[1, 0]]), tensor([[0, 2]]))

    Source: docs/drafts.md; Daliri et al., "Coupling without Communication and
        Drafter-Invariant Speculative Decoding", 2024; for the other rules `reference/drafts.py` names theirs.
    """
    sampler = PLAIN if sampler is None else sampler
    check_instance(NAME, "batch", batch, SamplingBatch, "Call verify_drafts(logits, draft_ids, batch, counts=...).")
    check_instance(NAME, "sampler", sampler, Sampler, "None is Sampler().")
    if sampler.host:
        remedy = "Move the logits to the CPU, where the batch is."
        refuse(NAME, "sampler", "have host=False", "True", remedy)
    of_requests = checked_counts("counts", counts, len(batch))
    check_places(logits, draft_ids, batch, of_requests, columns_of(sampler.shard, NAME, batch.vocab_size))
    check_proposals(rule, draft_probabilities, draft_candidates, logits, draft_ids)
    if sampler.split is None:  # a rank alone may have padding
        logits = logits[:, : batch.vocab_size]
        if draft_probabilities is not None and draft_candidates is None:
            draft_probabilities = draft_probabilities[:, : batch.vocab_size]
    elif len(batch):
        sampler.split.agree(batch, logits)
        if not _is_split(sampler, batch, rule):
            parts, same = [logits], [rule, of_requests.tolist(), draft_ids]
            if draft_probabilities is not None and draft_candidates is None:
                parts.append(draft_probabilities)
            else:
                same += [draft_candidates, draft_probabilities]
            logits, *dense = sampler.split.gather_rows(batch, same, *parts)
            draft_probabilities = dense[0] if dense else draft_probabilities
    if draft_probabilities is not None and logits.is_cpu:
        check_law(draft_probabilities, draft_candidates, draft_ids, batch, of_requests)
    tree = None if parents is None else checked_parents(parents, of_requests, rule)
    proposals = Proposals(draft_probabilities, draft_candidates)
    allowed = placed_bitmask(NAME, bitmask, bitmask_rows, len(logits), batch.vocab_size, batch.device)
    places = places_of(batch, of_requests, tree)
    try:
        if len(batch) == 0:
            empty = torch.empty(0, 1, dtype=torch.int64, device=logits.device)
            path = None if tree is None else empty
            return VerifiedDrafts(empty, empty.view(0), empty.to(torch.int8), None, path)
        places.prepare(draft_ids)
        return _verified(_Asked(logits, draft_ids, places, allowed, sampler, rule, proposals))
    finally:
        places.take_back()


def _is_split(sampler: Sampler, batch: SamplingBatch, rule: VerificationRule) -> bool:
    """Tells whether ranks draw from their parts: else each has the logits of all places, and verifies as if alone."""
    return sampler.split is not None and rule == "match" and not batch.host.return_sampling_mask.any()


class _Asked(NamedTuple):
    """What `verify_drafts` is asked, once it is checked."""

    logits: Tensor
    draft_ids: Tensor
    places: DraftPlaces
    allowed: Bitmask | None
    sampler: Sampler
    rule: VerificationRule
    proposals: Proposals


def _verified(asked: _Asked) -> VerifiedDrafts:
    logits, _, places, allowed, sampler, rule, _ = asked
    if sampler.split is not None and _is_split(sampler, places, rule):
        split = sampler.split.draw(logits, places, allowed, Purpose.DRAW)
        return _matched(places, split.token_ids, split.status, split.logprobs)
    steps = sampler.whole
    plan = steps.plan_of(logits, places, allowed)
    if plan.placement.is_native:
        return _verified_natively(asked, plan)
    drawn = steps.draw(logits, places, allowed, plan, Purpose.DRAW)
    if rule == "match":
        logprobs = steps.logprobs_of(logits, places, allowed, drawn.token_ids, plan)
        found = _matched(places, drawn.token_ids, drawn.status, logprobs)
    else:
        found = _judged(asked, plan, drawn)
    if plan.kept is None:
        return found
    return found._replace(kept=plan.kept.sets(drawn, _is_unreached(places.layout, found)))


def _judged(asked: _Asked, plan: StepPlan, drawn: Drawn) -> VerifiedDrafts:
    """Returns what requests get by the rules standard and block, on a device."""
    logits, draft_ids, places, allowed, sampler, rule, proposals = asked
    layout = places.layout
    assert isinstance(layout, ChainLayout), "trees are for the rule match"
    probabilities = target_probabilities(logits, places.edited(logits, allowed), places, sampler.keep_ties)
    tokens, accepted = judge(rule, probabilities, drawn.token_ids, draft_ids, places, proposals)
    logprobs = None
    if plan.logprobs is not None:
        of_places = layout.of_places(tokens).clamp(0, places.vocab_size - 1)
        logprobs = sampler.whole.logprobs_of(logits, places, allowed, of_places, plan)
    return cut(layout, tokens, accepted, drawn.status, logprobs)


def _verified_natively(asked: _Asked, plan: StepPlan) -> VerifiedDrafts:
    """Returns what the CPU kernel decides, which draws at the places that are reached and leaves the others empty."""
    logits, draft_ids, places, allowed, sampler, rule, proposals = asked
    layout = places.layout
    edits = places.request_edits(allowed)
    drawn_ids, status, accepted = torch.ops.ascend_sample.verify_drafts(
        logits,
        draft_ids,
        torch.from_numpy(layout.ends),
        *plan.placement.parameters.tensors_at(places.position),
        int(Purpose.DRAW),
        sampler.keep_ties,
        **edits,
        **proposals.native(),
        rule=RULES.index(rule),
        acceptance_purpose=int(Purpose.ACCEPTANCE),
        resampling_purpose=int(Purpose.RESAMPLING),
        parents=torch.from_numpy(layout.parents) if isinstance(layout, TreeLayout) else None,
    )
    logprobs = None
    if plan.logprobs is not None:
        logprobs = sampler.whole.logprobs_of(logits, places, allowed, drawn_ids.clamp(min=0), plan)
    kept = sampler.whole.sets_of_drafts(logits, places, allowed, plan, drawn_ids != NO_TOKEN)
    if isinstance(layout, TreeLayout):
        return _of_tree(layout.reached(drawn_ids, status, accepted), logprobs)._replace(kept=kept)
    assert isinstance(layout, ChainLayout), "there are no others"
    tokens = layout.spread(drawn_ids, NO_TOKEN)
    return VerifiedDrafts(tokens, accepted, layout.spread(status, RowStatus.OK), logprobs, kept=kept)


def _matched(places: DraftPlaces, drawn_ids: Tensor, status: Tensor, logprobs: Logprobs | None) -> VerifiedDrafts:
    """Returns what requests get by the rule match, of the tokens and statuses of all places."""
    layout = places.layout
    if isinstance(layout, TreeLayout):
        return _of_tree(layout.followed(drawn_ids, status, places.draft_ids), logprobs)
    assert isinstance(layout, ChainLayout), "there are no others"
    tokens = layout.table(drawn_ids)
    return cut(layout, tokens, layout.accepted(tokens, places.draft_ids), status, logprobs)


def _of_tree(followed: Followed, logprobs: Logprobs | None) -> VerifiedDrafts:
    return VerifiedDrafts(followed.token_ids, followed.accepted, followed.status, logprobs, followed.path)


def _is_unreached(layout: PlacesLayout, found: VerifiedDrafts) -> Tensor:
    """Returns which places have given their requests no token, bool [places]."""
    if isinstance(layout, TreeLayout):
        assert found.path is not None, "trees have one"
        return layout.is_off(found.path)
    assert isinstance(layout, ChainLayout), "there are no others"
    return layout.of_places(found.token_ids == NO_TOKEN)


def cut(
    layout: ChainLayout, tokens: Tensor, accepted: Tensor, status: Tensor, logprobs: Logprobs | None
) -> VerifiedDrafts:
    """Returns tokens and statuses, which are overwritten, without what is beyond the accepted drafts."""
    is_beyond = layout.columns > accepted.unsqueeze(1)
    return VerifiedDrafts(
        tokens.masked_fill_(is_beyond, NO_TOKEN),
        accepted,
        layout.table(status).masked_fill_(is_beyond, RowStatus.OK),
        logprobs,
    )


def places_of(batch: SamplingBatch, counts: Ids, parents: Ids | None) -> DraftPlaces:
    """Returns the places of the batch's requests; the latest are kept for as long as the batch stays so."""
    kept = batch.plans.of(KeptPlaces, (), KeptPlaces)
    key = (counts.tobytes(), *(() if parents is None else (parents.tobytes(),)))
    left = batch.host.min_tokens_left
    is_ending = bool(left.any() and ((left > 0) & (left <= counts)).any())  # so many drafts may outlast it
    is_ending |= bool(batch.row_edits.rules)  # whose places have other slots in each call
    if key in kept and not is_ending:
        return kept[key]
    layout = ChainLayout(counts, batch.device) if parents is None else TreeLayout(counts, parents, batch.device)
    places = DraftPlaces(batch, layout)
    if not is_ending:
        if len(kept) == MOST_KEPT:
            del kept[next(iter(kept))]
        kept[key] = places
    return places
