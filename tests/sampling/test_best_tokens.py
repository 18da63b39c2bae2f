"""The best entries of rows of any length, equal ones in the order of their places."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.sampling.draws import best_tokens
from ascend_sample.sampling.draws.best_tokens import best_entries
from tests.support.code_paths import assert_same_on_all_code_paths


@pytest.mark.parametrize("entries", [1, 127, 128, 129, 1000, 5000, 40001])
@pytest.mark.parametrize("count", [1, 3, 8, 200])
@pytest.mark.parametrize("levels", [5, 10**9])
def test_the_best_are_those_of_a_stable_sort(device: str, entries: int, count: int, levels: int) -> None:
    generator = torch.Generator().manual_seed(entries + count)
    values = torch.randint(-levels, levels, (4, entries), generator=generator).float()
    values[0] = -torch.inf
    values[1, : entries // 2] = -torch.inf
    values[2, -1] = values[2].max() + 1
    expected = values.sort(dim=1, descending=True, stable=True)
    count = min(count, entries)
    best, places = best_entries(values.to(device), count)
    assert torch.equal(best.cpu(), expected.values[:, :count])
    assert torch.equal(places.cpu(), expected.indices[:, :count])


def test_equals_come_in_the_order_of_their_places_wherever_the_best_is(device: str) -> None:
    values = torch.zeros(1, 5000)
    values[0, [400, 4000, 4001]] = torch.tensor([4.0, 5.0, 4.0])
    assert best_entries(values.to(device), 4)[1].tolist() == [[4000, 400, 4001, 0]]


def test_rows_longer_than_the_order_has_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_tokens, "MAX_VOCAB_SIZE", 100)
    values = torch.tensor([[1.0, 2.0, 2.0, 0.0] * 30])
    assert (
        best_entries(values, 70)[1].tolist()
        == values.sort(dim=1, descending=True, stable=True).indices[:, :70].tolist()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("vocab_size", [1, 2, 31, 33, 1000, 1024, 5000, 32000])
@pytest.mark.parametrize("smoothing", [1.0, 0.7])
def test_native_and_torch_agree(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, vocab_size: int, smoothing: float
) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(9, vocab_size, generator=generator) * 4
    logits[1] = logits[1].round()
    logits[2, vocab_size // 2 + 1 :] = -torch.inf
    logits[3] -= 1000.0
    logits[4] = 7.0
    logits[5, ::3] = torch.nan
    logits[6, vocab_size // 2 :: 5] = torch.inf
    logits[7] = torch.nan
    logits = logits.to(dtype)
    of_infinite = torch.zeros(9, vocab_size).masked_fill(logits != torch.inf, -torch.inf)
    cleaned = logits.double().masked_fill(logits.isnan(), -torch.inf) / smoothing
    cleaned = torch.where((logits == torch.inf).any(dim=1, keepdim=True), of_infinite, cleaned)
    exact = cleaned.log_softmax(dim=1).masked_fill(cleaned == -torch.inf, -torch.inf)
    for count in {1, 8, 70, 1024}:
        count = min(count, vocab_size)
        found = best_tokens.best_tokens(logits, count, smoothing)
        everything = best_tokens.all_log_probs(logits, smoothing)
        with monkeypatch.context() as patch:
            patch.setattr(best_tokens, "has_native_operator", lambda logits: False)
            expected = best_tokens.best_tokens(logits, count, smoothing)
        assert torch.equal(found[1], expected[1])
        torch.testing.assert_close(found[0], expected[0], atol=2e-5, rtol=1e-5)  # torch adds up in float32
        torch.testing.assert_close(found[0].double(), exact.gather(1, found[1]), atol=1e-6, rtol=2e-7)
        assert torch.equal(found[0], everything.gather(1, found[1])), "whoever looks at all sees the same bits"
        assert all(len(set(row)) == count for row in found[1].tolist())


def strange_rows(vocab_size: int, dtype: torch.dtype) -> Tensor:
    """Random rows, some with ties, NaN, infinities, and nothing at all."""
    logits = torch.randn(12, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * 3
    logits[1] = logits[1].round()
    logits[2, ::2] = torch.nan
    logits[3, ::3] = torch.inf
    logits[4] = -torch.inf
    logits[5, 1:] = -torch.inf
    logits[6] = 0.0
    logits[7] = -3e38
    logits[8, ::2] = -0.0
    return logits.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [1, 7, 60, 2560, 4999, 8192])
@pytest.mark.parametrize("smoothing", [1.0, 0.7])
def test_devices_find_what_a_cpu_finds(device: str, vocab_size: int, dtype: torch.dtype, smoothing: float) -> None:
    here = strange_rows(vocab_size, dtype)
    there = here.to(device)
    everything = best_tokens.all_log_probs(there, smoothing)
    torch.testing.assert_close(everything.cpu(), best_tokens.all_log_probs(here, smoothing), atol=2e-6, rtol=1e-6)
    for count in (1, 4, 8):
        count = min(count, vocab_size)
        found, tokens = best_tokens.best_tokens(there, count, smoothing)
        assert torch.equal(tokens.cpu(), best_tokens.best_tokens(here, count, smoothing)[1])
        assert torch.equal(found, everything.gather(1, tokens)), "whoever looks at all sees the same bits"


def test_no_underflow_of_what_is_far_below_the_best() -> None:
    log_probs, tokens = best_tokens.best_tokens(torch.tensor([[0.0, -300.0, -200.0]]), 3)
    assert log_probs.tolist() == [[0.0, -200.0, -300.0]]
    assert tokens.tolist() == [[0, 2, 1]]


def native(logits: Tensor, count: int, temperature: float = 1.0) -> tuple[list[list[float]], list[list[int]]]:
    log_probs, token_ids = torch.ops.ascend_sample.best_tokens(logits, count, temperature)
    return log_probs.tolist(), token_ids.tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_rows_that_are_no_ordinary_ones(temperature: float) -> None:
    nan, inf = torch.nan, torch.inf
    rows = torch.tensor([[nan, 2.0, nan, 2.0], [-inf, inf, 3.0, inf], [-inf, nan, -inf, -inf], [nan, -inf, 1.0, -inf]])
    log_probs, token_ids = native(rows, 4, temperature)
    half = pytest.approx(-math.log(2))
    assert log_probs == [[half, half, -inf, -inf], [half, half, -inf, -inf], [-inf] * 4, [0.0, -inf, -inf, -inf]]
    assert token_ids == [[1, 3, 0, 2], [1, 3, 2, 0], [0, 1, 2, 3], [2, 0, 1, 3]]


def test_strides_and_no_rows() -> None:
    logits = torch.randn(6, 700, generator=torch.Generator().manual_seed(0))
    wide = torch.zeros(12, 1400)
    wide[::2, 1::2] = logits
    assert native(wide[::2, 1::2], 9) == native(logits, 9) == native(logits.t().contiguous().t(), 9)
    assert native(torch.zeros(0, 5), 2) == ([], [])


PROGRAM = """
import hashlib, torch, ascend_sample
digest = hashlib.sha256()
for vocab_size in (1, 15, 33, 1000, 5000):
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        logits = (torch.randn(20, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * 4).to(dtype)
        for temperature in (1.0, 0.7):
            for found in torch.ops.ascend_sample.best_tokens(logits, min(40, vocab_size), temperature):
                digest.update(found.numpy().tobytes())
print(digest.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits() -> None:
    assert_same_on_all_code_paths(PROGRAM)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.zeros(3), 1), ValueError, r"logits must have shape \[batch, vocab_size\]"),
        ((torch.zeros(2, 3, dtype=torch.float64), 1), TypeError, "logits must be float32, float16 or bfloat16"),
        ((torch.zeros(2, 3), 0), ValueError, "count must be between 1 and 1024, got 0"),
        ((torch.zeros(2, 3000), 1025), ValueError, "count must be between 1 and 1024, got 1025"),
        ((torch.zeros(2, 3), 4), ValueError, r"count must be at most the vocabulary size of logits \(3\), got 4"),
        ((torch.zeros(2, 3), 1, 0.0), ValueError, "temperature must be a finite float32 above 0, got 0"),
        ((torch.zeros(2, 3), 1, 1e-60), ValueError, "temperature must be a finite float32 above 0, got 1e-60"),
        ((torch.zeros(2, 3), 1, math.nan), ValueError, "temperature must be a finite float32 above 0, got nan"),
    ],
)
def test_bad_arguments(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^best_tokens: {message}"):
        torch.ops.ascend_sample.best_tokens(*arguments)


def test_opcheck() -> None:
    torch.library.opcheck(torch.ops.ascend_sample.best_tokens.default, (torch.randn(2, 30), 3, 0.7))
