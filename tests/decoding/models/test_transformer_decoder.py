"""FasterTransformer's decoder: its layer, positions by hand, both devices, and another's weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from ascend_sample.decoding import Decoder, DecoderConfig
from tests.decoding.decoder_models import random_decoder


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


def test_a_memory_longer_than_what_is_decoded_is_read_to_its_end() -> None:
    decoder = random_decoder()
    memory = torch.randn(1, 200, 10)
    changed = memory.clone()
    changed[:, -1] += 5
    start = torch.tensor([[1]])
    logits = [decoder.prefill(start, memory=value).logits for value in (memory, changed)]
    assert (logits[0] - logits[1]).abs().max() > 1e-3
    torch.testing.assert_close(logits[1], decoder(start, changed)[:, -1])


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
