"""FasterTransformer's decoder: beside torch's layer, by hand, and after any sequence of the cache's operations."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ascend_sample import hostcann
from ascend_sample.decoding import (
    Decoder,
    DecoderConfig,
    DecoderLayer,
)
from ascend_sample.decoding.models import decoder_layer, step_major_cache, transformer_decoder
from ascend_sample.decoding.models.module_model import ModuleModel
from decoding.decoder_models import random_decoder, random_encoder_decoder, randomise, torch_layer
from decoding.planting import Trap, assert_caught

LAYER_TOLERANCE = 1e-5
SEQUENCES = 150  # of random operations


def run_layer(layer: DecoderLayer, hidden: Tensor, memory: Tensor, memory_visible: Tensor) -> Tensor:
    """All places at once."""
    causal = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).tril()
    projected = layer.project_memory(memory)
    return layer(hidden, lambda keys, values: (keys, values), causal, projected, memory_visible[:, None, None])


class TestLayer:
    @pytest.mark.parametrize(("hidden_size", "heads", "eps"), [(8, 1, 1e-6), (12, 3, 1e-5), (64, 8, 1e-6)])
    def test_is_torchs_layer(self, hidden_size: int, heads: int, eps: float) -> None:
        layer = DecoderLayer(hidden_size, heads, layer_norm_eps=eps).eval()
        randomise(layer)
        hidden, memory = torch.randn(3, 6, hidden_size), torch.randn(3, 9, hidden_size)
        visible = torch.arange(9) < torch.tensor([9, 1, 5])[:, None]
        expected = torch_layer(layer)(
            hidden,
            memory,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(6),
            memory_key_padding_mask=torch.where(visible, 0.0, -math.inf),
        )
        measured = run_layer(layer, hidden, memory, visible)
        scale = expected.abs().max()
        assert (measured - expected).abs().max() < LAYER_TOLERANCE * scale

    def test_memory_of_another_size_equals_one_that_was_mapped_before(self) -> None:
        layer, mapped = DecoderLayer(8, 2, memory_size=5).eval(), DecoderLayer(8, 2).eval()
        randomise(layer)
        mapped.load_state_dict(layer.state_dict() | {"memory_key_value.weight": mapped.memory_key_value.weight})
        lift = torch.randn(8, 5)
        with torch.no_grad():
            layer.memory_key_value.weight.copy_(mapped.memory_key_value.weight @ lift)
        hidden, memory = torch.randn(2, 3, 8), torch.randn(2, 4, 5)
        visible = torch.ones(2, 4, dtype=torch.bool)
        torch.testing.assert_close(
            run_layer(layer, hidden, memory, visible), run_layer(mapped, hidden, memory @ lift.T, visible)
        )


class WithoutLayers:
    """A decoder whose layers do nothing, so that its hidden states are the last norm of embedding and position."""

    def __init__(self) -> None:
        self.decoder = Decoder(DecoderConfig(5, hidden_size=4, heads=1, layers=1, hidden_states=True)).eval()
        with torch.no_grad():
            for name, parameter in self.decoder.layers.named_parameters():
                if "output" in name:
                    parameter.zero_()

    def expected(self, token: int, step: int) -> Tensor:
        # Four places: the rates are 1 and 1 / 10000.
        position = [math.sin(step), math.sin(step / 10000), math.cos(step), math.cos(step / 10000)]
        vector = 2 * self.decoder.embedding.weight[token].detach() + torch.tensor(position)
        return nn.functional.layer_norm(vector, (4,), eps=1e-6)


def check_positions() -> None:
    by_hand = WithoutLayers()
    memory = torch.randn(2, 1, 4)
    mask = torch.tensor([[False, True], [True, True]])
    output = by_hand.decoder.prefill(torch.tensor([[0, 3], [1, 2]]), mask, memory=memory)
    assert output.hidden_states is not None
    torch.testing.assert_close(output.hidden_states[0, 1], by_hand.expected(3, step=1))
    torch.testing.assert_close(output.hidden_states[1, 0], by_hand.expected(1, step=1))
    torch.testing.assert_close(output.hidden_states[1, 1], by_hand.expected(2, step=2))
    output = by_hand.decoder.decode(torch.tensor([[4], [4]]), output.cache)
    assert output.hidden_states is not None
    torch.testing.assert_close(
        output.hidden_states[:, 0], torch.stack([by_hand.expected(4, 2), by_hand.expected(4, 3)])
    )
    torch.testing.assert_close(by_hand.decoder.head(output.hidden_states), output.logits)


def test_embedding_and_positions_by_hand() -> None:
    check_positions()


def make_batch(rows: int, longest: int, seed: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Prompts padded on any side, their masks, and memories with padding that is not finite."""
    generator = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(17, (rows, longest), generator=generator)
    mask = torch.rand(rows, longest, generator=generator) < 0.6
    mask[torch.arange(rows), torch.randint(longest, (rows,), generator=generator)] = True
    memory = torch.randn(rows, 5, 10, generator=generator)
    lengths = torch.randint(1, 6, (rows,), generator=generator)
    memory[torch.arange(5) >= lengths[:, None]] = math.nan
    return input_ids, mask, {"memory": memory, "memory_lengths": lengths}


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


