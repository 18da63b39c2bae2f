"""The best entries of long rows, in an order that every device agrees on."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ascend_sample._contract import MAX_VOCAB_SIZE
from ascend_sample.sampling.total_order import first_of_total_order

CHUNK: Final = 128
"""Entries that are looked at together. The best n lie in the n chunks with the best maxima."""
MOST_NATIVE: Final = 1024
"""What the native operator returns at most: the k that its core is made for."""


def without_nan(values: Tensor) -> Tensor:
    """Returns the values as float32, with -inf where they are NaN."""
    return values.to(torch.float32).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def are_known_to_be_finite(maxima: Tensor) -> bool:
    """Tells whether maxima are known to be finite: a look that costs nothing on a CPU, and saves passes over rows."""
    return maxima.is_cpu and bool(maxima.isfinite().all())


def best_entries(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the best entries of each row: value descending, then place ascending, so that equals never share a place.

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
    """Returns the most probable tokens of each row, in the order of `best_entries` of the divided logits.

    On a CPU a native operator reads the logits once, and no other log-probability is made.

    Args:
        logits: floats [rows, vocab_size].
        count: how many, at most vocab_size.
        softmax_smoothing: divides the logits; a positive float32.

    Returns:
        Their log-probabilities, float32 [rows, count], the same bits as in `all_log_probs`, and the tokens, int64
        [rows, count].

    Example:
        >>> best_tokens(torch.tensor([[0.0, 1.0, 0.0]]).log(), 2)
        (tensor([[0., -inf]]), tensor([[1, 0]]))
    """
    if count <= MOST_NATIVE and has_native_operator(logits):
        found, tokens = native_best_tokens(logits, count, softmax_smoothing)
        of_best = found[:, :1]
    else:
        tokens = best_entries(divide(logits, softmax_smoothing), count)[1]
        of_best = log_prob_of_best(logits, softmax_smoothing)
    # The row's best is among them, so they are divided as in the whole row.
    return relative_to_best(divide(logits.gather(1, tokens), softmax_smoothing), of_best), tokens


def all_log_probs(logits: Tensor, softmax_smoothing: float) -> Tensor:
    """Returns log-probabilities, float32 [rows, vocab_size], of logits / softmax_smoothing; they are never NaN.

    NaN counts as -inf, and entries of +inf share the mass. Where all are -inf, all stay so.
    """
    return relative_to_best(divide(logits, softmax_smoothing), log_prob_of_best(logits, softmax_smoothing))


def log_prob_of_best(logits: Tensor, softmax_smoothing: float) -> Tensor:
    """Returns each row's largest log-probability, float32 [rows, 1]: all that a device may round otherwise than a CPU.

    It is a function of the row alone, whatever the batch is.
    """
    if has_native_operator(logits):
        return native_best_tokens(logits, 1, softmax_smoothing)[0]
    divided = divide(logits, softmax_smoothing)
    maxima = divided.amax(dim=1, keepdim=True)
    weights = relative_to_best(divided, torch.zeros_like(maxima)).exp_()
    return (-sum_of_rows(weights).log()).masked_fill_(maxima == -torch.inf, -torch.inf)


def sum_of_rows(values: Tensor) -> Tensor:
    """Adds up each row, by halves that are added to one another.

    Torch's own sums choose an order by the shape of the whole tensor, so the last bits of a row's sum depend on how
    many other rows there are. Here each addition is rounded by itself, the same way on every device.

    Args:
        values: float32 [rows, entries], at least one entry. They are written over.

    Returns:
        float32 [rows, 1], a view.

    Example:
        >>> sum_of_rows(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
        tensor([[ 6.],
                [15.]])
    """
    entries = values.shape[1]
    while entries > 1:
        half = (entries + 1) // 2
        values[:, : entries - half] += values[:, half:entries]
        entries = half
    return values[:, :1]


def relative_to_best(divided: Tensor, of_best: Tensor) -> Tensor:
    """Returns log-probabilities of divided logits, float32 [rows, n], the best of each row being among them.

    They are never the logarithm of a softmax, which is -inf where the softmax is too small for a float32.
    """
    maxima = divided.amax(dim=1, keepdim=True)
    differences = divided - maxima
    if not are_known_to_be_finite(maxima):  # the difference of two equal infinities is NaN
        differences.nan_to_num_(nan=0.0, posinf=torch.inf, neginf=-torch.inf)
    return differences.add_(of_best)


def divide(logits: Tensor, softmax_smoothing: float) -> Tensor:
    """Returns float32 logits / softmax_smoothing, but for a constant of the row: large quotients would lose digits.

    NaN becomes -inf. A row whose maximum is infinite is not divided: +inf decides alone.
    """
    logits = logits.to(torch.float32)
    if not are_known_to_be_finite(logits.amax(dim=1, keepdim=True)):  # NaN is the maximum of its row
        logits = without_nan(logits)
    if softmax_smoothing == 1.0:
        return logits
    maxima = logits.amax(dim=1, keepdim=True)
    return torch.where(maxima.isfinite(), (logits - maxima) / softmax_smoothing, logits)


def has_native_operator(logits: Tensor) -> bool:
    """Tells whether `native_best_tokens` takes the logits."""
    return logits.is_cpu and logits.shape[1] <= MAX_VOCAB_SIZE


def native_best_tokens(logits: Tensor, count: int, softmax_smoothing: float) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities and tokens of the best, from float64 sums that depend on a row and its dtype alone."""
    rows = logits.to(torch.float32) if logits.dtype == torch.float64 else logits
    found: tuple[Tensor, Tensor] = torch.ops.ascend_sample.best_tokens(rows, count, softmax_smoothing)
    return found
