"""Kept sets: by hand, beside the float64 reference, with the same bits always."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from kept_rows import BY_HAND, DTYPES, INF, KINDS, NAN, check_rows, drawn_sets, new_batch, params_of, rows_of, sets_of

from ascend_sample.sampling import RowStatus, Sampler, SamplingBatch, SamplingParams
from tests.support.emulation import assert_same_numbers


@pytest.mark.parametrize(
    ("params", "ids", "weights"),
    [
        ({"top_k": 3}, [1, 2, 3], [2, 3, 4]),
        ({"top_p": 0.5}, [2, 3], [3, 4]),  # 0.4 does not exceed 0.5, 0.7 does
        ({"top_k": 3, "temperature": 0.5}, [1, 2, 3], [4, 9, 16]),
        ({"min_p": 0.6}, [2, 3], [3, 4]),
        ({"temperature": 0}, [3], [1]),
        ({"top_k": 1}, [3], [1]),
        ({}, [0, 1, 2, 3], [1, 2, 3, 4]),
        ({"suppress_token_ids": [3]}, [0, 1, 2], [1, 2, 3]),
        ({"epsilon_cutoff": 0.15, "top_k": 2}, [2, 3], [3, 4]),
    ],
)
def test_by_hand(device: str, params: dict[str, Any], ids: list[int], weights: list[float]) -> None:
    kept = drawn_sets(BY_HAND[None], [params_of(**params)], device)
    assert kept.offsets.tolist() == [0, len(ids)]
    assert kept.counts.tolist() == [len(ids)]
    assert kept.ids.tolist() == ids
    expected = (torch.tensor(weights) / sum(weights)).log()
    torch.testing.assert_close(kept.logprobs, expected, atol=1e-6, rtol=0)
    assert (kept.ids.dtype, kept.offsets.dtype, kept.logprobs.dtype) == (torch.int32, torch.int64, torch.float32)


@pytest.mark.parametrize("max_kept", [None, 3])
def test_rows_that_do_not_ask_and_rows_with_a_bad_status_keep_nothing(device: str, max_kept: int | None) -> None:
    rows = torch.tensor([[0, 1.0, 2], [0, NAN, 2], [0, INF, 2], [-INF] * 3, [0, 1.0, 2], [3, 1, 2]])
    params = [params_of() for _ in range(6)]
    params[0] = replace(params[0], return_sampling_mask=False)
    batch = new_batch(params, 3, device)
    output = Sampler(max_kept=max_kept)(rows.to(device), batch)
    kept = sets_of(output)
    assert output.status.tolist() == [0, RowStatus.NAN_SEEN, RowStatus.INF_SEEN, RowStatus.ALL_MASKED, 0, 0]
    assert kept.offsets.tolist() == [0, 0, 0, 0, 0, 3, 6]
    assert kept.ids[:6].tolist() == [0, 1, 2] * 2
    assert kept.counts.tolist() == [0, 0, 0, 0, 3, 3]


def test_which_rows_and_tables_there_are(device: str) -> None:
    kept = drawn_sets(BY_HAND[None], [params_of(top_k=3)], device)
    for row in (1, -1):
        with pytest.raises(ValueError, match=rf"KeptSets: row must be .*0.*, got {row}\."):
            kept.of_row(row)
    with pytest.raises(ValueError, match=r"KeptSets: width must be .*0.*, got -1"):
        kept.padded(-1)
    assert kept.padded(0)[0].shape == (1, 0)
    nobody_asks = new_batch([SamplingParams(seed=1)], 4, device)
    assert Sampler(max_kept=2)(BY_HAND[None].to(device), nobody_asks).kept is None
    assert Sampler()(torch.empty(0, 4, device=device), SamplingBatch(4, device)).kept is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_sets_are_the_references(dtype: torch.dtype, device: str) -> None:
    params = [params_of(seed=seed, **KINDS[name]) for name in KINDS for seed in range(2)]
    for seed, keep_ties in ((0, False), (1, False), (2, True)):
        logits = rows_of(len(params), 2003, dtype, seed)
        assert check_rows(logits, params, device, keep_ties=keep_ties) <= 3


@pytest.mark.parametrize("keep_ties", [False, True])
def test_digits_are_not_lost_to_large_logits(keep_ties: bool, device: str) -> None:
    """Rounding 30 / 0.7 to float32 alone moves it by up to 2e-6."""
    params = [params_of(seed=row, top_k=5, temperature=(0.7, 0.2)[row % 2]) for row in range(40)]
    logits = torch.randn(40, 300, generator=torch.Generator().manual_seed(5)) + 30
    assert check_rows(logits, params, device, keep_ties=keep_ties) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_whole_vocabulary(dtype: torch.dtype, device: str) -> None:
    logits = rows_of(5, 151_936, dtype)
    nuclei = (params_of(top_p=0.5), params_of(top_p=0.9), params_of(top_p=0.95, temperature=1.3))
    check_rows(logits, [*nuclei, params_of(top_k=50), params_of()], device)


def test_ties_at_the_cut_go_by_id() -> None:
    """16-bit rows hold few values: hundreds of ids are equal to the last one that stays."""
    generator = torch.Generator().manual_seed(1)
    logits = (torch.randn(24, 5000, generator=generator) * 2).round().to(torch.bfloat16)
    for params in ({"top_k": 40}, {"top_k": 600}, {"top_k": 3000}, {"top_p": 0.4}, {"top_p": 0.8, "min_p": 0.1}):
        check_rows(logits, [params_of(**params)] * 24)
        check_rows(logits.float(), [params_of(**params)] * 24)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_do_not_depend_on_who_asks(dtype: torch.dtype, device: str) -> None:
    params = [params_of(seed=seed, **KINDS[name]) for name in KINDS for seed in range(4)]
    logits = rows_of(len(params), 2003, dtype).to(device)
    plain, asking = ([replace(one, return_sampling_mask=asks) for one in params] for asks in (False, True))
    outputs = [Sampler()(logits, new_batch(each, 2003, device)) for each in (plain, asking)]
    assert torch.equal(outputs[0].token_ids, outputs[1].token_ids)
    assert torch.equal(outputs[0].status, outputs[1].status)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_the_batch(dtype: torch.dtype, device: str) -> None:
    params = [params_of(seed=seed, **KINDS[name]) for name in KINDS for seed in range(2)]
    logits = rows_of(len(params), 2003, dtype)
    whole = drawn_sets(logits, params, device)
    order = torch.randperm(len(params), generator=torch.Generator().manual_seed(3)).tolist()
    permuted = drawn_sets(logits[order], [params[row] for row in order], device)
    for place, row in enumerate(order):
        others = [permuted.of_row(place)]
        if place % 7 == 0:
            others.append(drawn_sets(logits[row : row + 1], [params[row]], device).of_row(0))
        for other in others:
            for found, expected in zip(other, whole.of_row(row), strict=True):
                assert_same_numbers(found, expected, device)


def test_memory_is_in_proportion_to_what_is_kept(device: str) -> None:
    params = [
        params_of(top_k=50, top_p=0.9),
        replace(params_of(), return_sampling_mask=False),
        params_of(top_p=0.9),
    ] * 8
    logits = rows_of(len(params), 151_936, torch.bfloat16)
    kept = Sampler()(logits.to(device), new_batch(params, 151_936, device)).kept
    assert kept is not None
    held = sum(tensor.untyped_storage().nbytes() for tensor in kept)
    assert held <= 16 * len(kept.ids) + 64 * len(params)


def test_places_of_the_operator() -> None:
    one, ids = torch.ones(3), torch.arange(3)
    given, wanted = (one, ids.int() * 7, one, 0 * one, ids, ids), {"is_kept_wanted": torch.tensor([True, False, True])}
    logits, rows = torch.randn(3, 40), torch.tensor([2, 0, 2])
    sample = torch.ops.ascend_sample.sample_rows
    token_ids, _, (offsets, kept_ids, log_probs, counts), _ = sample(logits, None, *given, **wanted)
    assert offsets.tolist() == [0, 40, 40, 54]
    assert counts.tolist() == [40, 0, 14]
    assert len(kept_ids) == len(log_probs) == 54
    assert torch.equal(token_ids, sample(logits, None, *given)[0])
    of_rows = [sample(*each, *given, **wanted) for each in ((logits, rows), (logits[rows], None))]
    for found, expected in zip(*((*tensors, *kept) for *tensors, kept, _ in of_rows), strict=True):
        assert torch.equal(found, expected)
