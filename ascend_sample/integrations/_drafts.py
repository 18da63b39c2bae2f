"""Verifies drafts of rows whose logits an engine has processed: what `verify_drafts` does for a batch of requests."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ascend_sample.integrations._rows import distributions_of, to_device
from ascend_sample.sampling.drafts.judging import (
    Judgement,
    JudgingNoise,
    Proposals,
    finite_kept,
    judge_with,
    judging_noise,
    never_empty,
    noise_position,
)
from ascend_sample.sampling.drafts.places import NO_TOKEN, ChainLayout
from ascend_sample.sampling.draws.noise import Purpose, exponential_noise
from ascend_sample.sampling.draws.placed_noise import DrawKeys, KnownNoise
from ascend_sample.sampling.rows.parameters import Facts
from ascend_sample.sampling.step.distribution import filter_logits


class DrawnDrafts(NamedTuple):
    """What the rules standard and block look at beside the tokens.

    Attributes:
        rule: "standard" or "block".
        probabilities: float32 [places, vocab_size], the target's.
        proposals: what the drafts were drawn from.
        seed, position: int64 [places], on any device.
    """

    rule: str
    probabilities: Tensor
    proposals: Proposals
    seed: Tensor
    position: Tensor


def verified(layout: ChainLayout, drawn_ids: Tensor, draft_ids: Tensor, drawn: DrawnDrafts | None = None) -> Judgement:
    """Returns what each request gets: its accepted drafts, the token after them, then -1; and how many drafts stay.

    Args:
        layout: where the places are.
        drawn_ids: int64 [places], the token that is drawn at each place without speculation.
        draft_ids: int64 [drafts], request by request; what is no id is never accepted.
        drawn: of drafts whose distributions are known; None: the rule is "match".
    """
    if drawn is None or layout.most == 0:
        tokens = layout.table(drawn_ids)
        found = Judgement(tokens, layout.accepted(tokens, draft_ids))
    else:
        noise = _noise_of(layout, drawn)
        found = judge_with(drawn.rule, drawn.probabilities, drawn_ids, draft_ids, layout, drawn.proposals, noise)
    is_beyond = layout.columns > found.accepted.unsqueeze(1)
    return Judgement(found.tokens.masked_fill(is_beyond, NO_TOKEN), found.accepted)


def _noise_of(layout: ChainLayout, drawn: DrawnDrafts) -> JudgingNoise:
    """Makes the noise of judging, from the seeds and positions of places."""
    vocab_size, device = drawn.probabilities.shape[1], drawn.probabilities.device
    if drawn.seed.is_cpu and drawn.position.is_cpu:
        keys, is_first = (drawn.seed.numpy(), drawn.position.numpy()), layout.column == 0
        of_drafts, of_requests = (DrawKeys(*(key[chosen] for key in keys)) for chosen in (layout.is_draft, is_first))
        numbers = layout.column[layout.is_draft]
        positions = noise_position(drawn.rule, of_drafts.position - numbers, numbers)
        return judging_noise(
            KnownNoise(DrawKeys(of_drafts.seed, positions), 1, Purpose.ACCEPTANCE),
            KnownNoise(of_requests, vocab_size, Purpose.RESAMPLING),
            device,
        )
    seed, position = to_device(drawn.seed, device), to_device(drawn.position, device)
    first, judged = layout.first_places, layout.places_of_drafts
    positions = position[judged]
    if drawn.rule == "block":
        numbers = layout.cells_of_drafts.remainder(layout.most + 1)
        positions = noise_position(drawn.rule, positions - numbers, numbers)
    return JudgingNoise(
        exponential_noise(seed[judged], positions, 1, purpose=Purpose.ACCEPTANCE).view(-1),
        exponential_noise(seed[first], position[first], vocab_size, purpose=Purpose.RESAMPLING),
    )


def target_probabilities(
    logits: Tensor,
    drawn_ids: Tensor,
    is_greedy: Tensor,
    *,
    top_k: Tensor | None,
    top_p: Tensor | None,
    facts: Facts | None,
    keep_ties: bool = False,
) -> Tensor:
    """Returns what rows are drawn from, float32 [rows, vocab_size]; of a greedy row, the token that it gets alone.

    Args:
        logits: float [rows, vocab_size], at the temperature.
        drawn_ids: int64 [rows], what the rows get.
        is_greedy: bool [rows].
        top_k: int32 [rows]; None: off.
        top_p: float32 [rows]; None: off.
        facts: what the host knows of top_k and top_p, so that a device need not sort.
        keep_ties: top-k keeps every logit that is equal to the k-th.
    """
    if keep_ties or (facts is None and not logits.is_cpu):
        kept = filter_logits(logits, top_k=top_k, top_p=top_p, keep_ties=keep_ties)
        found = finite_kept(kept).softmax(1)
    else:
        found = distributions_of(logits, facts, top_k, top_p).probabilities(logits)
    found = never_empty(found).masked_fill_(is_greedy.unsqueeze(1), 0)
    return found.scatter_add_(1, drawn_ids.unsqueeze(1), is_greedy.unsqueeze(1).float())
