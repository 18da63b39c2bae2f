"""Decoding: search and sampling strategies, batched, over any model that computes steps. See docs/decoding.md.

A model is a `StepModel`: `ModuleModel` makes one of a plain torch module;
`ascend_sample.decoding.transformers_models` has those with a cache for models of transformers,
`ascend_sample.decoding.onnx` one for onnxruntime. Neither is imported before it is asked for.
"""

from ascend_sample.decoding.adaptive_gamma import AdaptiveGamma
from ascend_sample.decoding.backtracking import gather_tree
from ascend_sample.decoding.beam import beam_search
from ascend_sample.decoding.contrastive import contrastive_search
from ascend_sample.decoding.drafters import Drafter, ModelDrafter, NGramDrafter
from ascend_sample.decoding.fused import Decoder, DecoderConfig, DecoderLayer, EncoderDecoder
from ascend_sample.decoding.greedy import greedy_search
from ascend_sample.decoding.group_beam import group_beam_search
from ascend_sample.decoding.model import StepModel, StepOutput
from ascend_sample.decoding.module_model import ModuleModel
from ascend_sample.decoding.output import DecodeOutput, SpeculativeStats
from ascend_sample.decoding.processors import hamming_diversity
from ascend_sample.decoding.request import CommonOptions, LogitsProcessor, OnTokens, StoppingCriterion
from ascend_sample.decoding.sampled import sample, sample_and_rank
from ascend_sample.decoding.sampled_beam import beam_sample
from ascend_sample.decoding.speculative import speculative_sample

__all__ = [
    "AdaptiveGamma",
    "CommonOptions",
    "DecodeOutput",
    "Decoder",
    "DecoderConfig",
    "DecoderLayer",
    "Drafter",
    "EncoderDecoder",
    "LogitsProcessor",
    "ModelDrafter",
    "ModuleModel",
    "NGramDrafter",
    "OnTokens",
    "SpeculativeStats",
    "StepModel",
    "StepOutput",
    "StoppingCriterion",
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
