"""Models of transformers 5 become models to decode with, in which each row has its own length."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from ascend_sample._errors import check_bool, refuse
from ascend_sample.decoding.model import StepOutput
from ascend_sample.decoding.models.transformers_cache import AlignedCache, check_layers, live_columns
from ascend_sample.decoding.models.transformers_generation import defaults_of_config, start_tokens
from ascend_sample.decoding.models.transformers_positions import (
    RELATIVE_CAUSAL_MODELS,
    PositionSource,
    most_positions,
    positions_of_rows,
    takes_positions,
)
from ascend_sample.decoding.places import mask_of, repeated_rows
from ascend_sample.decoding.request import GenerationDefaults

ENCODER_PREFIX: Final = "encoder_"


class _TransformersModel(ABC):
    """Does what the two kinds of models have in common."""

    _states_name = "hidden_states"
    _positions_name = "position_ids"

    def __init__(
        self,
        model: Any,
        hidden_states: bool = False,
        *,
        generation_config: GenerationConfig | Literal[False] | None = None,
    ) -> None:
        self.name = type(self).__name__
        self._check_kind(model)
        if not isinstance(model, nn.Module) or not hasattr(model, "config"):
            kind = type(model).__name__
            refuse(self.name, "model", "be one of transformers", kind, "Use ModuleModel for others.", TypeError)
        check_bool(self.name, "hidden_states", hidden_states)
        if not (
            generation_config is None or generation_config is False or isinstance(generation_config, GenerationConfig)
        ):
            kind = type(generation_config).__name__
            rule = "be a GenerationConfig of transformers, None (the model's own) or False (nothing)"
            refuse(self.name, "generation_config", rule, kind, "Use GenerationConfig(...).", TypeError)
        if model.training:
            refuse(self.name, "model", "be in evaluation mode", "training mode", "Call model.eval().")
        check_layers(self.name, model.config)
        self.model: Any = model
        self.hidden_states = hidden_states
        self._generation_config = generation_config
        self.accepted = frozenset(inspect.signature(model.forward).parameters)
        # transformers 5.24 calls it cache, for models and in their output.
        self._cache_name = "cache" if "cache" in self.accepted else "past_key_values"
        is_told = self._positions_name in self.accepted
        self.position_source = PositionSource.ARGUMENT if is_told else self._own_position_source()
        self.max_positions = most_positions(model)
        config: Any = model.config
        self.num_embeddings: int = config.get_text_config(decoder=True).vocab_size

    @property
    def generation_config(self) -> GenerationConfig | None:
        """Returns the configuration that counts: what was given, or the model's as it is now; None if none does."""
        given = self._generation_config
        return getattr(self.model, "generation_config", None) if given is None else given or None

    @property
    def generation_defaults(self) -> GenerationDefaults:
        """Returns stop tokens, padding and processors of the generation_config, for callers who say nothing else."""
        return defaults_of_config(self.generation_config)

    def decode(self, tokens: Tensor, cache: AlignedCache) -> StepOutput:
        """See `StepModel.decode`."""
        new = tokens.shape[1]
        output = self._forward(tokens, cache, cache.attention_mask(new), cache.positions(new))
        hidden_states = self._last_hidden_states(output)
        return StepOutput(output.logits, cache.grown(getattr(output, self._cache_name), new), hidden_states)

    def expand(self, cache: AlignedCache, count: int) -> AlignedCache:
        """See `StepModel.expand`."""
        return cache.reordered(repeated_rows(cache.lengths, count))

    def reorder(self, cache: AlignedCache, index: Tensor) -> AlignedCache:
        """See `StepModel.reorder`."""
        return cache.reordered(index)

    def rollback(self, cache: AlignedCache, lengths: Tensor) -> AlignedCache:
        """See `StepModel.rollback`."""
        rolled_back = cache.rolled_back(lengths)
        self._check_holes(rolled_back)
        return rolled_back

    def _prefill(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        past: Cache,
        encoder_states: Tensor | None = None,
        encoder_mask: Tensor | None = None,
    ) -> StepOutput:
        """Aligns the prompts at the right, cuts the columns that all of them leave empty, and processes them."""
        batch_size, given_width = input_ids.shape
        mask = mask_of(input_ids, attention_mask)
        lengths = mask.sum(dim=1)
        shortest, width = torch.stack((lengths.min(), lengths.max())).tolist()
        to_the_right = torch.argsort(mask.to(torch.int8), dim=1, stable=True)[:, given_width - width :]
        cache = AlignedCache(past, lengths, width, shortest < width, 0, encoder_states, encoder_mask)
        self._check_holes(cache)
        live = live_columns(lengths, width)
        positions = (torch.arange(width, device=input_ids.device) - (width - lengths)[:, None]).clamp_min(0)
        tokens = input_ids.gather(1, to_the_right).where(live, 0)  # a masked id may be none of the vocabulary
        output = self._forward(tokens, cache, live if cache.has_holes else None, positions, logits_to_keep=1)
        hidden_states = self._last_hidden_states(output)
        if hidden_states is not None:
            places = to_the_right[:, :, None].expand(-1, -1, hidden_states.shape[2])
            everywhere = hidden_states.new_zeros(batch_size, given_width, hidden_states.shape[2])
            hidden_states = everywhere.scatter(1, places, hidden_states)
        return StepOutput(output.logits[:, -1], replace(cache, past=getattr(output, self._cache_name)), hidden_states)

    @torch.no_grad()
    def _forward(
        self, tokens: Tensor, cache: AlignedCache, mask: Tensor | None, positions: Tensor, logits_to_keep: int = 0
    ) -> Any:
        """Runs a pass, where mask is bool [batch, width + new] and positions int64 [batch, new]."""
        arguments: dict[str, Any] = {self._cache_name: cache.past, "use_cache": True, "return_dict": True}
        if self.hidden_states:
            arguments["output_hidden_states"] = True
        if logits_to_keep and "logits_to_keep" in self.accepted:
            arguments["logits_to_keep"] = logits_to_keep
        arguments |= self._inputs(tokens, cache, mask)
        if self.position_source is PositionSource.ARGUMENT:
            arguments[self._positions_name] = positions
        if self.position_source is PositionSource.EMBEDDING and cache.has_holes:
            with positions_of_rows(self.model.get_decoder().embed_positions, positions):
                return self.model(**arguments)
        return self.model(**arguments)

    @abstractmethod
    def _check_kind(self, model: Any) -> None:
        """Raises where the other class is the one for this model."""

    @abstractmethod
    def _inputs(self, tokens: Tensor, cache: AlignedCache, mask: Tensor | None) -> dict[str, Any]:
        """Returns what a pass takes beside the cache and positions; see `_forward`."""

    @abstractmethod
    def _own_position_source(self) -> PositionSource:
        """Returns where a model that takes no positions has them from."""

    def _last_hidden_states(self, output: Any) -> Tensor | None:
        """Returns the last layer's hidden states, [batch, new, hidden_size]; None where they were not asked for."""
        return getattr(output, self._states_name)[-1] if self.hidden_states else None

    def _check_holes(self, cache: AlignedCache) -> None:
        if cache.has_holes and self.position_source is PositionSource.WIDTH:
            kind = self.model.config.model_type
            rule = f"have one length with {kind}, which counts positions for the whole batch"
            remedy = "Decode rows of one length at a time, or wrap the model into a ModuleModel, which recomputes."
            refuse(self.name, "rows", rule, f"the lengths {cache.lengths.tolist()}", remedy)


