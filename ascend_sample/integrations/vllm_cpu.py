"""What vLLM's V1 runner does before and after a draw, where it does that on a CPU: in fewer reads of the logits.

The numbers are vLLM's: each function here is its own definition, done to what it concerns. On a device vLLM does it.
tests/integrations/vllm_parity.py compares them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

import torch
from torch import Tensor

from ascend_sample.integrations._broken_logits import has_nan, say_seen_at
from ascend_sample.integrations._importing import when_imported
from ascend_sample.integrations._late_tensors import LateLogprobs, source_of
from ascend_sample.integrations._replacing import replacing
from ascend_sample.integrations._vllm_metadata import (
    IDLE,
    MIN_P,
    SMALLEST_TEMPERATURE,
    is_unedited,
    is_vllms,
    names_ids,
)
from ascend_sample.integrations.vllm_served import draw_here, draws_here

SAMPLER: Final = "vllm.v1.sample.sampler"
PENALTIES: Final = "vllm.v1.sample.ops.penalties"

_may_wait: Final[ContextVar[bool]] = ContextVar("may_wait", default=True)
"""Nobody changes logits in place between the call that makes logprobs of them and the one that looks some up."""


def install() -> None:
    """Puts the functions below in the place of vLLM's, for tensors on the CPU; a second call changes nothing."""
    when_imported(SAMPLER, lambda module: install_sampler(getattr(module, "Sampler", None)))
    when_imported(PENALTIES, lambda module: _replace(module, "apply_penalties", apply_penalties))


