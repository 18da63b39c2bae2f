"""What is read from a device in a step comes in one copy, because each copy makes the host wait."""

from __future__ import annotations

import torch
from torch import Tensor

from ascend_sample.sampling.row_table import to_device

WORD = torch.int32
"""What all is cut into, so that one tensor holds it."""


def read_together(*values: Tensor) -> list[Tensor]:
    """Brings tensors of float32, int32, int64 and bool from one device to the host, all in one copy.

    Example:
        >>> read_together(torch.tensor([1, 2]), torch.tensor([[True]]))
        [tensor([1, 2]), tensor([[True]])]
    """
    if values[0].is_cpu:
        return list(values)
    words = [(value.to(WORD) if value.dtype == torch.bool else value.contiguous()).view(-1) for value in values]
    packed = torch.cat([word.view(WORD) for word in words]).cpu()
    parts = packed.split([word.numel() * word.element_size() // WORD.itemsize for word in words])
    # A copy of each, as eight bytes must begin at a multiple of eight.
    read = [part.clone().view(word.dtype) for part, word in zip(parts, words, strict=True)]
    return [part.view(value.shape).to(value.dtype) for part, value in zip(read, values, strict=True)]


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
