"""What a step of the sampler costs on the emulated NPU, in counts: launches, copies, synchronisations, memory.

As a program it prints them all as JSON, for a process in which CANN lacks the second operator.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

import hostcann
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams
from ascend_sample.sampling.edits.processing import words_of

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
SIZES = ((1, 32000, "float32"), (64, 32000, "bfloat16"), (64, 151936, "float32"))
"""Rows, vocabulary and dtype."""
MOST_COPIES = 2
"""To the device: noise, and what has changed in the batch."""
ROUNDING = 1.1
"""The allocator hands out multiples of 512 bytes, and rows of segments are a little longer than the vocabulary."""

OPERATORS = {"aclnnTopKTopPSample", "aclnnTopKTopPSampleV2", "aclnnApplyTopKTopP"}


class Budget(NamedTuple):
    """Rows of a batch, in turns, and what a step of them may cost.

    Attributes:
        launches: of kernels, with the second operator; with the first alone twice as many.
        memory: the peak above the logits, in bytes a logit, beside the workspace of an operator; with the second one.
        requests: the rows.
        bitmask: a grammar masks the rows: "there", where the bitmask is on the device, or "sent".
        logprobs_mode: the sampler's.
        keep_ties: the sampler's.
    """

    launches: int
    memory: float
    requests: tuple[SamplingParams, ...]
    bitmask: str | None = None
    logprobs_mode: str = "raw_logprobs"
    keep_ties: bool = False


def _all_alike(launches: int, memory: float, **params: Any) -> Budget:
    return Budget(launches, memory, (SamplingParams(seed=1, **params),))


FILTERED = SamplingParams(seed=1, top_k=50, top_p=0.9, temperature=0.7)
UNFILTERED = SamplingParams(seed=1)
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.05, "presence_penalty": 0.5, "frequency_penalty": 0.25}
BIASES: dict[str, Any] = {"logit_bias": {3: 1.0, 70: -2.0}, "suppress_token_ids": [5, 6]}
SIX_KINDS = (
    SamplingParams(temperature=0),
    SamplingParams(seed=1, top_k=50, top_p=0.9),
    SamplingParams(seed=2, top_k=50, temperature=0.7),
    SamplingParams(seed=3),
    SamplingParams(seed=4, min_p=0.1),
    SamplingParams(seed=5, top_p=0.9, temperature=0.7),
)
SEVEN_KINDS = (*SIX_KINDS, SamplingParams(seed=6, top_k=5000))
FLOAT, MARK = 4, 1
"""Bytes a logit: of a float32, and of a comparison's result."""
OF_PENALTIES, OF_BIASES = 21, 16
OF_A_BITMASK = 6
"""Launches that edits of some rows may take beside those of the rows' kinds."""
OF_LOGPROBS = 14
"""Launches that logprobs may take beside those of the rows' kinds."""


def _penalized(kinds: tuple[SamplingParams, ...]) -> tuple[SamplingParams, ...]:
    """The kinds in turns, so often that of 64 rows 8 have penalties."""
    turns = tuple(itertools.islice(itertools.cycle(kinds), 64))
    return tuple(replace(params, **PENALTIES) if row % 8 == 5 else params for row, params in enumerate(turns))


