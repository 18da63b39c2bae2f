"""The heart of speculative sampling decides which draft tokens stay, and what follows the last of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ascend_sample.decoding.distributions import RowSampling, draw_from, raced
from ascend_sample.decoding.places import Places, at_places, at_tokens
from ascend_sample.decoding.speculation.round_noise import RoundNoise
from ascend_sample.sampling import Purpose, exponential_noise


class Draft(NamedTuple):
    """Holds what a drafter proposes.

    Attributes:
        tokens: int64 [batch, count], all of the model's vocabulary; what follows a row's own count is any of them.
            Under the rule match others are not accepted. Under the other rules they are refused on a CPU; on a device,
            where a round would have to wait for an answer, they end the drafts of their row.
        counts: int64 [batch], how many of them each row proposes, 0 to count.
        probabilities: float32 [batch, count, vocab_size], the distribution that each token was drawn from; None where
            tokens are not drawn: each then counts as drawn from a distribution that has nothing else.
        passes: how many forward passes it took.
    """

    tokens: Tensor
    counts: Tensor
    probabilities: Tensor | None = None
    passes: int = 0


class Verdict(NamedTuple):
    """Says what becomes of a draft.

    Attributes:
        accepted: int64 [batch], how many of the row's first draft tokens stay.
        token: int64 [batch], the token that follows these, in place of the first one that was rejected, if any was.
    """

    accepted: Tensor
    token: Tensor


def judge_draft(
    logits: Tensor,
    draft: Draft,
    sampling: RowSampling,
    position: Tensor,
    noise: RoundNoise | None = None,
    is_whole: bool = False,
) -> Verdict:
    """Keeps as many draft tokens as leaves the target's distribution exact, and draws the token after them.

    A token t that was drawn from q stays with probability min(1, p(t) / q(t)), where p is the target's distribution at
    its place. The first that does not stay is drawn again from max(p - q, 0), normalised: together that is a draw from
    p. If all stay, the target's distribution after them gives one token more. For a greedy row p has a single 1: a
    draft token stays if it is the target's best, and only then.

    The randomness of a place is a function of the row's seed and the place, so no other row changes what a row gets. A
    row rejects once at most, so what replaces a draft is drawn with the noise of the first place.

    Args:
        logits: floats [batch, count + 1, vocab_size], the target's at the place of each draft token and after the last;
            what follows a row's own count is not used. They stay as they are.
        draft: a draft of count tokens a row, which may be 0.
        sampling: how each row of the target is sampled.
        position: int64 [batch], the number of tokens before the row's first draft token.
        noise: where the host makes it; None: it is made where the seeds are.
        is_whole: the host knows that every row proposes count tokens.

    Example:
        >>> from ascend_sample.sampling import SamplingParams
        >>> sampling = RowSampling([SamplingParams(seed=3), SamplingParams(seed=4)], 2, torch.device("cpu"))
        >>> target = torch.tensor([[[0.0, 1.0], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.5]]])
        >>> draft = Draft(torch.tensor([[1], [1]]), torch.tensor([1, 1]), torch.tensor([[[0.0, 1.0]], [[0.5, 0.5]]]))
        >>> verdict = judge_draft(target.log(), draft, sampling, torch.tensor([0, 0]))
        >>> verdict.accepted, verdict.token[1]
        (tensor([1, 0]), tensor(0))

    Source: docs/decoding.md, section "Speculative sampling"; Leviathan et al., "Fast Inference from Transformers via
    Speculative Decoding", ICML 2023, algorithm 1.
    """
    batch_size, count = draft.tokens.shape
    if count == 0:
        position_here = None if noise is None else noise.lengths
        return Verdict(torch.zeros_like(position), sampling.draw(logits[:, 0], position, position_here))
    if sampling.is_greedy:
        accepted, best = judge_greedy_draft(logits, draft, sampling, position, is_whole)
        return Verdict(accepted, best.gather(1, accepted[:, None]).squeeze(1))
    counts = None if is_whole else draft.counts
    made = None if noise is None else noise.of_judging()
    if made is None:
        places = sampling.places.first(count)
        seeds, each = sampling.seed.repeat_interleave(count), (position[:, None] + places).flatten()
        of_places = exponential_noise(seeds, each, 1, purpose=Purpose.ACCEPTANCE).view(batch_size, count)
    else:
        of_places = made.acceptance
    uniform = torch.exp(-of_places)
    target = sampling.probabilities(logits)
    p = at_tokens(target[:, :count], draft.tokens)
    q = torch.ones_like(p) if draft.probabilities is None else at_tokens(draft.probabilities, draft.tokens)
    accepted = _first_rejected(uniform * q < p, counts, sampling.places)
    is_rejected = accepted < draft.counts
    end = position + accepted
    if position.is_cpu and not is_rejected.any():  # a look that costs nothing there
        return Verdict(accepted, sampling.draw(_at_place(logits, accepted), end))
    place = accepted.clamp(max=count - 1)
    rest = _residual(_at_place(target, accepted), draft, place)
    if made is None:
        replacement = draw_from(rest, sampling.seed, position, Purpose.RESAMPLING)
    else:
        replacement = raced(rest, made.resampling)
    if position.is_cpu and is_rejected.all():
        return Verdict(accepted, replacement)
    of_bonus = None if made is None else _at_place(made.bonus, accepted)
    bonus = sampling.draw(_at_place(logits, accepted), end, noise=of_bonus)
    return Verdict(accepted, torch.where(is_rejected, replacement, bonus))


def judge_greedy_draft(
    logits: Tensor, draft: Draft, sampling: RowSampling, position: Tensor, is_whole: bool = False
) -> tuple[Tensor, Tensor]:
    """Does what `judge_draft` does, with its arguments, for rows that are all greedy.

    Returns:
        How many of a row's draft tokens stay, int64 [batch], and the target's best tokens, int64 [batch, count + 1]:
        the first are those that stay, and the next one follows them.
    """
    count, counts = draft.tokens.shape[1], None if is_whole else draft.counts
    best = sampling.draw(logits, position[:, None].expand(-1, count + 1))
    return _first_rejected(draft.tokens == best[:, :count], counts, sampling.places), best


def _first_rejected(stays: Tensor, counts: Tensor | None, places: Places) -> Tensor:
    """Returns each row's first place in stays, bool [batch, count], that is False or none of its counts; or count."""
    each = places.first(stays.shape[1] + 1)
    first = torch.where(stays, each[-1], each[:-1]).amin(dim=1)
    return first if counts is None else torch.minimum(first, counts)


def _residual(p: Tensor, draft: Draft, place: Tensor) -> Tensor:
    """Returns max(p - q, 0) for q at place [batch] of the draft; p where nothing is left of it, by rounding."""
    if draft.probabilities is None:
        token = draft.tokens.gather(1, place[:, None])
        rest = p.scatter(1, token, 0.0)
    else:
        rest = (p - _at_place(draft.probabilities, place)).clamp(min=0)
    return torch.where((rest > 0).any(dim=1, keepdim=True), rest, p)


def _at_place(values: Tensor, place: Tensor) -> Tensor:
    """Takes from each row of values, [batch, places, vocab_size], what is at its place, int64 [batch]."""
    return at_places(values, place[:, None]).squeeze(1)
