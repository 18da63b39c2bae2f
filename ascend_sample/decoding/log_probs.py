"""Log-probabilities are defined for whatever a model's logits are, NaN and infinities included."""

from __future__ import annotations

import torch
from torch import Tensor

from ascend_sample.sampling.best_tokens import are_known_to_be_finite, without_nan


def log_softmax(logits: Tensor) -> Tensor:
    """Returns float32 log-probabilities along the last dimension, never NaN.

    NaN counts as -inf, and entries of +inf share the mass, as in the sampling layer. Where all are -inf, all stay so.

    Example:
        >>> log_softmax(torch.tensor([[torch.nan, 1.0, 1.0], [torch.inf, 1.0, -torch.inf]])).exp()
        tensor([[0.0000, 0.5000, 0.5000],
                [1.0000, 0.0000, 0.0000]])
    """
    if logits.is_cpu and are_known_to_be_finite(logits.amax(dim=-1)):  # NaN is the maximum of its row
        return logits.log_softmax(dim=-1, dtype=torch.float32)
    logits = without_nan(logits)
    maxima = logits.amax(dim=-1, keepdim=True)
    shared = torch.zeros_like(logits).masked_fill(logits != torch.inf, -torch.inf)
    return without_nan(torch.where(maxima == torch.inf, shared, logits).log_softmax(dim=-1))


def log_probs_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Returns what `log_softmax` has at tokens, float32 in the shape of tokens.

    Args:
        logits: floats [..., vocab_size].
        tokens: int64 [...], one for each vector of logits.

    Example:
        >>> log_probs_of(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([1])).exp()
        tensor([0.5000])
    """
    return log_softmax(logits).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
