"""One model, many threads: what belongs to a call is seen by no other. (onnxruntime: test_onnx.py.)"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.decoding import CausalModel, EncoderDecoderModel
from ascend_sample.decoding.model import StepModel, StepOutput
from tests.decoding.concurrent_calls import MAX_NEW_TOKENS, Prompts, check_concurrent_calls, ragged_prompts
from tests.decoding.decoder_models import random_decoder, random_encoder_decoder
from tests.decoding.tiny_models import tiny_model
from tests.decoding.tiny_transformers import KINDS, VOCAB_SIZE, encoder_inputs, step_model, tiny_transformer

ROWS = len(MAX_NEW_TOKENS)
FUSED_VOCAB_SIZE = 17


def fused_prompts(seed: int, has_encoder: bool) -> Prompts:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 5, (ROWS,), generator=generator)
    size, features, count = (6, "features", "lengths") if has_encoder else (10, "memory", "memory_lengths")
    memory = torch.randn(ROWS, 4, size, generator=generator)
    return Prompts(*ragged_prompts(seed, FUSED_VOCAB_SIZE), {features: memory, count: lengths})


def transformer_prompts(kind: str, seed: int) -> Prompts:
    return Prompts(*ragged_prompts(seed, VOCAB_SIZE), encoder_inputs(kind, ROWS, seed))


MODELS: dict[str, tuple[Callable[[], StepModel], Callable[[int], Prompts]]] = {
    **{
        kind: (functools.partial(step_model, kind), functools.partial(transformer_prompts, kind))
        for kind in ("gpt2", "llama", "t5", "bart", "marian", "pegasus")
    },
    "Decoder": (lambda: random_decoder(hidden_states=True), functools.partial(fused_prompts, has_encoder=False)),
    "EncoderDecoder": (
        lambda: random_encoder_decoder(hidden_states=True),
        functools.partial(fused_prompts, has_encoder=True),
    ),
    "ModuleModel": (lambda: tiny_model(VOCAB_SIZE), lambda seed: Prompts(*ragged_prompts(seed, VOCAB_SIZE), {})),
}


IN_THE_LONG_TIER = ("llama", "t5", "marian", "pegasus", "EncoderDecoder")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in IN_THE_LONG_TIER)) for name in MODELS]
)
def test_a_call_finds_in_threads_what_it_finds_alone(name: str) -> None:
    make, prompts = MODELS[name]
    check_concurrent_calls(make(), prompts)


class Meeting:
    """Two passes of one module, in threads, which wait for one another in the middle of the pass."""

    def __init__(self, module: Any) -> None:
        barrier = threading.Barrier(2, timeout=20)
        # The tokens' embedding comes before that of the positions.
        embedding = module.get_decoder().get_input_embeddings()
        self._hook = embedding.register_forward_hook(lambda *_: (barrier.wait(), None)[1])

    def of(self, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
        try:
            with ThreadPoolExecutor(2) as threads:
                results = [threads.submit(call) for call in (first, second)]
                return results[0].result(), results[1].result()
        finally:
            self._hook.remove()


def ragged_prefill(model: StepModel, kind: str, seed: int) -> Callable[[], StepOutput]:
    given = transformer_prompts(kind, seed)
    return lambda: model.prefill(given.input_ids, given.attention_mask, **given.encoder)


@pytest.mark.parametrize("kind", ["bart", "marian", "pegasus"])
def test_passes_that_meet_in_the_middle_have_their_own_positions(kind: str) -> None:
    """Of two adapters, and of one beside somebody who calls the module itself."""
    module = tiny_transformer(kind)
    source = {name.removeprefix("encoder_"): value for name, value in encoder_inputs(kind, ROWS, 1).items()}
    tokens = ragged_prompts(1, VOCAB_SIZE)[0]

    @torch.no_grad()
    def direct() -> Tensor:
        return module(decoder_input_ids=tokens, **source).logits

    first, second = (ragged_prefill(EncoderDecoderModel(module), kind, seed) for seed in range(2))
    for other in (lambda: second().logits, direct):
        expected = first().logits, other()
        found = Meeting(module).of(lambda: first().logits, other)
        assert found[0].equal(expected[0])
        assert found[1].equal(expected[1])


def test_adapters_leave_no_more_behind_than_one() -> None:
    module = tiny_transformer("bart")
    embedding = module.get_decoder().embed_positions
    EncoderDecoderModel(module)
    before = len(embedding._forward_hooks), len(embedding._forward_pre_hooks)
    for _ in range(3):
        EncoderDecoderModel(module)
    assert (len(embedding._forward_hooks), len(embedding._forward_pre_hooks)) == before


def test_hidden_states_that_were_never_asked_for_before() -> None:
    """transformers prepares a module when hidden states are asked for the first time: here by all threads at once."""
    assert not KINDS["llama"].has_encoder
    model = CausalModel(tiny_transformer("llama", seed=77), hidden_states=True)
    given = transformer_prompts("llama", 0)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: model.prefill(given.input_ids, given.attention_mask), range(8)))
    expected = model.prefill(given.input_ids, given.attention_mask)
    for output in found:
        assert output.hidden_states is not None
        assert output.hidden_states.equal(expected.hidden_states)
