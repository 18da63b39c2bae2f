"""The best entries of rows of any length, equal ones in the order of their places."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ascend_sample.sampling.draws import best_tokens
from ascend_sample.sampling.draws.best_tokens import best_entries


@pytest.mark.parametrize("entries", [1, 127, 129, 5000, 40_001])
def test_the_best_are_those_of_a_stable_sort(device: str, entries: int) -> None:
    for count, levels in ((1, 10**9), (3, 5), (8, 10**9), (200, 5)):
        generator = torch.Generator().manual_seed(entries + count)
        values = torch.randint(-levels, levels, (4, entries), generator=generator).float()
        values[0] = -torch.inf
        values[1, : entries // 2] = -torch.inf
        values[2, -1] = values[2].max() + 1
        expected = values.sort(dim=1, descending=True, stable=True)
        best, places = best_entries(values.to(device), min(count, entries))
        assert torch.equal(best.cpu(), expected.values[:, :count])
        assert torch.equal(places.cpu(), expected.indices[:, :count])


def test_equals_come_in_the_order_of_their_places_wherever_the_best_is(device: str) -> None:
    values = torch.zeros(1, 5000)
    values[0, [400, 4000, 4001]] = torch.tensor([4.0, 5.0, 4.0])
    assert best_entries(values.to(device), 4)[1].tolist() == [[4000, 400, 4001, 0]]


def test_rows_longer_than_the_order_has_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_tokens, "MAX_VOCAB_SIZE", 100)
    values = torch.tensor([[1.0, 2.0, 2.0, 0.0] * 30])
    expected = values.sort(dim=1, descending=True, stable=True).indices[:, :70]
    assert torch.equal(best_entries(values, 70)[1], expected)


def strange_rows(vocab_size: int, dtype: torch.dtype) -> Tensor:
    """Random rows, some with ties, NaN, infinities, and nothing at all."""
    logits = torch.randn(13, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * 3
    logits[1] = logits[1].round()
    logits[2, ::2] = torch.nan
    logits[3, vocab_size // 2 :: 3] = torch.inf
    logits[4] = -torch.inf
    logits[5, 1:] = -torch.inf
    logits[6] = 0.0
    logits[7] = -3e38
    logits[8, ::2] = -0.0
    logits[9] -= 1000.0
    return logits.to(dtype)


@pytest.mark.parametrize("vocab_size", [1, 33, 1024, 4999])
@pytest.mark.parametrize("machine", ["cpu", "torch alone", "npu"])
def test_log_probabilities_are_those_of_float64(
    machine: str, vocab_size: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """By the CPU kernel, by torch, and on a device; whoever looks at all sees the same bits."""
    device = request.getfixturevalue("npu") if machine == "npu" else "cpu"
    if machine == "torch alone":
        monkeypatch.setattr(best_tokens, "has_native_operator", lambda logits: False)
    close = {"atol": 1e-6, "rtol": 2e-7} if machine == "cpu" else {"atol": 2e-5, "rtol": 1e-5}  # adds up in float32
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        logits = strange_rows(vocab_size, dtype)
        for smoothing, count in ((1.0, 1), (0.7, 8), (0.7, 70), (1.0, 1024), (0.7, 4000)):
            cleaned = logits.double().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf) / smoothing
            of_infinite = torch.where(cleaned == torch.inf, 0.0, -torch.inf)
            cleaned = torch.where((cleaned == torch.inf).any(1, keepdim=True), of_infinite, cleaned)
            exact = cleaned.log_softmax(1).masked_fill(cleaned == -torch.inf, -torch.inf)
            order = logits.float().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
            best = order.sort(dim=1, descending=True, stable=True).indices[:, :count]
            found, tokens = best_tokens.best_tokens(logits.to(device), min(count, vocab_size), smoothing)
            assert torch.equal(tokens.cpu(), best)
            torch.testing.assert_close(found.cpu().double(), exact.gather(1, best), **close)
            everything = best_tokens.all_log_probs(logits.to(device), smoothing)
            assert torch.equal(found, everything.gather(1, tokens))


def test_by_hand() -> None:
    """A row whose best is far above, and rows that are no ordinary ones: of equals beside nothing the lower ids."""
    log_probs, tokens = best_tokens.best_tokens(torch.tensor([[0.0, -300.0, -200.0]]), 3)
    assert (log_probs.tolist(), tokens.tolist()) == ([[0.0, -200.0, -300.0]], [[0, 2, 1]])
    nan, inf, half = torch.nan, torch.inf, pytest.approx(-math.log(2))
    rows = torch.tensor([[nan, 2.0, nan, 2.0], [-inf, inf, 3.0, inf], [-inf, nan, -inf, -inf], [nan, -inf, 1.0, -inf]])
    for temperature in (1.0, 0.5):
        log_probs, tokens = best_tokens.native_best_tokens(rows, 4, temperature)
        assert log_probs.tolist() == [
            [half, half, -inf, -inf],
            [half, half, -inf, -inf],
            [-inf] * 4,
            [0.0] + [-inf] * 3,
        ]
        assert tokens.tolist() == [[1, 3, 0, 2], [1, 3, 2, 0], [0, 1, 2, 3], [2, 0, 1, 3]]
