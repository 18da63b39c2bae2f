"""The best tokens that are reported: the first of the total order, with the same bits alone and among others."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.sampling import (
    Logprobs,
    LogprobsMode,
    Sampler,
    SamplingBatch,
    SamplingParams,
    filter_logits,
)
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.step import logprobs
from ascend_sample.sampling.step.logprobs import LogprobRows, gather_logprobs
from tests.support.emulation import assert_same_numbers

GREEDY = SamplingParams(temperature=0, logprobs=3)


def reported(logits: Tensor, params: list[SamplingParams], device: str, mode: LogprobsMode) -> Logprobs:
    batch = SamplingBatch(logits.shape[1], device)
    batch.extend(params)
    logprobs = Sampler(mode.value)(logits.to(device), batch).logprobs
    assert logprobs is not None
    return Logprobs(logprobs.rows, *(tensor.cpu() for tensor in logprobs[1:]))


def naive_order(row: Tensor) -> list[int]:
    return sorted(range(len(row)), key=lambda token_id: (-row[token_id].item(), token_id))


def rows_with_ties(vocab_size: int) -> Tensor:
    """Every kind of tie: two values, one value, few values, zeros of both signs, 16-bit noise, infinities, NaN."""
    generator = torch.Generator().manual_seed(vocab_size)
    rows = torch.zeros(10, vocab_size)
    rows[0, ::3] = 2.0
    rows[2] = torch.randint(5, (vocab_size,), generator=generator)
    rows[3] = torch.where(torch.rand(vocab_size, generator=generator) < 0.5, -0.0, 0.0)
    rows[4:7] = (torch.randn(3, vocab_size, generator=generator) * 2).bfloat16()
    rows[7, vocab_size // 2 :] = -torch.inf
    rows[8, vocab_size // 3 :: 2] = torch.inf
    rows[9] = rows[2]
    rows[9, ::4] = torch.nan
    return rows


@pytest.mark.parametrize("mode", [LogprobsMode.PROCESSED_LOGPROBS, LogprobsMode.PROCESSED_LOGITS])
def test_blocks_of_rows_are_the_rows(mode: LogprobsMode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU makes them as it draws, and after adaptive-p a few rows at a time; some rows ask for nothing."""
    rows = 3 * torch.get_num_threads() + 2
    logits = torch.randn(rows, 300) * 3
    params = [
        SamplingParams(
            temperature=0.5 + row / 8,
            top_k=(None, 5, 40)[row % 3],
            logprobs=(None, 3, 6, 2)[row % 4],
            seed=row,
            logit_bias={row: 3.0} if row % 2 else {},
            typical_p=0.9 if row % 5 == 3 else 1.0,
        )
        for row in range(rows)
    ]
    together = reported(logits, params, "cpu", mode)
    monkeypatch.setattr(logprobs, "NUMBERS_OF_BLOCK", 1)
    in_blocks = reported(logits, [dataclasses.replace(params[0], adaptive_target=0.3), *params[1:]], "cpu", mode)
    assert in_blocks.rows == together.rows == [row for row in range(rows) if row % 4]
    assert all(torch.equal(one, other) for one, other in zip(in_blocks[1:], together[1:], strict=True))
    for place, row in enumerate(together.rows):
        width = 1 + (params[row].logprobs or 0)
        alone = reported(logits[row : row + 1], [params[row]], "cpu", mode)
        for one, other in zip(alone[1:3], together[1:3], strict=True):
            assert torch.equal(one[0], other[place, :width]), row


