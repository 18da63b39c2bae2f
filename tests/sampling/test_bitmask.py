"""A grammar's bitmask: the tokens, statuses and logprobs of logits that are masked before, and what it refuses."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import hostcann
from ascend_sample.sampling import (
    LogprobsMode,
    RowStatus,
    Sampler,
    SamplerOutput,
    SamplingBatch,
    SamplingParams,
    StaticStep,
    verify_drafts,
)

VOCAB_SIZE = 1000
"""No multiple of 32: the last word is not full."""
KINDS = (
    SamplingParams(temperature=0),
    SamplingParams(top_k=5, top_p=0.9),
    SamplingParams(top_k=50, temperature=0.7),
    SamplingParams(),
    SamplingParams(top_p=0.8, temperature=1.2),
    SamplingParams(min_p=0.05),
    SamplingParams(repetition_penalty=1.3, frequency_penalty=0.5, top_k=20),
    SamplingParams(logit_bias={7: 3.0, 500: -1.0}, presence_penalty=0.25),
    SamplingParams(allowed_token_ids=range(0, VOCAB_SIZE, 2)),
    SamplingParams(suppress_token_ids=range(0, VOCAB_SIZE, 3), top_k=200),
    SamplingParams(stop_token_ids=[1], min_tokens=5),
)


def requests(**options: Any) -> list[SamplingParams]:
    return [dataclasses.replace(params, seed=row, **options) for row, params in enumerate(KINDS)]


def some_allowed(rows: int, seed: int = 0, share: float = 0.3) -> Tensor:
    """bool [rows, VOCAB_SIZE]."""
    return torch.rand(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) < share


def packed(allowed: Tensor, beyond: bool = True) -> Tensor:
    """As xgrammar and llguidance pack it; what is ``beyond`` the vocabulary is allowed or not."""
    whole = torch.full((len(allowed), -(-allowed.shape[1] // 32) * 32), beyond)
    whole[:, : allowed.shape[1]] = allowed
    return torch.from_numpy(numpy.packbits(whole.numpy(), axis=1, bitorder="little").view(numpy.int32))


def batch_of(params: list[SamplingParams], device: str) -> SamplingBatch:
    batch = SamplingBatch(VOCAB_SIZE, device)
    batch.extend(params, [[row, 7, 500] for row in range(len(params))])
    return batch


def logits_of(rows: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    return (torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)


def assert_same(found: SamplerOutput, wanted: SamplerOutput) -> None:
    assert found.token_ids.tolist() == wanted.token_ids.tolist()
    assert found.status.tolist() == wanted.status.tolist()
    assert (found.logprobs is None) == (wanted.logprobs is None)
    if found.logprobs is not None and wanted.logprobs is not None:
        for one, other in zip(found.logprobs[1:], wanted.logprobs[1:], strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("keep_ties", [False, True])
def test_it_masks_as_logits_of_minus_infinity_do(device: str, dtype: torch.dtype, keep_ties: bool) -> None:
    """Steps of all kinds of rows together; words beyond the vocabulary say nothing."""
    masked, unmasked = (batch_of(requests(), device) for _ in range(2))
    sampler = Sampler(keep_ties=keep_ties)
    for step in range(4):
        allowed, logits = some_allowed(len(KINDS), step), logits_of(len(KINDS), dtype, step)
        allowed[step], allowed[step + 4] = False, torch.arange(VOCAB_SIZE) == VOCAB_SIZE - 1
        allowed[8] &= torch.arange(VOCAB_SIZE) % 2 == step % 2  # the request allows even ids alone
        logits[step, 5], logits[step + 4, 3], logits[step + 5, ~allowed[step + 5]] = torch.inf, 100.0, torch.nan
        there, bitmask = logits.to(device), packed(allowed, beyond=step % 2 == 0).to(device)
        before = there.clone(), bitmask.clone()
        found = sampler(there, masked, bitmask=bitmask)
        assert_same(found, sampler(logits.masked_fill(~allowed, -torch.inf).to(device), unmasked))
        is_empty = found.status.cpu() == RowStatus.ALL_MASKED
        assert is_empty.nonzero().flatten().tolist() == ([step, 8] if step % 2 else [step])
        assert (found.token_ids.cpu()[is_empty] == 0).all()
        assert found.token_ids[step + 4] == VOCAB_SIZE - 1
        assert (allowed.gather(1, found.token_ids.cpu().unsqueeze(1)).squeeze(1) | is_empty).all()
        torch.testing.assert_close((there, bitmask), before, rtol=0, atol=0, equal_nan=True)


def test_a_bitmask_of_some_rows(device: str) -> None:
    """Others allow every id, whatever the order of the rows."""
    rows = [8, 2, 5]
    allowed = torch.ones(len(KINDS), VOCAB_SIZE, dtype=torch.bool)
    allowed[rows] = some_allowed(3)
    logits = logits_of(len(KINDS), torch.bfloat16)
    none = torch.empty(0, 32, dtype=torch.int32)
    found = Sampler()(logits.to(device), batch_of(requests(), device), bitmask=none, bitmask_rows=[])
    assert_same(found, Sampler()(logits.to(device), batch_of(requests(), device)))
    wanted = Sampler()(logits.masked_fill(~allowed, -torch.inf).to(device), batch_of(requests(), device))
    for named, where in ((rows, device), (numpy.array(rows), "cpu"), (torch.tensor(rows), device)):
        bitmask = packed(allowed[rows]).to(where)
        found = Sampler()(logits.to(device), batch_of(requests(), device), bitmask=bitmask, bitmask_rows=named)
        assert_same(found, wanted)


def test_rows_that_were_right_are_looked_at_again() -> None:
    """They are remembered as numbers: others of the same value are refused all the same, and so are batches of less."""
    logits, bitmask = logits_of(len(KINDS), torch.float32), packed(some_allowed(2))
    Sampler()(logits, batch_of(requests(), "cpu"), bitmask=bitmask, bitmask_rows=[1, 9])
    with pytest.raises(TypeError, match="bitmask_rows must be ints"):
        Sampler()(logits, batch_of(requests(), "cpu"), bitmask=bitmask, bitmask_rows=[1.0, 9.0])
    with pytest.raises(IndexError, match="bitmask_rows must be in"):
        Sampler()(logits[:9], batch_of(requests()[:9], "cpu"), bitmask=bitmask, bitmask_rows=[1, 9])


@pytest.mark.parametrize("mode", LogprobsMode)
def test_processed_logprobs_see_it_and_raw_ones_do_not(device: str, mode: LogprobsMode) -> None:
    allowed, logits = some_allowed(len(KINDS)), logits_of(len(KINDS), torch.float32)
    masked = logits.masked_fill(~allowed, -torch.inf)
    params = requests(logprobs=3)
    bitmask = packed(allowed).to(device)
    found = Sampler(mode.value)(logits.to(device), batch_of(params, device), bitmask=bitmask)
    wanted = Sampler(mode.value)(masked.to(device), batch_of(params, device))
    if mode.is_processed:
        assert_same(found, wanted)
        return
    assert found.token_ids.tolist() == wanted.token_ids.tolist()
    unmasked = Sampler(mode.value)(logits.to(device), batch_of(params, device))
    assert found.logprobs is not None
    assert unmasked.logprobs is not None
    assert torch.equal(found.logprobs.token_ids[:, 1:], unmasked.logprobs.token_ids[:, 1:])
    assert torch.equal(found.logprobs.values[:, 1:], unmasked.logprobs.values[:, 1:])


def test_a_bitmask_of_the_cpu_is_copied_and_nobody_waits(counting: None, npu: str) -> None:
    logits, bitmask = logits_of(len(KINDS), torch.float32).to(npu), packed(some_allowed(len(KINDS)))
    batch = batch_of(requests(), npu)
    sampler = Sampler()
    for rows in (None, list(range(len(KINDS)))):
        sampler(logits, batch, bitmask=bitmask, bitmask_rows=rows)
        with hostcann.profile() as counted:
            sampler(logits, batch, bitmask=bitmask, bitmask_rows=rows)
        assert counted.synchronizations == {}
        assert counted.copies == {"h2d": 2, "d2h": 1}, "noise and bitmask; tokens, which may be stop ids"


WORDS = torch.zeros(2, 32, dtype=torch.int32)
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"bitmask": WORDS.long()},
        TypeError,
        "bitmask must be an int32 tensor, got a tensor of torch.int64 [2, 32]. Pack",
    ),
    ({"bitmask": [[0]]}, TypeError, "bitmask must be an int32 tensor, got [[0]]. "),
    ({"bitmask": WORDS[:1]}, ValueError, "bitmask must have the shape [2, 32], got [1, 32]. Give a row for each of"),
    ({"bitmask": WORDS[:, :31]}, ValueError, "bitmask must have the shape [2, 32], got [2, 31]. Allocate it for "),
    ({"bitmask": WORDS, "bitmask_rows": [1]}, ValueError, "bitmask must have the shape [1, 32], got [2, 32]. "),
    ({"bitmask": WORDS, "bitmask_rows": [1, 2]}, IndexError, "bitmask_rows must be in [0, 2), got [1, 2]. Rows move"),
    ({"bitmask": WORDS, "bitmask_rows": [-1, 0]}, IndexError, "bitmask_rows must be in [0, 2), got [-1, 0]. "),
    (
        {"bitmask": WORDS, "bitmask_rows": [1, 1]},
        ValueError,
        "bitmask_rows must name each row once, got [1, 1]. Combin",
    ),
    ({"bitmask": WORDS, "bitmask_rows": [0.5, 1]}, TypeError, "bitmask_rows must be ints, got [0.5, 1]. Name a row"),
    ({"bitmask_rows": [0]}, ValueError, "bitmask_rows must be left out without a bitmask, got [0]. Give the bitmask"),
]


def test_what_is_refused(npu: str) -> None:
    batch, logits = batch_of(requests()[:2], "cpu"), torch.zeros(2, VOCAB_SIZE)
    for options, error, message in REFUSED:
        with pytest.raises(error, match=f"^Sampler: {re.escape(message)}"):
            Sampler()(logits, batch, **options)
    says = r"bitmask must be on the device of the batch, cpu, or on the CPU, got npu:0"
    with pytest.raises(ValueError, match=says):
        Sampler()(logits, batch, bitmask=WORDS.to(npu))
    with pytest.raises(ValueError, match="bitmask_rows must be on the host, got a tensor on npu:0"):
        Sampler()(logits, batch, bitmask=WORDS, bitmask_rows=torch.tensor([0, 1]).to(npu))
    assert batch.host.position.tolist() == [3, 3], "the batch has not advanced"
    says = r": bitmask_rows must be in \[0, 2\), got \[1, 2\]"
    none = torch.empty(0, dtype=torch.int64)
    with pytest.raises(IndexError, match=f"^verify_drafts{says}"):
        verify_drafts(logits, none, batch, counts=[0, 0], bitmask=WORDS, bitmask_rows=[1, 2])
    step = StaticStep(2, VOCAB_SIZE, torch.float32, "cpu", bitmask=True)
    with pytest.raises(IndexError, match=f"^StaticStep{says}"):
        step.prepare(batch, bitmask=WORDS, bitmask_rows=[1, 2])
