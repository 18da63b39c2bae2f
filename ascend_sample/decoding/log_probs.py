"""Log-probabilities are defined for whatever a model's logits are, NaN and infinities included."""

from __future__ import annotations

import torch
from torch import Tensor

from ascend_sample.decoding.places import at_tokens
from ascend_sample.sampling.draws.best_tokens import are_known_to_be_finite, without_nan


def log_softmax(logits: Tensor) -> Tensor:
    """Returns float32 log-probabilities along the last dimension, never NaN.

    NaN counts as -inf, and entries of +inf share the mass, as in the sampling layer. Where all are -inf, all stay so.

    Example:
        >>> log_softmax(torch.tensor([[torch.nan, 1.0, 1.0], [torch.inf, 1.0, -torch.inf]])).exp()
        tensor([[0.0000, 0.5000, 0.5000],
                [1.0000, 0.0000, 0.0000]])
    """
    return without_nan(_log_softmax(logits))


def log_probs_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Returns what `log_softmax` has at tokens, float32 in the shape of tokens.

    Args:
        logits: floats [..., vocab_size].
        tokens: int64 [...], one for each vector of logits, or [..., n], several.

    Example:
        >>> log_probs_of(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([1])).exp()
        tensor([0.5000])
    """
    return without_nan(at_tokens(_log_softmax(logits), tokens))


def log_probs_of_usual(logits: Tensor, tokens: Tensor) -> Tensor:
    """Returns what `log_probs_of` does, in a third of its launches; NaN for rows of NaN, of +inf, or of -inf alone."""
    return at_tokens(logits.log_softmax(dim=-1, dtype=torch.float32), tokens)


def _log_softmax(logits: Tensor) -> Tensor:
    """Returns what `log_softmax` does, but NaN for a row where all are -inf."""
    if logits.is_cpu and are_known_to_be_finite(logits.amax(dim=-1)):  # NaN is the maximum of its row
        return logits.log_softmax(dim=-1, dtype=torch.float32)
    logits = without_nan(logits)
    # Equal infinities leave NaN, which is 0 for the maximum. Where all are -inf, they stay so: the base is finite.
    base = logits.amax(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).min)
    return (logits - base).nan_to_num_(nan=0.0, posinf=torch.inf, neginf=-torch.inf).log_softmax(dim=-1)
