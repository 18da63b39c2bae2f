"""Judges drafts that were drawn from known distributions, by the rules standard and block, all requests at once.

What each rule says, `reference/drafts.py` has word by word. Nothing here reads a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ascend_sample.sampling.drafts.places import NO_TOKEN, ChainLayout, DraftPlaces
from ascend_sample.sampling.draws.noise import Purpose, exponential_noise
from ascend_sample.sampling.draws.placed_noise import DrawKeys, KnownNoise, can_be_sent, sent
from ascend_sample.sampling.rows.table import to_device
from ascend_sample.sampling.step.distribution import Distributions

TINY: Final = torch.finfo(torch.float32).tiny
BLOCK_APART: Final = 2**40
"""Further than any text is long."""


@dataclass(frozen=True)
class Proposals:
    """What drafts were drawn from.

    Attributes:
        probabilities: float32 [drafts, vocab_size], or [drafts, candidates]. None: drafts were not drawn.
        candidates: int64 [drafts, candidates], whose probabilities these are; each id once, and what is no id of the
            vocabulary does not count. None: they are those of the whole vocabulary.
    """

    probabilities: Tensor | None = None
    candidates: Tensor | None = None

    def native(self) -> dict[str, Tensor | None]:
        """Returns the arguments of the CPU kernel."""
        return {"draft_probabilities": self.probabilities, "draft_candidates": self.candidates}

    def of_drafts(self, draft_ids: Tensor) -> Tensor | None:
        """Returns float32 [drafts], the probability of each; None where all are certain.

        Args:
            draft_ids: int64 [drafts], each of the vocabulary.
        """
        if self.probabilities is None:
            return None
        ids = draft_ids.unsqueeze(1)
        if self.candidates is None:
            return self.probabilities.gather(1, ids).squeeze(1)
        return torch.where(self.candidates == ids, self.probabilities, 0.0).sum(1)

    def subtracted_from(self, rows: Tensor, draft_ids: Tensor, drafts: Tensor | None = None) -> Tensor:
        """Returns max(rows - q, 0).

        Args:
            rows: float32 [rows, vocab_size], probabilities that may be scaled down.
            draft_ids: int64 [rows], whose q each row is for.
            drafts: int64 [rows], the numbers of these drafts. None: they are all drafts in their order.
        """
        vocab_size = rows.shape[1]
        if self.probabilities is None:
            is_there = torch.arange(vocab_size, device=rows.device) == draft_ids.unsqueeze(1)
            return rows.masked_fill(is_there, 0)
        of_rows = self.probabilities if drafts is None else self.probabilities.index_select(0, drafts)
        if self.candidates is None:
            return (rows - of_rows).clamp_(min=0)
        ids = self.candidates if drafts is None else self.candidates.index_select(0, drafts)
        of_rows = of_rows.masked_fill((ids < 0) | (ids >= vocab_size), 0).neg_()
        return rows.scatter_add(1, ids.clamp(0, vocab_size - 1), of_rows).clamp_(min=0)


class Judgement(NamedTuple):
    """What becomes of drafts.

    Attributes:
        tokens: int64 [requests, most drafts + 1]: the drafts, with the token after the accepted ones in its place; what
            follows is any.
        accepted: int64 [requests].
    """

    tokens: Tensor
    accepted: Tensor


class JudgingNoise(NamedTuple):
    """What drafts are judged with.

    Attributes:
        acceptance: float32 [drafts], exponential.
        resampling: float32 [requests, vocab_size], exponential, for what replaces a draft.
    """

    acceptance: Tensor
    resampling: Tensor


def noise_position(rule: str, begin: Any, number: Any) -> Any:
    """Returns the position with whose noise drafts are drawn and judged: their own, unless the rule is block.

    By block, those that do not stay have decided with the others. Their places are judged again by the next call, which
    therefore has other numbers: a function of where it begins, and of the draft's number.

    Args:
        rule: by which they are judged.
        begin: position of the first draft, of each request.
        number: of the draft, from 0 on.

    Example:
        >>> noise_position("standard", 10, 3), noise_position("block", 10, 3) == 10 + 3 * BLOCK_APART
        (13, True)
    """
    return begin + number * (BLOCK_APART if rule == "block" else 1)


def judge(
    rule: str, probabilities: Tensor, drawn_ids: Tensor, draft_ids: Tensor, places: DraftPlaces, proposals: Proposals
) -> Judgement:
    """Judges the drafts of all requests of a batch.

    Args:
        rule: "standard" or "block".
        probabilities: float32 [places, vocab_size], the target's.
        drawn_ids: int64 [places], the token that the step draws at each place: it follows where all drafts stay.
        draft_ids: int64 [drafts]. A negative one ends the drafts of its request.
        places: of the drafts; they are prepared.
        proposals: what the drafts were drawn from.
    """
    layout = _chains(places)
    if layout.most == 0:
        return Judgement(layout.table(drawn_ids), torch.zeros_like(drawn_ids))
    noise = noise_of(rule, places, probabilities.shape[1])
    return judge_with(rule, probabilities, drawn_ids, draft_ids, layout, proposals, noise)


def judge_with(
    rule: str,
    probabilities: Tensor,
    drawn_ids: Tensor,
    draft_ids: Tensor,
    layout: ChainLayout,
    proposals: Proposals,
    noise: JudgingNoise,
) -> Judgement:
    """Does what `judge` does, of requests some of which have drafts, with given noise."""
    vocab_size, ids = probabilities.shape[1], layout.draft_table(draft_ids, NO_TOKEN)
    inside = draft_ids.clamp(0, vocab_size - 1)
    cells = torch.add(inside, layout.places_of_drafts, alpha=vocab_size)
    p, is_unknown = probabilities.view(-1).index_select(0, cells), inside != draft_ids
    q, uniform = proposals.of_drafts(inside), torch.exp(-noise.acceptance)
    if rule == "standard":
        stays = ((uniform if q is None else uniform * q) < p).masked_fill_(is_unknown, False)
        accepted = layout.first_without(layout.draft_table(stays, False))
    else:
        p, uniform = layout.draft_table(p.masked_fill_(is_unknown, 0), 0), layout.draft_table(uniform, 1)
        joint = joint_ratios(p, torch.ones_like(p) if q is None else layout.draft_table(q, 1))
        counts, after = layout.first_without(ids >= 0), layout.columns + 1
        chances = _chances_of_block(joint, p, probabilities, layout, draft_ids, proposals, counts)
        accepted = torch.where((uniform < chances) & (after <= counts.unsqueeze(1)), after, 0).amax(1)
    column, place = accepted.unsqueeze(1), layout.first_places + accepted
    draft_id, rows = ids.gather(1, column).squeeze(1), probabilities.index_select(0, place)
    scaled = rows if rule == "standard" else rows * joint.gather(1, column)
    left = proposals.subtracted_from(scaled, draft_id, layout.drafts_of_places.index_select(0, place))
    left = torch.where(left.amax(1, keepdim=True) > 0, left, rows)
    replacement = left.div_(noise.resampling).argmax(1)  # of requests that reject one; the others have it too
    token = torch.where(draft_id < 0, drawn_ids.index_select(0, place), replacement)
    return Judgement(ids.scatter_(1, column, token.unsqueeze(1)), accepted)


def target_probabilities(logits: Tensor, edited: Tensor | None, places: DraftPlaces, keep_ties: bool) -> Tensor:
    """Returns float32 [places, vocab_size], what each place is drawn from; id 0 where nothing may be drawn.

    Args:
        logits: [places, vocab_size], the model's.
        edited: what masks and penalties make of them; None: nothing.
        places: of the drafts.
        keep_ties: top-k keeps every logit that is equal to the k-th.
    """
    rows = logits if edited is None else edited
    distributions = places.plans.of(
        Distributions, keep_ties, lambda: Distributions(places.row_parameters(), places.vocab_size, keep_ties)
    )
    return never_empty(distributions.probabilities(rows))


def never_empty(probabilities: Tensor) -> Tensor:
    """Returns probabilities with id 0 for NaN, in rows in which nothing may be drawn, in place."""
    probabilities[:, 0].nan_to_num_(1.0)
    return probabilities.nan_to_num_(0.0)


def finite_kept(kept: Tensor) -> Tensor:
    """Returns kept logits whose softmax shares the mass among entries of +inf; where there is one, no other is kept."""
    return kept.masked_fill(kept == torch.inf, 0.0)


def joint_ratios(p: Tensor, q: Tensor) -> Tensor:
    """Returns float32 like p: the joint ratio before each draft, 1 before the first, and never above that."""
    ratios = p / q.clamp(min=TINY)
    joint = [torch.ones_like(p[:, 0])]
    for ratio in ratios.unbind(1)[:-1]:
        joint.append((joint[-1] * ratio).clamp_(max=1.0))
    return torch.stack(joint, 1)


def _chances_of_block(
    joint: Tensor,
    p: Tensor,
    probabilities: Tensor,
    layout: ChainLayout,
    draft_ids: Tensor,
    proposals: Proposals,
    counts: Tensor,
) -> Tensor:
    """Returns float32 like p: what the uniform number of each draft has to be below."""
    if proposals.probabilities is None:
        rest = joint * (1.0 - p)
    else:
        of_drafts = joint.view(-1).index_select(0, layout.cells_of_drafts).unsqueeze(1)
        rows = probabilities.index_select(0, layout.places_of_drafts) * of_drafts
        rest = layout.draft_table(proposals.subtracted_from(rows, draft_ids).sum(1), 0)
    return block_chances(joint, rest, layout.columns + 1 == counts.unsqueeze(1))


def block_chances(joint: Tensor, rest: Tensor, is_last: Tensor) -> Tensor:
    """Returns what the uniform number of each draft has to be below, float32 [requests, most drafts + 1].

    A draft is judged by what is left at the place behind it; the last of a request by the joint ratio alone.

    Args:
        joint: float32 likewise, from `joint_ratios`.
        rest: float32 likewise, how much each draft leaves of the target's law times ``joint``.
        is_last: bool likewise.
    """
    rest, behind = pad(rest[:, 1:], (0, 1)), pad(joint[:, 1:], (0, 1))
    whole = rest + 1.0 - behind
    inner = torch.where(whole > 0, rest / whole, 1.0)
    return torch.where(is_last, behind, inner)


def noise_of(rule: str, places: DraftPlaces, vocab_size: int) -> JudgingNoise:
    """Returns the noise of judging.

    A request rejects once a call, so what replaces is drawn with the noise of the position where the call began.
    """
    layout, requests = _chains(places), places.requests
    host = requests.host
    request, column = layout.request[layout.is_draft], layout.column[layout.is_draft]
    positions = noise_position(rule, host.position[request], column)
    of_drafts = KnownNoise(DrawKeys(host.seed[request], positions), 1, Purpose.ACCEPTANCE)
    racing = KnownNoise(DrawKeys(host.seed.copy(), host.position.copy()), vocab_size, Purpose.RESAMPLING)
    return judging_noise(of_drafts, racing, places.device)


def judging_noise(of_drafts: KnownNoise, racing: KnownNoise, device: torch.device) -> JudgingNoise:
    """Makes the noise of judging, of which the host knows the keys, on a device.

    Args:
        of_drafts: one number a draft.
        racing: a number an id for each request.
        device: where it is read.
    """
    if device.type == "cpu":
        made = [_made_here(each) for each in (of_drafts, racing)]
    elif can_be_sent((of_drafts, racing)):
        made = sent((of_drafts, racing), device)
    else:
        seed, position = to_device(np.stack(racing.keys), device)
        there = exponential_noise(seed, position, racing.lanes, purpose=racing.purpose)
        made = [*sent((of_drafts,), device), there]
    return JudgingNoise(made[0].view(-1), made[1])


def _chains(places: DraftPlaces) -> ChainLayout:
    assert isinstance(places.layout, ChainLayout), "these rules are for chains"
    return places.layout


def _made_here(known: KnownNoise) -> Tensor:
    seed, position = map(torch.from_numpy, known.keys)
    return exponential_noise(seed, position, known.lanes, purpose=known.purpose)
