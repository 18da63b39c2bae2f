"""Greedy search appends the most probable token at every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import Unpack

from ascend_sample.decoding.distributions import GreedyTokens
from ascend_sample.decoding.model import StepModel
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.request import GenerationOptions, check_request
from ascend_sample.decoding.steps import prefilled
from ascend_sample.decoding.strategies.loop import Choice, Texts, append_tokens


@torch.no_grad()
def greedy_search(
    model: StepModel,
    input_ids: Tensor,
    *,
    max_new_tokens: int | Sequence[int] | Tensor,
    **common: Unpack[GenerationOptions],
) -> DecodeOutput:
    """Appends the token with the largest logit at every step, the lowest id among equals.

    Args:
        model: the model that computes steps.
        input_ids: int64 [batch, length], the prompts.
        max_new_tokens: how many tokens are appended at most; one number, or one for each prompt.
        **common: see `GenerationOptions`.

    Returns:
        One row a prompt. Its score is the sum of its tokens' log-probabilities, in a softmax of the logits after
        logits_processor. A row that had no token left to choose has -inf, and a RuntimeWarning names it.

    Raises:
        TypeError: an argument has a wrong type or dtype.
        ValueError: an argument has a wrong shape, device or value.

    Example:
        >>> from ascend_sample.decoding import ModuleModel
        >>> successor = ModuleModel(lambda input_ids: torch.nn.functional.one_hot((input_ids + 1) % 7, 7) * 5.0)
        >>> output = greedy_search(successor, torch.tensor([[1], [4]]), max_new_tokens=4, eos_token_id=[3, 0])
        >>> output.to_lists(), output.sequences_scores
        ([[2, 3], [5, 6, 0]], tensor([-0.0793, -0.1189]))

    Source: docs/decoding.md, section "Greedy search and sampling".
    """
    request = check_request("greedy_search", model, input_ids, max_new_tokens, **common)
    texts, start = Texts(request), prefilled(model, request)
    greedy = GreedyTokens(start.logits.shape[1])

    def choose(logits: Tensor) -> Choice:
        scores = texts.processed(logits) if request.logits_processor or request.needs_scores else logits
        return Choice(greedy.of(scores), scores, scores)

    return append_tokens(model, start, texts, choose)
