"""The best tokens of rows in few launches: on a device it costs how many operators are asked for, not how many bits.

On a CPU it is `ascend_sample.sampling.best_tokens` that serves; elsewhere the same bits come from what is here.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ascend_sample.sampling import best_tokens as on_cpu
from ascend_sample.sampling.best_tokens import CHUNK, divide, without_nan

_LEAST: Final = torch.finfo(torch.float32).min


def best_entries(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns what `ascend_sample.sampling.best_tokens.best_entries` does.

    Args:
        values: float32 [rows, entries] without NaN.
        count: how many, at most entries.

    Returns:
        Their values, float32 [rows, count], and places, int64 [rows, count].
    """
    if values.is_cpu:
        return on_cpu.best_entries(values, count)
    entries = values.shape[1]
    chunks = entries // CHUNK
    if chunks <= 2 * count:
        return _first(values, count)
    whole = values[:, : chunks * CHUNK].unflatten(1, (chunks, CHUNK))
    # In ascending order again, so that what is gathered keeps the order of the places.
    best_chunks = _first(whole.amax(dim=2), count)[1].sort(dim=1).values
    gathered = whole.gather(1, best_chunks[:, :, None].expand(-1, -1, CHUNK)).flatten(1)
    if chunks * CHUNK < entries:
        gathered = torch.cat((gathered, values[:, chunks * CHUNK :]), dim=1)
        best_chunks = torch.nn.functional.pad(best_chunks, (0, 1), value=chunks)
    best, places = _first(gathered, count)
    nth = places.div(CHUNK, rounding_mode="floor")
    return best, torch.add(places, best_chunks.gather(1, nth) - nth, alpha=CHUNK)


def best_tokens(logits: Tensor, count: int, softmax_smoothing: float) -> tuple[Tensor, Tensor]:
    """Returns what `ascend_sample.sampling.best_tokens.best_tokens` does, but NaN for rows of -inf alone on a device.

    Args:
        logits: floats [rows, vocab_size].
        count: how many, at most vocab_size.
        softmax_smoothing: divides the logits; a positive float32.

    Returns:
        Log-probabilities, float32 [rows, count], the same bits as in `all_log_probs`, and tokens, int64 [rows, count].
    """
    if logits.is_cpu:
        return on_cpu.best_tokens(logits, count, softmax_smoothing)
    divided = _divide(logits, softmax_smoothing)
    best, tokens = best_entries(divided, count)
    differences, of_best = _relative(divided, best[:, :1])
    return differences.gather(1, tokens).sub_(of_best), tokens


def all_log_probs(logits: Tensor, softmax_smoothing: float) -> Tensor:
    """Returns what `ascend_sample.sampling.best_tokens.all_log_probs` does."""
    if logits.is_cpu:
        return on_cpu.all_log_probs(logits, softmax_smoothing)
    divided = _divide(logits, softmax_smoothing)
    differences, of_best = _relative(divided, divided.amax(dim=1, keepdim=True))
    return differences.sub_(of_best).nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def _divide(logits: Tensor, softmax_smoothing: float) -> Tensor:
    return without_nan(logits) if softmax_smoothing == 1.0 else divide(logits, softmax_smoothing)


def _first(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    ordered = values.sort(dim=1, descending=True, stable=True)
    return ordered.values[:, :count], ordered.indices[:, :count]


def _relative(divided: Tensor, maxima: Tensor) -> tuple[Tensor, Tensor]:
    """Returns how far each entry is from its row's best, and the logarithm of the sum of their exponentials.

    A row of -inf alone has -inf for both, so that their difference is NaN.
    """
    # The difference of two equal infinities is NaN.
    differences = (divided - maxima.clamp_min(_LEAST)).nan_to_num_(nan=0.0, posinf=torch.inf, neginf=-torch.inf)
    return differences, _sum_of_rows(differences.exp()).log()


def _sum_of_rows(values: Tensor) -> Tensor:
    """Returns what `ascend_sample.sampling.best_tokens.sum_of_rows` does: float32 [rows, 1], a view."""
    entries = values.shape[1]
    while entries > 1:
        half = (entries + 1) // 2
        if entries % 2:
            values[:, : entries - half] += values[:, half:entries]
        else:  # a result of its own takes one launch, and a part of another two
            values = values[:, :half] + values[:, half:entries]
        entries = half
    return values[:, :1]