def install_sampler(sampler: type[Any] | None) -> None:
    """Replaces methods of V1's sampler, for tensors on the CPU; a second call changes nothing."""
    _replace(sampler, "sample", sample)
    _replace(sampler, "compute_logprobs", compute_logprobs)
    _replace(sampler, "gather_logprobs", gather_logprobs)
    _replace(sampler, "gather_specific_token_logprobs", gather_specific_token_logprobs)  # 0.18 has none

    @replacing(sampler, "greedy_sample")
    def best_and_say(own: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
        token_ids = own(logits)
        if logits.is_cpu:
            say_seen_at(logits, token_ids)
        return token_ids

    @replacing(sampler, "forward")
    def forward(
        own: Callable[..., Any], self: Any, logits: Tensor, sampling_metadata: Any, *more: Any, **named: Any
    ) -> Any:
        asked = sampling_metadata
        if not logits.is_cpu or (asked.max_num_logprobs is None and not names_ids(asked)):
            return own(self, logits, asked, *more, **named)
        token = _may_wait.set(_leaves_logits(self, logits, asked))
        token_of_nan = has_nan.set(False)
        try:
            return own(self, logits, asked, *more, **named)
        finally:
            _may_wait.reset(token)
            has_nan.reset(token_of_nan)


def _replace(owner: Any, name: str, ours: Callable[..., Any]) -> None:
    """Replaces a function of a module or class, if that is there; what ours returns None for, its own does."""

    @replacing(owner, name)
    def on_a_cpu(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        first = next(argument for argument in (*arguments, *named.values()) if isinstance(argument, Tensor))
        done = ours(*arguments, **named) if first.is_cpu else None
        return original(*arguments, **named) if done is None else done


def sample(
    sampler: Any, logits: Tensor, sampling_metadata: Any, logprobs_mode_override: str | None = None
) -> tuple[Tensor, None] | None:
    """Draws a step's tokens of logits as they are: temperature, min-p and greedy rows are done with the draw.

    Args:
        sampler: V1's.
        logits: float32 [rows, vocab_size]. Rows with min-p and top-p are changed, no others.
        sampling_metadata: what the rows ask for.
        logprobs_mode_override: in the place of the sampler's.

    Returns:
        int64 [rows], and None for what is reported. None where vLLM does it: for a greedy step, where the processed
        modes report what is drawn from, and where a foreign processor changes logits after the temperature.
    """
    asked = sampling_metadata
    if asked.all_greedy or not draws_at_once(sampler, asked, logprobs_mode_override):
        return None
    temperature = temperatures(asked)
    min_p = _min_p(asked)
    if min_p is not None and asked.top_p is not None:
        min_p = _apply_before_top_p(logits, temperature, min_p, asked.top_p)
    filters = {"top_k": asked.top_k, "top_p": asked.top_p, "min_p": min_p}
    rows = (sampler.topk_topp_sampler, logits, asked.generators)

    def with_best(drawn: Tensor) -> Tensor:
        return torch.where(temperature == 0, sampler.greedy_sample(logits), drawn)

    return draw_here(*rows, at_nan=with_best, temperature=temperature, **filters), None


def draws_at_once(sampler: Any, sampling_metadata: Any, logprobs_mode: str | None = None) -> bool:
    """Tells whether `sample` draws a step that is not greedy. All steps of an engine have the same answer."""
    return (
        draws_here(sampler.topk_topp_sampler)
        and not (logprobs_mode or sampler.logprobs_mode).startswith("processed")
        and all(
            is_vllms(each) and type(each).__name__ == MIN_P for each in sampling_metadata.logitsprocs.argmax_invariant
        )
    )


def temperatures(sampling_metadata: Any) -> Tensor:
    """Returns the temperatures of a step that is not greedy, float32 [rows]: 0 of its greedy rows."""
    temperature: Tensor = sampling_metadata.temperature
    if sampling_metadata.all_random:
        return temperature
    return temperature.masked_fill(temperature < SMALLEST_TEMPERATURE, 0)


def _leaves_logits(sampler: Any, logits: Tensor, sampling_metadata: Any) -> bool:
    """Tells whether a step changes no logits in place, and looks no more logprobs up than `gather_logprobs` does."""
    asked = sampling_metadata
    if asked.max_num_logprobs == -1:
        return False
    if logits.dtype != torch.float32:  # what is changed is a copy
        return True
    is_masked = asked.top_p is not None and _min_p(asked) is not None
    return is_unedited(asked) and (asked.all_greedy or (draws_at_once(sampler, asked) and not is_masked))


def _min_p(sampling_metadata: Any) -> Tensor | None:
    """Returns the rows' min-p, float32 [rows], of a step that is drawn at once; None where none has it."""
    for processor in sampling_metadata.logitsprocs.argmax_invariant:
        if getattr(processor, IDLE[MIN_P], 0):
            return processor.min_p.flatten()  # type: ignore[no-any-return]
    return None


def _apply_before_top_p(logits: Tensor, temperature: Tensor, min_p: Tensor, top_p: Tensor) -> Tensor:
    """Masks, in place, what is less likely than min-p times the best, of rows with top-p, as vLLM does it before that.

    Returns:
        The min-p of the other rows, for which the order does not matter.
    """
    is_early = (min_p > 0) & (top_p < 1) & (temperature > 0)
    rows = is_early.nonzero().flatten()
    bounds = logits[rows].amax(1) + temperature[rows] * min_p[rows].log()
    below = bounds.nextafter(torch.full_like(bounds, -torch.inf))
    for row, bound in zip(rows.tolist(), below.tolist(), strict=True):
        if bound > -torch.inf:  # no NaN is there
            torch.nn.functional.threshold(logits[row], bound, -torch.inf, inplace=True)
    return min_p.masked_fill(is_early, 0)


def compute_logprobs(logits: Tensor) -> Tensor | None:
    """Returns logprobs that are made when somebody looks at them, where the logits stay until then; else None.

    Args:
        logits: floats [rows, vocab_size].
    """
    return LateLogprobs(logits) if _may_wait.get() else None


def gather_logprobs(logprobs: Tensor, num_logprobs: int, token_ids: Tensor, named: Tensor | None = None) -> Any:
    """Looks up the best tokens, the given ones and their ranks, in one read: of draws, of prompts and of drafts.

    Args:
        logprobs: floats [rows, vocab_size].
        num_logprobs: how many of the best are wanted.
        token_ids: int64 [rows], the tokens that come first.
        named: int64 [rows, ids], those that come last; None: there are none.

    Returns:
        vLLM's `LogprobsTensors`. Of equals the lowest ids come first. None where vLLM does it: a row has a NaN, which
        the operator would count as -inf.
    """
    outputs = importlib.import_module("vllm.v1.outputs")
    logits = source_of(logprobs, LateLogprobs)
    given = logprobs if logits is None else logits
    is_late = logits is not None
    was_seen = has_nan.get() if is_late else None  # by the draw, of these very logits
    if given.sum().isnan() if was_seen is None else was_seen:
        return None
    values, ids, (ranks,) = torch.ops.ascend_sample.row_logprobs(
        given, None, token_ids, num_logprobs, is_late, named=named
    )
    return outputs.LogprobsTensors(ids.to(torch.int32), values, ranks)


def gather_specific_token_logprobs(
    sampler: Any, logprobs: Tensor, logprob_token_ids: Mapping[int, Sequence[int]], sampled: Tensor
) -> Any:
    """Looks up the ids that requests name, the drawn ones before them and the ranks of these, in one read.

    Args:
        sampler: V1's.
        logprobs: floats [rows, vocab_size].
        logprob_token_ids: the ids of each row that names some.
        sampled: int64 [rows], the drawn ones.

    Returns:
        vLLM's `LogprobsTensors`. Behind a row's own ids it has 0, with -inf.
    """
    named = torch.zeros(len(logprobs), max(map(len, logprob_token_ids.values())), dtype=torch.int64, device="cpu")
    is_named = torch.zeros_like(named, dtype=torch.bool)
    for row, ids in logprob_token_ids.items():
        named[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64, device="cpu")
        is_named[row, : len(ids)] = True
    found = gather_logprobs(logprobs, 0, sampled, named)
    if found is None:
        return None
    found.logprobs[:, 1:].masked_fill_(~is_named, -torch.inf)
    return found


def apply_penalties(
    logits: Tensor,
    prompt_tokens_tensor: Tensor,
    output_tokens_tensor: Tensor,
    presence_penalties: Tensor,
    frequency_penalties: Tensor,
    repetition_penalties: Tensor,
) -> Tensor | None:
    """Penalises the logits of what has occurred, in place; None, and nothing is done, if rows are not contiguous.

    Args:
        logits: float32 [rows, vocab_size].
        prompt_tokens_tensor: int64 [rows, tokens], padded with vocab_size.
        output_tokens_tensor: int64 [rows, tokens], as well.
        presence_penalties: float32 [rows], as the others.
        frequency_penalties: the same.
        repetition_penalties: the same.

    Example:
        >>> logits, one = torch.tensor([[2.0, -2.0, 3.0]]), torch.ones(1)
        >>> apply_penalties(logits, torch.tensor([[1, 3]]), torch.tensor([[0, 0]]), 0 * one, 0.25 * one, 2 * one)
        tensor([[ 0.5000, -4.0000,  3.0000]])
    """
    if not logits.is_contiguous():
        return None
    vocab_size = logits.shape[1]
    flat = logits.view(-1)
    starts = (torch.arange(len(logits), device="cpu") * vocab_size).unsqueeze(1)

    def penalise(ids: Tensor, *numbers: Tensor, penalised: Callable[..., Tensor]) -> None:
        """Penalises ids, of which each place gets the same logit."""
        is_there = ids < vocab_size
        places = (ids + starts)[is_there]
        of_ids = (number.expand_as(ids)[is_there] for number in numbers)
        flat[places] = penalised(flat[places], *of_ids)

    ids = torch.cat((prompt_tokens_tensor, output_tokens_tensor), 1)
    penalise(ids, repetition_penalties.unsqueeze(1), penalised=_repeated)
    ordered = output_tokens_tensor.sort(1).values
    counts = torch.searchsorted(ordered, ordered, right=True) - torch.searchsorted(ordered, ordered)
    numbers = (frequency_penalties.unsqueeze(1), counts, presence_penalties.unsqueeze(1))
    penalise(ordered, *numbers, penalised=lambda logit, each, count, once: logit - each * count - once)
    return logits


def _repeated(logit: Tensor, penalty: Tensor) -> Tensor:
    return logit * torch.where(logit > 0, 1 / penalty, penalty)