class CausalModel(_TransformersModel):
    """Makes a `StepModel` of a causal language model of transformers, with its DynamicCache.

    Rows may have any lengths, and prompts may be padded on any side: the cache is aligned at the right, its holes are
    hidden by the attention mask, and each row has positions of its own.

    Args:
        model: a causal model, for example of `AutoModelForCausalLM`, in evaluation mode.
        hidden_states: whether to return the hidden states of the last layer too, which contrastive search needs.
        generation_config: what says which tokens are possible and where a text ends, for callers of strategies who do
            not: a `GenerationConfig`; None: the model's own; False: nothing does.

    Raises:
        TypeError: model is none of transformers', or is an encoder-decoder; generation_config is something else.
        ValueError: model is in training mode, or keeps other things than keys and values (recurrent states).

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(vocab_size=11, n_embd=8, n_layer=1, n_head=2, n_positions=16)
        >>> model = CausalModel(GPT2LMHeadModel(config).eval())
        >>> output = model.prefill(torch.tensor([[1, 2, 3], [9, 4, 9]]), torch.tensor([[1, 1, 1], [0, 1, 0]]))
        >>> output = model.decode(torch.tensor([[5, 6], [7, 8]]), output.cache)
        >>> output.logits.shape, model.rollback(output.cache, torch.tensor([3, 2])).lengths
        (torch.Size([2, 2, 11]), tensor([3, 2]))

    Source: docs/decoding.md, section "Models".
    """

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None = None, /, **encoder: Tensor) -> StepOutput:
        """See `StepModel.prefill`.

        Raises:
            TypeError: there is something for an encoder.
        """
        if encoder:
            refuse(self.name, "encoder", "be empty", sorted(encoder), "A causal model has none.", TypeError)
        return self._prefill(input_ids, attention_mask, DynamicCache())

    def _check_kind(self, model: Any) -> None:
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            kind = f"the encoder-decoder {type(model).__name__}"
            refuse(self.name, "model", "be causal", kind, "Use EncoderDecoderModel.", TypeError)

    def _inputs(self, tokens: Tensor, cache: AlignedCache, mask: Tensor | None) -> dict[str, Any]:
        return {"input_ids": tokens, "attention_mask": None if mask is None else mask.long()}

    def _own_position_source(self) -> PositionSource:
        is_relative = self.model.config.model_type in RELATIVE_CAUSAL_MODELS
        return PositionSource.RELATIVE if is_relative else PositionSource.WIDTH


