"""The best entries of rows of any length, equal ones in the order of their places."""

from __future__ import annotations

import pytest
import torch

from ascend_sample.decoding import best_tokens
from ascend_sample.decoding.best_tokens import best_entries


@pytest.mark.parametrize("entries", [1, 127, 128, 129, 1000, 5000, 40001])
@pytest.mark.parametrize("count", [1, 3, 8, 200])
@pytest.mark.parametrize("levels", [5, 10**9])
def test_the_best_are_those_of_a_stable_sort(entries: int, count: int, levels: int) -> None:
    generator = torch.Generator().manual_seed(entries + count)
    values = torch.randint(-levels, levels, (4, entries), generator=generator).float()
    values[0] = -torch.inf
    values[1, : entries // 2] = -torch.inf
    expected = values.sort(dim=1, descending=True, stable=True)
    count = min(count, entries)
    best, places = best_entries(values, count)
    assert torch.equal(best, expected.values[:, :count])
    assert torch.equal(places, expected.indices[:, :count])


def test_equals_come_in_the_order_of_their_places_wherever_the_best_is() -> None:
    values = torch.zeros(1, 5000)
    values[0, [400, 4000, 4001]] = torch.tensor([4.0, 5.0, 4.0])
    assert best_entries(values, 4)[1].tolist() == [[4000, 400, 4001, 0]]


def test_rows_longer_than_the_order_has_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_tokens, "MAX_VOCAB_SIZE", 100)
    values = torch.tensor([[1.0, 2.0, 2.0, 0.0] * 30])
    assert (
        best_entries(values, 70)[1].tolist()
        == values.sort(dim=1, descending=True, stable=True).indices[:, :70].tolist()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    logits = torch.randn(7, 3000, generator=torch.Generator().manual_seed(0)).to(dtype)
    whole = best_tokens.best_tokens(logits, 5, 0.7)
    monkeypatch.setattr(best_tokens, "BLOCK", 6000)
    parts = best_tokens.best_tokens(logits, 5, 0.7)
    assert torch.equal(parts[0], whole[0])
    assert torch.equal(parts[1], whole[1])
    expected = (logits.float() / 0.7).log_softmax(dim=1)
    assert torch.equal(whole[0], expected.gather(1, whole[1]))


def test_no_underflow_of_what_is_far_below_the_best() -> None:
    log_probs, tokens = best_tokens.best_tokens(torch.tensor([[0.0, -300.0, -200.0]]), 3)
    assert log_probs.tolist() == [[0.0, -200.0, -300.0]]
    assert tokens.tolist() == [[0, 2, 1]]
