"""What vLLM's V1 runner does before and after a draw, where it does that on a CPU: in fewer reads of the logits.

The numbers are vLLM's: each function here is its own definition, done to what it concerns. On a device vLLM does it.
tests/integrations/vllm_parity.py compares them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ascend_sample.integrations._importing import when_imported
from ascend_sample.integrations._replacing import replacing
from ascend_sample.integrations.vllm_drafts import SMALLEST_TEMPERATURE

SAMPLER: Final = "vllm.v1.sample.sampler"
PENALTIES: Final = "vllm.v1.sample.ops.penalties"
PROCESSORS: Final = "vllm.v1.sample.logits_processor.builtin"


def install() -> None:
    """Puts the functions below in the place of vLLM's, for tensors on the CPU; a second call changes nothing."""
    when_imported(SAMPLER, _take_sampler)
    when_imported(PENALTIES, lambda module: _replace(module, "apply_penalties", apply_penalties))
    when_imported(PROCESSORS, lambda module: _replace(module.MinPLogitsProcessor, "apply", apply_min_p))


def _take_sampler(module: Any) -> None:
    sampler = getattr(module, "Sampler", None)
    _replace(sampler, "gather_logprobs", gather_logprobs)
    _replace(sampler, "apply_temperature", apply_temperature)


def _replace(owner: Any, name: str, ours: Callable[..., Any]) -> None:
    """Replaces a function of a module or class, if that is there; what ours returns None for, its own does."""

    @replacing(owner, name)
    def on_a_cpu(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        first = next(argument for argument in (*arguments, *named.values()) if isinstance(argument, Tensor))
        done = ours(*arguments, **named) if first.is_cpu else None
        return original(*arguments, **named) if done is None else done


def gather_logprobs(logprobs: Tensor, num_logprobs: int, token_ids: Tensor) -> Any:
    """Looks up the best tokens, the given ones and their ranks, in one read: of draws, of prompts and of drafts.

    Args:
        logprobs: floats [rows, vocab_size]; NaN counts as -inf.
        num_logprobs: how many of the best are wanted.
        token_ids: int64 [rows], the tokens that come first.

    Returns:
        vLLM's `LogprobsTensors`. Of equals the lowest ids come first.
    """
    outputs = importlib.import_module("vllm.v1.outputs")
    values, ids, ranks, _ = torch.ops.ascend_sample.row_logprobs(logprobs, None, token_ids, num_logprobs, False)
    return outputs.LogprobsTensors(ids.to(torch.int32), values, ranks)


def apply_temperature(logits: Tensor, temp: Tensor, all_random: bool) -> Tensor | None:
    """Returns the logits as they are, where all temperatures are 1, or of greedy rows; else None.

    Args:
        logits: float32 [rows, vocab_size].
        temp: float32 [rows], the temperatures.
        all_random: no row is greedy, as vLLM knows it.
    """
    divides = temp != 1
    if not all_random:
        divides &= temp >= SMALLEST_TEMPERATURE
    return None if bool(divides.any()) else logits


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
    starts = (torch.arange(len(logits)) * vocab_size).unsqueeze(1)

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


def apply_min_p(processor: Any, logits: Tensor) -> Tensor:
    """Masks, in place, what is less likely than ``processor.min_p``, float32 [rows, 1], times the best."""
    if processor.min_p_count:
        bounds = logits.amax(1) + processor.min_p.squeeze(1).log()
        below = bounds.nextafter(torch.full_like(bounds, -torch.inf))
        for row, bound in zip(logits, below.tolist(), strict=True):
            if bound > -torch.inf:  # neither a row without the filter, nor one with a NaN
                torch.nn.functional.threshold(row, bound, -torch.inf, inplace=True)
    return logits
