"""Encoders and decoders of models of transformers 5 are taken apart here into what the two graphs are made of.

The decoders' layers keep their projections, norms and feed-forward networks. What connects these is written here, with
keys, values and positions that come from outside: the caches of transformers are objects, which no graph can take, and
its positions are those of the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ascend_sample.decoding.model import ENCODER_IDS, ENCODER_MASK
from ascend_sample.decoding.models.decoder_layer import Append, Memory, attend, visible_steps
from ascend_sample.decoding.models.layered_decoder import LayeredDecoder
from ascend_sample.decoding.onnx.interface import ENCODER_FEATURES


class Parts(NamedTuple):
    """Holds what is exported of a model."""

    # a module that is called with what example names; returns a memory and its lengths, as `EncoderDecoder` says
    encoder: nn.Module
    decoder: LayeredDecoder  # the decoder that looks at that memory
    example: Mapping[str, Tensor]  # see `export_onnx`
    dynamic_axes: Mapping[str, Mapping[int, str]]  # see `export_onnx`


class _TextEncoder(nn.Module):
    """Encodes token ids. Padding, wherever it is, goes to the end of the memory."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, encoder_input_ids: Tensor, encoder_attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Encodes ids under a mask, both [rows, length]; the mask is bool, False at padding."""
        hidden = torch.finfo(torch.float32).min  # every implementation of attention takes a mask that is added
        added = torch.where(encoder_attention_mask, 0.0, hidden)[:, None, None]
        memory = self.encoder(input_ids=encoder_input_ids, attention_mask=added).last_hidden_state
        lengths = encoder_attention_mask.sum(dim=1)
        # The order of keys is nothing to attention: each row has its own positions in it already.
        seen = encoder_attention_mask.cumsum(dim=1)
        hidden_before = torch.arange(1, memory.shape[1] + 1) - seen
        places = torch.where(encoder_attention_mask, seen - 1, lengths[:, None] + hidden_before - 1)
        moved = torch.zeros_like(memory).scatter(1, places[:, :, None].expand_as(memory), memory)
        return moved, lengths


class _SpeechEncoder(nn.Module):
    """Encodes features of one length, without padding."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, encoder_input_features: Tensor) -> tuple[Tensor, Tensor]:
        """Encodes features, floats [rows, bins, frames]."""
        memory = self.encoder(encoder_input_features).last_hidden_state
        return memory, torch.full((memory.shape[0],), memory.shape[1])


class _Decoder(LayeredDecoder):
    """Runs the layers of a decoder of transformers."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.decoder: Any = model.get_decoder()
        self.output: Any = model.get_output_embeddings()

    def head(self, hidden: Tensor) -> Tensor:
        """See `LayeredDecoder`."""
        logits: Tensor = self.output(hidden)
        return logits


class _BartDecoder(_Decoder):
    """Has norms after each part of a layer, learned positions from 2 on, and a norm of the embeddings."""

    norm_first = False
    bias: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.register_buffer("bias", getattr(model, "final_logits_bias", torch.zeros(())))

    def head(self, hidden: Tensor) -> Tensor:
        """See `LayeredDecoder`."""
        return super().head(hidden) + self.bias

    def _layers(self) -> Iterable[Any]:
        layers: nn.ModuleList = self.decoder.layers
        return layers

    def _project(self, layer: Any, memory: Tensor) -> Memory:
        return layer.encoder_attn.k_proj(memory), layer.encoder_attn.v_proj(memory)

    def _embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        embedded = self.decoder.embed_tokens(tokens) + self._positions(places + self.decoder.embed_positions.offset)
        normalised: Tensor = self.decoder.layernorm_embedding(embedded)
        return normalised

    def _positions(self, places: Tensor) -> Tensor:
        return functional.embedding(places, self.decoder.embed_positions.weight)

    def _run_layer(
        self, layer: Any, hidden: Tensor, append: Append, visible: Tensor, memory: Memory, memory_visible: Tensor
    ) -> Tensor:
        own, cross = layer.self_attn, layer.encoder_attn

        def look_back(x: Tensor) -> Tensor:
            keys, values = append(own.k_proj(x), own.v_proj(x))
            result: Tensor = own.out_proj(attend(own.num_heads, own.q_proj(x), keys, values, visible))
            return result

        def look_at_memory(x: Tensor) -> Tensor:
            result: Tensor = cross.out_proj(attend(cross.num_heads, cross.q_proj(x), *memory, memory_visible))
            return result

        def feed_forward(x: Tensor) -> Tensor:
            result: Tensor = layer.fc2(layer.activation_fn(layer.fc1(x)))
            return result

        for part, norm in (
            (look_back, layer.self_attn_layer_norm),
            (look_at_memory, layer.encoder_attn_layer_norm),
            (feed_forward, layer.final_layer_norm),
        ):
            hidden = hidden + part(norm(hidden)) if self.norm_first else norm(hidden + part(hidden))
        return hidden


