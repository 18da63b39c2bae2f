"""What people write in torch to sample without this operator, in its fastest form."""

from __future__ import annotations

import torch

MOST_TRIED = 1024
"""Top-p alone looks at so many of the best entries before it sorts a row."""


def sample_compact(logits: torch.Tensor, k: int | None, p: float | None, q: torch.Tensor) -> torch.Tensor:
    """Samples by `torch.topk` and tensors of [batch, k]; noise belongs to ranks, as in the operator.

    Top-p alone draws from softmax(logits) of what it keeps, not from a second softmax.

    Args:
        logits: [batch, vocab_size].
        k: how many of the best are kept; None for all.
        p: the probability that is kept; None for all.
        q: float32 [batch, vocab_size], Exponential(1).

    Returns:
        int64 [batch], the drawn ids.

    Example:
        >>> sample_compact(torch.tensor([[0.0, 9.0, 1.0]]), 1, None, torch.ones(1, 3))
        tensor([1])
    """
    if k is not None:
        values, ids = logits.topk(k)
        return _draw(values.float().softmax(dim=-1), ids, p, q)
    if p is None:
        return logits.softmax(dim=-1, dtype=torch.float32).div_(q).argmax(dim=-1)
    return _sample_top_p(logits, p, q)


def _sample_top_p(logits: torch.Tensor, p: float, q: torch.Tensor) -> torch.Tensor:
    values, ids = logits.topk(min(MOST_TRIED, logits.shape[-1]))
    probabilities = (values.float() - logits.float().logsumexp(dim=-1, keepdim=True)).exp_()
    is_enough = probabilities.sum(dim=-1) > p
    if bool(is_enough.all()):
        return _draw(probabilities, ids, p, q)
    selected = torch.empty_like(ids[:, 0])
    selected[is_enough] = _draw(probabilities[is_enough], ids[is_enough], p, q[is_enough, : ids.shape[1]])
    rest = ~is_enough
    values, ids = logits[rest].float().sort(dim=-1, descending=True)
    selected[rest] = _draw(values.softmax(dim=-1), ids, p, q[rest])
    return selected


def _draw(probabilities: torch.Tensor, ids: torch.Tensor, p: float | None, q: torch.Tensor) -> torch.Tensor:
    """Draws the winner among the entries whose predecessors' probabilities do not exceed p."""
    scores = probabilities / q[:, : probabilities.shape[1]]
    if p is not None:
        scores.masked_fill_(probabilities.cumsum(dim=-1) - probabilities > p, 0.0)
    return ids.gather(1, scores.argmax(dim=-1, keepdim=True)).squeeze(1)