def check_long_memory() -> None:
    """A memory longer than all that is decoded, whose last place decides."""
    decoder = random_decoder()
    memory = torch.randn(1, 200, 10)
    changed = memory.clone()
    changed[:, -1] += 5
    start = torch.tensor([[1]])
    logits = [decoder.prefill(start, memory=value).logits for value in (memory, changed)]
    assert (logits[0] - logits[1]).abs().max() > 1e-3
    torch.testing.assert_close(logits[1], decoder(start, changed)[:, -1])


TRAPS = [
    Trap(
        "002: the memory's cache is sized by the decoder's length",
        transformer_decoder,
        "memory=projected,",
        "memory=projected[:, :, :, :capacity],",
        check_long_memory,
    ),
    Trap(
        "002: the first step is 1",
        transformer_decoder,
        "_encode_steps(places + 1)",
        "_encode_steps(places)",
        check_positions,
    ),
    Trap("the rates end at 1 / 10000", transformer_decoder, "/ (half - 1)", "/ half", check_positions),
    Trap(
        "sines and cosines take turns",
        transformer_decoder,
        "torch.cat((angles.sin(), angles.cos()), dim=-1)",
        "torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)",
        check_positions,
    ),
    Trap(
        "the embedding is not scaled",
        transformer_decoder,
        "math.sqrt(self.config.hidden_size)",
        "1",
        check_positions,
    ),
    Trap(
        "positions go by the longest row",
        step_major_cache,
        "return self.lengths[:, None] + torch",
        "return self.lengths.max() + 0 * self.lengths[:, None] + torch",
        check_operations,
    ),
    Trap(
        "a weight of zero times what an encoder left at padding",
        transformer_decoder,
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
        "torch.arange(places.numel()).view(places.shape) + self.written",
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


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.name)
def test_trap(trap: Trap) -> None:
    assert_caught(trap)


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

    def test_hidden_states_have_the_places_of_the_prompt(self) -> None:
        decoder = random_decoder(hidden_states=True)
        memory = torch.randn(1, 3, 10).expand(2, -1, -1)
        padded = decoder.prefill(
            torch.tensor([[0, 5, 0, 6], [5, 6, 0, 0]]), torch.tensor([[0, 1, 0, 1], [1, 1, 0, 0]]), memory=memory
        )
        assert padded.hidden_states is not None
        torch.testing.assert_close(padded.hidden_states[0, [1, 3]], padded.hidden_states[1, :2])
        torch.testing.assert_close(padded.logits, decoder.head(padded.hidden_states[[0, 1], [3, 1]]))


def test_more_than_the_document_allows() -> None:
    """200 beams of a vocabulary of 40000 at step 300 and later; the document stops at 5, 30000 and 128."""
    decoder = random_decoder(vocab_size=40000)
    memory = torch.randn(1, 150, 10)
    prompt = torch.randint(40000, (1, 300))
    cache = decoder.expand(decoder.prefill(prompt, memory=memory).cache, 200)
    tokens = torch.randint(40000, (200, 1))
    logits = decoder.decode(tokens, cache).logits
    alone = decoder(torch.cat((prompt, tokens[150:151]), dim=1), memory)[0, -1]
    torch.testing.assert_close(logits[150, 0], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_types_of_16_bits(dtype: torch.dtype, device: str) -> None:
    decoder = random_decoder()
    memory = torch.randn(2, 3, 10)
    exact = decoder(torch.tensor([[1, 2, 3]] * 2), memory)
    decoder.to(device, dtype)
    output = decoder.prefill(torch.tensor([[1, 2]], device=device), memory=memory[:1].to(device, dtype))
    logits = decoder.decode(torch.tensor([[3]], device=device), output.cache).logits
    assert logits.dtype == dtype
    error = (logits[0, 0].cpu().float() - exact[0, 2]).abs().max()
    assert error < 16 * torch.finfo(dtype).eps * exact.abs().max()


def test_same_on_each_device(device: str) -> None:
    decoder = random_decoder()
    input_ids, mask, encoder = make_batch(2, 3, seed=5)
    logits = []
    for place in ("cpu", device):
        decoder.to(place)
        output = decoder.prefill(
            input_ids.to(place), mask.to(place), **{name: value.to(place) for name, value in encoder.items()}
        )
        cache = decoder.reorder(decoder.expand(output.cache, 2), torch.tensor([3, 0, 0], device=place))
        cache = decoder.decode(torch.tensor([[1, 2]] * 3, device=place), cache).cache
        cache = decoder.rollback(cache, cache.lengths - torch.tensor([1, 2, 0], device=place))
        logits.append(decoder.decode(torch.tensor([[4]] * 3, device=place), cache).logits.cpu())
    torch.testing.assert_close(*logits)


def test_a_step_never_waits_for_the_device(npu: str) -> None:
    """With its reorder and a rollback; only when there is no room for it would it look at the lengths."""
    if not hostcann.is_active():
        pytest.skip("hostcann counts synchronisations; a real CANN does not")
    decoder = random_decoder(initial_steps=20).to(npu)
    cache = decoder.prefill(torch.ones(2, 1, dtype=torch.int64, device=npu), memory=torch.randn(2, 3, 10).to(npu)).cache
    index, tokens, one = (torch.tensor(value, device=npu) for value in ([1, 1, 0], [[2], [3], [4]], 1))
    torch.npu.synchronize()
    hostcann.reset_counters()
    for _ in range(4):
        output = decoder.decode(tokens, decoder.reorder(cache, index))
        output = decoder.decode(tokens, output.cache)
        cache = decoder.rollback(output.cache, output.cache.lengths - one)
    counted = hostcann.counters()
    assert sum(counted.synchronizations.values()) == 0, counted
    assert counted.copies.get("d2h", 0) == 0


def test_encoder_and_decoder_are_one_model() -> None:
    model = random_encoder_decoder()
    features, lengths = torch.randn(2, 4, 6), torch.tensor([4, 2])
    start = torch.tensor([[1], [2]])
    output = model.prefill(start, features=features, lengths=lengths)
    memory, _ = model.encoder(features, lengths)
    torch.testing.assert_close(output.logits, model.decoder(start, memory, lengths)[:, -1])
    cache = model.rollback(model.reorder(model.expand(output.cache, 2), torch.tensor([3, 1])), torch.tensor([1, 1]))
    logits = model.decode(torch.tensor([[3], [3]]), cache).logits
    expected = model(torch.tensor([[2, 3], [1, 3]]), features=features.flip(0), lengths=lengths.flip(0))
    torch.testing.assert_close(logits[:, 0], expected[:, -1])


MEMORY = torch.zeros(2, 3, 10)
BAD_MEMORIES = {
    "no tensor": ({"memory": [1.0]}, TypeError, r"memory must be a tensor of floats, got list"),
    "integers": (
        {"memory": MEMORY.long()},
        TypeError,
        r"memory must be a tensor of floats, got a tensor of torch.int64",
    ),
    "too few rows": ({"memory": MEMORY[:1]}, ValueError, r"memory must be \[2, at least 1, 10\], got \[1, 3, 10\]"),
    "empty": ({"memory": MEMORY[:, :0]}, ValueError, r"memory must be \[2, at least 1, 10\], got \[2, 0, 10\]"),
    "another size": ({"memory": MEMORY[..., :9]}, ValueError, r"memory must be \[2, at least 1, 10\]"),
    "two dimensions": ({"memory": MEMORY[0]}, ValueError, r"memory must be \[2, at least 1, 10\], got \[3, 10\]"),
    "lengths as a list": ({"memory": MEMORY, "memory_lengths": [3, 3]}, TypeError, "memory_lengths must be an int64"),
    "lengths of another type": (
        {"memory": MEMORY, "memory_lengths": torch.tensor([3, 3], dtype=torch.int32)},
        TypeError,
        "memory_lengths must be an int64 tensor, got a tensor of torch.int32",
    ),
    "too many lengths": (
        {"memory": MEMORY, "memory_lengths": torch.tensor([3, 3, 3])},
        ValueError,
        r"memory_lengths must be \[2\], got \[3\]",
    ),
    "no length": (
        {"memory": MEMORY, "memory_lengths": torch.tensor([0, 3])},
        ValueError,
        r"memory_lengths must be from 1 to 3, the memory's length, got \[0, 3\]",
    ),
    "too long": (
        {"memory": MEMORY, "memory_lengths": torch.tensor([4, 3])},
        ValueError,
        r"memory_lengths must be from 1 to 3, the memory's length, got \[4, 3\]",
    ),
}


@pytest.mark.parametrize(("arguments", "error", "message"), BAD_MEMORIES.values(), ids=BAD_MEMORIES.keys())
def test_bad_memories(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"Decoder: {message}"):
        random_decoder().prefill(torch.tensor([[1], [2]]), **arguments)  # type: ignore[arg-type]


BAD_CONFIGS = {
    "no words": ({"vocab_size": 0}, ValueError, "vocab_size must be at least 1, got 0"),
    "half a layer": ({"layers": 1.5}, TypeError, "layers must be an int, got float"),
    "odd": ({"hidden_size": 9, "heads": 3}, ValueError, "hidden_size must be even and a multiple of heads = 3, got 9"),
    "not divisible": (
        {"hidden_size": 10, "heads": 3},
        ValueError,
        "hidden_size must be even and a multiple of heads = 3",
    ),
    "one rate": ({"hidden_size": 2, "heads": 1}, ValueError, "hidden_size must be at least 4, got 2"),
    "no memory": ({"memory_size": 0}, ValueError, "memory_size must be at least 1, got 0"),
    "eps": ({"layer_norm_eps": 0.0}, ValueError, "layer_norm_eps must be a finite number above 0, got 0.0"),
    "no room": ({"initial_steps": 0}, ValueError, "initial_steps must be at least 1, got 0"),
    "states": ({"hidden_states": 1}, TypeError, "hidden_states must be True or False, got int 1"),
}


@pytest.mark.parametrize(("changes", "error", "message"), BAD_CONFIGS.values(), ids=BAD_CONFIGS.keys())
def test_bad_configs(changes: dict[str, int], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"DecoderConfig: {message}"):
        DecoderConfig(**{"vocab_size": 5, **changes})
