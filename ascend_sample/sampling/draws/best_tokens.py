"""The best entries of long rows, in an order that every device agrees on."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ascend_sample._contract import MAX_VOCAB_SIZE
from ascend_sample.sampling.draws.total_order import first_of_total_order

CHUNK: Final = 128
"""Entries that are looked at together. The best n lie in the n chunks with the best maxima."""
LEAST: Final = torch.finfo(torch.float32).min


def without_nan(values: Tensor) -> Tensor:
    """Returns the values as float32, with -inf where they are NaN."""
    return values.to(torch.float32).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def are_known_to_be_finite(maxima: Tensor) -> bool:
    """Tells whether maxima are known to be finite: a look that costs nothing on a CPU, and saves passes over rows."""
    return maxima.is_cpu and bool(maxima.isfinite().all())


def chunk_lanes(device: torch.device) -> Tensor | None:
    """Makes what `best_entries` takes as lanes, once for all steps; a CPU needs none."""
    return None if device.type == "cpu" else torch.arange(CHUNK, device=device)


def best_entries(values: Tensor, count: int, lanes: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns the best entries of each row: value descending, then place ascending, so that equals never share a place.

    Args:
        values: float32 [rows, entries] without NaN; on a device any dtype that it sorts.
        count: how many, at most entries.
        lanes: int64, the numbers from 0 to `CHUNK` - 1, or more, on the device of values; None: made here.

    Returns:
        Their values [rows, count], in the same dtype, and places, int64 [rows, count].

    Example:
        >>> best_entries(torch.tensor([[1.0, 5.0, 5.0, 2.0]]), 3)
        (tensor([[5., 5., 2.]]), tensor([[1, 2, 3]]))
    """
    entries = values.shape[1]
    chunks, rest = divmod(entries, CHUNK)
    if chunks <= 2 * count:
        return _first(values, count)
    maxima = values[:, : entries - rest].unflatten(1, (chunks, CHUNK)).amax(dim=2)
    # In ascending order again, so that what is gathered keeps the order of the places.
    leading = _first(maxima, count)[1].sort(dim=1).values
    if rest:  # what is no whole chunk is always looked at
        leading = torch.nn.functional.pad(leading, (0, 1), value=chunks)
    within = torch.arange(CHUNK, device=values.device) if lanes is None else lanes[:CHUNK]
    places = torch.add(within, leading.unsqueeze(2), alpha=CHUNK).flatten(1)[:, : count * CHUNK + rest]
    best, order = _first(values.gather(1, places), count)
    return best, places.gather(1, order)


