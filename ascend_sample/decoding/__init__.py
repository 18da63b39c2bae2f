"""Strategies of search and sampling, batched, over any model that computes steps.

A model is a `StepModel`: `ModuleModel` makes one of a plain torch module, `CausalModel` and `EncoderDecoderModel` of
models of transformers, which is imported when one of these is asked for; `ascend_sample.decoding.onnx` has one for
onnxruntime.

The strategies lie in `strategies`, `beams` and `speculation`, the models in `models` and `onnx`. What these share lies
in the modules beside them, which know of none of them.

Source: docs/decoding.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ascend_sample.decoding.beams.backtracking import gather_tree
from ascend_sample.decoding.beams.beam import beam_search
from ascend_sample.decoding.beams.group_beam import group_beam_search, hamming_diversity
from ascend_sample.decoding.beams.sampled_beam import beam_sample
from ascend_sample.decoding.model import StepModel, StepOutput
from ascend_sample.decoding.models.decoder_layer import DecoderLayer
from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.models.transformer_decoder import Decoder, DecoderConfig, EncoderDecoder
from ascend_sample.decoding.output import DecodeOutput, SpeculativeStats
from ascend_sample.decoding.request import GenerationOptions, LogitsProcessor, StoppingCriterion
from ascend_sample.decoding.speculation.adaptive_gamma import AdaptiveGamma
from ascend_sample.decoding.speculation.drafters import Drafter, ModelDrafter, NGramDrafter
from ascend_sample.decoding.speculation.speculative import speculative_sample
from ascend_sample.decoding.strategies.contrastive import contrastive_search
from ascend_sample.decoding.strategies.greedy import greedy_search
from ascend_sample.decoding.strategies.sampled import sample, sample_and_rank
from ascend_sample.decoding.streaming import OnTokens, Streamer

if TYPE_CHECKING:
    from ascend_sample.decoding.models.transformers_models import CausalModel, EncoderDecoderModel

__all__ = [
    "AdaptiveGamma",
    "CausalModel",
    "DecodeOutput",
    "Decoder",
    "DecoderConfig",
    "DecoderLayer",
    "Drafter",
    "EncoderDecoder",
    "EncoderDecoderModel",
    "GenerationOptions",
    "LogitsProcessor",
    "ModelDrafter",
    "ModuleModel",
    "NGramDrafter",
    "OnTokens",
    "SpeculativeStats",
    "StepModel",
    "StepOutput",
    "StoppingCriterion",
    "Streamer",
    "beam_sample",
    "beam_search",
    "contrastive_search",
    "gather_tree",
    "greedy_search",
    "group_beam_search",
    "hamming_diversity",
    "sample",
    "sample_and_rank",
    "speculative_sample",
]


def __getattr__(name: str) -> Any:
    """Imports what needs transformers, which is no requirement of the rest."""
    if name not in ("CausalModel", "EncoderDecoderModel"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ascend_sample.decoding.models import transformers_models

    return getattr(transformers_models, name)
