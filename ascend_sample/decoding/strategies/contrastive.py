"""Contrastive search takes probable tokens that do not lead back to where the text has been."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad
from typing_extensions import Unpack

from ascend_sample._errors import check_integer, check_number, refuse
from ascend_sample.decoding.log_probs import log_probs_of
from ascend_sample.decoding.model import StepModel, decoded
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.request import GenerationOptions, Request, check_positions, check_request
from ascend_sample.decoding.steps import prefilled, steps_of
from ascend_sample.decoding.strategies.loop import Choice, Texts
from ascend_sample.sampling.draws.best_tokens import best_entries, chunk_lanes


@torch.no_grad()
def contrastive_search(
    model: StepModel,
    input_ids: Tensor,
    *,
    max_new_tokens: int | Sequence[int] | Tensor,
    top_k: int = 4,
    penalty_alpha: float = 0.6,
    **common: Unpack[GenerationOptions],
) -> DecodeOutput:
    """Appends, of the top_k most probable tokens v, the one with the largest

        (1 - penalty_alpha) * p(v) - penalty_alpha * max over all tokens t before it of cos(h(v), h(t))

    where h(t) is the hidden state of token t in the model's last layer, prompt included and padding excluded, and p is
    the softmax of the logits after logits_processor. The first one wins among equals, in the order of p, then of ids.
    A token without probability is never taken while there is another.

    Each step decodes top_k candidates a row, and keeps the cache of the one that is taken.

    Args:
        model: the model that computes steps; it must return hidden states (`CausalModel(model, hidden_states=True)`).
        input_ids: int64 [batch, length], the prompts.
        max_new_tokens: how many tokens are appended at most; one number, or one for each prompt.
        top_k: how many candidates there are, at most as many as the vocabulary has; 1 is greedy search.
        penalty_alpha: from 0, the most probable token, to 1, the one least like what was before.
        **common: see `GenerationOptions`.

    Returns:
        One row a prompt. Its score is the sum of its tokens' log-probabilities, in a softmax of the logits after
        logits_processor. A row that had no token left to choose has -inf, and a RuntimeWarning names it.

    Raises:
        TypeError: an argument has a wrong type or dtype.
        ValueError: an argument has a wrong shape, device or value, or the model returns no hidden states.

    Example:
        >>> from ascend_sample.decoding import ModuleModel
        >>> logits, hidden_states = torch.tensor([0.6, 0.3, 0.1]).log(), torch.eye(3)  # cos is 1 for equal tokens, or 0
        >>> model = ModuleModel(lambda input_ids: (logits.expand(*input_ids.shape, 3), hidden_states[input_ids]))
        >>> contrastive_search(model, torch.tensor([[2]]), max_new_tokens=3, top_k=2, penalty_alpha=0.5).to_lists()
        [[0, 1, 0]]

    Source: Su et al., "A Contrastive Framework for Neural Text Generation", 2022; docs/decoding.md, section
    "Contrastive search".
    """
    request = check_request("contrastive_search", model, input_ids, max_new_tokens, **common)
    check_positions(request, model, more=1)  # candidates for the last token are read, too
    check_integer("contrastive_search", "top_k", top_k, low=1)
    check_number("contrastive_search", "penalty_alpha", penalty_alpha, low=0.0, high=1.0)
    texts, start = Texts(request), prefilled(model, request)
    context = _Context(request, _hidden_states(request, start.hidden_states))
    logits, cache = start.logits, start.cache
    count = min(top_k, logits.shape[1])
    first_candidates = torch.arange(request.batch_size, device=request.device) * count
    lanes = chunk_lanes(request.device)
    for _ in steps_of(request):
        scores = texts.processed(logits)
        candidates = best_entries(scores, count, lanes)[1]
        log_probs = log_probs_of(scores, candidates)
        expanded = model.expand(cache, count)
        output = decoded(request.strategy, model, candidates.reshape(-1, 1), expanded, logits.shape[1])
        hidden_states = normalize(
            _hidden_states(request, output.hidden_states).view(request.batch_size, count, -1), dim=2
        )
        contrast = (1 - penalty_alpha) * log_probs.exp() - penalty_alpha * context.largest_cosines(hidden_states)
        taken = contrast.masked_fill_(log_probs == -torch.inf, -torch.inf).argmax(dim=1, keepdim=True)
        tokens = candidates.gather(1, taken).squeeze(1)
        texts.append(Choice(tokens, scores, scores, log_probs=log_probs.gather(1, taken).squeeze(1)))
        if texts.are_done():
            break
        rows = first_candidates + taken.squeeze(1)
        context.append(hidden_states.flatten(0, 1)[rows])
        logits = output.logits[rows, -1]
        cache = model.reorder(output.cache, rows if texts.stand_in is None else rows[texts.stand_in])
    return texts.output()


class _Context:
    """Keeps the hidden states of all tokens so far, float32 of length 1, with room for those that come.

    Args:
        request: what was asked for.
        hidden_states: those of the prompts, float32 [batch, length, hidden_size].
    """

    def __init__(self, request: Request, hidden_states: Tensor) -> None:
        self._states = pad(normalize(hidden_states, dim=2), (0, 0, 0, request.max_steps))
        self._is_padding = pad(~request.attention_mask, (0, request.max_steps))
        self._length = hidden_states.shape[1]

    def largest_cosines(self, candidates: Tensor) -> Tensor:
        """Returns the largest cosine between each candidate and any of the tokens, [batch, count].

        Candidates are [batch, count, hidden_size], of length 1.
        """
        cosines = candidates @ self._states[:, : self._length].transpose(1, 2)
        return cosines.masked_fill_(self._is_padding[:, None, : self._length], -torch.inf).amax(dim=2)

    def append(self, states: Tensor) -> None:
        """Appends the states of one token a row, [batch, hidden_size], of length 1."""
        self._states[:, self._length] = states
        self._length += 1


def _hidden_states(request: Request, hidden_states: Tensor | None) -> Tensor:
    if hidden_states is None:
        remedy = "Make it with hidden_states=True, or let the module return (logits, hidden states)."
        refuse(request.strategy, "model", "return hidden states", "none", remedy)
    return hidden_states.float()
