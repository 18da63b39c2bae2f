"""The cache of FasterTransformer's decoder: after any sequence of operations, and what these copy and wait for."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ascend_sample import hostcann
from ascend_sample.decoding import Decoder, ModuleModel
from ascend_sample.decoding.models import decoder_layer, layered_decoder, step_major_cache
from tests.decoding.decoder_models import make_batch, random_decoder
from tests.decoding.planting import Trap, noticed

SEQUENCES = 150  # of random operations


class Pair:
    """The same operations on a decoder with its cache and on one that computes all anew."""

    def __init__(self, decoder: Decoder, rows: int, longest: int, seed: int) -> None:
        self.models = (decoder, ModuleModel(decoder))
        input_ids, mask, encoder = make_batch(rows, longest, seed)
        outputs = [model.prefill(input_ids, mask, **encoder) for model in self.models]
        self.caches = [output.cache for output in outputs]
        self.lengths = mask.sum(dim=1)
        torch.testing.assert_close(outputs[0].logits, outputs[1].logits, rtol=1e-4, atol=1e-4)

    def decode(self, count: int, generator: torch.Generator) -> None:
        tokens = torch.randint(17, (len(self.lengths), count), generator=generator)
        outputs = [model.decode(tokens, cache) for model, cache in zip(self.models, self.caches, strict=True)]
        self.caches = [output.cache for output in outputs]
        self.lengths = self.lengths + count
        torch.testing.assert_close(outputs[0].logits, outputs[1].logits, rtol=1e-4, atol=1e-4)

    def expand(self, count: int) -> None:
        self.caches = [model.expand(cache, count) for model, cache in zip(self.models, self.caches, strict=True)]
        self.lengths = self.lengths.repeat_interleave(count)

    def reorder(self, index: Tensor) -> None:
        self.caches = [model.reorder(cache, index) for model, cache in zip(self.models, self.caches, strict=True)]
        self.lengths = self.lengths[index]

    def rollback(self, generator: torch.Generator) -> None:
        kept = torch.rand(len(self.lengths), generator=generator) * (self.lengths + 1)
        self.lengths = kept.long().clamp(1).minimum(self.lengths)
        self.caches = [
            model.rollback(cache, self.lengths) for model, cache in zip(self.models, self.caches, strict=True)
        ]

    def run(self, operations: list[str], generator: torch.Generator) -> None:
        for operation in operations:
            if operation == "expand" and len(self.lengths) <= 6:
                self.expand(int(torch.randint(1, 4, (), generator=generator)))
            elif operation == "reorder":
                rows = int(torch.randint(1, 8, (), generator=generator))
                self.reorder(torch.randint(len(self.lengths), (rows,), generator=generator))
            elif operation == "step of beams":
                rows = len(self.lengths)
                parents = torch.randint(rows, (rows,), generator=generator)
                self.decode(1, generator)
                self.reorder(torch.arange(rows).where(torch.rand(rows, generator=generator) < 0.7, parents))
            elif operation == "rollback":
                self.rollback(generator)
            else:
                self.decode(int(torch.randint(1, 4, (), generator=generator)), generator)
        self.decode(1, generator)


@settings(max_examples=SEQUENCES, deadline=None, derandomize=True)
@given(
    operations=st.lists(
        st.sampled_from(["decode", "decode", "expand", "reorder", "step of beams", "rollback"]), max_size=12
    ),
    rows=st.integers(1, 4),
    longest=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_any_sequence_of_operations_equals_computing_all_anew(
    operations: list[str], rows: int, longest: int, seed: int
) -> None:
    Pair(random_decoder(), rows, longest, seed).run(operations, torch.Generator().manual_seed(seed))


def check_operations() -> None:
    """One sequence that has everything in it."""
    operations = ["decode", "reorder", "decode", "rollback", "decode", "expand", "decode", "reorder", "rollback"]
    for seed in range(3):
        Pair(random_decoder(), 3, 4, seed).run(operations, torch.Generator().manual_seed(seed))


def check_beams() -> None:
    """What a beam search does: one token each step, and the parents' rows."""
    pair = Pair(random_decoder(), 2, 1, seed=3)
    generator = torch.Generator().manual_seed(0)
    pair.expand(3)
    for parents in ([0, 0, 0, 3, 3, 3], [2, 0, 1, 4, 4, 3], [0, 0, 2, 5, 3, 4]):
        pair.decode(1, generator)
        pair.reorder(torch.tensor(parents))
    pair.decode(1, generator)


def check_rejected_beams() -> None:
    """Steps of beams, some of which are taken back."""
    operations = ["expand", "expand", *["step of beams"] * 4, "rollback", *["step of beams"] * 4]
    for seed in range(4):
        Pair(random_decoder(), 2, 2, seed).run(operations, torch.Generator().manual_seed(seed))


TRAPS = [
    Trap(
        "positions go by the longest row",
        step_major_cache,
        "return self.lengths[:, None] + torch",
        "return self.lengths.max() + 0 * self.lengths[:, None] + torch",
        check_operations,
    ),
    Trap(
        "a weight of zero times what an encoder left at padding",
        layered_decoder,
        ".masked_fill(~visible[:, :, None], 0)",
        "",
        check_operations,
    ),
    Trap(
        "room that was never written is not finite",
        step_major_cache,
        "target = self.tokens.new_zeros(shape)",
        "target = self.tokens.new_full(shape, float('nan'))",
        check_operations,
    ),
    Trap(
        "what was rolled back is seen",
        decoder_layer,
        "(torch.arange(extent, device=places.device) <= places[:, :, None])[:, None]",
        "(torch.arange(extent, device=places.device) >= 0)[None, None, None]",
        check_operations,
    ),
    Trap(
        "all that is written counts as equal",
        step_major_cache,
        'torch.arange(places.numel(), device="cpu").view(places.shape) + self.written',
        "0",
        check_beams,
    ),
    Trap(
        "what is written at different steps counts as equal",
        step_major_cache,
        "written=self.written + places.numel()",
        "written=0",
        check_rejected_beams,
    ),
    Trap(
        "numbers stay where they are",
        step_major_cache,
        "else self.origins[:, index],",
        "else self.origins,",
        check_rejected_beams,
    ),
    Trap(
        "places are moved one after the other",
        step_major_cache,
        "places + rows, buffer.index_select(0, places + index[rows]))",
        "(places + rows)[:1], buffer.index_select(0, (places + index[rows])[:1]))",
        check_beams,
    ),
    Trap(
        "the cache is not taken from the parents",
        step_major_cache,
        "self.tokens[:, :, : self.extent], 3, index, out",
        "self.tokens[:, :, : self.extent], 3, index.sort().values, out",
        check_operations,
    ),
    Trap(
        "the memory does not follow its row",
        step_major_cache,
        "index if self.memory_rows is None else self.memory_rows[index]",
        "index",
        check_operations,
    ),
]

test_trap = noticed(TRAPS)


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
