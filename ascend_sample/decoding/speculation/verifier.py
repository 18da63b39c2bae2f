"""Verifies drafts with the sampling layer, by any of its rules and with all parameters of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

from ascend_sample.decoding.distributions import RowSampling
from ascend_sample.decoding.row_params import all_but_draw_fields
from ascend_sample.decoding.speculation.drafters import Draft
from ascend_sample.sampling import SamplingParams, verify_drafts
from ascend_sample.sampling.drafts.arguments import VerificationRule
from ascend_sample.sampling.rows.table import to_device


class VerifyResult(NamedTuple):
    """Result of verifying a draft.

    Attributes:
        tokens: int64 [batch, drafts + 1], a row's accepted drafts and the token after them; what follows is any.
        accepted: int64 [batch], how many drafts of each row stay.
        status: int8 [batch, drafts + 1], a `RowStatus` of each token; None where log-probabilities say what is
            impossible.
    """

    tokens: Tensor
    accepted: Tensor
    status: Tensor | None = None


class Verifier:
    """Verifies the drafts of the rows of a call.

    Args:
        sampling: The rows.
        params: One for each row.
        rule: The rule of `verify_drafts`.
    """

    def __init__(self, sampling: RowSampling, params: Sequence[SamplingParams], rule: VerificationRule) -> None:
        of_text = attrgetter(*all_but_draw_fields())
        self._sampling, self._rule = sampling, rule
        self._is_best = sampling.is_greedy and all(of_text(one) == of_text(SamplingParams()) for one in params)

    def verify(self, logits: Tensor, draft: Draft, is_whole: bool) -> VerifyResult:
        """Verifies a draft.

        Args:
            logits: floats [batch, drafts + 1, vocab_size], of the place of each draft and the one behind.
            draft: what was proposed.
            is_whole: the host knows that every row proposes all drafts.
        """
        if self._is_best:
            return self._compare(logits, draft, is_whole)
        batch, count, drafts = self._sampling.batch, draft.tokens.shape[1], draft.tokens
        if not is_whole:
            drafts = torch.where(self._sampling.places.first(count) < draft.counts[:, None], drafts, -1)
        proposals = None if self._rule == "match" else draft.probabilities
        verified = verify_drafts(
            logits.flatten(0, 1),
            drafts.flatten(),
            batch,
            counts=[count] * len(batch),
            rule=self._rule,
            draft_probabilities=None if proposals is None else proposals.flatten(0, 1),
        )
        return VerifyResult(verified.token_ids.clamp(min=0), verified.accepted, verified.status)

    def append(self, tokens: Tensor, counts: Tensor) -> None:
        """Tells the requests their first tokens: tokens [batch, n], and on the CPU how many of them each row got."""
        if self._is_best:  # what is the best token depends on no text
            return
        rows = torch.arange(len(counts), device="cpu").repeat_interleave(counts)
        columns = torch.arange(len(rows), device="cpu") - (counts.cumsum(0) - counts)[rows]
        cells = to_device((rows * tokens.shape[1] + columns).numpy(), tokens.device)
        self._sampling.batch.append(tokens.flatten().index_select(0, cells), rows)

    def _compare(self, logits: Tensor, draft: Draft, is_whole: bool) -> VerifyResult:
        """Compares the drafts of greedy rows with the best tokens, as every rule does, in few launches."""
        best, count = self._sampling.greedy.of(logits), draft.tokens.shape[1]
        if count == 0:
            return VerifyResult(best, draft.counts)
        each = self._sampling.places.first(count + 1)
        accepted = torch.where(draft.tokens == best[:, :count], each[-1], each[:-1]).amin(dim=1)
        return VerifyResult(best, accepted if is_whole else torch.minimum(accepted, draft.counts))
