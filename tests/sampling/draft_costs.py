"""What a verification of drafts costs on the emulated NPU beside a step of the same requests, in counts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from step_costs import BUDGETS, DTYPES, MOST_COPIES, PENALTIES

from ascend_sample import hostcann
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams, verify_drafts
from ascend_sample.sampling.edits.processing import words_of
from ascend_sample.sampling.requests.params import DEFAULTS

DRAFTS = 4
OF_PENALTIES_BY_PLACE = 7
"""Launches that it takes to count drafts before places, for penalties."""
TREE, DEEPEST = (-1, 0, 0, 1, 3), 3
"""Parents of as many drafts, and the most that follow one another."""


def measured(
    name: str,
    batch_size: int,
    vocab_size: int,
    dtype: torch.dtype = DTYPES["bfloat16"],
    parents: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Counts a verification that is not the first. Kernels are counted and dropped: counts do not depend on numbers."""
    budget = BUDGETS[name]
    batch = SamplingBatch(vocab_size, "npu")
    batch.extend([params for params, _ in zip(itertools.cycle(budget.requests), range(batch_size), strict=False)])
    sampler = Sampler(budget.logprobs_mode)
    places = batch_size * (DRAFTS + 1)
    bitmask = None if budget.bitmask is None else torch.full((places, words_of(vocab_size)), -1, dtype=torch.int32)
    if bitmask is not None and budget.bitmask == "there":
        bitmask = bitmask.npu()
    with hostcann.null_kernels():
        logits = torch.empty(places, vocab_size, dtype=dtype, device="npu")
        drafts = torch.zeros(batch_size * DRAFTS, dtype=torch.int64, device="npu")

        def verify() -> None:
            verify_drafts(
                logits,
                drafts,
                batch,
                counts=[DRAFTS] * batch_size,
                parents=None if parents is None else [*parents] * batch_size,
                sampler=sampler,
                bitmask=bitmask,
            )

        verify()
        with hostcann.profile() as counted:
            verify()
    return {"launches": counted.totals.launches, "copies": counted.copies, "waits": counted.totals.waits}


def check(name: str, cost: dict[str, Any], more: int) -> None:
    """Raises where a verification takes more launches than a step and so many more, or waits, or sends more.

    Args:
        name: in `BUDGETS`.
        cost: from `measured`.
        more: launches, beside those of penalties.
    """
    budget = BUDGETS[name]
    is_penalized = any(PENALTIES.keys() & changed_fields(params) for params in budget.requests)
    assert cost["launches"] <= budget.launches + more + OF_PENALTIES_BY_PLACE * is_penalized, (name, cost)
    assert cost["waits"] == 0, (name, cost)
    assert set(cost["copies"]) <= {"h2d"}, (name, cost)
    assert cost["copies"].get("h2d", 0) <= MOST_COPIES, (name, cost)


def changed_fields(params: SamplingParams) -> set[str]:
    """Returns the names of what a request asks for."""
    return {name for name, value in params.to_mapping().items() if value != DEFAULTS.get(name)}
