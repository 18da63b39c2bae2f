"""The rejection samplers of vLLM's V1 runner and of vllm_ascend verify drafts here.

Drafts without probabilities are served by the rule match, so that a request with a seed gets the text that it gets
without speculation; drafts that were drawn by the rule that the engine would use. What is another rule stays the
engine's. The penalties, masks and temperatures of the places are the engine's in any case.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ascend_sample.integrations._ascend_config import ascend_config
from ascend_sample.integrations._drafts import DrawnDrafts, target_probabilities, verified
from ascend_sample.integrations._host_values import facts_of
from ascend_sample.integrations._left_alone import say_left
from ascend_sample.integrations._replacing import replacing
from ascend_sample.integrations._vllm_metadata import MIN_TOKENS, SMALLEST_TEMPERATURE, is_vllms
from ascend_sample.integrations.vllm_served import draws_here
from ascend_sample.sampling.drafts.judging import Proposals
from ascend_sample.sampling.drafts.places import ChainLayout
from ascend_sample.sampling.rows.table import to_device

ASCEND_BLOCK_LENGTH: Final = 3
"""vllm_ascend's block rule needs so many drafts."""


def install(rejection_sampler: type[Any] | None) -> None:
    """Lets V1's rejection sampler, or vllm_ascend's, verify drafts here; a second call changes nothing.

    Args:
        rejection_sampler: the class, whose `forward` is replaced; None where an engine has none.
    """

    @replacing(rejection_sampler, "forward")
    def verify(
        forward: Callable[..., Any],
        self: Any,
        metadata: Any,
        draft_probs: Tensor | None,
        logits: Tensor,
        sampling_metadata: Any,
    ) -> Any:
        reason = _why_left(self, sampling_metadata)
        if reason is not None:
            say_left(self, reason, type(self).__module__.partition(".")[0])
            return forward(self, metadata, draft_probs, logits, sampling_metadata)
        return _verify(self, metadata, draft_probs, logits, sampling_metadata)


def _why_left(sampler: Any, sampling_metadata: Any) -> str | None:
    """Returns why drafts stay with the engine's own rejection sampler; None where they do not."""
    if getattr(sampler, "synthetic_mode", False):  # 0.18 has none
        return "acceptance is synthetic"
    if getattr(sampler, "use_fly", False):
        return "the rule is FLy"
    if sampling_metadata.logitsprocs.argmax_invariant:
        return "a logits processor knows requests alone, and no places"
    if not draws_here(sampler.sampler.topk_topp_sampler):
        return "its sampler is not the one of ascend_sample"
    config = ascend_config(type(sampler))
    if getattr(config, "enable_reduce_sample", False):
        return "each rank has a part of the vocabulary alone"
    if _rejection_config(config, "enable_entropy_verify"):
        return "the rule looks at the entropy"
    return None


def _rejection_config(config: Any, name: str) -> bool:
    """Returns whether vllm_ascend's rejection sampler is asked for something."""
    return bool(getattr(getattr(config, "rejection_sampler_config", None), name, False))


