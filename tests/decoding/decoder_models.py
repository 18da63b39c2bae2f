"""Random decoders, small, for the tests of the decoder and of its export."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ascend_sample.decoding import Decoder, DecoderConfig, EncoderDecoder
from tests.decoding.paired_models import ragged

VOCAB_SIZE = 17


def random_decoder(seed: int = 0, **changes: int | float | bool | str) -> Decoder:
    """A small `Decoder` whose weights, biases and norms included, are far from their initial values."""
    config = {"hidden_size": 12, "heads": 3, "layers": 2, "memory_size": 10, "initial_steps": 2}
    decoder = Decoder(DecoderConfig(**{"vocab_size": VOCAB_SIZE, **config, **changes})).eval()
    randomise(decoder, seed)
    return decoder


def randomise(module: nn.Module, seed: int = 0) -> None:
    """Draw all parameters anew."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if "norm" in name and name.endswith("weight") else 0.4 * noise)


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
    return *ragged(rows, longest, VOCAB_SIZE, seed), {"memory": memory, "memory_lengths": lengths}


def encoder_batch(rows: int, frames: int, longest: int, seed: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The same for a `random_encoder_decoder`: what its encoder takes, of several lengths."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, frames, 6, generator=generator)
    lengths = torch.randint(1, frames + 1, (rows,), generator=generator)
    return *ragged(rows, longest, VOCAB_SIZE, seed), {"features": features, "lengths": lengths}