@pytest.mark.parametrize("mode", list(LogprobsMode))
@pytest.mark.parametrize("vocab_size", [7, 2048])
def test_the_first_of_the_total_order_with_the_same_bits_in_any_batch(
    device: str, mode: LogprobsMode, vocab_size: int
) -> None:
    logits = rows_with_ties(vocab_size)
    params = [
        SamplingParams(temperature=0.7, top_k=(None, 5, 40)[row % 3], logprobs=(0, 3, 6)[row % 3], seed=row)
        for row in range(len(logits))
    ]
    together = reported(logits, params, device, mode)
    for row, request in enumerate(params):
        count = 1 + (request.logprobs or 0)
        alone = reported(logits[row : row + 1], [request], device, mode)
        all_ids = dataclasses.replace(request, logprobs=vocab_size)
        beside = reported(logits[[row, 0]], [request, all_ids], device, mode)
        for found, place in ((together, row), (beside, 0)):
            assert torch.equal(found.token_ids[place, :count], alone.token_ids[0])
            assert_same_numbers(found.values[place, :count], alone.values[0], device)
            assert found.ranks[place] == alone.ranks[0]
        numbers = logits[row].nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        order = naive_order(numbers)
        if mode.is_processed:  # what is filtered follows by its id
            kept = [token_id for token_id in order[: request.top_k] if numbers[token_id] == torch.inf]
            kept = kept or order[: request.top_k]
            order = kept + sorted(set(order) - set(kept))
        assert alone.token_ids[0, 1:].tolist() == order[: count - 1], row


def test_a_best_token_is_the_greedy_one_where_logprobs_are_rounded_to_equals(device: str) -> None:
    """A logit of -1e-8 has the logprob of 0 beside 98 others, and is not the best for that."""
    logits = torch.full((1, 100), -3.0)
    logits[0, 3], logits[0, 7] = -1e-8, 0.0
    found = reported(logits, [GREEDY], device, LogprobsMode.RAW_LOGPROBS)
    assert found.token_ids.tolist() == [[7, 7, 3, 0]]
    assert found.values[0, 1] == found.values[0, 2]
    assert found.ranks.tolist() == [2], "ties share the larger number"


@pytest.mark.parametrize("mode", list(LogprobsMode))
@pytest.mark.parametrize("more", [{"temperature": 100.0}, {"temperature": 130.0, "top_k": 60, "top_p": 0.999}, {}])
def test_numbers_never_ascend_and_ranks_are_those_of_numbers(
    device: str, mode: LogprobsMode, more: dict[str, Any]
) -> None:
    """Of rows with many logits that differ in the last bit: a division makes some equal, a shift others."""
    generator = torch.Generator().manual_seed(0)
    logits = 1 + torch.randint(64, (30, 70), generator=generator) * 2.0**-23
    logits[:, ::9] += 16
    params = [SamplingParams(seed=row, logprobs=70, **more) for row in range(len(logits))]
    found = reported(logits, params, device, mode)
    values = found.values[:, 1:]
    assert bool((values[:, 1:] <= values[:, :-1]).all())
    assert torch.equal(found.ranks, (values >= found.values[:, :1]).sum(1))
    for row, ids, numbers in zip(logits, found.token_ids[:, 1:].tolist(), values, strict=True):
        kept = int((numbers > -torch.inf).sum())
        assert ids[:kept] == sorted(ids[:kept], key=lambda token_id: (-row[token_id].item(), token_id))


@pytest.mark.parametrize(("vocab_size", "count"), [(7, 5), (2048, 1024), (5001, 5), (5001, 1025)])
@pytest.mark.parametrize("is_normalised", [True, False])
def test_every_device_reports_what_the_native_operator_does(
    device: str, is_normalised: bool, vocab_size: int, count: int
) -> None:
    logits = torch.cat((rows_with_ties(vocab_size), torch.full((2, vocab_size), -torch.inf)))
    logits[11, 3] = torch.nan
    drawn = torch.randint(vocab_size, (12,), generator=torch.Generator().manual_seed(0))
    drawn[8] = vocab_size // 3
    values, ids, (ranks,) = torch.ops.ascend_sample.row_logprobs(logits, None, drawn, count, is_normalised)
    there = logits.to(device)
    mode = LogprobsMode.RAW_LOGPROBS if is_normalised else LogprobsMode.RAW_LOGITS
    found = gather_logprobs(LogprobRows.of(RowSet.all(12), mode, count, there.device), there, drawn.to(device))
    torch.testing.assert_close(found.values.cpu(), values, atol=2e-6, rtol=0)
    assert torch.equal(found.token_ids.cpu(), ids)
    assert torch.equal(found.ranks.cpu(), ranks)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 3.0])
