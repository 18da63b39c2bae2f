"""Drafts that are drawn from known distributions, and what the float64 reference makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from oracle import excludes
from torch import Tensor

from ascend_sample.sampling import SamplingBatch, SamplingParams, exponential_noise
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.reference.distribution import target_distribution
from ascend_sample.sampling.reference.drafts import chances, count_accepted, point_mass, rest_after

KINDS = ("dense", "sparse", "certain")
UNSURE = 1e-4
"""Rounding may decide what is as near as this."""


@dataclass
class Case:
    """One request's drafts, and what the arguments of `verify_drafts` have of them."""

    params: SamplingParams
    prompt: list[int]
    position: int
    logits: Tensor  # [drafts + 1, vocab_size]
    drafts: list[int]
    proposals: Tensor  # [drafts, vocab_size]; what is left of a row's 1 is beyond the vocabulary
    masks: np.ndarray[Any, Any] | None = None  # bool [drafts + 1, vocab_size]

    def distributions(self, keep_ties: bool = False) -> np.ndarray[Any, Any]:
        vocab_size = self.logits.shape[1]
        rows = []
        for place, row in enumerate(self.logits.double().numpy()):
            allowed = row if self.masks is None else np.where(self.masks[place], row, -np.inf)
            before = [token for token in self.drafts[:place] if token < vocab_size]
            is_excluding = excludes(self.params, self.position + place)
            rows.append(target_distribution(allowed, self.params, self.prompt, before, keep_ties, is_excluding))
        return np.stack(rows)

    def judged(self, rule: str, keep_ties: bool = False) -> tuple[int, int | None] | None:
        """How many drafts stay, and what replaces the next; None: the step's token. No tuple where rounding decides."""
        vocab_size, valid = self.logits.shape[1], next((i for i, one in enumerate(self.drafts) if one < 0), None)
        drafts = self.drafts[:valid]
        targets = self.distributions(keep_ties)[: len(drafts) + 1]
        proposals = self.proposals[: len(drafts)].double().numpy()
        found = chances(rule, targets, drafts, proposals)
        seed, position = torch.tensor([self.params.seed]), torch.tensor([self.position])
        places = position + torch.arange(len(drafts)) * (2**40 if rule == "block" else 1)
        noise = exponential_noise(seed.expand(len(drafts)), places, 1, purpose=Purpose.ACCEPTANCE).view(-1)
        uniforms = np.exp(-noise.double().numpy())
        if any(abs(u - chance) <= UNSURE * max(u, 1e-2) for u, chance in zip(uniforms, found, strict=True)):
            return None
        accepted = count_accepted(rule, found, uniforms.tolist())
        if accepted == len(drafts):
            return accepted, None
        rest = rest_after(rule, targets, drafts, proposals, accepted)
        race = exponential_noise(seed, position, vocab_size, purpose=Purpose.RESAMPLING)[0].double().numpy()
        scores = np.where(rest > 1e-6, rest, 0) / race
        best = np.sort(scores)[::-1]
        if best[1] > best[0] * (1 - 10 * UNSURE) or ((rest > 0) & (rest <= 1e-6)).any():
            return None
        return accepted, int(np.argmax(scores))


def arguments_of(cases: list[Case], kind: str, device: str = "cpu") -> dict[str, Any]:
    """What `verify_drafts` takes of cases, but for its batch."""
    proposals = torch.cat([case.proposals for case in cases])
    given: dict[str, Any] = {
        "logits": torch.cat([case.logits for case in cases]).to(device),
        "draft_ids": torch.tensor([one for case in cases for one in case.drafts], dtype=torch.int64).to(device),
        "counts": [len(case.drafts) for case in cases],
    }
    if kind == "dense":
        given["draft_probabilities"] = proposals.float().to(device)
    if kind == "sparse":
        order = torch.rand_like(proposals).argsort(1)  # and a place of padding
        padding = torch.full_like(order[:, :1], -1)
        given["draft_candidates"] = torch.cat((order, padding), 1).to(device)
        given["draft_probabilities"] = torch.cat((proposals.gather(1, order), padding + 0.5), 1).float().to(device)
    return given


def batch_of(cases: list[Case], device: str = "cpu") -> SamplingBatch:
    batch = SamplingBatch(cases[0].logits.shape[1], device)
    batch.extend([case.params for case in cases], [case.prompt for case in cases])
    return batch


def certain(drafts: list[int], vocab_size: int) -> Tensor:
    rows = [point_mass(draft, vocab_size) for draft in drafts]
    return torch.from_numpy(np.stack(rows)) if rows else torch.zeros(0, vocab_size, dtype=torch.float64)
