"""vLLM's V1 runner looks its logprobs up by the CPU kernel: the best ones, the token's, and its rank, in one read.

What they are numbers of stays vLLM's: of raw logits or processed ones, normalised or not. On a device all of it does.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor


def install(sampler: type[Any]) -> None:
    """Lets V1's sampler gather logprobs of the CPU here; a second call changes nothing.

    Args:
        sampler: the class, whose static method `gather_logprobs` is replaced. vLLM uses it for prompts too, and for the
            places of drafts.
    """
    original = sampler.gather_logprobs
    if hasattr(original, "replaced"):
        return

    @functools.wraps(original)
    def gather_logprobs(logprobs: Tensor, num_logprobs: int, token_ids: Tensor) -> Any:
        if not logprobs.is_cpu:
            return original(logprobs, num_logprobs, token_ids)
        outputs = importlib.import_module("vllm.v1.outputs")
        return outputs.LogprobsTensors(*gathered(logprobs, num_logprobs, token_ids))

    gather_logprobs.replaced = original  # type: ignore[attr-defined]
    sampler.gather_logprobs = staticmethod(gather_logprobs)


def gathered(logprobs: Tensor, count: int, token_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what vLLM's `LogprobsTensors` begin with.

    Args:
        logprobs: floats [rows, vocab_size] on the CPU; NaN counts as -inf.
        count: how many of the best are wanted.
        token_ids: int64 [rows], the tokens that come first.

    Returns:
        int32 [rows, 1 + count], the tokens and the best ones, of equals the lowest ids first; float32
        [rows, 1 + count], theirs; and int64 [rows], how many have at least the token's.

    Example:
        >>> gathered(torch.tensor([[-3.0, -0.1, -3.0]]), 2, torch.tensor([2]))
        (tensor([[2, 1, 0]], dtype=torch.int32), tensor([[-3.0000, -0.1000, -3.0000]]), tensor([3]))
    """
    values, ids, ranks, _ = torch.ops.ascend_sample.row_logprobs(logprobs, None, token_ids, count, False)
    return ids.to(torch.int32), values, ranks