def test_what_stands_beside_infinity_is_dropped(device: str, temperature: float) -> None:
    """Top-k would keep it: a device scales it to -1e38 at a high temperature, which is no -inf."""
    logits = torch.randn(2, 600, generator=torch.Generator().manual_seed(0))
    logits[:, 9] = torch.inf
    params = [SamplingParams(temperature=temperature, top_k=k, logprobs=3, seed=1) for k in (None, 5)]
    found = reported(logits, params, device, LogprobsMode.PROCESSED_LOGITS)
    assert found.values.tolist() == [[torch.inf, torch.inf, -torch.inf, -torch.inf]] * 2
    found = reported(logits, params, device, LogprobsMode.PROCESSED_LOGPROBS)
    assert found.values.tolist() == [[0.0, 0.0, -torch.inf, -torch.inf]] * 2


@pytest.mark.parametrize("mode", ["processed_logprobs", "processed_logits"])
def test_a_top_k_of_1_has_no_ties(device: str, mode: str) -> None:
    """With `keep_ties` too it takes the first of the best: what is reported is what can be drawn."""
    batch = SamplingBatch(300, device)
    beside = ({}, {"top_p": 0.9}, {"min_p": 0.5}, {"suppress_token_ids": [0], "temperature": 0.5})
    batch.extend(
        [
            SamplingParams(top_k=k, logprobs=3, return_sampling_mask=True, seed=k, **more)
            for more in beside
            for k in (1, 2)
        ]
    )
    logits = torch.zeros(len(batch), 300)
    logits[:, [5, 9, 280]] = 2.0
    output = Sampler(mode, keep_ties=True)(logits.to(device), batch)
    assert output.logprobs is not None
    assert output.kept is not None
    assert output.token_ids[::2].tolist() == [5] * len(beside)
    assert (output.logprobs.values[:, 1:] > -torch.inf).sum(1).tolist() == [1, 3] * len(beside)
    assert output.kept.counts.tolist() == [1, 3] * len(beside)
    one, two = torch.tensor([1.0, 1.0]).to(device), torch.tensor([1, 2]).to(device)
    kept = filter_logits(logits[:2].to(device), temperature=one, top_k=two, keep_ties=True)
    assert (kept > -torch.inf).sum(1).tolist() == [1, 3]


@pytest.mark.parametrize("keep_ties", [False, True])
@pytest.mark.parametrize("top_k", [None, 50])
def test_no_digits_are_lost_to_logits_that_are_large_beside_the_temperature(
    device: str, top_k: int | None, keep_ties: bool
) -> None:
    """Quotients near 70 are rounded by up to 4e-6."""
    rows, temperature = 40, 0.6
    logits = torch.randn(rows, 3000, generator=torch.Generator().manual_seed(2)) + 40
    batch = SamplingBatch(3000, device)
    batch.extend([SamplingParams(temperature=temperature, top_k=top_k, logprobs=5, seed=row) for row in range(rows)])
    sampler = Sampler(LogprobsMode.PROCESSED_LOGPROBS.value, keep_ties=keep_ties)
    found = sampler(logits.to(device), batch).logprobs
    assert found is not None
    scaled = logits.double() / float(torch.tensor(temperature))
    if top_k is not None:
        scaled = scaled.masked_fill(scaled < scaled.topk(top_k).values[:, -1:], -torch.inf)
    expected = scaled.log_softmax(1).gather(1, found.token_ids.cpu())
    assert float((found.values.cpu() - expected).abs().max()) < 1e-6
