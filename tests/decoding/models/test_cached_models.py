"""Models with caches beside those that compute all anew: after any sequence of operations the logits are equal.

What caches copy and wait for is held here as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given

import hostcann
from ascend_sample.decoding.model import StepModel
from ascend_sample.decoding.models import transformers_cache
from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.models.transformers_models import CausalModel, EncoderDecoderModel
from tests.decoding import decoder_models
from tests.decoding.decoder_models import make_batch, random_decoder
from tests.decoding.paired_models import ONE_OF_EACH, SEQUENCES, assert_equal, compare_operations, examples, ragged
from tests.decoding.tiny_transformers import (
    KINDS,
    VOCAB_SIZE,
    encoder_inputs,
    recomputing_model,
    step_model,
    tiny_transformer,
)

DECODER = "Decoder"
RAGGED = [kind for kind in KINDS if kind != "m2m100"]
QUICK = (DECODER, "gpt2", "mistral with a window", "bloom", "t5", "bart", "whisper")
ID = torch.tensor([[1]])


@contextmanager
def lengths_are_not_read(that_is_so: bool) -> Iterator[None]:
    """On a CPU, the way of a device, where the store is not trimmed at every rollback."""
    with pytest.MonkeyPatch.context() as patch:
        if that_is_so:
            patch.setattr(transformers_cache, "is_trimmed_now", lambda lengths, rollbacks: rollbacks >= 3)
        yield


def compare(kind: str, operations: str, rows: int, longest: int, seed: int) -> None:
    """A model with its cache beside the one that recomputes."""
    if kind == DECODER:
        decoder, batch = random_decoder(), make_batch(rows, longest, seed)
        compare_operations((ModuleModel(decoder), decoder), batch, decoder_models.VOCAB_SIZE, operations, seed)
        return
    models = recomputing_model(kind), step_model(kind)
    given_to = *ragged(rows, longest, VOCAB_SIZE, seed), encoder_inputs(kind, rows, seed)
    with lengths_are_not_read(seed % 2 == 1):
        compare_operations(models, given_to, VOCAB_SIZE, operations, seed, fewest=0)


@pytest.mark.parametrize("kind", QUICK)
@examples(15)
@given(**SEQUENCES)
def test_cached_equals_uncached_after_any_operations(
    kind: str, operations: str, rows: int, longest: int, seed: int
) -> None:
    compare(kind, operations, rows, longest, seed)


@pytest.mark.long
@pytest.mark.parametrize("kind", [*RAGGED, DECODER])
@examples(400)
@given(**SEQUENCES)
def test_cached_equals_uncached_after_many_operations(
    kind: str, operations: str, rows: int, longest: int, seed: int
) -> None:
    compare(kind, operations, rows, longest, seed)


@pytest.mark.parametrize("kind", [*RAGGED, DECODER])
def test_cached_equals_uncached_after_each_operation(kind: str) -> None:
    for operations, seed in itertools.product(ONE_OF_EACH if kind == DECODER else ONE_OF_EACH[:2], (2, 3)):
        compare(kind, operations, 3, 4, seed)


@pytest.mark.parametrize("kind", [DECODER, "gpt2", "t5", "bart"])
def test_what_is_masked_does_not_matter(kind: str) -> None:
    mask, tokens = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]]).bool(), torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    model: StepModel = random_decoder() if kind == DECODER else step_model(kind)
    encoder = {"memory": torch.ones(2, 3, 10)} if kind == DECODER else encoder_inputs(kind, 2, seed=1)
    expected = model.prefill(tokens, mask, **encoder).logits
    for masked in (-100, 17):
        if "encoder_input_ids" in encoder:
            assert not encoder["encoder_attention_mask"].all()
            encoder["encoder_input_ids"] = encoder["encoder_input_ids"].where(encoder["encoder_attention_mask"], masked)
        assert model.prefill(tokens.where(mask, masked), mask, **encoder).logits.equal(expected)


def test_rows_of_several_lengths_are_refused_where_positions_cannot_be_given() -> None:
    tokens, encoder = torch.tensor([[3, 4], [5, 6]]), encoder_inputs("m2m100", 2)
    models = recomputing_model("m2m100"), step_model("m2m100")
    caches = [model.prefill(tokens, torch.ones(2, 2, dtype=torch.bool), **encoder).cache for model in models]
    caches = [model.rollback(cache, torch.tensor([1, 1])) for model, cache in zip(models, caches, strict=True)]
    outputs = [model.decode(tokens, cache) for model, cache in zip(models, caches, strict=True)]
    assert_equal(*outputs)
    with pytest.raises(ValueError, match=r"rows must have one length with m2m_100.*got the lengths \[2, 3\]\. Decode"):
        models[1].rollback(outputs[1].cache, torch.tensor([2, 3]))
    with pytest.raises(ValueError, match=r"rows must have one length"):
        models[1].prefill(tokens, torch.tensor([[True, True], [True, False]]), **encoder)


def in_training() -> Any:
    config = transformers.GPT2Config(vocab_size=5, n_embd=4, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config).train()


def recurrent() -> Any:
    config = transformers.MambaConfig(vocab_size=5, hidden_size=4, num_hidden_layers=1)
    return transformers.MambaForCausalLM(config).eval()


def rolled_forward() -> Any:
    model = step_model("gpt2")
    return model.rollback(model.prefill(ID).cache, torch.tensor([3]))


BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: CausalModel(torch.nn.Linear(1, 1)), TypeError, "CausalModel: model must be one of transformers, got Line"),
    (lambda: CausalModel(tiny_transformer("t5")), TypeError, "CausalModel: model must be causal.* Use EncoderDecoder"),
    (lambda: EncoderDecoderModel(tiny_transformer("gpt2")), TypeError, "must have an encoder, got GPT2LMHeadModel"),
    (lambda: CausalModel(tiny_transformer("gpt2"), hidden_states=1), TypeError, "hidden_states must be True or False"),
    (lambda: CausalModel(in_training()), ValueError, "must be in evaluation mode, got training mode. Call"),
    (lambda: CausalModel(recurrent()), ValueError, "must keep keys and values alone, got a cache layer"),
    (lambda: step_model("gpt2").prefill(ID, encoder_input_ids=ID), TypeError,
     r"CausalModel: encoder must be empty, got \['encoder_input_ids'\]"),
    (lambda: step_model("t5").prefill(ID, memory=ID), TypeError,
     r"encoder must name inputs as .* got \['memory'\]\. Put encoder_"),
    (rolled_forward, ValueError, r"rollback: lengths must be at most those of the rows, \[1\], got \[3\]\."),
]  # fmt: skip


def test_bad_input_is_named(subtests: pytest.Subtests) -> None:
    for call, error, message in BAD:
        with subtests.test(msg=message), pytest.raises(error, match=message):
            call()


def test_the_room_of_a_decoders_cache_doubles_and_rollbacks_need_none() -> None:
    decoder, capacities = random_decoder(initial_steps=1), []
    output = decoder.prefill(ID, memory=torch.randn(1, 2, 10))
    for _ in range(9):
        output = decoder.decode(torch.tensor([[2]]), output.cache)
        capacities.append(output.cache.capacity)
    assert capacities == [2, 4, 4, 8, 8, 8, 8, 16, 16]
    for _ in range(20):
        cache = decoder.rollback(output.cache, torch.tensor([8]))
        output = decoder.decode(torch.tensor([[3, 4]]), cache)
    assert output.cache.capacity == 16


def test_a_step_of_a_decoder_never_waits_for_the_device(counting: None, npu: str) -> None:
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
