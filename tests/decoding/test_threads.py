"""One model, many threads: what belongs to a call is seen by no other. (onnxruntime: test_onnx.py.)"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.decoding import CausalModel, EncoderDecoderModel
from ascend_sample.decoding.model import StepModel, StepOutput
from ascend_sample.decoding.output import DecodeOutput
from tests.decoding.decoder_models import encoder_batch, make_batch, random_decoder, random_encoder_decoder
from tests.decoding.every_strategy import STRATEGIES
from tests.decoding.paired_models import ragged
from tests.decoding.table_models import tiny_model
from tests.decoding.tiny_transformers import VOCAB_SIZE, Prompts, encoder_inputs, step_model, tiny_transformer

THREADS = 8
MAX_NEW_TOKENS = [3, 2, 4]
ROWS, WIDTH = len(MAX_NEW_TOKENS), 5


def check_concurrent_calls(model: StepModel, prompts: Callable[[int], Any], without: tuple[str, ...] = ()) -> None:
    """Call every strategy with prompts of its own, one after the other and in threads, by turns; compare."""

    def call(job: tuple[str, int]) -> DecodeOutput:
        name, seed = job
        input_ids, mask, encoder = prompts(seed)
        options = {"attention_mask": mask, "encoder": encoder, **STRATEGIES[name].drafted_by(model)}
        return STRATEGIES[name].search(model, input_ids, max_new_tokens=MAX_NEW_TOKENS, eos_token_id=[3], **options)

    jobs = [(name, seed) for seed, name in enumerate(STRATEGIES) if name not in without]
    alone = [call(job) for job in jobs]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with ThreadPoolExecutor(THREADS) as threads:
            together = list(threads.map(call, jobs))
    finally:
        sys.setswitchinterval(interval)
    for job, expected, found in zip(jobs, alone, together, strict=True):
        assert found.to_lists() == expected.to_lists(), job
        assert found.sequences_scores.equal(expected.sequences_scores), job


def transformer_prompts(kind: str, seed: int) -> Prompts:
    return Prompts(*ragged(ROWS, WIDTH, VOCAB_SIZE, seed), encoder_inputs(kind, ROWS, seed))


MODELS: dict[str, tuple[Callable[[], StepModel], Callable[[int], Any]]] = {
    **{
        kind: (functools.partial(step_model, kind), functools.partial(transformer_prompts, kind))
        for kind in ("gpt2", "llama", "t5", "bart", "marian", "pegasus")
    },
    "Decoder": (lambda: random_decoder(hidden_states=True), functools.partial(make_batch, ROWS, WIDTH)),
    "EncoderDecoder": (
        lambda: random_encoder_decoder(hidden_states=True),
        functools.partial(encoder_batch, ROWS, 4, WIDTH),
    ),
    "ModuleModel": (lambda: tiny_model(VOCAB_SIZE), lambda seed: Prompts(*ragged(ROWS, WIDTH, VOCAB_SIZE, seed), {})),
}
IN_THE_LONG_TIER = ("llama", "t5", "marian", "pegasus", "EncoderDecoder")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in IN_THE_LONG_TIER)) for name in MODELS]
)
def test_a_call_finds_in_threads_what_it_finds_alone(name: str) -> None:
    make, prompts = MODELS[name]
    check_concurrent_calls(make(), prompts)


@pytest.mark.parametrize("kind", ["bart", "marian", "pegasus"])
def test_passes_that_meet_in_the_middle_have_their_own_positions(kind: str) -> None:
    """Of two adapters, and of one beside somebody who calls the module itself."""
    module = tiny_transformer(kind)
    source = {name.removeprefix("encoder_"): value for name, value in encoder_inputs(kind, ROWS, 1).items()}
    tokens = ragged(ROWS, WIDTH, VOCAB_SIZE, 1)[0]

    @torch.no_grad()
    def direct() -> Tensor:
        return module(decoder_input_ids=tokens, **source).logits

    def prefill(seed: int) -> Callable[[], Tensor]:
        model, given = EncoderDecoderModel(module), transformer_prompts(kind, seed)
        return lambda: model.prefill(given.input_ids, given.attention_mask, **given.encoder).logits

    def meeting(*calls: Callable[[], Tensor]) -> list[Tensor]:
        """Both wait in the middle of the pass: the tokens' embedding comes before that of the positions."""
        barrier = threading.Barrier(2, timeout=20)
        embedding = module.get_decoder().get_input_embeddings()
        hook = embedding.register_forward_hook(lambda *_: (barrier.wait(), None)[1])
        try:
            with ThreadPoolExecutor(2) as threads:
                return list(threads.map(lambda call: call(), calls))
        finally:
            hook.remove()

    first, second = prefill(0), prefill(1)
    for other in (second, direct):
        expected = first(), other()
        assert all(found.equal(alone) for found, alone in zip(meeting(first, other), expected, strict=True))
    # All adapters of a module share what they have hooked into it.
    embedding = module.get_decoder().embed_positions
    before = len(embedding._forward_hooks), len(embedding._forward_pre_hooks)
    EncoderDecoderModel(module)
    assert (len(embedding._forward_hooks), len(embedding._forward_pre_hooks)) == before


def test_hidden_states_that_were_never_asked_for_before() -> None:
    """transformers prepares a module when hidden states are asked for the first time: here by all threads at once."""
    model = CausalModel(tiny_transformer("llama", seed=77), hidden_states=True)
    given = transformer_prompts("llama", 0)

    def prefill(_: int) -> StepOutput:
        return model.prefill(given.input_ids, given.attention_mask)

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(prefill, range(8)))
    expected = prefill(0)
    for output in found:
        assert output.hidden_states is not None
        assert output.hidden_states.equal(expected.hidden_states)