def _verify(sampler: Any, metadata: Any, draft_probs: Tensor | None, logits: Tensor, sampling_metadata: Any) -> Any:
    """Does what V1's `RejectionSampler.forward` does.

    Args:
        sampler: vLLM's rejection sampler.
        metadata: its `SpecDecodeMetadata`, with the drafts of all requests one after another.
        draft_probs: float32 [drafts, vocab_size], what the drafts were drawn from; None: they were not drawn.
        logits: float [drafts + requests, vocab_size], the model's.
        sampling_metadata: of the requests.

    Returns:
        A `SamplerOutput` with the tokens, int32 [requests, most drafts + 1], -1 beyond those of a request.
    """
    layout = ChainLayout(np.asarray(metadata.num_draft_tokens, dtype=np.int64), logits.device)
    judged, last = layout.places_of_drafts, layout.places.view(-1, layout.most + 1)[:, -1]
    processed = torch.empty_like(logits, dtype=torch.float32)
    # As vLLM does it, those behind the drafts before those of the drafts: a thinking budget is counted there.
    behind = _behind_drafts(sampling_metadata, metadata.num_draft_tokens)
    processed[last] = sampler.sampler.apply_logits_processors(logits[last].float(), behind, True)
    processed[judged] = sampler.apply_logits_processors(logits[judged].float(), sampling_metadata, metadata)

    source = sampler.sampler.topk_topp_sampler.seed_source
    facts = facts_of(len(layout.counts), sampling_metadata.top_k, sampling_metadata.top_p)
    rows = source.take_places(layout, sampling_metadata.generators, facts)
    of_places = _at_places(sampling_metadata, layout, rows)
    is_judged = draft_probs is not None and not sampling_metadata.all_greedy
    scaled = processed.clone() if is_judged else None
    drawn_ids, reported = sampler.sampler.sample(processed, of_places)  # writes to what it is given
    drawn = None
    if scaled is not None:
        is_greedy = of_places.temperature < SMALLEST_TEMPERATURE
        scaled.div_(of_places.temperature.masked_fill(is_greedy, 1).unsqueeze(1))
        probabilities = target_probabilities(
            scaled,
            drawn_ids,
            is_greedy,
            top_k=of_places.top_k,
            top_p=of_places.top_p,
            facts=rows.facts,
            keep_ties=sampler.sampler.topk_topp_sampler.keep_ties,
        )
        is_block = _rejection_config(ascend_config(type(sampler)), "enable_block_verify")
        rule = "block" if is_block and layout.most >= ASCEND_BLOCK_LENGTH else "standard"
        drawn = DrawnDrafts(rule, probabilities, Proposals(draft_probs), rows.seed, rows.position)
    found = verified(layout, drawn_ids, metadata.draft_token_ids.to(torch.int64), drawn)
    source.accept(sampling_metadata.generators, found.accepted)

    tokens = found.tokens.to(torch.int32)
    logprobs = None
    if sampling_metadata.max_num_logprobs is not None:
        given = reported if sampler.is_processed_logprobs_mode else logits
        logprobs = sampler._get_logprobs_tensors(
            sampling_metadata.max_num_logprobs, metadata, logits, given[judged].float(), given[last].float(), tokens
        )
    outputs = importlib.import_module("vllm.v1.outputs")
    return outputs.SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=logprobs)


class _MinTokensBehindDrafts:
    """V1's processor of `min_tokens`, at the places behind drafts: vLLM's own does not count the drafts there.

    It would keep a request from a stop that plain decoding draws at this place.

    Args:
        processor: vLLM's, with what is left of a request's numbers by row in `min_toks`.
        counts: how many drafts each request has.
    """

    def __init__(self, processor: Any, counts: Sequence[int]) -> None:
        self._processor = copy.copy(processor)
        self._processor.min_toks = {
            row: (least - counts[row], *others) for row, (least, *others) in processor.min_toks.items()
        }
        self._counts = [1] * len(counts)  # as if each place behind drafts were the only one of its request

    def apply(self, logits: Tensor) -> Tensor:
        """Masks the stops of the requests that are too short there, float32 [requests, vocab_size] in place."""
        return self._processor.apply_with_spec_decode(logits, self._counts)  # type: ignore[no-any-return]


def _behind_drafts(sampling_metadata: Any, counts: Sequence[int]) -> Any:
    """Returns the metadata by which the places behind drafts are processed."""
    own = sampling_metadata.logitsprocs
    processors = copy.copy(own)
    processors.non_argmax_invariant = [
        _MinTokensBehindDrafts(each, counts) if type(each).__name__ == MIN_TOKENS and is_vllms(each) else each
        for each in own.non_argmax_invariant
    ]
    return dataclasses.replace(sampling_metadata, logitsprocs=processors)


def _at_places(sampling_metadata: Any, layout: ChainLayout, rows: Any) -> Any:
    """Returns the metadata of a step in which the places are rows."""
    given = {name: getattr(sampling_metadata, name) for name in ("temperature", "top_k", "top_p")}
    request = to_device(layout.request, layout.device)
    spread = {name: None if tensor is None else tensor.index_select(0, request) for name, tensor in given.items()}
    return dataclasses.replace(sampling_metadata, **spread, generators=rows)
