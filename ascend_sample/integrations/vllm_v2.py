"""vLLM's V2 runner, and vllm_ascend's that derives from it: its sampler, and its rejection sampler, draw here.

Methods of two classes of vLLM are replaced. What vllm_ascend puts in the place of functions that they call (the noise,
top-k and top-p, the rejection of drafts) is not called then, whichever of the two comes first; its penalties, biases,
masks, temperatures and logprobs are. The requests have seeds of their own, random ones included, and the tokens have
positions.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple

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

OLDER: Final = "this version's V2 runner has another interface (VLLM_USE_V2_MODEL_RUNNER=0 chooses V1)"


def custom_sampler(sampler: Any) -> tuple[Any, Any]:
    """Makes the sampler of vLLM's V2 runner draw with `sample_rows`: for a model state's method of this name.

    Logits bias, penalties, temperature and min-p stay vLLM's. Seeds are the runner's own, random ones included, and
    positions those of the tokens, so that chunked prefill and preemption do not change a request's tokens.

    Args:
        sampler: the runner's, whose class is changed.

    Returns:
        The sampler and None: no rejection sampler of its own.
    """
    install(inspect.getmodule(type(sampler)))
    return sampler, None


def install(module: Any) -> None:
    """Lets V2's sampler draw here; a second call changes nothing.

    Args:
        module: vLLM's, with the class `Sampler`. What derives from that goes on drawing in its own way, as a
            watermarking one does.
    """
    sampler = module.Sampler
    if "skip_top_k_top_p" not in inspect.signature(sampler.apply_sampling_params).parameters:  # 0.18
        _leave(sampler, DRAWING)
        return
    if not hasattr(sampler, "drafts_have_temperature"):  # what they were drawn from is kept as it was, or divided by it
        keeping = inspect.signature(module.gumbel_sample).parameters
        sampler.drafts_have_temperature = "output_processed_logits" in keeping  # 0.27

    @replacing(sampler, "__call__")
    def call_knowing(call: Callable[..., Any], self: Any, logits: Tensor, input_batch: Any) -> Any:
        self.lengths = _lengths(self, input_batch)
        return call(self, logits, input_batch)

    @replacing(sampler, "sample")
    def sample_here(sample: Callable[..., Any], self: Any, *arguments: Any, **named: Any) -> Any:
        given = _by_name(sample, self, *arguments, **named)
        reason = _why_drawn_there(self)
        if reason is None and len(given["logits"]) != len(given["idx_mapping_np"]):
            reason = "a request has several rows"
        if reason is not None:
            say_left(self, reason, "vllm", DRAWING)
            return sample(self, *arguments, **named)
        return _sample(self, given)


def install_drafts(rejection_sampler: type[Any]) -> None:
    """Lets V2's rejection sampler verify drafts here; a second call changes nothing.

    Args:
        rejection_sampler: the class, two methods of which are replaced: the one that sees the batch, and the one that
            verifies some of its requests.
    """
    if not hasattr(rejection_sampler, "_verify"):  # before 0.27
        _leave(rejection_sampler)
        return

    @replacing(rejection_sampler, "__call__")
    def call_knowing(
        call: Callable[..., Any], self: Any, logits: Tensor, input_batch: Any, *arguments: Any, **named: Any
    ) -> Any:
        self.counts_ahead = np.diff(input_batch.cu_num_logits_np) - 1  # of all chunks
        self.lengths_ahead = _lengths(self.sampler, input_batch)
        return call(self, logits, input_batch, *arguments, **named)

    @replacing(rejection_sampler, "_verify")
    def verify_here(verify: Callable[..., Any], self: Any, *arguments: Any, **named: Any) -> Any:
        given = _by_name(verify, self, *arguments, **named)
        reason = _why_verified_there(self, given["logits"], given["draft_logits"])
        if reason is not None:
            say_left(self, reason, "vllm")
            return verify(self, *arguments, **named)
        return _verify(self, given)


def install_runner(runner: type[Any]) -> None:
    """Lets vllm_ascend's runner tell its sampler whether it knows lengths; a second call changes nothing.

    With speculation its attention needs them on the host, so it waits there for what the step before has accepted; for
    some models it goes without.

    Args:
        runner: the class.
    """

    @replacing(runner, "_update_seq_lens_cpu")
    def update_and_tell(update: Callable[..., None], self: Any, *arguments: Any, **named: Any) -> None:
        awaited = _Awaited(self.num_computed_tokens_event)
        self.num_computed_tokens_event = awaited
        try:
            update(self, *arguments, **named)
        finally:
            self.num_computed_tokens_event = awaited.event
        if self.sampler is not None:  # another rank has it, where layers are on several
            # Ranks that share a prompt write those of their own parts over them.
            self.sampler.has_lengths = awaited.is_awaited and self.pcp_manager is None


class _Awaited:
    """An event that notes whether it was waited for."""

    def __init__(self, event: Any) -> None:
        self.event, self.is_awaited = event, False

    def synchronize(self) -> None:
        """Waits for the event."""
        self.event.synchronize()
        self.is_awaited = True


def _lengths(sampler: Any, input_batch: Any) -> NDArray[Any] | None:
    """Returns how long the sequences are with the step's tokens, [requests]; None where the device alone knows that.

    vLLM's host counts drafts as accepted until it learns better, so its lengths are right where nothing is drafted.
    """
    lengths = getattr(input_batch, "seq_lens_np", None) if getattr(sampler, "has_lengths", False) else None
    if lengths is None and sampler.num_speculative_tokens == 1:
        lengths = input_batch.seq_lens_cpu_upper_bound.numpy()
    return None if lengths is None else lengths[: input_batch.num_reqs]


def _leave(kind: type[Any], *what: str) -> None:
    """Lets samplers with another interface say that they work themselves; a second call changes nothing."""

    @replacing(kind, "__init__")
    def make_and_say(make: Callable[..., None], self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        say_left(self, OLDER, "vllm", *what)


@functools.cache
def _parameters(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _by_name(function: Callable[..., Any], *arguments: Any, **named: Any) -> dict[str, Any]:
    """Returns what a function of vLLM is called with: versions differ in the number and the order of arguments."""
    return _parameters(function).bind(*arguments, **named).arguments


def _why_drawn_there(sampler: Any) -> str | None:
    """Returns why tokens are drawn by a sampler's own class; None where they are drawn here."""
    kind = type(sampler)
    return None if hasattr(vars(kind).get("sample"), "replaced") else f"{kind.__name__} draws in its own way"


