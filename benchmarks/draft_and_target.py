"""A target and a draft for the benchmark of speculative decoding: one network that is trained to answer early, too.

The target is a transformer of `NetworkConfig.layers` layers. The draft is its first `draft_layers` with a norm of their
own and the same embedding, trained together with it: a second answer of the same network, from a part of its weights.
Both learn a few texts nearly by heart. Of these they are sure, and agree; of others they are not.

A step of either reads every weight once, and at this size the weights do not fit into a processor's cache: so a pass
over some tokens costs little more than one over a single token, as on an accelerator.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from benchmarks.cached_steps import CachedSteps, LayerStore, rotate_pairs

ROTARY_BASE = 10000.0
PACKED_FOR_TOKENS = 8


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """Shapes, and how long it is trained."""

    vocab_size: int = 2048
    width: int = 640
    layers: int = 8
    draft_layers: int = 2
    heads: int = 10
    feed_forward_width: int = 1792
    context_size: int = 256
    texts: int = 12
    text_tokens: int = 128
    steps: int = 32
    batch_size: int = 6
    matrix_learning_rate: float = 0.02
    learning_rate: float = 3e-3
    warmup_steps: int = 10
    seed: int = 0


class Layer(nn.Module):
    """Attention and a gated feed-forward layer, each on a normalised copy of the residual stream."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_norm = nn.RMSNorm(config.width)
        self.query_key_value = nn.Linear(config.width, 3 * config.width, bias=False)
        self.attended = nn.Linear(config.width, config.width, bias=False)
        self.feed_forward_norm = nn.RMSNorm(config.width)
        self.gate_and_up = nn.Linear(config.width, 2 * config.feed_forward_width, bias=False)
        self.down = nn.Linear(config.feed_forward_width, config.width, bias=False)

    def forward(self, hidden: Tensor, rotary: tuple[Tensor, Tensor], store: LayerStore | None) -> Tensor:
        """Map [batch, tokens, width] to the same shape; with a store, attend to what it holds and to the new tokens."""
        batch, tokens, width = hidden.shape
        parts = self.query_key_value(self.attention_norm(hidden)).view(batch, tokens, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        query, key = rotate_pairs(query, *rotary), rotate_pairs(key, *rotary)
        if store is None:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            mixed = functional.scaled_dot_product_attention(query, *store.with_new(key, value), attn_mask=store.mask)
        hidden = hidden + self.attended(mixed.transpose(1, 2).reshape(batch, tokens, width))
        gate, up = self.gate_and_up(self.feed_forward_norm(hidden)).chunk(2, dim=-1)
        result: Tensor = hidden + self.down(functional.silu(gate) * up)
        return result


class Network(nn.Module):
    """Embedding, layers, and an answer after the first `draft_layers` and after all."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.draft_norm = nn.RMSNorm(config.width)
        self.norm = nn.RMSNorm(config.width)
        head_size = config.width // config.heads
        angles = torch.arange(config.context_size)[:, None] * ROTARY_BASE ** (
            -torch.arange(0, head_size, 2) / head_size
        )
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = math.sqrt(2 * config.layers) if name.endswith(("attended.weight", "down.weight")) else 1.0
                nn.init.normal_(parameter, std=0.02 / scale)

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [batch, length, vocab_size] of the draft and of the target, for training."""
        rotary = (self.cosine[: input_ids.shape[1]], self.sine[: input_ids.shape[1]])
        hidden = self.embedding(input_ids)
        for number, layer in enumerate(self.layers, start=1):
            hidden = layer(hidden, rotary, None)
            if number == self.config.draft_layers:
                early = self.draft_norm(hidden)
        weight = self.embedding.weight
        return functional.linear(early, weight), functional.linear(self.norm(hidden), weight)


class PackedLinear(nn.Module):
    """A linear layer whose weight is laid out for oneDNN beforehand, as engines do.

    A pass over 8 tokens then costs hardly more than one over a single token; with a plain weight it costs about twice
    as much, because it is rearranged each time.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), PACKED_FOR_TOKENS)

    def forward(self, states: Tensor) -> Tensor:
        """What functional.linear gives."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(states, self.packed, None, "none", [], "")
        return result


def packed(layer: Layer) -> Layer:
    """A copy of the layer with packed weights."""
    copied = copy.deepcopy(layer)
    for name, module in layer.named_children():
        if isinstance(module, nn.Linear):
            setattr(copied, name, PackedLinear(module.weight))
    return copied


class CachedNetwork(CachedSteps):
    """A `StepModel` of the first layers of a network, with the answer that belongs to them.

    Args:
        network: trained.
        is_draft: the first `draft_layers` layers alone.
    """

    def __init__(self, network: Network, *, is_draft: bool) -> None:
        self.network = network
        count = network.config.draft_layers if is_draft else network.config.layers
        self.layers = [packed(layer) for layer in list(network.layers)[:count]]
        self.head = PackedLinear(network.embedding.weight)
        self.norm = network.draft_norm if is_draft else network.norm
        self.rotary = network.cosine, network.sine

    def run_layer(self, layer: Any, hidden: Tensor, rotary: tuple[Tensor, Tensor], store: LayerStore) -> Tensor:
        """See `CachedSteps.run_layer`."""
        result: Tensor = layer(hidden, rotary, store)
        return result

    def logits_of(self, hidden: Tensor) -> Tensor:
        """See `CachedSteps.logits_of`."""
        logits: Tensor = self.head(self.norm(hidden))
        return logits


class Trained(NamedTuple):
    """What training gives.

    Attributes:
        network: in evaluation mode.
        known: int64 [texts, text_tokens], what it was trained on.
        unknown: the same number of others.
        seconds: of the training.
        losses: of the draft and of the target, at the end, on what is known.
    """

    network: Network
    known: Tensor
    unknown: Tensor
    seconds: float
    losses: tuple[float, float]


def load_or_train(config: NetworkConfig, directory: Path, fingerprint: str, texts: Callable[[], Tensor]) -> Trained:
    """The trained network, from a file if there is one that was made of the same code, texts and configuration.

    Args:
        config: its shape and training.
        directory: where files are.
        fingerprint: of what the texts are made from.
        texts: makes them, int64 [2 * config.texts, text_tokens]: those to learn, and then others.
    """
    # Of the folder of examples, which whoever has the texts has found.
    from model_cache import load_or_make

    digest = hashlib.sha256(Path(__file__).read_bytes() + fingerprint.encode())
    digest.update(json.dumps([dataclasses.asdict(config), torch.__version__]).encode())
    path = directory / f"draft-and-target-{digest.hexdigest()[:16]}.pt"
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
        network = Network(config)

    def make() -> dict[str, Any]:
        chosen = texts()
        return _train(network, chosen[: config.texts]) | {"texts": chosen}

    checkpoint = load_or_make(path, make)
    network.load_state_dict(checkpoint["weights"])
    known, unknown = checkpoint["texts"].split(config.texts)
    return Trained(network.eval(), known, unknown, checkpoint["seconds"], tuple(checkpoint["losses"]))


def _train(network: Network, texts: Tensor) -> dict[str, Any]:
    from language_model.muon import Muon
    from language_model.training import has_bfloat16_instructions

    config, began = network.config, time.perf_counter()
    generator = torch.Generator().manual_seed(config.seed)
    matrices = [parameter for parameter in network.layers.parameters() if parameter.dim() == 2]
    others = [parameter for name, parameter in network.named_parameters() if not _is_matrix(name, parameter)]
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=config.matrix_learning_rate, weight_decay=0.0),
        torch.optim.AdamW(others, lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    first_rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    order = torch.randperm(len(texts), generator=generator)
    bar = tqdm(range(config.steps), desc="training draft and target", unit="step", file=sys.stderr)
    for step in bar:
        rise, fall = (step + 1) / config.warmup_steps, 1.1 - step / config.steps
        for optimizer, rate in zip(optimizers, first_rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * min(1.0, rise, fall)
        begin = step * config.batch_size % len(texts)
        if begin == 0:
            order = torch.randperm(len(texts), generator=generator)
        batch = texts[order[begin : begin + config.batch_size]]
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16_instructions()):
            losses = [_loss(logits, batch) for logits in network(batch)]
        torch.stack(losses).sum().backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        bar.set_postfix(draft=f"{losses[0].item():.2f}", target=f"{losses[1].item():.2f}")
    found = [loss.item() for loss in losses]
    return {"weights": network.state_dict(), "losses": found, "seconds": time.perf_counter() - began}


def _is_matrix(name: str, parameter: Tensor) -> bool:
    return name.startswith("layers.") and parameter.dim() == 2


def _loss(logits: Tensor, texts: Tensor) -> Tensor:
    return functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), texts[:, 1:].flatten())
