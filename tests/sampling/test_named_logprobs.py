"""logprob_token_ids: the numbers of ids that a request names, with the bits that they have among the best."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_logprobs import reported
from torch import Tensor

from ascend_sample.sampling import (
    Logprobs,
    LogprobsMode,
    Sampler,
    SamplingBatch,
    SamplingParams,
    StaticStep,
    verify_drafts,
)
from ascend_sample.sampling.step import logprobs
from tests.support.emulation import assert_same_numbers

VOCAB_SIZE = 300
ROWS = (
    {"logprob_token_ids": [7, 299, 7, 0]},
    {},
    {"logprob_token_ids": [5], "logprobs": 3, "top_k": 5},
    {"logprobs": 6, "top_p": 0.9},
    {"logprob_token_ids": [299, 1], "logprobs": 0, "temperature": 0.0},
    {"logprob_token_ids": range(20), "logit_bias": {3: 2.0}, "suppress_token_ids": [4], "min_p": 0.05},
    {"logprob_token_ids": [8, 2], "typical_p": 0.9, "presence_penalty": 1.0},
)
"""What rows ask for; the rest of them is alike."""
ALIKE = ({"logprob_token_ids": [9, 1, 4], "logprobs": 2, "top_k": 50, "top_p": 0.9},) * 5
"""Of a device one call of an operator draws them all, and leaves what the logprobs are made of."""


def random_rows(count: int) -> Tensor:
    """Rows with ties; of the third, most is -inf, and the last one has a NaN."""
    logits = (torch.randn(count, VOCAB_SIZE, generator=torch.Generator().manual_seed(count)) * 4).bfloat16().float()
    logits[2, 20:] = -torch.inf
    logits[-1, 2] = torch.nan
    return logits


def requests_of(rows: tuple[dict[str, object], ...]) -> list[SamplingParams]:
    return [SamplingParams(**{"temperature": 0.7, "seed": row} | asked) for row, asked in enumerate(rows)]  # type: ignore[arg-type]


def check(found: Logprobs, everything: Logprobs, params: list[SamplingParams], device: str) -> None:
    """Compares what rows have with what they have that ask for all ids."""
    assert found.rows == [row for row, one in enumerate(params) if one.logprobs is not None]
    for place, row in enumerate(found.rows):
        ids, count = list(params[row].logprob_token_ids), 1 + (params[row].logprobs or 0)
        of_all = everything.token_ids[everything.rows.index(row)]
        numbers = everything.values[everything.rows.index(row)]
        by_id = torch.empty(VOCAB_SIZE).index_copy_(0, of_all[1:], numbers[1:])
        values, token_ids = found.values[place], found.token_ids[place]
        named = slice(len(values) - len(ids), None)
        assert token_ids[named].tolist() == ids
        assert_same_numbers(values[named], by_id[ids], device)
        assert torch.equal(token_ids[:count], of_all[:count])
        assert_same_numbers(values[:count], numbers[:count], device)
        assert found.ranks[place] == everything.ranks[everything.rows.index(row)]


@pytest.mark.parametrize("rows", [ROWS, ALIKE], ids=["mixed", "alike"])
@pytest.mark.parametrize("mode", list(LogprobsMode))
def test_they_are_those_that_the_best_have(
    device: str, mode: LogprobsMode, rows: tuple[dict[str, object], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, params = random_rows(len(rows)), requests_of(rows)
    everything = reported(logits, [replace(one, logprobs=VOCAB_SIZE) for one in params], device, mode)
    check(reported(logits, params, device, mode), everything, params, device)
    remembering = [replace(one, adaptive_target=0.3, return_sampling_mask=True) for one in params]
    of_all = reported(logits, [replace(one, logprobs=VOCAB_SIZE) for one in remembering], device, mode)
    check(reported(logits, remembering, device, mode), of_all, remembering, device)
    monkeypatch.setattr(logprobs, "NUMBERS_OF_BLOCK", 1)
    check(reported(logits, remembering, device, mode), of_all, remembering, device)


def test_by_hand(device: str) -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0], [5.0, 4.0, 4.0, 4.0], [1.0, 9.0, 1.0, 1.0]])
    asked = ({"logprob_token_ids": [0, 2, 0], "logprobs": 1}, {"logprobs": 2}, {"logprob_token_ids": (3,)})
    params = [SamplingParams(temperature=0, **one) for one in asked]  # type: ignore[arg-type]
    assert [one.logprobs for one in params] == [1, 2, 0]
    found = reported(logits, params, device, LogprobsMode.RAW_LOGITS)
    assert found.token_ids.shape == found.values.shape == (3, 1 + 2 + 3)
    for row, places, ids, numbers in (
        (0, [0, 1, 3, 4, 5], [1, 1, 0, 2, 0], [3.0, 3.0, 0.0, 1.0, 0.0]),
        (1, [0, 1, 2], [0, 0, 1], [5.0, 5.0, 4.0]),
        (2, [0, 5], [1, 3], [9.0, 1.0]),
    ):
        assert found.token_ids[row, places].tolist() == ids
        assert found.values[row, places].tolist() == numbers
    alone = reported(logits[2:], params[2:], device, LogprobsMode.RAW_LOGITS)
    assert (alone.token_ids.tolist(), alone.values.tolist()) == ([[1, 3]], [[9.0, 1.0]])


def test_rows_come_and_go(device: str) -> None:
    """Which ids are looked up is kept for as long as the batch is the same."""
    logits = random_rows(len(ROWS)).to(device)
    batch = SamplingBatch(VOCAB_SIZE, device)
    batch.extend(requests_of(ROWS))
    sampler = Sampler("raw_logits")
    sampler(logits, batch)
    batch.swap(0, 5)
    batch.remove(4)
    found = sampler(logits[:6], batch).logprobs
    assert found is not None
    for place, row in enumerate(found.rows):
        ids = list(batch.params[row].logprob_token_ids)
        assert found.token_ids[place, found.token_ids.shape[1] - len(ids) :].tolist() == ids


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_of_all_places_of_drafts(device: str, mode: str) -> None:
    params = [SamplingParams(seed=3, top_k=9, logprob_token_ids=[4, 2]), SamplingParams(seed=5, logprobs=1)]
    logits, drafts = random_rows(5).to(device), torch.tensor([1, 2, 3], device=device)
    found = []
    for asked in (params, [replace(one, logprobs=VOCAB_SIZE) for one in params]):
        batch = SamplingBatch(VOCAB_SIZE, device)
        batch.extend(asked)
        told = verify_drafts(logits, drafts, batch, counts=[2, 1], sampler=Sampler(mode)).logprobs
        assert told is not None
        found.append(Logprobs(told.rows, *(tensor.cpu() for tensor in told[1:])))
    check(*found, [params[0]] * 3 + [params[1]] * 2, device)


def test_where_they_are_refused() -> None:
    batch = SamplingBatch(4)
    batch.extend([SamplingParams(logprobs=1), SamplingParams(logprob_token_ids=[3])])
    step = StaticStep(2, 4, torch.float32, "cpu")
    with pytest.raises(
        ValueError, match=r"logprob_token_ids must be empty, got \(3,\) in row 1. Take its steps by Sampler"
    ):
        step.prepare(batch)