def _why_verified_there(sampler: Any, logits: Tensor, draft_logits: Tensor | None) -> str | None:
    """Returns why drafts stay with vLLM's own rejection sampler; None where they do not."""
    if sampler.synthetic_conditional_rates is not None:
        return "acceptance is synthetic"
    if getattr(sampler, "fly_window_size", 0):
        return "the rule is FLy"
    if getattr(sampler, "enable_adaptive_verification", False):
        return "the device alone knows which drafts are verified"
    if draft_logits is not None and draft_logits.shape[-1] != logits.shape[1]:
        return "drafts have another vocabulary"
    return _why_drawn_there(sampler.sampler)


def _sample(sampler: Any, given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Does what V2's `Sampler.sample` does: returns the tokens, int64 [rows], and the processed logits."""
    processed = _processed(sampler, given)
    rows = _draw(sampler, processed, given, given["idx_mapping_np"], getattr(sampler, "lengths", None))
    return rows.token_ids, _reported(sampler, processed, given, rows.facts, given.get("return_logprobs", False))


def _processed(sampler: Any, given: dict[str, Any]) -> Tensor:
    """Returns logits at the temperature, as vLLM processes them, but for top-k and top-p."""
    known = _parameters(type(sampler).apply_sampling_params).parameters.keys() - {"self"}
    processed: Tensor = sampler.apply_sampling_params(
        **{name: value for name, value in given.items() if name in known}, skip_top_k_top_p=True
    )
    return processed


class _Rows(NamedTuple):
    """What rows get, and what they are drawn with.

    Attributes:
        token_ids: int64 [rows].
        seed, position: int64 [rows], on the host or the device.
        facts: what the host knows of the rows.
    """

    token_ids: Tensor
    seed: Tensor
    position: Tensor
    facts: Facts


def _draw(
    sampler: Any,
    processed: Tensor,
    given: dict[str, Any],
    requests: NDArray[Any],
    lengths: NDArray[Any] | None,
) -> _Rows:
    """Draws a token a row, from logits at the temperature.

    Args:
        sampler: the runner's.
        processed: [rows, vocab_size].
        given: what vLLM's method is called with.
        requests: [rows], the place of each row's request among the runner's.
        lengths: [rows], of the sequences up to the row's token; None: the device alone knows them.
    """
    states = sampler.sampling_states
    facts = {
        "temperature": (states.temperature.np[requests] != 0).astype(np.float32),
        "top_k": states.top_k.np[requests],
        "top_p": states.top_p.np[requests],
    }
    if lengths is None:
        seed, position = states.seeds.gpu[given["expanded_idx_mapping"]], given["pos"]
    else:
        seed = torch.from_numpy(states.seeds.np[requests])
        position = torch.from_numpy(lengths.astype(np.int64)) - 1
    on: dict[str, Any] = {
        name: torch.from_numpy(facts[name]) for name in ("temperature", *_filters(facts, processed.shape[1]))
    }
    token_ids = draw(processed, **on, seed=seed, position=position, facts=facts)
    vllm_served.count(len(processed))
    return _Rows(token_ids, seed, position, facts)


def _filters(facts: Facts, vocab_size: int) -> list[str]:
    """Returns which filters are on in some row."""
    is_on = {"top_k": facts["top_k"] < vocab_size, "top_p": facts["top_p"] < 1}
    return [name for name, rows in is_on.items() if rows.any()]


def _tensors(sampler: Any, given: dict[str, Any], facts: Facts) -> dict[str, Any]:
    """Returns the filters of rows on the device, [rows] each; None where no row has one."""
    on, states = _filters(facts, given["logits"].shape[1]), sampler.sampling_states
    return {
        name: getattr(states, name).gpu[given["expanded_idx_mapping"]] if name in on else None
        for name in ("top_k", "top_p")
    }


def _reported(sampler: Any, processed: Tensor, given: dict[str, Any], facts: Facts, is_asked_for: bool) -> Tensor:
    """Returns the logits that vLLM reports as processed: filtered, where somebody looks at them."""
    is_looked_at = is_asked_for and sampler.logprobs_mode.startswith("processed")
    if not (is_looked_at or getattr(sampler, "return_sampling_mask", False)):
        return processed
    filters = _tensors(sampler, given, facts)
    if all(tensor is None for tensor in filters.values()):
        return processed
    return vllm_masks.without_ties(filtered(processed, facts, top_k=filters["top_k"], top_p=filters["top_p"]))


def _verify(sampler: Any, given: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Does what V2's `RejectionSampler._verify` does.

    Args:
        sampler: vLLM's rejection sampler, which has noted how many drafts the requests ahead have.
        given: what vLLM's method is called with. Its names, for p places of r requests:
            logits: [p, vocab_size], the model's.
            draft_logits: [all requests, most drafts, vocab_size], what drafts were drawn from; None: they were not
                drawn.
            draft_sampled: int [p], the token that each place comes after: of all but a request's first, a draft.
            verify_draft_sampled: as ``draft_sampled``, -1 for drafts that a grammar forbids; before 0.32 there is none.
            pos: int64 [p], its position.
            idx_mapping_np: [r], where each request is among the runner's, on the host.
            expanded_idx_mapping: [p], where the request of each place is.
            expanded_local_pos: [p], after how many drafts.

    Returns:
        The processed logits, the tokens, int64 [r, most drafts + 1], and how many there are, int32 [r].
    """
    of_requests, draft_logits, request = given["idx_mapping_np"], given["draft_logits"], given["expanded_idx_mapping"]
    counts, sampler.counts_ahead = np.split(sampler.counts_ahead, [len(of_requests)])
    layout = ChainLayout(counts.astype(np.int64), given["logits"].device)
    lengths = sampler.lengths_ahead
    if lengths is not None:
        lengths, sampler.lengths_ahead = np.split(lengths, [len(of_requests)])
        lengths = (lengths - counts)[layout.request] + layout.column
    states, most = sampler.sampler.sampling_states, sampler.num_speculative_steps
    processed = _processed(sampler.sampler, given | {"input_ids": given["draft_sampled"]})
    rows = _draw(sampler.sampler, processed, given, of_requests[layout.request], lengths)
    judged = layout.places_of_drafts
    drawn = None
    if draft_logits is not None or sampler.use_block_verification:
        filters = _tensors(sampler.sampler, given, rows.facts)
        temperature = states.temperature.gpu[request]
        is_greedy = temperature == 0
        probabilities = target_probabilities(processed, rows.token_ids, is_greedy, **filters, facts=rows.facts)
        proposals = Proposals()
        if draft_logits is not None:
            of_drafts = draft_logits[request[judged], given["expanded_local_pos"][judged]].float()
            if not sampler.sampler.drafts_have_temperature:
                of_drafts /= temperature.masked_fill(is_greedy, 1)[judged].unsqueeze(1)
            proposals = Proposals(of_drafts.softmax(1))
        rule = "block" if sampler.use_block_verification else "standard"
        drawn = DrawnDrafts(rule, probabilities, proposals, rows.seed, rows.position)
    draft_ids = given.get("verify_draft_sampled", given["draft_sampled"])[judged + 1]
    found = verified(layout, rows.token_ids, draft_ids.to(torch.int64), drawn)
    tokens = pad(found.tokens, (0, most - layout.most), value=NO_TOKEN)
    reported = _reported(sampler.sampler, processed, given, rows.facts, True)
    return reported, tokens, (found.accepted + 1).to(torch.int32)
