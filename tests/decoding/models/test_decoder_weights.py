"""FasterTransformer's decoder: with the weights of one of speech recognition, by hand, and on both devices."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ascend_sample.decoding import Decoder, DecoderConfig
from tests.decoding.decoder_models import random_decoder, randomise

HIDDEN, HEADS, LAYERS, VOCAB_SIZE = 12, 3, 2, 17
HALF = HIDDEN // 2


class Attention(nn.Module):
    """Three projections, that of the keys without a bias, and softmax written out."""

    def __init__(self) -> None:
        super().__init__()
        self.w_qs, self.w_vs, self.fc = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.w_ks = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, queries: Tensor, others: Tensor, visible: Tensor) -> Tensor:
        query, key, value = (
            part.view(*part.shape[:2], HEADS, -1).transpose(1, 2)
            for part in (self.w_qs(queries), self.w_ks(others), self.w_vs(others))
        )
        scores = (query @ key.mT / math.sqrt(HIDDEN // HEADS)).masked_fill(~visible, -math.inf)
        return self.fc((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Norms first."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.activation = getattr(nn.functional, activation)
        self.self_attn_norm, self.cross_attn_norm, self.mlp_norm = (nn.LayerNorm(HIDDEN) for _ in range(3))
        self.self_attn, self.cross_attn = Attention(), Attention()
        self.mlp = nn.ModuleDict({"w_1": nn.Linear(HIDDEN, 4 * HIDDEN), "w_2": nn.Linear(4 * HIDDEN, HIDDEN)})

    def forward(self, x: Tensor, memory: Tensor, visible: Tensor, memory_visible: Tensor) -> Tensor:
        normalised = self.self_attn_norm(x)
        x = x + self.self_attn(normalised, normalised, visible)
        x = x + self.cross_attn(self.cross_attn_norm(x), memory, memory_visible)
        return x + self.mlp["w_2"](self.activation(self.mlp["w_1"](self.mlp_norm(x))))


class SpeechDecoder(nn.Module):
    """With FireRedASR's names; sines and cosines in turn from step 0 on, or by halves from step 1 on."""

    def __init__(self, activation: str, positions: str) -> None:
        super().__init__()
        self.positions = positions
        self.tgt_word_emb = nn.Embedding(VOCAB_SIZE, HIDDEN)
        self.layer_stack = nn.ModuleList(Layer(activation) for _ in range(LAYERS))
        self.layer_norm_out = nn.LayerNorm(HIDDEN)

    def position(self, step: int, place: int) -> float:
        if self.positions == "interleaved":
            angle, is_cosine = step / 10000 ** (place // 2 * 2 / HIDDEN), place % 2
        else:
            angle, is_cosine = (step + 1) / 10000 ** (place % HALF / (HALF - 1)), place // HALF
        return math.cos(angle) if is_cosine else math.sin(angle)

    def forward(self, tokens: Tensor, memory: Tensor, lengths: Tensor) -> Tensor:
        steps = tokens.shape[1]
        positions = torch.tensor([[self.position(step, place) for place in range(HIDDEN)] for step in range(steps)])
        x = self.tgt_word_emb(tokens) * HIDDEN**0.5 + positions
        visible = torch.ones(steps, steps, dtype=torch.bool).tril()
        memory_visible = (torch.arange(memory.shape[1]) < lengths[:, None])[:, None, None]
        for layer in self.layer_stack:
            x = layer(x, memory, visible, memory_visible)
        return self.layer_norm_out(x) @ self.tgt_word_emb.weight.T


THEIRS = {
    "query_key_value": ("self_attn.w_qs", "self_attn.w_ks", "self_attn.w_vs"),
    "self_output": ("self_attn.fc",),
    "cross_query": ("cross_attn.w_qs",),
    "memory_key_value": ("cross_attn.w_ks", "cross_attn.w_vs"),
    "cross_output": ("cross_attn.fc",),
    "feed_forward_inner": ("mlp.w_1",),
    "feed_forward_output": ("mlp.w_2",),
    "self_norm": ("self_attn_norm",),
    "cross_norm": ("cross_attn_norm",),
    "feed_forward_norm": ("mlp_norm",),
}
"""The parts of a layer by the names of `Decoder`, as docs/faster_transformer.md lists them."""


def weights_of(source: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names of `Decoder`."""
    embedding, nothing = source["tgt_word_emb.weight"], torch.zeros(HIDDEN)  # keys have no bias
    found = {"embedding.weight": embedding, "head.weight": embedding, "head.bias": torch.zeros(VOCAB_SIZE)}
    for kind in ("weight", "bias"):
        found[f"norm.{kind}"] = source[f"layer_norm_out.{kind}"]
        for number in range(LAYERS):
            for mine, theirs in THEIRS.items():
                parts = [source.get(f"layer_stack.{number}.{part}.{kind}", nothing) for part in theirs]
                found[f"layers.{number}.{mine}.{kind}"] = torch.cat(parts)
    return found


@pytest.mark.parametrize(("activation", "positions"), [("gelu", "interleaved"), ("relu", "halves")])
def test_a_speech_decoders_weights(activation: Any, positions: Any) -> None:
    source = SpeechDecoder(activation, positions).eval()
    randomise(source)
    config = DecoderConfig(VOCAB_SIZE, HIDDEN, HEADS, LAYERS, None, 1e-5, activation=activation, positions=positions)
    decoder = Decoder(config).eval()
    decoder.load_state_dict(weights_of(source.state_dict()))
    tokens, memory, lengths = torch.randint(VOCAB_SIZE, (3, 6)), torch.randn(3, 5, HIDDEN), torch.tensor([5, 1, 3])
    with torch.no_grad():
        expected = source(tokens, memory, lengths)
        torch.testing.assert_close(decoder(tokens, memory, lengths), expected, rtol=1e-4, atol=1e-4)
    output = decoder.prefill(tokens[:, :2], memory=memory, memory_lengths=lengths)
    steps = [output.logits]
    for step in range(2, 6):
        output = decoder.decode(tokens[:, step : step + 1], output.cache)
        steps.append(output.logits[:, 0])
    torch.testing.assert_close(torch.stack(steps, dim=1), expected[:, 1:], rtol=1e-4, atol=1e-4)


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
