"""What is read from a device in a step comes in one copy, because each copy makes the host wait."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ascend_sample.decoding.log_probs import log_probs_of, log_probs_of_usual
from ascend_sample.sampling.rows.table import to_device

PIECE: Final = torch.int32
"""What all is cut into, so that one tensor holds it."""


def read_together(*values: Tensor) -> list[Tensor]:
    """Brings tensors of float32, int64 and bool from one device to the host, all in one copy.

    Args:
        values: each [rows] or [rows, n], of the same number of rows.

    Example:
        >>> read_together(torch.tensor([1, 2]), torch.tensor([[True], [False]]))
        [tensor([1, 2]), tensor([[ True],
                [False]])]
    """
    if values[0].is_cpu:
        return list(values)
    if len(values) == 1:
        return [values[0].cpu()]
    wide = [(value.to(PIECE) if value.dtype == torch.bool else value).unsqueeze(1).flatten(1) for value in values]
    parts = [value.view(PIECE) for value in wide]
    read = torch.cat(parts, dim=1).cpu().split([part.shape[1] for part in parts], dim=1)
    # A copy of each, because what has eight bytes must begin at a multiple of eight.
    typed = [
        part.clone(memory_format=torch.contiguous_format).view(one.dtype) for part, one in zip(read, wide, strict=True)
    ]
    return [one.view(value.shape).to(value.dtype) for one, value in zip(typed, values, strict=True)]


def read_log_probs(logits: Tensor, tokens: Tensor, *values: Tensor) -> list[Tensor]:
    """Brings the log-probabilities of tokens, and values, to the host as `read_together` does.

    Args:
        logits: as for `log_probs_of`.
        tokens: as for `log_probs_of`.
        values: as for `read_together`.
    """
    log_probs = (log_probs_of if tokens.is_cpu else log_probs_of_usual)(logits, tokens)
    log_probs, *others = read_together(log_probs, *values)
    if log_probs.isnan().any():
        log_probs = log_probs_of(logits, tokens).cpu()
    return [log_probs, *others]


class SeldomTrue:
    """Keeps on a device what the host knows of rows and is seldom true, and sends it when it changes.

    Args:
        device: where it is wanted.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._here: Tensor | None = None
        self._there: Tensor | None = None

    def there(self, values: Tensor) -> Tensor | None:
        """Returns bool values on the device, or None where the host knows that none is True."""
        if not values.is_cpu or self._device.type == "cpu":
            return values
        if self._here is None or not torch.equal(values, self._here):
            self._here = values
            self._there = to_device(values.numpy(), self._device) if values.any() else None
        return self._there
