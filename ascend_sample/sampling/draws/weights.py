"""What devices make of logits before a draw, in few launches: rows without NaN, their statuses, their weights.

A launch costs a device's host more than most of these operators cost the device, so nothing here is computed twice, and
what a reduction has found anyway is not looked for again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from ascend_sample.sampling.rows.parameters import RowStatus

LARGEST_INFINITESIMAL: Final = {torch.float32: 2.0**-64, torch.bfloat16: 2.0**-64, torch.float16: 2.0**-10}
"""A number, by dtype, whose square makes every finite one smaller than 1."""


class StatusConstants(NamedTuple):
    """Two numbers on the device, [1], in the dtype of the logits: 0, and `LARGEST_INFINITESIMAL`."""

    zero: Tensor
    infinitesimal: Tensor

    @classmethod
    def like(cls, logits: Tensor) -> StatusConstants:
        """Makes them, once for all steps."""
        number = LARGEST_INFINITESIMAL[logits.dtype]
        return cls(logits.new_zeros(1), logits.new_full((1,), number))


def largest_of(logits: Tensor) -> Tensor:
    """Returns each row's largest logit [rows, 1] in the dtype of the logits: NaN where the row has one."""
    return logits.amax(1, keepdim=True)


def cleaned(logits: Tensor, out: Tensor | None = None) -> Tensor:
    """Returns the logits with -inf for NaN, and the largest finite number of their dtype for +inf.

    Args:
        logits: [rows, vocab_size].
        out: where the result is written; in the dtype of the logits.
    """
    largest = torch.finfo(logits.dtype).max
    return torch.nan_to_num(logits, nan=-torch.inf, posinf=largest, neginf=-torch.inf, out=out)


def cleaned_in_float32(logits: Tensor, is_own: bool = False, out: Tensor | None = None) -> Tensor:
    """Returns the logits in float32, cleaned: with no other memory than that of the result.

    Args:
        logits: [rows, vocab_size].
        is_own: they may be overwritten.
        out: float32 [rows, vocab_size], where the result is written.
    """
    if logits.dtype == torch.float32:
        return cleaned(logits, logits if is_own and out is None else out)
    wide = logits.float() if out is None else out.copy_(logits)
    return cleaned(wide, wide)


def base_of(largest: Tensor) -> Tensor:
    """Returns what is subtracted from rows: their largest logit after cleaning, finite, as float32 [rows, 1]."""
    return largest.float().clamp(min=torch.finfo(largest.dtype).min)


def status_of(largest: Tensor, constants: StatusConstants) -> Tensor:
    """Returns statuses, int8 [rows], from the largest logits before cleaning."""
    # NaN and infinite as the largest is, and otherwise less than 1.
    infinitesimal = LARGEST_INFINITESIMAL[largest.dtype]
    remainder = torch.addcmul(constants.zero, largest, constants.infinitesimal, value=infinitesimal)
    codes = remainder.nan_to_num_(
        nan=float(RowStatus.NAN_SEEN), posinf=float(RowStatus.INF_SEEN), neginf=float(RowStatus.ALL_MASKED)
    )
    return codes.to(torch.int8).squeeze(1)


def scaled(values: Tensor, base: Tensor, divisor: Tensor | None, out: Tensor | None = None) -> Tensor:
    """Returns (values - base) / temperature: 0 for the largest, and never above.

    Args:
        values: [rows, columns] of logits, cleaned.
        base: from `base_of`.
        divisor: float32 [rows, 1], the temperatures; None where all are 1.
        out: float32 [rows, columns], where the result is written.

    Returns:
        float32 [rows, columns].
    """
    differences = torch.sub(values, base, out=out)
    return differences if divisor is None else differences.div_(divisor)


def drop_below_min_p(weights: Tensor, min_p: Tensor | None) -> None:
    """Sets to 0 what weighs less than min_p, float32 [rows, 1]; the largest weight is 1."""
    if min_p is not None:
        weights.masked_fill_(weights < min_p, 0)


def drop_outside_nucleus(ranked: Tensor, top_p: Tensor | None) -> None:
    """Sets to 0, in rows of descending weights, what follows once the sum exceeds top_p of the whole row's.

    Args:
        ranked: float32 [rows, columns].
        top_p: float32 [rows, 1]; 1 drops nothing.
    """
    if top_p is not None:
        ranked.masked_fill_(is_outside_nucleus(ranked, top_p), 0)


def is_outside_nucleus(ranked: Tensor, top_p: Tensor) -> Tensor:
    """Tells what `drop_outside_nucleus` drops: bool [rows, columns]."""
    sums = ranked.cumsum(1)
    target = sums[:, -1:] * top_p
    return sums.sub_(ranked) > target
