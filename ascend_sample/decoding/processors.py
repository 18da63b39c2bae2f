"""What changes a step's log-probabilities and transformers does not have (any more)."""

from __future__ import annotations

import torch
from torch import Tensor


def hamming_diversity(log_probs: Tensor, earlier_tokens: Tensor, diversity_penalty: float) -> Tensor:
    """Lowers the log-probabilities of what other beams of the prompt have chosen in this step, as often as they have.

    Args:
        log_probs: float32 [batch, beams, vocab_size].
        earlier_tokens: int64 [batch, n], what was chosen already; n may be 0. What is beyond the vocabulary, as a
            padding token may be, lowers nothing.
        diversity_penalty: what is subtracted for each time.

    Returns:
        float32 [batch, beams, vocab_size].

    Example:
        >>> hamming_diversity(torch.zeros(1, 1, 4), torch.tensor([[2, 0, 2]]), 0.5)
        tensor([[[-0.5000,  0.0000, -1.0000,  0.0000]]])

    Source: docs/decoding.md, section "Group beam search"; Vijayakumar et al., "Diverse beam search", 2016.
    """
    batch, _, vocab_size = log_probs.shape
    is_token = earlier_tokens < vocab_size
    penalties = is_token.to(torch.float32) * diversity_penalty
    of_tokens = torch.zeros(batch, vocab_size, device=log_probs.device)
    of_tokens.scatter_add_(1, earlier_tokens.where(is_token, 0), penalties)
    return log_probs - of_tokens[:, None]
