"""Greedy search: the most probable token at every step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Unpack

from ascend_sample._validate import SKIP_TOP_K
from ascend_sample.decoding.log_probs import log_probs_of
from ascend_sample.decoding.loop import Choice, Texts, append_tokens, prefilled
from ascend_sample.decoding.model import StepModel
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.request import CommonOptions, Request, check_request
from ascend_sample.sampling import RowFacts, RowsOutput, RowStatus, sample_rows


@torch.no_grad()
def greedy_search(
    model: StepModel,
    input_ids: Tensor,
    *,
    max_new_tokens: int | Sequence[int] | Tensor,
    **common: Unpack[CommonOptions],
) -> DecodeOutput:
    """Append the token with the largest logit at every step, the lowest id among equals.

    Args:
        model: what computes steps.
        input_ids: int64 [batch, length], the prompts.
        max_new_tokens: how many tokens are appended at most; one number, or one for each prompt.
        **common: see `CommonOptions`.

    Returns:
        One row a prompt. Its score is the sum of its tokens' log-probabilities, in a softmax of the logits after
        logits_processor. A row that had no token left to choose has -inf, and a RuntimeWarning names it.

    Raises:
        TypeError: an argument has a wrong type or dtype.
        ValueError: an argument has a wrong shape, device or value.

    Example:
        >>> from ascend_sample.decoding.module_model import ModuleModel
        >>> successor = ModuleModel(lambda input_ids: torch.nn.functional.one_hot((input_ids + 1) % 7, 7) * 5.0)
        >>> output = greedy_search(successor, torch.tensor([[1], [4]]), max_new_tokens=4, eos_token_id=[3, 0])
        >>> output.to_lists(), output.sequences_scores
        ([[2, 3], [5, 6, 0]], tensor([-0.0793, -0.1189]))

    Source: docs/decoding.md, section "Greedy search and sampling".
    """
    request = check_request("greedy_search", model, input_ids, max_new_tokens, **common)
    texts, best_token = Texts(request), _BestToken(request)

    def choose(logits: Tensor) -> Choice:
        scores = texts.processed(logits) if request.logits_processor or request.return_scores else logits
        best = best_token(scores)
        log_probs = log_probs_of(scores, best.token_ids)
        return Choice(best.token_ids, log_probs, best.status == RowStatus.ALL_MASKED, scores)

    return append_tokens(model, prefilled(model, request), texts, choose)


class _BestToken:
    """The sampling layer at a temperature of 0: the lowest id among equals, NaN as -inf, 16-bit logits as they are."""

    def __init__(self, request: Request) -> None:
        rows, device = request.batch_size, request.device
        self._temperature = torch.zeros(rows, device=device)
        self._nothing = torch.zeros(rows, dtype=torch.int64, device=device)  # nothing is drawn
        self._facts = RowFacts(
            temperature=np.zeros(rows, dtype=np.float32),
            top_k=np.full(rows, SKIP_TOP_K, dtype=np.int32),
            top_p=np.ones(rows, dtype=np.float32),
            min_p=np.zeros(rows, dtype=np.float32),
        )

    def __call__(self, logits: Tensor) -> RowsOutput:
        """Of logits [rows, vocab_size]."""
        return sample_rows(
            logits,
            temperature=self._temperature,
            seed=self._nothing,
            position=self._nothing,
            facts=self._facts,
        )
