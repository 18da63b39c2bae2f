"""Bad arguments of strategies and of what they are made with: named before any model is called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from ascend_sample.decoding import (
    AdaptiveGamma,
    DecoderConfig,
    ModelDrafter,
    ModuleModel,
    NGramDrafter,
    beam_search,
    gather_tree,
    speculative_sample,
)
from ascend_sample.sampling import SamplingParams
from tests.decoding.beams.test_gather_tree import TREE
from tests.decoding.decoder_models import random_decoder
from tests.decoding.every_strategy import GREEDY, STRATEGIES
from tests.decoding.speculation.test_speculative import PROMPTS, Wrong
from tests.decoding.table_models import UNCALLED, tiny_model

ASKED: dict[str, Any] = {"model": UNCALLED, "input_ids": torch.tensor([[0]]), "max_new_tokens": 3}
Rows = list[tuple[dict[str, Any], type[Exception], str]]
MEMORY = torch.zeros(2, 3, 10)
EVEN = "hidden_size must be even and a multiple of heads = 3, got"
NO_LOGPROBS = [GREEDY] * 3 + [SamplingParams(logprobs=1)]
NINE_TOKENS = ModuleModel(lambda ids: torch.zeros(*ids.shape, 9))
BEAM_SEARCH: Rows = [
    ({"num_beams": 0}, ValueError, "num_beams must be at least 1, got 0"),
    ({"num_return_sequences": 3}, ValueError, "num_return_sequences must be at most num_beams, 2, got 3"),
    ({"finished": "beam"}, ValueError, 'finished must be "pool" or "in_beam", got \'beam\''),
    ({"early_stopping": "always"}, ValueError, "early_stopping must be True, False or \"never\", got 'always'"),
    ({"early_stopping": True, "finished": "in_beam"}, ValueError, "early_stopping must be False .*, got True"),
    ({"length_penalty": float("nan")}, ValueError, "length_penalty must be a finite number"),
    ({"softmax_smoothing": 0.0}, ValueError, "softmax_smoothing must be a finite number above 0, got 0.0"),
    ({"softmax_smoothing": 1e39, "return_scores": True}, ValueError, "softmax_smoothing must be a finite float32"),
    ({"length_penalty": 23.7, "max_new_tokens": 7}, ValueError, r"length_penalty must be in \[-23.6, 23.6\] with"),
    ({"length_penalty": -45.0, "max_new_tokens": 12, "finished": "in_beam"}, ValueError,
     r"length_penalty must be in \[-44.2, 44.2\] with that many new tokens, got -45.0"),
    ({"eos_penalty": 0.0}, ValueError, "eos_penalty must be a finite number above 0 and at most 1, got 0.0"),
    ({"max_new_tokens": 0}, ValueError, "max_new_tokens must be at least 1 where no encoder's input has a length"),
]  # fmt: skip
BEAM_SAMPLE: Rows = [
    ({"params": SamplingParams(temperature=0)}, ValueError, "params must have a temperature above 0, got 0.0"),
    ({"params": SamplingParams(suppress_token_ids=[3])}, ValueError,
     r"params must leave suppress_token_ids at .*, got suppress_token_ids=\(3,\)"),
]  # fmt: skip
GROUPS: Rows = [
    ({"num_beam_groups": 0}, ValueError, "num_beam_groups must be at least 1, got 0"),
    ({"num_beam_groups": 3}, ValueError, "num_beams must be a multiple of num_beam_groups, 3, got 4"),
    ({"diversity_penalty": -1.0}, ValueError, "diversity_penalty must be a finite number of at least 0, got -1.0"),
]  # fmt: skip
RANKING: Rows = [
    ({"num_samples": 2, "num_return_sequences": 3}, ValueError, r"num_return_sequences must be in \[1, 2\], got 3"),
    ({"length_penalty": -1.0}, ValueError, "length_penalty must be a finite number of at least 0"),
    ({"length_penalty": 100.0}, ValueError, r"length_penalty must be in \[0, [0-9.]+\] with that many new tokens"),
]  # fmt: skip
SAMPLE: Rows = [
    ({"params": {"top_k": 3}}, TypeError, "params must be SamplingParams, or a list of them, got dict"),
    ({"params": [SamplingParams()] * 2}, ValueError, "params must be one, or one for each of 1 prompts, got 2 of them"),
    ({"params": SamplingParams(logprobs=1)}, ValueError, "params must leave logprobs at its default"),
    ({"params": SamplingParams(stop_sequences=[3])}, ValueError,
     r"params must have stop_token_ids that eos_token_id names"),
    ({"num_return_sequences": 0}, ValueError, "num_return_sequences must be"),
    ({"generator": 3}, TypeError, "generator must be a torch.Generator, got int 3"),
]  # fmt: skip
CONTRASTIVE: Rows = [
    ({"top_k": 0}, ValueError, "top_k must be at least 1, got 0"),
    ({"penalty_alpha": 1.5}, ValueError, "penalty_alpha must be a finite number of at least 0 and at most 1, got 1.5"),
]  # fmt: skip
TREES: Rows = [
    ({"step_ids": TREE[0][0]}, ValueError, r"step_ids must be \[steps, batch, beams\] and not empty, got \[1, 3\]"),
    ({"parent_ids": TREE[1][:3]}, ValueError, r"parent_ids must have the shape of step_ids, \[4, 1, 3\]"),
    ({"lengths": torch.tensor([4, 4])}, ValueError, r"lengths must be \[1\] or \[1, 3\], got \[2\]"),
    ({"end_token": -1}, ValueError, "end_token must be at least 0, got -1"),
    ({"parent_ids": TREE[1] + 1}, ValueError, r"parent_ids must be in \[0, 3\), got 3"),
]  # fmt: skip
CONFIGS: Rows = [
    ({"hidden_size": 9, "heads": 3}, ValueError, f"{EVEN} 9"),
    ({"hidden_size": 2, "heads": 1}, ValueError, "hidden_size must be at least 4, got 2"),
    ({"activation": "swish"}, ValueError, "activation must be one of relu, gelu, got swish"),
    ({"positions": "no"}, ValueError, "positions must be one of halves, interleaved, got no"),
]  # fmt: skip
SPECULATION: Rows = [
    ({"drafter": 3}, TypeError, "drafter must be a StepModel or a Drafter, got int without prefill"),
    ({"drafter": NINE_TOKENS}, ValueError, "drafter must have the model's vocab"),
    ({"drafter": Wrong(99)}, ValueError, "drafter must propose tokens of the model's vocabulary, 0 to 12, got 99"),
    ({"gamma": -1}, ValueError, "gamma must be at least 0, got -1"),
    ({"gamma": "auto"}, ValueError, "gamma must be an int, 'adaptive' or an AdaptiveGamma, got 'auto'"),
    ({"rule": "any"}, ValueError, r"rule must be one of match, standard, block, got 'any'"),
    ({"params": [GREEDY]}, ValueError, "params must be one, or one for each of 4 prompts, got 1"),
    ({"params": NO_LOGPROBS}, ValueError, "params must leave logprobs at its default, got logprobs=1"),
    ({"params": SamplingParams(mirostat_tau=1.0)}, ValueError,
     "params must leave mirostat_tau .*, got mirostat_tau=1.0"),
    ({"logits_processor": [print]}, ValueError, "logits_processor must be empty, got 1"),
    ({"return_scores": True}, ValueError, "return_scores must be False, got True"),
]  # fmt: skip
NGRAMS: Rows = [
    ({"min_ngram": 0}, ValueError, "min_ngram must be at least 1, got 0"),
    ({"max_ngram": 1, "min_ngram": 2}, ValueError, "max_ngram must be at least 2, got 1"),
]
ADAPTIVE: Rows = [
    ({"max_gamma": 0}, ValueError, "max_gamma must be at least 1, got 0"),
]
MEMORIES: Rows = [
    ({"memory": MEMORY.long()}, TypeError, "memory must be a tensor of floats, got a tensor of torch.int64"),
    ({"memory": MEMORY[:1]}, ValueError, r"memory must be \[2, at least 1, 10\], got \[1, 3, 10\]"),
    ({"memory_lengths": torch.tensor([3, 3]).int()}, TypeError, "memory_lengths must be .*, got a .* torch.int32"),
    ({"memory_lengths": torch.tensor([0, 3])}, ValueError, r"memory_lengths must be from 1 to 3, .*, got \[0, 3\]"),
]
CASES: dict[str, tuple[Callable[..., Any], Rows]] = {
    "beam_search": (partial(beam_search, **ASKED, num_beams=2), BEAM_SEARCH),
    "beam_sample": (partial(STRATEGIES["beam_sample"].search, **ASKED), BEAM_SAMPLE),
    "group_beam_search": (partial(STRATEGIES["group_beam_search"].search, **ASKED), GROUPS),
    "contrastive_search": (partial(STRATEGIES["contrastive_search"].search, **ASKED), CONTRASTIVE),
    "sample": (partial(STRATEGIES["sample"].search, **ASKED), SAMPLE),
    "sample_and_rank": (partial(STRATEGIES["sample_and_rank"].search, **ASKED), [*SAMPLE, *RANKING]),
    "speculative_sample": (
        partial(speculative_sample, tiny_model(), PROMPTS, drafter=tiny_model(), max_new_tokens=4),
        SPECULATION,
    ),
    "gather_tree": (
        partial(gather_tree, step_ids=TREE[0], parent_ids=TREE[1], lengths=torch.tensor([4]), end_token=9),
        TREES,
    ),
    "NGramDrafter": (NGramDrafter, NGRAMS),
    "ModelDrafter": (
        partial(ModelDrafter, UNCALLED),
        [({"uses_encoder": 1}, TypeError, "uses_encoder must be True or False, got int 1")],
    ),
    "AdaptiveGamma": (AdaptiveGamma, ADAPTIVE),
    "DecoderConfig": (partial(DecoderConfig, vocab_size=5), CONFIGS),
    "Decoder": (partial(random_decoder().prefill, torch.tensor([[1], [2]]), memory=MEMORY), MEMORIES),
}
"""Calls that are right but for what a row changes."""


@pytest.mark.parametrize("name", CASES)
def test_bad_arguments_are_named(name: str, subtests: pytest.Subtests) -> None:
    call, rows = CASES[name]
    for wrong, error, message in rows:
        with subtests.test(msg=str(wrong)), pytest.raises(error, match=rf"^{name}: {message}.*\. [A-Z]"):
            call(**wrong)
