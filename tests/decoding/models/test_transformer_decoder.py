"""FasterTransformer's decoder: its layer, positions by hand, both devices, and another's weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ascend_sample.decoding import Decoder, DecoderConfig, DecoderLayer, gather_tree
from ascend_sample.decoding.beams.in_beam import search_in_beam
from ascend_sample.decoding.beams.run import BeamRun
from ascend_sample.decoding.request import check_request
from tests.decoding.decoder_models import make_batch, random_decoder, random_encoder_decoder, randomise


def run_layer(layer: DecoderLayer, hidden: Tensor, memory: Tensor, memory_visible: Tensor) -> Tensor:
    """All places at once."""
    causal = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).tril()
    projected = layer.project_memory(memory)
    return layer(hidden, lambda keys, values: (keys, values), causal, projected, memory_visible[:, None, None])


def test_memory_of_another_size_equals_one_that_was_mapped_before() -> None:
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


def test_embedding_and_positions_by_hand() -> None:
    """Of a decoder whose layers do nothing: its hidden states are the last norm of embedding and position."""
    decoder = Decoder(DecoderConfig(5, hidden_size=4, heads=1, layers=1, hidden_states=True)).eval()
    with torch.no_grad():
        for name, parameter in decoder.layers.named_parameters():
            if "output" in name:
                parameter.zero_()

    def expected(token: int, step: int) -> Tensor:
        # Four places: the rates are 1 and 1 / 10000.
        position = [math.sin(step), math.sin(step / 10000), math.cos(step), math.cos(step / 10000)]
        vector = 2 * decoder.embedding.weight[token].detach() + torch.tensor(position)
        return nn.functional.layer_norm(vector, (4,), eps=1e-6)

    memory = torch.randn(2, 1, 4)
    mask = torch.tensor([[False, True], [True, True]])
    output = decoder.prefill(torch.tensor([[0, 3], [1, 2]]), mask, memory=memory)
    assert output.hidden_states is not None
    torch.testing.assert_close(output.hidden_states[0, 1], expected(3, step=1))
    torch.testing.assert_close(output.hidden_states[1], torch.stack([expected(1, step=1), expected(2, step=2)]))
    output = decoder.decode(torch.tensor([[4], [4]]), output.cache)
    assert output.hidden_states is not None
    torch.testing.assert_close(output.hidden_states[:, 0], torch.stack([expected(4, 2), expected(4, 3)]))
    torch.testing.assert_close(decoder.head(output.hidden_states), output.logits)


@pytest.mark.parametrize("positions", ["halves", "interleaved"])
def test_positions_are_float32_whatever_torchs_default_is(positions: Any) -> None:
    decoder = random_decoder(positions=positions)
    steps = torch.arange(1, 400)
    expected = decoder._encode_steps(steps)
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = decoder._encode_steps(steps)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype == torch.float32
    assert found.equal(expected)


def test_a_memory_longer_than_what_is_decoded_is_read_to_its_end() -> None:
    decoder = random_decoder()
    memory = torch.randn(1, 200, 10)
    changed = memory.clone()
    changed[:, -1] += 5
    start = torch.tensor([[1]])
    logits = [decoder.prefill(start, memory=value).logits for value in (memory, changed)]
    assert (logits[0] - logits[1]).abs().max() > 1e-3
    torch.testing.assert_close(logits[1], decoder(start, changed)[:, -1])


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_each_device_and_type(dtype: torch.dtype, device: str) -> None:
    decoder = random_decoder(hidden_states=True)
    memory = torch.randn(1, 3, 10)
    exact = decoder(torch.tensor([[1, 2, 3]]), memory)[0, 2]
    decoder.to(device, dtype)
    prompt, mask = torch.tensor([[0, 1, 0, 2]], device=device), torch.tensor([[0, 1, 0, 1]], device=device)
    output = decoder.prefill(prompt, mask, memory=memory.to(device, dtype))
    assert output.hidden_states is not None
    torch.testing.assert_close(output.logits, decoder.head(output.hidden_states[:, 3]))
    cache = decoder.reorder(decoder.expand(output.cache, 2), torch.tensor([1, 0, 0], device=device))
    cache = decoder.decode(torch.tensor([[3, 4]] * 3, device=device), cache).cache
    cache = decoder.rollback(cache, cache.lengths - 2)
    logits = decoder.decode(torch.tensor([[3]] * 3, device=device), cache).logits
    assert logits.dtype == dtype
    error = (logits[:, 0].cpu().float() - exact).abs().max()
    assert error < 16 * torch.finfo(dtype).eps * exact.abs().max()


def test_ids_and_parents_give_the_sequences() -> None:
    decoder, (_, _, encoder) = random_decoder(2), make_batch(2, 1, seed=2)
    start = torch.full((2, 1), 1)
    run = BeamRun(decoder, check_request("test", decoder, start, 8, encoder=encoder, eos_token_id=8), num_beams=5)
    found = search_in_beam(run, num_return_sequences=5, length_penalty=0.0)
    step_ids, parent_ids = run.recorded()
    assert step_ids.shape == parent_ids.shape == (len(step_ids), 2, 5)
    assert (parent_ids[0] == 0).all()
    gathered = gather_tree(step_ids, parent_ids, torch.full((2,), len(step_ids)), 8)
    assert torch.equal(gathered.permute(1, 2, 0).flatten(0, 1), found.sequences)
    assert len(set(found.lengths.tolist())) > 1


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
