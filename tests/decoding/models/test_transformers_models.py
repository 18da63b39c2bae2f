"""Models of transformers with their caches: whatever is done to the cache, the logits are those of the tokens alone."""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given

from ascend_sample.decoding.models import transformers_cache
from ascend_sample.decoding.models.transformers_models import CausalModel, EncoderDecoderModel
from ascend_sample.decoding.models.transformers_positions import PositionSource
from tests.decoding.paired_models import ONE_OF_EACH, SEQUENCES, assert_equal, compare_operations, examples, ragged
from tests.decoding.tiny_transformers import (
    KINDS,
    VOCAB_SIZE,
    encoder_inputs,
    recomputing_model,
    step_model,
    tiny_transformer,
)

RAGGED = [kind for kind in KINDS if kind != "m2m100"]
QUICK = ("gpt2", "mistral with a window", "bloom", "t5", "bart", "whisper")


@contextmanager
def lengths_are_not_read(that_is_so: bool) -> Iterator[None]:
    """On a CPU, the way of a device, where the store is not trimmed at every rollback."""
    with pytest.MonkeyPatch.context() as patch:
        if that_is_so:
            patch.setattr(transformers_cache, "is_trimmed_now", lambda lengths, rollbacks: rollbacks >= 3)
        yield


def compare(kind: str, operations: str, rows: int, longest: int, seed: int) -> None:
    """A model with its cache beside the one that recomputes."""
    models = recomputing_model(kind), step_model(kind)
    batch = *ragged(rows, longest, VOCAB_SIZE, seed), encoder_inputs(kind, rows, seed)
    with lengths_are_not_read(seed % 2 == 1):
        compare_operations(models, batch, VOCAB_SIZE, operations, seed, fewest=0)


@pytest.mark.parametrize("kind", QUICK)
@examples(15)
@given(**SEQUENCES)
def test_cached_equals_uncached_after_any_operations(
    kind: str, operations: str, rows: int, longest: int, seed: int
) -> None:
    compare(kind, operations, rows, longest, seed)


@pytest.mark.long
@pytest.mark.parametrize("kind", RAGGED)
@examples(400)
@given(**SEQUENCES)
def test_cached_equals_uncached_after_many_operations(
    kind: str, operations: str, rows: int, longest: int, seed: int
) -> None:
    compare(kind, operations, rows, longest, seed)


@pytest.mark.parametrize("kind", RAGGED)
def test_cached_equals_uncached_after_each_operation(kind: str) -> None:
    for operations, seed in itertools.product(ONE_OF_EACH[:2], (2, 3)):
        compare(kind, operations, 3, 4, seed)


@pytest.mark.parametrize("kind", ["gpt2", "t5", "bart"])
def test_what_is_masked_does_not_matter(kind: str) -> None:
    model, mask = step_model(kind), torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]]).bool()
    tokens, encoder = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), encoder_inputs(kind, 2, seed=1)
    expected = model.prefill(tokens, mask, **encoder).logits
    for masked in (-100, VOCAB_SIZE):
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
    tokens, encoder = torch.tensor([[3, 4], [5, 6]]), encoder_inputs("m2m100", 2)
    models = recomputing_model("m2m100"), step_model("m2m100")
    assert models[1].position_source is PositionSource.WIDTH
    caches = [model.prefill(tokens, torch.ones(2, 2, dtype=torch.bool), **encoder).cache for model in models]
    caches = [model.rollback(cache, torch.tensor([1, 1])) for model, cache in zip(models, caches, strict=True)]
    outputs = [model.decode(tokens, cache) for model, cache in zip(models, caches, strict=True)]
    assert_equal(*outputs)
    with pytest.raises(ValueError, match=r"rows must have one length with m2m_100.*got the lengths \[2, 3\]\. Decode"):
        models[1].rollback(outputs[1].cache, torch.tensor([2, 3]))
    with pytest.raises(ValueError, match=r"rows must have one length"):
        models[1].prefill(tokens, torch.tensor([[True, True], [True, False]]), **encoder)


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


ID = torch.tensor([[1]])
BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: CausalModel(lambda ids: ids), TypeError, "CausalModel: model must be one of transformers, got function"),
    (lambda: CausalModel(torch.nn.Linear(1, 1)), TypeError, "CausalModel: model must be one of transformers"),
    (lambda: CausalModel(tiny_transformer("t5")), TypeError, "CausalModel: model must be causal.* Use EncoderDecoder"),
    (lambda: EncoderDecoderModel(tiny_transformer("gpt2")), TypeError, "must have an encoder, got GPT2LMHeadModel"),
    (lambda: CausalModel(tiny_transformer("gpt2"), hidden_states=1), TypeError, "hidden_states must be True or False"),
    (lambda: CausalModel(in_training()), ValueError, "must be in evaluation mode, got training mode. Call"),
    (lambda: CausalModel(recurrent().eval()), ValueError, "must keep keys and values alone, got a cache layer"),
    (lambda: step_model("gpt2").prefill(ID, encoder_input_ids=ID), TypeError,
     r"CausalModel: encoder must be empty, got \['encoder_input_ids'\]"),
    (lambda: step_model("t5").prefill(ID, memory=ID), TypeError,
     r"encoder must name inputs as .* got \['memory'\]\. Put encoder_"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_input_is_named(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
