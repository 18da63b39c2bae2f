"""What an engine pays for verifying drafts with vllm-ascend's functions in plain torch, from logits to tokens.

vllm-ascend judges drafts by Triton kernels, and has a twin in plain torch of each for where there is no Triton. This is
the arithmetic of these twins for a batch at once, written anew: the rows of all drafts in float32, divided by the
temperature; top-k by a sort of the whole rows; softmax; a uniform number for each draft, which stays where p / q is not
below it; for each draft what would replace it, drawn from max(p - q, 0) by a race with noise of its request; and for
each request a token behind its drafts. All rows are worked on, whatever is accepted.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NO_TOKEN = -1


class Requests(NamedTuple):
    """What is asked of each row, as the engine holds it.

    Attributes:
        temperature: float32 [requests], 0 for greedy ones.
        top_k: int64 [requests], from 1 to the vocabulary's size.
    """

    temperature: Tensor
    top_k: Tensor


def verify(logits: Tensor, draft_ids: Tensor, proposals: Tensor | None, requests: Requests) -> Tensor:
    """Judges drafts, as many of each request.

    Args:
        logits: [requests * (drafts + 1), vocab_size], request by request.
        draft_ids: int64 [requests * drafts], ids of the vocabulary.
        proposals: float32 [requests * drafts, vocab_size], what each was drawn from; None: they were not drawn.
        requests: what they are sampled with.

    Returns:
        int64 [requests, drafts + 1], the accepted drafts, the token that follows, then -1.
    """
    count, vocab_size = len(requests.temperature), logits.shape[1]
    places = torch.arange(len(logits)).view(count, -1)
    of_request = torch.arange(count).repeat_interleave(places.shape[1] - 1)
    drafts, is_greedy = draft_ids.view(count, -1), (requests.temperature == 0).unsqueeze(1)

    behind = probabilities(logits[places[:, -1]], requests)
    best_behind = behind.argmax(1)
    drawn_behind = behind.div_(torch.empty_like(behind).exponential_()).argmax(1)
    last = torch.where(is_greedy.squeeze(1), best_behind, drawn_behind)

    p = probabilities(logits[places[:, :-1].flatten()], Requests(*(each[of_request] for each in requests)))
    best = p.argmax(1).view_as(drafts) if is_greedy.any() else drafts
    columns = draft_ids.unsqueeze(1)
    p_of_drafts = p.gather(1, columns).view_as(drafts)
    uniform = torch.rand(drafts.shape, dtype=torch.float64)
    if proposals is None:
        stays = p_of_drafts >= uniform
        rest = p.clone().scatter_(1, columns, 0.0)
    else:
        q_of_drafts = proposals.gather(1, columns).view_as(drafts)
        stays = (q_of_drafts > 0) & (p_of_drafts / q_of_drafts >= uniform)
        rest = (p - proposals).clamp(min=0.0)
    noise = torch.empty(count, vocab_size).exponential_()[of_request]
    replacement = (rest / noise).argmax(1).view_as(drafts)

    stays = torch.where(is_greedy, drafts == best, stays)
    replacement = torch.where(is_greedy, best, replacement)
    accepted = stays.long().cumprod(1).sum(1, keepdim=True)
    column = torch.arange(places.shape[1])
    token = torch.cat((replacement, last.unsqueeze(1)), 1).gather(1, accepted)
    tokens = torch.cat((drafts, token), 1)
    return torch.where(column < accepted, tokens, torch.where(column == accepted, token, NO_TOKEN))


def probabilities(rows: Tensor, requests: Requests) -> Tensor:
    """Returns float32 [rows, vocab_size], what rows are drawn from; of greedy ones by their logits as they are.

    Top-k is a cut of probabilities that are sorted as a whole, as vllm-ascend's function in torch has it.
    """
    divisor = requests.temperature.masked_fill(requests.temperature == 0, 1.0).unsqueeze(1)
    values = rows.to(torch.float32, copy=True).div_(divisor)
    weights = values.softmax(1)
    ascending = weights.sort(dim=1).values
    cut = ascending.gather(1, (rows.shape[1] - requests.top_k).unsqueeze(1))
    return values.masked_fill_(weights < cut, -torch.inf).softmax(1)
