"""The total order of logits, and top-k by it."""

from __future__ import annotations

import pytest
import torch
from test_logprobs import naive_order
from torch import Tensor

from ascend_sample.sampling.draws.total_order import first_of_total_order, mask_below_top_k, order_keys


def rows_with_ties(rows: int, vocab_size: int) -> Tensor:
    """Few distinct values, zeros of both signs, infinities."""
    values = torch.tensor([-torch.inf, -2.5, -1e-40, -0.0, 0.0, 1e-40, 1.0, 3e38, torch.inf])
    return values[torch.randint(len(values), (rows, vocab_size))]


class TestOrder:
    @pytest.mark.parametrize("vocab_size", [1, 2, 9, 100])
    def test_keys_descend_in_the_total_order(self, device: str, vocab_size: int) -> None:
        logits = rows_with_ties(20, vocab_size)
        order = order_keys(logits.to(device)).argsort(dim=1, descending=True).cpu()
        assert order.tolist() == [naive_order(row) for row in logits]

    def test_keys_of_a_vocabulary_of_the_largest_size_are_unequal(self) -> None:
        keys = order_keys(torch.zeros(1, 2**20))
        assert keys.unique().numel() == 2**20

    @pytest.mark.parametrize("count", [1, 3, 100])
    def test_first_are_the_first(self, device: str, count: int) -> None:
        logits = rows_with_ties(20, 100)
        values, ids = first_of_total_order(logits.to(device), count)
        assert ids.tolist() == [naive_order(row)[:count] for row in logits]
        assert torch.equal(values.cpu(), logits.gather(1, ids.cpu()))


class TestMask:
    @pytest.mark.parametrize("most", [None, 60])
    def test_exactly_k_stay(self, device: str, most: int | None) -> None:
        logits = rows_with_ties(50, 60).nan_to_num(neginf=-3e38)
        top_k = torch.randint(1, 60, (50,), dtype=torch.int32)
        masked = mask_below_top_k(logits.to(device), top_k.to(device), keep_ties=False, most=most).cpu()
        for row, k in enumerate(top_k.tolist()):
            kept = (masked[row] > -torch.inf).nonzero().flatten().tolist()
            assert kept == sorted(naive_order(logits[row])[:k])

    def test_ties_at_the_kth_value_stay_where_asked(self, device: str) -> None:
        logits = torch.tensor([[1.0, 2.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
        masked = mask_below_top_k(logits.to(device), torch.tensor([2, 3], device=device), keep_ties=True).cpu()
        assert masked.tolist() == [[1.0, 2.0, 1.0, -torch.inf], [1.0, 1.0, 1.0, 1.0]]

    @pytest.mark.parametrize("top_k", [-1, 0, 3, 4, 2**20 + 1])
    @pytest.mark.parametrize("keep_ties", [False, True])
    def test_a_k_outside_the_range_keeps_all(self, top_k: int, keep_ties: bool) -> None:
        logits = torch.tensor([[1.0, 2.0, 1.0]])
        assert torch.equal(mask_below_top_k(logits, torch.tensor([top_k]), keep_ties), logits)
