"""Models of transformers with their caches: whatever is done to the cache, the logits are those of the tokens alone."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ascend_sample.decoding.models import transformers_cache
from ascend_sample.decoding.models.transformers_models import CausalModel, EncoderDecoderModel
from ascend_sample.decoding.models.transformers_positions import PositionSource
from tests.decoding.planting import Trap, assert_caught, faults_beside
from tests.decoding.tiny_transformers import (
    IS_LONG,
    KINDS,
    VOCAB_SIZE,
    encoder_inputs,
    recomputing_model,
    step_model,
    tiny_transformer,
)

EXAMPLES = 400 if IS_LONG else 15
"""Random sequences of operations a model."""
LARGEST_DIFFERENCE = 1e-4
RAGGED = [kind for kind in KINDS if kind != "m2m100"]
QUICK = ("gpt2", "llama", "qwen2", "mistral with a window", "bloom", "t5", "bart", "marian", "whisper")
DRAWN_FROM = RAGGED if IS_LONG else QUICK


class Pair:
    """A model with its cache beside the one that recomputes, which are told the same and must answer the same."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.cached, self.oracle = step_model(kind), recomputing_model(kind)
        self.caches: tuple[Any, Any] = (None, None)
        self.lengths: list[int] = []

    def prefill(self, tokens: Tensor, mask: Tensor, seed: int = 0) -> None:
        encoder = encoder_inputs(self.kind, len(tokens), seed)
        outputs = [model.prefill(tokens, mask, **encoder) for model in (self.cached, self.oracle)]
        self.lengths = mask.sum(dim=1).tolist()
        hidden = [output.hidden_states[mask.bool()] for output in outputs]
        self._compare(outputs, hidden)

    def decode(self, tokens: Tensor) -> None:
        outputs = [
            model.decode(tokens, cache) for model, cache in zip((self.cached, self.oracle), self.caches, strict=True)
        ]
        self.lengths = [length + tokens.shape[1] for length in self.lengths]
        self._compare(outputs, [output.hidden_states for output in outputs])

    def change(self, name: str, argument: Any) -> None:
        first, second = (
            getattr(model, name)(cache, argument)
            for model, cache in zip((self.cached, self.oracle), self.caches, strict=True)
        )
        self.caches = first, second
        rows = torch.tensor(self.lengths)
        changed = {
            "expand": lambda: rows.repeat_interleave(argument),
            "reorder": lambda: rows[argument],
            "rollback": lambda: argument,
        }
        self.lengths = changed[name]().tolist()

    def _compare(self, outputs: list[Any], hidden: list[Any]) -> None:
        first, second = outputs
        torch.testing.assert_close(first.logits, second.logits, atol=LARGEST_DIFFERENCE, rtol=0)
        torch.testing.assert_close(hidden[0], hidden[1], atol=LARGEST_DIFFERENCE, rtol=0)
        self.caches = first.cache, second.cache


@contextmanager
def lengths_are_not_read(that_is_so: bool) -> Iterator[None]:
    """On a CPU, the way of a device, where the store is not trimmed at every rollback."""
    with pytest.MonkeyPatch.context() as patch:
        if that_is_so:
            patch.setattr(transformers_cache, "is_trimmed_now", lambda lengths, rollbacks: rollbacks >= 3)
        yield


@st.composite
def masks(draw: st.DrawFn) -> Tensor:
    width = draw(st.integers(1, 5))
    row = st.lists(st.booleans(), min_size=width, max_size=width).filter(any)
    return torch.tensor(draw(st.lists(row, min_size=1, max_size=3)))


@pytest.mark.parametrize("kind", DRAWN_FROM)
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_cached_equals_uncached_after_any_operations(kind: str, data: st.DataObject) -> None:
    """A prefill, then what a search may do, in any order."""
    pair = Pair(kind)
    mask = data.draw(masks(), label="mask")
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32), label="tokens"))

    def tokens(width: int) -> Tensor:
        return torch.randint(VOCAB_SIZE, (len(pair.lengths), width), generator=generator)

    with lengths_are_not_read(data.draw(st.booleans(), label="as on a device")):
        pair.lengths = [0] * len(mask)
        pair.prefill(tokens(mask.shape[1]), mask)
        for _ in range(data.draw(st.integers(1, 7), label="operations")):
            rows = len(pair.lengths)
            operation = data.draw(st.sampled_from(("decode", "decode", "rollback", "reorder", "expand")))
            if operation == "rollback":
                pair.change("rollback", torch.tensor([data.draw(st.integers(0, length)) for length in pair.lengths]))
            elif operation == "reorder":
                index = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=5))
                pair.change("reorder", torch.tensor(index))
            elif operation == "expand" and rows <= 3:
                pair.change("expand", data.draw(st.integers(1, 3)))
            else:
                pair.decode(tokens(data.draw(st.integers(1, 3))))
        pair.decode(tokens(1))