BUDGETS = {
    "greedy": _all_alike(6, FLOAT, temperature=0.0),
    "top-k": _all_alike(10, FLOAT, top_k=50),
    "top-k, top-p": _all_alike(10, FLOAT, top_k=50, top_p=0.9),
    "top-k, top-p, temperature": _all_alike(14, FLOAT, top_k=50, top_p=0.9, temperature=0.7),
    "greedy, and top-k with and without a temperature": Budget(16, FLOAT, SIX_KINDS[:3]),
    "no filter": _all_alike(18, FLOAT),
    "temperature alone": _all_alike(19, FLOAT, temperature=0.7),
    "min-p": _all_alike(20, FLOAT + MARK, min_p=0.1),
    "top-p": _all_alike(19, 2 * FLOAT, top_p=0.9),  # one of them is the operator's result
    "top-p that 16 bits represent": _all_alike(19, 2 * FLOAT, top_p=0.75),
    "top-p, temperature": _all_alike(20, 2 * FLOAT, top_p=0.9, temperature=0.7),
    "k = 5000": _all_alike(21, 5 * FLOAT, top_k=5000),  # a sort's values and ids are 3 of them
    # An operator's result, beside the weights.
    "ties kept": _all_alike(21, 2 * FLOAT, top_k=50)._replace(keep_ties=True),
    "ties kept, top-p, temperature": Budget(23, 2 * FLOAT, (FILTERED,), keep_ties=True),
    # Biases, bans, penalties, masks: the rows of all routes lie in one copy in float32.
    "greedy, penalties": Budget(6 + OF_PENALTIES, FLOAT, (replace(SIX_KINDS[0], **PENALTIES),)),
    "top-k, penalties": Budget(10 + OF_PENALTIES, FLOAT, (SamplingParams(seed=1, top_k=50, **PENALTIES),)),
    "top-k, top-p, temperature, penalties": Budget(
        14 + OF_PENALTIES, FLOAT, (replace(FILTERED, **PENALTIES), FILTERED, FILTERED)
    ),
    "a repetition penalty": Budget(14 + OF_PENALTIES, FLOAT, (replace(FILTERED, repetition_penalty=1.05),)),
    "no filter, penalties": Budget(18 + OF_PENALTIES, FLOAT, (replace(UNFILTERED, **PENALTIES), UNFILTERED)),
    "greedy, biases and bans": Budget(6 + OF_BIASES, FLOAT, (replace(SIX_KINDS[0], **BIASES),)),
    "a bias and a ban on some rows": Budget(14 + OF_BIASES, FLOAT, (replace(FILTERED, **BIASES), FILTERED, FILTERED)),
    "no filter, biases and bans": Budget(18 + OF_BIASES, FLOAT, (replace(UNFILTERED, **BIASES),)),
    "allowed ids": Budget(14 + OF_BIASES, FLOAT, (replace(FILTERED, allowed_token_ids=range(9)), FILTERED)),
    "greedy, bitmask": Budget(6 + OF_A_BITMASK, FLOAT + MARK, (SIX_KINDS[0],), "there"),
    "top-k, bitmask": Budget(10 + OF_A_BITMASK, FLOAT + MARK, (SIX_KINDS[1],), "there"),
    "top-k, top-p, temperature, bitmask": Budget(14 + OF_A_BITMASK, FLOAT + MARK, (FILTERED,), "sent"),
    "no filter, bitmask": Budget(18 + OF_A_BITMASK, FLOAT + MARK, (UNFILTERED,), "sent"),
    "all edits": Budget(
        14 + OF_PENALTIES + OF_BIASES + OF_A_BITMASK,
        FLOAT + MARK,
        (replace(FILTERED, **PENALTIES, **BIASES), replace(FILTERED, allowed_token_ids=range(9)), FILTERED),
        "sent",
    ),
    **{
        f"logprobs = 5{and_ids}, {mode}": Budget(
            14 + OF_LOGPROBS + more, memory, (replace(FILTERED, logprobs=5, logprob_token_ids=ids),), logprobs_mode=mode
        )
        for and_ids, ids in (("", ()), (" and 3 ids", (9, 1, 4)))
        for mode, memory, more in (
            ("raw_logits", FLOAT, 0),
            ("raw_logprobs", 2 * FLOAT, 3),
            ("processed_logprobs", 2 * FLOAT, 8),  # one of them is the operator's result; an order beside it
            ("processed_logits", 2 * FLOAT, 6),
        )
    },
    # The operator serves some of the rows: no workspace to compare.
    "six kinds mixed": Budget(80, math.inf, SIX_KINDS),
    "six kinds mixed, penalties": Budget(80, math.inf, _penalized(SIX_KINDS)),
    "seven kinds mixed": Budget(80, math.inf, SEVEN_KINDS),
    "seven kinds mixed, penalties": Budget(80, math.inf, _penalized(SEVEN_KINDS)),
}


def measured(name: str, batch_size: int, vocab_size: int, dtype: torch.dtype) -> dict[str, Any]:
    """Counts a step that is not the first. Kernels are counted and dropped: counts do not depend on numbers."""
    batch = SamplingBatch(vocab_size, "npu")
    budget = BUDGETS[name]
    batch.extend([params for params, _ in zip(itertools.cycle(budget.requests), range(batch_size), strict=False)])
    sampler = Sampler(budget.logprobs_mode, keep_ties=budget.keep_ties)
    bitmask = None if budget.bitmask is None else torch.full((batch_size, words_of(vocab_size)), -1, dtype=torch.int32)
    if bitmask is not None and budget.bitmask == "there":
        bitmask = bitmask.npu()
    with hostcann.null_kernels():
        logits = torch.empty(batch_size, vocab_size, dtype=dtype, device="npu")
        sampler(logits, batch, bitmask=bitmask)
        before = _peak_begins()
        with hostcann.profile() as counted:
            sampler(logits, batch, bitmask=bitmask)
        torch.npu.synchronize()
        memory = torch.npu.max_memory_allocated() - before
        if OPERATORS & counted.launches.keys():
            memory -= _workspace(logits)
    return {
        "launches": counted.totals.launches,
        "copies": counted.copies,
        "waits": counted.totals.waits,
        "memory": memory / logits.numel(),
    }


def _peak_begins() -> int:
    torch.npu.synchronize()
    torch.npu.reset_peak_memory_stats()
    return int(torch.npu.memory_allocated())


def _workspace(logits: Tensor) -> int:
    """The bytes that an operator takes beside its arguments and results, for as many rows."""
    values = torch.empty(logits.shape, dtype=torch.bfloat16, device=logits.device)
    top_k = torch.ones(len(values), dtype=torch.int32, device=logits.device)
    top_p = torch.ones(len(values), dtype=values.dtype, device=logits.device)
    noise = torch.empty(logits.shape, device=logits.device)
    before = _peak_begins()
    torch.ops.ascend_sample.top_k_top_p_sample(values, top_k, top_p, noise, 0.0, False, 32)
    torch.npu.synchronize()
    return int(torch.npu.max_memory_allocated()) - before


def all_measured() -> dict[str, dict[str, Any]]:
    """All budgets, for all sizes, by name, batch size, vocabulary and dtype."""
    return {
        f"{name} {batch_size} {vocab_size} {dtype}": measured(name, batch_size, vocab_size, DTYPES[dtype])
        for name, (batch_size, vocab_size, dtype) in itertools.product(BUDGETS, SIZES)
    }


if __name__ == "__main__":
    print(json.dumps(all_measured()))
