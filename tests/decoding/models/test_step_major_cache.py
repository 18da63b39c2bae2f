"""The cache of FasterTransformer's decoder: after any sequence of operations, and what these copy and wait for."""

from __future__ import annotations

import torch
from hypothesis import given

from ascend_sample import hostcann
from ascend_sample.decoding import ModuleModel
from tests.decoding.decoder_models import make_batch, random_decoder
from tests.decoding.paired_models import ONE_OF_EACH, SEQUENCES, compare_operations, examples

VOCAB_SIZE = 17


@examples(50)
@given(**SEQUENCES)
def test_any_sequence_of_operations_equals_computing_all_anew(
    operations: str, rows: int, longest: int, seed: int
) -> None:
    decoder = random_decoder()
    batch = make_batch(rows, longest, seed)
    compare_operations((ModuleModel(decoder), decoder), batch, VOCAB_SIZE, operations, seed)


def test_sequences_with_all_operations_equal_computing_all_anew() -> None:
    decoder = random_decoder()
    for seed in range(4):
        for operations in ONE_OF_EACH:
            batch = make_batch(3, 4, seed)
            compare_operations((ModuleModel(decoder), decoder), batch, VOCAB_SIZE, operations, seed)


class TestCache:
    def test_room_doubles(self) -> None:
        decoder = random_decoder(initial_steps=1)
        output = decoder.prefill(torch.tensor([[1]]), memory=torch.randn(1, 2, 10))
        capacities = []
        for _ in range(9):
            output = decoder.decode(torch.tensor([[2]]), output.cache)
            capacities.append(output.cache.capacity)
        assert capacities == [2, 4, 4, 8, 8, 8, 8, 16, 16]

    def test_rollbacks_need_no_room(self) -> None:
        decoder = random_decoder(initial_steps=4)
        output = decoder.prefill(torch.tensor([[1], [2]]), memory=torch.randn(2, 2, 10))
        for _ in range(20):
            output = decoder.decode(torch.tensor([[3, 4], [5, 6]]), output.cache)
            output = output._replace(cache=decoder.rollback(output.cache, torch.tensor([2, 1])))
        assert output.cache.capacity == 5

    def test_reorders_use_two_buffers_in_turn(self) -> None:
        decoder = random_decoder(initial_steps=8)
        cache = decoder.prefill(torch.tensor([[1], [2]]), memory=torch.randn(2, 2, 10)).cache
        index = torch.tensor([1, 0])
        first = decoder.reorder(cache, index)
        second = decoder.reorder(first, index)
        assert second.tokens is cache.tokens
        assert decoder.reorder(second, index).tokens is first.tokens

    def test_a_reorder_copies_only_what_beams_do_not_share(self) -> None:
        decoder = random_decoder(initial_steps=8)
        cache = decoder.expand(decoder.prefill(torch.tensor([[1], [2]]), memory=torch.randn(2, 2, 10)).cache, 2)
        cache = decoder.decode(torch.tensor([[1], [2], [3], [4]]), cache).cache
        before, tokens = cache.tokens.clone(), cache.tokens
        tokens[:, :, 0, 1] += 1.0  # which is said to be what row 0 has there, too
        moved = decoder.reorder(cache, torch.tensor([0, 0, 2, 3]))
        assert moved.tokens is tokens
        assert torch.equal(tokens[:, :, 1, 1], before[:, :, 1, 0])
        assert torch.equal(tokens[:, :, 0, 1], before[:, :, 0, 1] + 1.0)
        assert torch.equal(tokens[:, :, :, 2:], before[:, :, :, 2:])

    def test_beams_share_their_memory(self) -> None:
        decoder = random_decoder()
        cache = decoder.prefill(torch.tensor([[1], [2]]), memory=torch.randn(2, 7, 10)).cache
        expanded = decoder.expand(cache, 50)
        assert expanded.memory.data_ptr() == cache.memory.data_ptr()
        assert expanded.memory.shape == (2, 2, 2, 7, 12)
        assert len(expanded.lengths) == 100


def test_a_step_never_waits_for_the_device(counting: None, npu: str) -> None:
    """With its reorder and a rollback; only when there is no room for it would it look at the lengths."""
    decoder = random_decoder(initial_steps=20).to(npu)
    cache = decoder.prefill(torch.ones(2, 1, dtype=torch.int64, device=npu), memory=torch.randn(2, 3, 10).to(npu)).cache
    index, tokens, one = (torch.tensor(value, device=npu) for value in ([1, 1, 0], [[2], [3], [4]], 1))
    with hostcann.profile() as counted:
        for _ in range(4):
            output = decoder.decode(tokens, decoder.reorder(cache, index))
            output = decoder.decode(tokens, output.cache)
            cache = decoder.rollback(output.cache, output.cache.lengths - one)
    assert sum(counted.synchronizations.values()) == 0, counted
    assert counted.copies.get("d2h", 0) == 0
