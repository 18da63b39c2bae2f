"""vLLM's V2 runner: its sampler, and its rejection sampler, draw here.

The runner's requests have seeds of their own, random ones included, and the tokens have positions, both on the device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from ascend_sample.integrations import vllm_masks, vllm_served
from ascend_sample.integrations._drafts import DrawnDrafts, target_probabilities, verified
from ascend_sample.integrations._left_alone import DRAWING, say_left
from ascend_sample.integrations._replacing import replacing
from ascend_sample.integrations._rows import draw, filtered
from ascend_sample.sampling.drafts.judging import Proposals
from ascend_sample.sampling.drafts.places import NO_TOKEN, ChainLayout
from ascend_sample.sampling.rows.parameters import Facts


def custom_sampler(sampler: Any) -> tuple[Any, Any]:
    """Makes the sampler of vLLM's V2 runner draw with `sample_rows`: for a model state's method of this name.

    Logits bias, penalties, temperature and min-p stay vLLM's. Seeds are the runner's own, random ones included, and
    positions those of the tokens, so that chunked prefill and preemption do not change a request's tokens.

    Args:
        sampler: the runner's, which is changed and returned.

    Returns:
        The sampler and None: no rejection sampler of its own.
    """
    sampler.sample = MethodType(_sample, sampler)
    return sampler, None


def _sample(
    sampler: Any,
    logits: Tensor,
    expanded_idx_mapping: Tensor,
    idx_mapping: Tensor,
    idx_mapping_np: Any,
    pos: Tensor,
    *positional: Any,
    return_logprobs: bool = False,
    **named: Any,
) -> tuple[Tensor, Tensor]:
    """Does what the sampler's `sample` does: returns the tokens, int64 [rows], and the processed logits."""
    processed = sampler.apply_sampling_params(
        logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, *positional, **named, skip_top_k_top_p=True
    )
    # A row a request: those whose host values these are.
    requests = idx_mapping_np if expanded_idx_mapping is idx_mapping else None
    drawn = _draw(sampler, processed, expanded_idx_mapping, idx_mapping_np, requests, pos)
    return drawn.token_ids, _reported(sampler, processed, drawn, return_logprobs)


class _Drawn(NamedTuple):
    """What rows get, and what they are drawn with.

    Attributes:
        token_ids: int64 [rows].
        seed: int64 [rows].
        is_greedy: bool [rows].
        top_k, top_p: [rows]; None where no row has the filter.
        facts: what the host knows of the rows.
    """

    token_ids: Tensor
    seed: Tensor
    is_greedy: Tensor
    top_k: Tensor | None
    top_p: Tensor | None
    facts: Facts | None


def _draw(
    sampler: Any,
    processed: Tensor,
    request_of_row: Tensor,
    idx_mapping_np: NDArray[Any],
    requests: NDArray[Any] | None,
    pos: Tensor,
) -> _Drawn:
    """Draws a token a row, from logits at the temperature.

    Args:
        sampler: the runner's.
        processed: [rows, vocab_size].
        request_of_row: [rows], the place of each row's request among the runner's.
        idx_mapping_np: the same of the requests of the step, on the host.
        requests: [rows], what ``request_of_row`` holds, where the host knows it.
        pos: int64 [rows].
    """
    states = sampler.sampling_states
    # 0.33 takes the size of the vocabulary too, and returns a third thing.
    vocab_size = [processed.shape[1]] if "vocab_size" in inspect.signature(states.get_top_k_top_p).parameters else []
    top_k, top_p = states.get_top_k_top_p(request_of_row, idx_mapping_np, *vocab_size)[:2]
    is_greedy = states.temperature.gpu[request_of_row] == 0
    facts = None
    if requests is not None:
        facts = {
            "temperature": (states.temperature.np[requests] != 0).astype(np.float32),
            "top_k": states.top_k.np[requests],
            "top_p": states.top_p.np[requests],
        }
    seed = states.seeds.gpu[request_of_row]
    filters = {"temperature": (~is_greedy).float(), "top_k": top_k, "top_p": top_p}
    token_ids = draw(processed, **filters, seed=seed, position=pos, facts=facts)
    vllm_served.count(len(processed))
    return _Drawn(token_ids, seed, is_greedy, top_k, top_p, facts)


def _reported(sampler: Any, processed: Tensor, drawn: _Drawn, is_asked_for: bool) -> Tensor:
    """Returns the logits that vLLM reports as processed: filtered, where somebody looks at them."""
    is_filtered = drawn.top_k is not None or drawn.top_p is not None
    if not is_filtered or not (is_asked_for or getattr(sampler, "return_sampling_mask", False)):
        return processed
    return vllm_masks.without_ties(filtered(processed, drawn.facts, top_k=drawn.top_k, top_p=drawn.top_p))


def install(model_state: type[Any]) -> None:
    """Lets model states that have no sampler of their own use this one; a second call changes nothing."""

    @replacing(model_state, "custom_sampler")
    def sampler_of(original: Callable[..., Any], self: Any, sampler: Any) -> Any:
        given = original(self, sampler)
        own = sampler if given is None else given[0]
        if given is not None or type(own).__name__ != "Sampler":  # a watermarking one has a `sample` of its own
            say_left(sampler, f"{type(own).__name__} draws in its own way", "vllm", DRAWING)
            return given
        result = custom_sampler(sampler)
        # With speculation the runner has to make its rejection sampler itself, around this changed sampler.
        return None if self.vllm_config.speculative_config is not None else result