def _first(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Does what `best_entries` does: with integer keys where arithmetic is cheap, elsewhere in the fewest launches."""
    if values.is_cpu and values.shape[1] <= MAX_VOCAB_SIZE:
        return first_of_total_order(values, count)
    ordered = values.sort(dim=1, descending=True, stable=True)
    return ordered.values[:, :count], ordered.indices[:, :count]


def best_tokens(
    logits: Tensor, count: int, softmax_smoothing: float = 1.0, lanes: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the most probable tokens of each row, in the order of `best_entries` of the logits.

    On a CPU a native operator reads the logits once, and no other log-probability is made.

    Args:
        logits: floats [rows, vocab_size].
        count: how many, at most vocab_size.
        softmax_smoothing: divides the logits; a positive float32.
        lanes: as for `best_entries`.

    Returns:
        Their log-probabilities, float32 [rows, count], the same bits as in `all_log_probs`, and the tokens, int64
        [rows, count].

    Example:
        >>> best_tokens(torch.tensor([[0.0, 1.0, 0.0]]).log(), 2)
        (tensor([[0., -inf]]), tensor([[1, 0]]))
    """
    if has_native_operator(logits):
        found, tokens = native_best_tokens(logits, count, softmax_smoothing)
        # The row's best is among them, so they are divided as in the whole row.
        divided = divide(logits.gather(1, tokens), softmax_smoothing)
        return log_probs_below(below(divided, divided.amax(dim=1, keepdim=True)), found[:, :1].neg()), tokens
    divided = divide(logits, softmax_smoothing)
    # A division may make equals of logits that are not.
    best, tokens = best_entries(divided if softmax_smoothing == 1.0 else without_nan(logits), count, lanes)
    differences = below(divided, best[:, :1] if softmax_smoothing == 1.0 else divided.gather(1, tokens[:, :1]))
    log_sum = _log_sum(logits, softmax_smoothing, differences)
    return log_probs_below(differences.gather(1, tokens), log_sum), tokens


def all_log_probs(logits: Tensor, softmax_smoothing: float) -> Tensor:
    """Returns log-probabilities, float32 [rows, vocab_size], of logits / softmax_smoothing; they are never NaN.

    NaN counts as -inf, and entries of +inf share the mass. Where all are -inf, all stay so.
    """
    divided = divide(logits, softmax_smoothing)
    differences = below(divided, divided.amax(dim=1, keepdim=True))
    return log_probs_below(differences, _log_sum(logits, softmax_smoothing, differences))


def log_probs_below(differences: Tensor, log_sum: Tensor) -> Tensor:
    """Returns log-probabilities, float32 [rows, n], in place of how far entries are from their row's best.

    They are never the logarithm of a softmax, which is -inf where the softmax is too small for a float32.

    Args:
        differences: float32 [rows, n], at most 0; all -inf where the best is -inf too.
        log_sum: float32 [rows, 1], the logarithms of the sums of the exponentials of whole rows.
    """
    return differences.sub_(log_sum)


def below(divided: Tensor, maxima: Tensor) -> Tensor:
    """Returns how far divided logits are below the maxima of their rows, float32 [rows, n]; -inf where these are -inf.

    Where a maximum is +inf, entries that equal it have 0, and the others -inf.
    """
    differences = divided - maxima.clamp_min(LEAST)
    if not are_known_to_be_finite(maxima):  # the difference of two equal infinities is NaN
        differences.nan_to_num_(nan=0.0, posinf=torch.inf, neginf=-torch.inf)
    return differences


def _log_sum(logits: Tensor, softmax_smoothing: float, differences: Tensor) -> Tensor:
    """Returns the logarithm of each row's sum of exponentials, float32 [rows, 1], from its `below`."""
    if has_native_operator(logits):
        return -native_best_tokens(logits, 1, softmax_smoothing)[0]
    return sum_of_rows(differences.exp()).log_().clamp_min_(0)  # the best adds 1, and is missing in rows of -inf


def sum_of_rows(values: Tensor, skips_nan: bool = False, out: Tensor | None = None) -> Tensor:
    """Adds up each row, by chunks whose sums are added up.

    Torch's own sums of long rows choose an order by the shape of the whole tensor, so the last bits of a row's sum
    depend on how many other rows there are. A chunk is too short to be cut, and so is what comes of all chunks.

    Args:
        values: float32 [rows, entries], at least one entry.
        skips_nan: NaN counts as 0.
        out: float32 [rows, 1], where the result is written.

    Returns:
        float32 [rows, 1].

    Example:
        >>> sum_of_rows(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
        tensor([[ 6.],
                [15.]])
    """
    add_up = torch.nansum if skips_nan else torch.sum
    entries = values.shape[1]
    chunks, rest = divmod(entries, CHUNK)
    if chunks == 0:
        return add_up(values, dim=1, keepdim=True, out=out)
    sums = values.new_empty(len(values), chunks + (rest > 0))
    add_up(values[:, : entries - rest].unflatten(1, (chunks, CHUNK)), dim=2, out=sums[:, :chunks])
    if rest:
        add_up(values[:, entries - rest :], dim=1, keepdim=True, out=sums[:, chunks:])
    total: Tensor = torch.sum(sums, dim=1, keepdim=True, out=out)
    return total


def divide(logits: Tensor, softmax_smoothing: float) -> Tensor:
    """Returns float32 logits / softmax_smoothing, but for a constant of the row: large quotients would lose digits.

    NaN becomes -inf. A row whose maximum is infinite is not divided: +inf decides alone.
    """
    logits = logits.to(torch.float32)
    # NaN is the maximum of its row.
    if not (logits.is_cpu and are_known_to_be_finite(logits.amax(dim=1))):
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
    is_plain = softmax_smoothing == 1.0
    temperature = None if is_plain else torch.full((len(rows),), softmax_smoothing, dtype=torch.float32, device="cpu")
    found, tokens, _ = torch.ops.ascend_sample.row_logprobs.default(rows, None, None, count, temperature=temperature)
    return found, tokens
