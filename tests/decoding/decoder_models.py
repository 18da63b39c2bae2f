"""Random decoders, small, and their torch twins, for the tests of the decoder and of its export."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ascend_sample.decoding import Decoder, DecoderConfig, DecoderLayer, EncoderDecoder
from tests.decoding.paired_models import ragged


def random_decoder(seed: int = 0, **changes: int | float | bool | str) -> Decoder:
    """A small `Decoder` whose weights, biases and norms included, are far from their initial values."""
    config = {"vocab_size": 17, "hidden_size": 12, "heads": 3, "layers": 2, "memory_size": 10, "initial_steps": 2}
    decoder = Decoder(DecoderConfig(**{**config, **changes})).eval()
    randomise(decoder, seed)
    return decoder


def randomise(module: nn.Module, seed: int = 0) -> None:
    """Draw all parameters anew."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if "norm" in name and name.endswith("weight") else 0.4 * noise)


def torch_layer(layer: DecoderLayer) -> nn.TransformerDecoderLayer:
    """torch's own layer with the same weights."""
    hidden_size = layer.self_output.in_features
    twin = nn.TransformerDecoderLayer(
        hidden_size,
        layer.heads,
        dim_feedforward=4 * hidden_size,
        dropout=0.0,
        activation="relu",
        layer_norm_eps=layer.self_norm.eps,
        batch_first=True,
        norm_first=True,
    ).eval()
    with torch.no_grad():
        for mine, theirs in (
            (layer.query_key_value, (twin.self_attn.in_proj_weight, twin.self_attn.in_proj_bias)),
            (layer.self_output, twin.self_attn.out_proj),
            (layer.cross_output, twin.multihead_attn.out_proj),
            (layer.self_norm, twin.norm1),
            (layer.cross_norm, twin.norm2),
            (layer.feed_forward_norm, twin.norm3),
            (layer.feed_forward_inner, twin.linear1),
            (layer.feed_forward_output, twin.linear2),
        ):
            weight, bias = theirs if isinstance(theirs, tuple) else (theirs.weight, theirs.bias)
            weight.copy_(mine.weight)
            bias.copy_(mine.bias)
        cross = (layer.cross_query, layer.memory_key_value)
        twin.multihead_attn.in_proj_weight.copy_(torch.cat([part.weight for part in cross]))
        twin.multihead_attn.in_proj_bias.copy_(torch.cat([part.bias for part in cross]))
    return twin


class RandomEncoder(nn.Module):
    """features float [rows, length, 6] and lengths int64 [rows] -> a memory of size 10, and the lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Linear(6, 10)
        layer = nn.TransformerEncoderLayer(10, 2, 20, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        padding = torch.arange(features.shape[1], device=features.device) >= lengths[:, None]
        return self.layers(self.input(features), src_key_padding_mask=padding), lengths


def random_encoder_decoder(**changes: int | float | bool) -> EncoderDecoder:
    """A `random_decoder` behind a `RandomEncoder`."""
    encoder = RandomEncoder().eval()
    randomise(encoder, seed=1)
    return EncoderDecoder(encoder, random_decoder(**changes)).eval()


def make_batch(rows: int, longest: int, seed: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Prompts padded on any side, their masks, and memories with padding that is not finite."""
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randn(rows, 5, 10, generator=generator)
    lengths = torch.randint(1, 6, (rows,), generator=generator)
    memory[torch.arange(5) >= lengths[:, None]] = math.nan
    return *ragged(rows, longest, 17, seed), {"memory": memory, "memory_lengths": lengths}