def use_everything(kind: str) -> None:
    """One fixed sequence with every operation, for planted faults."""
    pair = Pair(kind)
    pair.prefill(
        torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8]]),
        torch.tensor([[1, 1, 1, 1], [0, 1, 0, 1], [1, 0, 0, 0]]),
    )
    pair.decode(torch.tensor([[7, 9], [3, 2], [3, 8]]))
    pair.change("rollback", torch.tensor([5, 3, 3]))
    pair.decode(torch.tensor([[4], [6], [2]]))
    pair.change("reorder", torch.tensor([2, 0, 1]))
    pair.decode(torch.tensor([[6], [4], [3]]))
    pair.change("expand", 2)
    pair.decode(torch.tensor([[1], [2], [3], [4], [5], [6]]))
    pair.change("rollback", torch.tensor(pair.lengths) - 2)
    pair.decode(torch.tensor([[1, 5], [2, 7], [3, 1], [4, 4], [5, 8], [6, 9]]))


@pytest.mark.parametrize("kind", RAGGED)
def test_cached_equals_uncached_after_one_of_each(kind: str) -> None:
    use_everything(kind)
    with lengths_are_not_read(True):
        use_everything(kind)


CACHE_FAULTS = faults_beside(__file__)
NEEDS_ENCODER = ("the encoder's keys and values stay", "the position embedding gets one row's positions")


@pytest.mark.parametrize("name", CACHE_FAULTS)
def test_a_planted_fault_of_the_cache_is_noticed(name: str) -> None:
    check: Callable[[], None] = functools.partial(use_everything, "bart" if name in NEEDS_ENCODER else "gpt2")
    assert_caught(Trap(name, *CACHE_FAULTS[name], check))


@pytest.mark.parametrize("kind", ["gpt2", "t5", "bart"])
@pytest.mark.parametrize("masked", [-100, VOCAB_SIZE])
def test_what_is_masked_does_not_matter(kind: str, masked: int) -> None:
    model, mask = step_model(kind), torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]]).bool()
    tokens, encoder = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), encoder_inputs(kind, 2, seed=1)
    expected = model.prefill(tokens, mask, **encoder).logits
    if encoder:
        assert not encoder["encoder_attention_mask"].all()
        encoder["encoder_input_ids"] = encoder["encoder_input_ids"].where(encoder["encoder_attention_mask"], masked)
    assert model.prefill(tokens.where(mask, masked), mask, **encoder).logits.equal(expected)


def test_how_positions_are_known() -> None:
    sources = {kind: step_model(kind).position_source.name for kind in KINDS}
    assert sources == {
        **dict.fromkeys(("gpt2", "llama", "qwen2", "mistral with a window", "gemma3", "llama4", "whisper"), "ARGUMENT"),
        **dict.fromkeys(("bloom", "mpt", "t5", "umt5"), "RELATIVE"),
        **dict.fromkeys(("bart", "marian", "pegasus"), "EMBEDDING"),
        "m2m100": "WIDTH",
    }


def test_rows_of_several_lengths_are_refused_where_positions_cannot_be_given() -> None:
    pair = Pair("m2m100")
    assert pair.cached.position_source is PositionSource.WIDTH
    tokens, full = torch.tensor([[3, 4], [5, 6]]), torch.ones(2, 2, dtype=torch.bool)
    pair.prefill(tokens, full)
    pair.decode(tokens)
    pair.change("rollback", torch.tensor([3, 3]))
    pair.decode(tokens)
    with pytest.raises(ValueError, match=r"rows must have one length with m2m_100.*got the lengths \[3, 4\]\. Decode"):
        pair.cached.rollback(pair.caches[0], torch.tensor([3, 4]))
    ragged = torch.tensor([[True, True], [True, False]])
    with pytest.raises(ValueError, match=r"rows must have one length"):
        pair.cached.prefill(tokens, ragged, **encoder_inputs("m2m100", 2))


