"""The best entries of long rows, in an order that every device agrees on."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ascend_sample._validate import MAX_VOCAB_SIZE
from ascend_sample.sampling.total_order import first_of_total_order

CHUNK: Final = 128
"""Entries that are looked at together. The best n lie in the n chunks with the best maxima."""
MOST_NATIVE: Final = 1024
"""What the native operator returns at most: the k that its core is made for."""


def best_entries(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best entries of each row: value descending, then place ascending, so that equals never share a place.

    Args:
        values: float32 [rows, entries] without NaN.
        count: how many, at most entries.

    Returns:
        Their values, float32 [rows, count], and places, int64 [rows, count].

    Example:
        >>> best_entries(torch.tensor([[1.0, 5.0, 5.0, 2.0]]), 3)
        (tensor([[5., 5., 2.]]), tensor([[1, 2, 3]]))
    """
    rows, entries = values.shape
    chunks = entries // CHUNK
    if chunks > 2 * count:
        whole = values[:, : chunks * CHUNK].unflatten(1, (chunks, CHUNK))
        # In ascending order again, so that what is gathered keeps the order of the places.
        best_chunks = best_entries(whole.amax(dim=2), count)[1].sort(dim=1).values
        gathered = whole.gather(1, best_chunks[:, :, None].expand(-1, -1, CHUNK)).flatten(1)
        within = torch.arange(CHUNK, device=values.device)
        places = (best_chunks[:, :, None] * CHUNK + within).flatten(1)
        rest = torch.arange(chunks * CHUNK, entries, device=values.device).expand(rows, -1)
        best, order = best_entries(torch.cat((gathered, values[:, chunks * CHUNK :]), dim=1), count)
        return best, torch.cat((places, rest), dim=1).gather(1, order)
    if entries <= MAX_VOCAB_SIZE:
        return first_of_total_order(values, count)
    ordered = values.sort(dim=1, descending=True, stable=True)
    return ordered.values[:, :count], ordered.indices[:, :count]


def best_tokens(logits: Tensor, count: int, softmax_smoothing: float = 1.0) -> tuple[Tensor, Tensor]:
    """The most probable tokens of each row, in the order of `best_entries` of the divided logits.

    On a CPU a native operator reads the logits once, and no other log-probability is made. A NaN counts as -inf there.

    Args:
        logits: floats [rows, vocab_size].
        count: how many, at most vocab_size.
        softmax_smoothing: divides the logits.

    Returns:
        Their log-probabilities, float32 [rows, count], and the tokens, int64 [rows, count].

    Example:
        >>> best_tokens(torch.tensor([[0.0, 1.0, 0.0]]).log(), 2)
        (tensor([[0., -inf]]), tensor([[1, 0]]))
    """
    if logits.is_cpu and count <= MOST_NATIVE and logits.shape[1] <= MAX_VOCAB_SIZE:
        rows = logits.to(torch.float32) if logits.dtype == torch.float64 else logits
        found: tuple[Tensor, Tensor] = torch.ops.ascend_sample.best_tokens(rows, count, softmax_smoothing)
        return found
    divided = divide(logits, softmax_smoothing)
    _, tokens = best_entries(divided, count)
    return divided.log_softmax(dim=1).gather(1, tokens), tokens


def log_softmax(logits: Tensor, softmax_smoothing: float) -> Tensor:
    """Log-probabilities, float32 [rows, vocab_size], of logits / softmax_smoothing.

    Never the logarithm of a softmax, which is -inf where the softmax is too small for a float32.
    """
    return divide(logits, softmax_smoothing).log_softmax(dim=1)


def divide(logits: Tensor, softmax_smoothing: float) -> Tensor:
    """Float32 logits / softmax_smoothing, but for a constant of the row: large quotients would lose digits."""
    logits = logits.to(torch.float32)
    return logits if softmax_smoothing == 1.0 else (logits - logits.amax(dim=1, keepdim=True)) / softmax_smoothing