class EncoderDecoderModel(_TransformersModel):
    """Makes a `StepModel` of an encoder-decoder of transformers, with its EncoderDecoderCache.

    The encoder runs once, in `prefill`. Its inputs have the model's names with `encoder_` before them:
    encoder_input_ids, encoder_attention_mask, encoder_input_features. The names without it are those of the decoder,
    which starts with `input_ids`, for example with what `start` returns.

    Decoders differ in how they know positions. T5's distances are right as they are. BART, Marian and their relatives
    count the cache's columns for the whole batch; where rows have different lengths, their position embedding is given
    each row's own positions. A decoder that allows neither is refused as soon as lengths differ.

    Args:
        model: an encoder-decoder, for example of `AutoModelForSeq2SeqLM`, in evaluation mode.
        hidden_states: whether to return the hidden states of the decoder's last layer too.
        generation_config: what says which tokens are possible, and where a text begins and ends, for callers of
            strategies who do not: a `GenerationConfig`; None: the model's own; False: nothing does.

    Raises:
        TypeError: model is none of transformers', or has no encoder; generation_config is something else.
        ValueError: model is in training mode, or keeps other things than keys and values.

    Example:
        >>> from transformers import T5Config, T5ForConditionalGeneration
        >>> config = T5Config(
        ...     vocab_size=11, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
        ... )
        >>> model = EncoderDecoderModel(T5ForConditionalGeneration(config).eval())
        >>> source = torch.tensor([[3, 4, 5], [6, 7, 0]])
        >>> output = model.prefill(model.start(2), encoder_input_ids=source, encoder_attention_mask=source != 0)
        >>> model.decode(torch.tensor([[1], [2]]), model.expand(output.cache, 1)).logits.shape
        torch.Size([2, 1, 11])

    Source: docs/decoding.md, section "Models".
    """

    _states_name = "decoder_hidden_states"
    _positions_name = "decoder_position_ids"

    def start(self, batch_size: int) -> Tensor:
        """Returns the tokens that the decoder starts with by the generation_config, int64 [batch_size, 1].

        Raises:
            ValueError: it names no decoder_start_token_id and no bos_token_id, or several and not batch_size.
        """
        tokens = start_tokens(self.generation_config)
        if len(tokens) not in (1, batch_size):
            rule = f"name one decoder_start_token_id, or one for each of {batch_size} rows"
            refuse("EncoderDecoderModel.start", "generation_config", rule, tokens, "Give input_ids of your own.")
        return torch.tensor(tokens, device=self.model.device).expand(batch_size)[:, None]

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None = None, /, **encoder: Tensor) -> StepOutput:
        """See `StepModel.prefill`.

        Raises:
            TypeError: a name of encoder does not start with `encoder_`, or there is nothing for the encoder.
        """
        wrong = [name for name in encoder if not name.startswith(ENCODER_PREFIX)]
        if wrong or not encoder:
            rule = "name inputs as encoder_input_ids or encoder_attention_mask"
            refuse(self.name, "encoder", rule, wrong or "nothing", "Put encoder_ before the model's names.", TypeError)
        inputs = {name.removeprefix(ENCODER_PREFIX): value for name, value in encoder.items()}
        mask = inputs.get("attention_mask")
        if mask is not None:
            inputs["attention_mask"] = mask = mask.long()
            if "input_ids" in inputs:
                inputs["input_ids"] = inputs["input_ids"].where(mask != 0, 0)
        with torch.no_grad():
            states = self.model.get_encoder()(**inputs, return_dict=True).last_hidden_state
        past = EncoderDecoderCache(DynamicCache(), DynamicCache())
        return self._prefill(input_ids, attention_mask, past, states, mask)

    def _check_kind(self, model: Any) -> None:
        if hasattr(model, "config") and not getattr(model.config, "is_encoder_decoder", False):
            refuse(self.name, "model", "have an encoder", type(model).__name__, "Use CausalModel.", TypeError)

    def _inputs(self, tokens: Tensor, cache: AlignedCache, mask: Tensor | None) -> dict[str, Any]:
        inputs: dict[str, Any] = {"decoder_input_ids": tokens}
        inputs["encoder_outputs"] = BaseModelOutput(last_hidden_state=cache.encoder_states)
        if "decoder_attention_mask" in self.accepted:
            inputs["decoder_attention_mask"] = None if mask is None else mask.long()
        if "attention_mask" in self.accepted:
            inputs["attention_mask"] = cache.encoder_mask
        return inputs

    def _own_position_source(self) -> PositionSource:
        if hasattr(self.model.config, "relative_attention_num_buckets"):
            return PositionSource.RELATIVE
        is_open = takes_positions(getattr(self.model.get_decoder(), "embed_positions", None))
        return PositionSource.EMBEDDING if is_open else PositionSource.WIDTH