def leave(sampler: type[Any]) -> None:
    """Lets samplers of a runner with another interface say that they draw themselves; a second call changes nothing."""

    @replacing(sampler, "__init__")
    def make_and_say(make: Callable[..., None], self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        reason = "this version's V2 runner has another interface (VLLM_USE_V2_MODEL_RUNNER=0 chooses V1)"
        say_left(self, reason, "vllm", DRAWING)


def install_drafts(rejection_sampler: type[Any]) -> None:
    """Lets V2's rejection sampler verify drafts here; a second call changes nothing.

    Args:
        rejection_sampler: the class, two methods of which are replaced: the one that sees the batch, and the one that
            verifies some of its requests.
    """

    @replacing(rejection_sampler, "_verify_in_chunks")
    def count_ahead(
        in_chunks: Callable[..., Any], self: Any, logits: Tensor, input_batch: Any, *arguments: Any, **named: Any
    ) -> Any:
        self.counts_ahead = np.diff(input_batch.cu_num_logits_np) - 1  # of all chunks
        return in_chunks(self, logits, input_batch, *arguments, **named)

    @replacing(rejection_sampler, "_verify")
    def verify_here(
        verify: Callable[..., Any], self: Any, logits: Tensor, draft_logits: Tensor | None, *arguments: Any
    ) -> Any:
        reason = _why_left(self, logits, draft_logits)
        if reason is not None:
            say_left(self, reason, "vllm")
            return verify(self, logits, draft_logits, *arguments)
        return _verify_here(self, logits, draft_logits, *arguments)


def _why_left(sampler: Any, logits: Tensor, draft_logits: Tensor | None) -> str | None:
    """Returns why drafts stay with vLLM's own rejection sampler; None where they do not."""
    if sampler.synthetic_conditional_rates is not None:
        return "acceptance is synthetic"
    if getattr(sampler, "fly_window_size", 0):
        return "the rule is FLy"
    if sampler.watermark_key is not None:
        return "tokens are watermarked"
    if sampler.enable_adaptive_verification:
        return "the device alone knows which drafts are verified"
    if getattr(sampler.sampler.sample, "__func__", None) is not _sample:
        return "its sampler is not the one of ascend_sample"
    if draft_logits is not None and draft_logits.shape[-1] != logits.shape[1]:
        return "drafts have another vocabulary"
    return None


def _verify_here(
    sampler: Any,
    logits: Tensor,
    draft_logits: Tensor | None,
    draft_sampled: Tensor,
    pos: Tensor,
    cu_num_logits: Tensor,
    idx_mapping: Tensor,
    idx_mapping_np: NDArray[Any],
    expanded_idx_mapping: Tensor,
    expanded_local_pos: Tensor,
    seq_lens_upper_bound_np: NDArray[Any],
    verify_draft_sampled: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Does what V2's `RejectionSampler._verify` does.

    Args:
        sampler: vLLM's rejection sampler, which has noted how many drafts the requests ahead have.
        logits: [places, vocab_size], the model's.
        draft_logits: [all requests, most drafts, vocab_size], what drafts were drawn from, before the temperature;
            None: they were not drawn.
        draft_sampled: int [places], the token that each place comes after: of all but a request's first, a draft.
        pos: int64 [places], its position.
        cu_num_logits: where the places of requests begin; the host knows that too.
        idx_mapping: [requests], where each is among the runner's.
        idx_mapping_np: the same on the host.
        expanded_idx_mapping: [places], where its request is.
        expanded_local_pos: [places], after how many drafts.
        seq_lens_upper_bound_np: for the sampler.
        verify_draft_sampled: as ``draft_sampled``, -1 for drafts that a grammar forbids.

    Returns:
        The processed logits, the tokens, int64 [requests, most drafts + 1], and how many there are, int32 [requests].
    """
    counts, sampler.counts_ahead = np.split(sampler.counts_ahead, [len(idx_mapping_np)])
    layout = ChainLayout(counts.astype(np.int64), logits.device)
    states, most = sampler.sampler.sampling_states, sampler.num_speculative_steps
    processed = sampler.sampler.apply_sampling_params(
        logits,
        expanded_idx_mapping,
        idx_mapping,
        idx_mapping_np,
        pos,
        draft_sampled,
        expanded_local_pos,
        seq_lens_upper_bound_np,
        skip_top_k_top_p=True,
    )
    requests = idx_mapping_np[layout.request]
    rows = _draw(sampler.sampler, processed, expanded_idx_mapping, idx_mapping_np, requests, pos)
    judged = layout.places_of_drafts
    drawn = None
    if draft_logits is not None or sampler.use_block_verification:
        probabilities = target_probabilities(
            processed, rows.token_ids, rows.is_greedy, top_k=rows.top_k, top_p=rows.top_p, facts=rows.facts
        )
        proposals = Proposals()
        if draft_logits is not None:
            request = expanded_idx_mapping[judged]
            of_drafts = draft_logits[request, expanded_local_pos[judged]].float()
            temperature = states.temperature.gpu[request]
            divisor = torch.where(temperature == 0, 1.0, temperature).unsqueeze(1)
            proposals = Proposals((of_drafts / divisor).softmax(1))
        rule = "block" if sampler.use_block_verification else "standard"
        drawn = DrawnDrafts(rule, probabilities, proposals, rows.seed, pos)
    found = verified(layout, rows.token_ids, verify_draft_sampled[judged + 1].to(torch.int64), drawn)
    tokens = pad(found.tokens, (0, most - layout.most), value=NO_TOKEN)
    is_asked_for = sampler.sampler.logprobs_mode.startswith("processed")
    reported = _reported(sampler.sampler, processed, rows, is_asked_for)
    return reported, tokens, (found.accepted + 1).to(torch.int32)
