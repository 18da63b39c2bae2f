"""The kept set of each row, as logits: what engines call processed logits, and what logprobs of them are taken from."""

from __future__ import annotations

import torch
from torch import Tensor

from ascend_sample.sampling.serving import cleaned_rows, divided_by_temperature
from ascend_sample.sampling.total_order import mask_below_top_k


def filter_logits(
    logits: Tensor,
    *,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    keep_ties: bool = False,
) -> Tensor:
    """Returns logits / temperature where top-k, top-p and min-p keep an entry, and -inf elsewhere.

    A softmax of the result is the distribution that `sample_rows` draws from.

    Args:
        logits: float32, float16 or bfloat16 [rows, vocab_size]. NaN counts as -inf; where there is +inf, nothing else
            is kept.
        temperature: float32 [rows] >= 0; a row of 0 keeps its best token alone, with its logit. None: 1.
        top_k: int [rows]; outside [1, vocab_size) means off. None: off.
        top_p: float32 [rows]; 1 means off. None: off.
        min_p: float32 [rows]; 0 means off. None: off.
        keep_ties: top-k keeps every logit that is equal to the k-th.

    Returns:
        float32 [rows, vocab_size].

    Example:
        >>> filter_logits(torch.tensor([[4.0, 2.0, 3.0]]), temperature=torch.tensor([0.5]), top_k=torch.tensor([2]))
        tensor([[8., -inf, 6.]])

    Source: docs/sampling.md, section 1 "What is drawn".
    """
    cleaned = cleaned_rows(logits)
    values = cleaned.logits
    rows = values.shape[:1]
    if temperature is None:
        temperature = torch.ones(rows, device=values.device)
    is_greedy = temperature == 0
    if top_k is not None:
        values = mask_below_top_k(values, top_k, keep_ties)
    values = mask_below_top_k(values, is_greedy.to(torch.int32), keep_ties=False, most=1)
    scaled = divided_by_temperature(values, cleaned.maximum, temperature)
    weights = scaled.exp()
    is_kept = scaled > -torch.inf
    if top_p is not None:
        is_kept &= _is_in_nucleus(weights, values, top_p)
    if min_p is not None:
        is_kept &= weights >= min_p.unsqueeze(1)
    divisor = torch.where(is_greedy, 1.0, temperature).unsqueeze(1)
    return (values / divisor).masked_fill(~is_kept, -torch.inf)


def _is_in_nucleus(weights: Tensor, values: Tensor, top_p: Tensor) -> Tensor:
    """Tells of each entry whether the weights before it, in the total order, are no more than top_p of all."""
    _, order = values.sort(dim=1, descending=True, stable=True)
    # Devices whose float64 is missing or emulated use float32.
    ranked = weights.gather(1, order).to(torch.float64 if values.is_cpu or values.is_cuda else torch.float32)
    sums = ranked.cumsum(1)
    target = top_p.unsqueeze(1) * sums[:, -1:]  # a sum apart would be rounded by the number of rows
    stays = (sums - ranked <= target) | (top_p.unsqueeze(1) >= 1)
    stays[:, 0] = True
    return torch.zeros_like(stays).scatter_(1, order, stays)