class _MarianDecoder(_BartDecoder):
    """Differs from BART's by scaled embeddings and a table of sines and cosines."""

    def _embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        embedded: Tensor = self.decoder.embed_tokens(tokens) * self.decoder.embed_scale
        return embedded + self._positions(places)


class _WhisperDecoder(_BartDecoder):
    """Has norms in front of each part of a layer, and a last one."""

    norm_first = True

    def _embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        embedded: Tensor = self.decoder.embed_tokens(tokens)
        return embedded + self._positions(places)

    def _finish(self, hidden: Tensor) -> Tensor:
        normalised: Tensor = self.decoder.layer_norm(hidden)
        return normalised


class _T5Decoder(_Decoder):
    """Has no positions, but a bias for each distance, which the first layer has for all; scores are not scaled."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.output_scale = model.model_dim**-0.5 if model.config.scale_decoder_outputs else 1.0

    def _layers(self) -> Iterable[Any]:
        layers: nn.ModuleList = self.decoder.block
        return layers

    def _project(self, layer: Any, memory: Tensor) -> Memory:
        attention = layer.layer[1].EncDecAttention
        return attention.k(memory), attention.v(memory)

    def _embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        embedded: Tensor = self.decoder.embed_tokens(tokens)
        return embedded

    def _visible(self, places: Tensor, extent: int) -> Tensor:
        attention = self.decoder.block[0].layer[0].SelfAttention
        buckets = attention._relative_position_bucket(
            torch.arange(extent) - places[:, :, None],
            bidirectional=False,
            num_buckets=attention.relative_attention_num_buckets,
            max_distance=attention.relative_attention_max_distance,
        )
        bias: Tensor = attention.relative_attention_bias(buckets).permute(0, 3, 1, 2)
        return bias.masked_fill(~visible_steps(places, extent), -torch.inf)

    def _run_layer(
        self, layer: Any, hidden: Tensor, append: Append, visible: Tensor, memory: Memory, memory_visible: Tensor
    ) -> Tensor:
        own, cross = layer.layer[0].SelfAttention, layer.layer[1].EncDecAttention
        normalised = layer.layer[0].layer_norm(hidden)
        keys, values = append(own.k(normalised), own.v(normalised))
        hidden = hidden + own.o(attend(own.n_heads, own.q(normalised), keys, values, visible, own.scaling))
        query = cross.q(layer.layer[1].layer_norm(hidden))
        hidden = hidden + cross.o(attend(cross.n_heads, query, *memory, memory_visible, cross.scaling))
        result: Tensor = layer.layer[2](hidden)
        return result

    def _finish(self, hidden: Tensor) -> Tensor:
        normalised: Tensor = self.decoder.final_layer_norm(hidden)
        return normalised * self.output_scale


DECODERS: Final[Mapping[str, type[_Decoder]]] = {
    "BartForConditionalGeneration": _BartDecoder,
    "MarianMTModel": _MarianDecoder,
    "T5ForConditionalGeneration": _T5Decoder,
    "WhisperForConditionalGeneration": _WhisperDecoder,
}
"""The decoders by the name of the model's class. The name is enough, because who has such a model has transformers."""


def is_supported(model: object) -> bool:
    """Tells whether `parts_of` knows the class; classes derived from those that it knows may compute otherwise."""
    kind = type(model)
    return kind.__name__ in DECODERS and kind.__module__.startswith("transformers.")


def parts_of(model: Any) -> Parts:
    """Takes a supported model apart."""
    decoder = DECODERS[type(model).__name__](model)
    if isinstance(decoder, _WhisperDecoder):
        features = torch.zeros(2, model.config.num_mel_bins, 2 * model.config.max_source_positions)
        return Parts(_SpeechEncoder(model.get_encoder()), decoder, {ENCODER_FEATURES: features}, {})
    ids = torch.zeros(2, 3, dtype=torch.int64)
    example = {ENCODER_IDS: ids, ENCODER_MASK: torch.ones_like(ids, dtype=torch.bool)}
    axes = {name: {1: "source"} for name in example}
    return Parts(_TextEncoder(model.get_encoder()), decoder, example, axes)
