"""Drafts that the sampling layer judges, by any of its rules and with all parameters of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

import torch
from torch import Tensor

from ascend_sample.decoding.distributions import RowSampling
from ascend_sample.decoding.request import Request
from ascend_sample.decoding.row_params import all_but_draw_fields, checked_params
from ascend_sample.decoding.speculation.acceptance import Draft
from ascend_sample.sampling import SamplingBatch, SamplingParams, verify_drafts
from ascend_sample.sampling.drafts.arguments import Rule, check_rule
from ascend_sample.sampling.requests.fields import Stage
from ascend_sample.sampling.requests.params import fields_of
from ascend_sample.sampling.rows.table import to_device


def checked_rows(
    request: Request, params: SamplingParams | Sequence[SamplingParams] | None, rule: object
) -> list[SamplingParams]:
    """Returns one `SamplingParams` for each prompt, checked for a rule of speculative sampling.

    Raises:
        TypeError: the parameters are none.
        ValueError: the rule is none, or there are fewer or more parameters than prompts, or some that it cannot honour.
    """
    check_rule(request.strategy, rule, "standard")
    remedy = "Call sample: each draft would need the state after those before it."
    return checked_params(request, checked_params(request, params), fields_of(Stage.STATE), remedy)


def is_judged_there(rule: str, params: Sequence[SamplingParams]) -> bool:
    """Tells whether `judge_draft` cannot judge: another rule, or logits that depend on the tokens before, or masks."""
    judged = attrgetter(*all_but_draw_fields())
    default = judged(SamplingParams())
    return rule != "standard" or any(judged(one) != default for one in params)


class Verification:
    """The rows of a call as the sampling layer holds them, which judges their drafts.

    Args:
        request: the prompts.
        params: one for each.
        sampling: what the drafter draws with: its seeds are the rows' seeds.
        rule: by which drafts are judged.
    """

    def __init__(self, request: Request, params: list[SamplingParams], sampling: RowSampling, rule: Rule) -> None:
        self._rule = rule
        self._batch = SamplingBatch(sampling.vocab_size, request.device, capacity=len(params))
        seeded = [
            one if one.seed is not None else replace(one, seed=seed % 2**64)
            for one, seed in zip(params, sampling.seed_here.tolist(), strict=True)
        ]
        self._batch.extend(seeded, request.prompts())

    def judge(self, logits: Tensor, draft: Draft) -> tuple[Tensor, Tensor, Tensor]:
        """Judges drafts.

        Args:
            logits: floats [batch, drafts + 1, vocab_size], of the place of each draft and the one behind.
            draft: what was proposed.

        Returns:
            As `VerifiedDrafts` has them the tokens, how many drafts stay, and the statuses; 0 where there is no token.
        """
        count = draft.tokens.shape[1]
        is_proposed = torch.arange(count, device=logits.device) < draft.counts[:, None]
        drafts = torch.where(is_proposed, draft.tokens, -1).flatten()
        proposals = None if draft.probabilities is None or self._rule == "match" else draft.probabilities
        verified = verify_drafts(
            logits.flatten(0, 1),
            drafts,
            self._batch,
            counts=[count] * len(self._batch),
            rule=self._rule,
            draft_probabilities=None if proposals is None else proposals.flatten(0, 1),
        )
        return verified.token_ids.clamp(min=0), verified.accepted, verified.status

    def append(self, tokens: Tensor, emitted: Tensor) -> None:
        """Takes in the first tokens of each row: tokens [batch, n], and on the host how many of them each row got."""
        rows = torch.arange(len(emitted), device="cpu").repeat_interleave(emitted)
        columns = torch.arange(len(rows), device="cpu") - (emitted.cumsum(0) - emitted)[rows]
        cells = to_device((rows * tokens.shape[1] + columns).numpy(), tokens.device)
        self._batch.append(tokens.flatten().index_select(0, cells), rows)