def test_the_store_is_cut_where_all_rows_allow_it() -> None:
    model = step_model("gpt2")
    cache = model.prefill(torch.tensor([[9, 9, 1, 2], [9, 3, 4, 9]]), torch.tensor([[0, 0, 1, 1], [0, 1, 1, 0]])).cache
    assert (cache.width, cache.has_holes) == (2, False)
    cache = model.decode(torch.tensor([[1, 2, 3], [1, 2, 3]]), cache).cache
    cache = model.rollback(cache, torch.tensor([3, 4]))
    assert (cache.width, cache.has_holes, cache.past.layers[0].keys.shape[2]) == (4, True, 4)
    cache = model.rollback(cache, torch.tensor([3, 3]))
    assert (cache.width, cache.has_holes, cache.past.layers[0].keys.shape[2]) == (3, False, 3)


def test_a_rollback_forward_is_refused() -> None:
    model = step_model("gpt2")
    cache = model.prefill(torch.tensor([[1, 2]])).cache
    with pytest.raises(ValueError, match=r"rollback: lengths must be at most those of the rows, \[2\], got \[3\]\."):
        model.rollback(cache, torch.tensor([3]))


def test_hidden_states_come_only_where_asked_for() -> None:
    assert CausalModel(tiny_transformer("gpt2")).prefill(torch.tensor([[1]])).hidden_states is None


class Renamed(transformers.GPT2LMHeadModel):
    """Calls its cache as transformers' models do since 5.24, whichever version this is."""

    def forward(self, *arguments: Any, cache: Any = None, **named: Any) -> Any:
        own = super().forward
        name = "cache" if "cache" in inspect.signature(own).parameters else "past_key_values"
        output = own(*arguments, **named, **{name: cache})
        return types.SimpleNamespace(logits=output.logits, cache=output[name])


def test_a_cache_of_the_newer_name() -> None:
    former = tiny_transformer("gpt2")
    renamed = Renamed(former.config).eval()
    renamed.load_state_dict(former.state_dict())
    prompts, new = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[7], [8]])
    logits = []
    for model in (CausalModel(renamed), CausalModel(former)):
        logits.append(model.decode(new, model.prefill(prompts).cache).logits)
    assert torch.equal(*logits)


def in_training() -> Any:
    config = transformers.GPT2Config(vocab_size=5, n_embd=4, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config).train()


def recurrent() -> Any:
    return transformers.MambaForCausalLM(transformers.MambaConfig(vocab_size=5, hidden_size=4, num_hidden_layers=1))


BAD = [
    (lambda: CausalModel(lambda ids: ids), TypeError, "CausalModel: model must be one of transformers, got function"),
    (lambda: CausalModel(torch.nn.Linear(1, 1)), TypeError, "CausalModel: model must be one of transformers"),
    (lambda: CausalModel(tiny_transformer("t5")), TypeError, "CausalModel: model must be causal.* Use EncoderDecoder"),
    (lambda: EncoderDecoderModel(tiny_transformer("gpt2")), TypeError, "must have an encoder, got GPT2LMHeadModel"),
    (lambda: CausalModel(tiny_transformer("gpt2"), hidden_states=1), TypeError, "hidden_states must be True or False"),
    (lambda: CausalModel(in_training()), ValueError, "must be in evaluation mode, got training mode. Call"),
    (lambda: CausalModel(recurrent().eval()), ValueError, "must keep keys and values alone, got a cache layer"),
    (
        lambda: step_model("gpt2").prefill(torch.tensor([[1]]), encoder_input_ids=torch.tensor([[1]])),
        TypeError,
        r"CausalModel: encoder must be empty, got \['encoder_input_ids'\]",
    ),
    (lambda: step_model("t5").prefill(torch.tensor([[1]])), TypeError, "encoder must name inputs as .* got nothing"),
    (
        lambda: step_model("t5").prefill(torch.tensor([[1]]), memory=torch.tensor([[1]])),
        TypeError,
        r"encoder must name inputs as .* got \['memory'\]\. Put encoder_",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_input_is_named(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
