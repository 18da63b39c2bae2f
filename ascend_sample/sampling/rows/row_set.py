"""Some rows of a batch, on the host and on its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ascend_sample.sampling.rows.table import to_device


@dataclass(frozen=True)
class RowSet:
    """Some rows of a batch.

    Attributes:
        host: int64 [rows], their indices in the batch.
        device: int64 [rows], the same on the device of the batch; None: all rows of the batch, in order.

    Example:
        >>> rows = RowSet.of([0, 2], batch_size=3, device=torch.device("cpu"))
        >>> rows.take(torch.tensor([5, 6, 7]))
        tensor([5, 7])
        >>> rows.put(torch.tensor([1, 2]), torch.tensor([5, 6, 7]))
        tensor([1, 6, 2])
    """

    host: npt.NDArray[np.int64]
    device: Tensor | None

    @classmethod
    def of(cls, rows: Sequence[int] | npt.NDArray[np.int64], batch_size: int, device: torch.device) -> RowSet:
        """Sends ascending rows of a batch to its device, unless they are all of its rows."""
        host = np.asarray(rows, dtype=np.int64)
        return cls(host, None if len(host) == batch_size else to_device(host, device))

    @classmethod
    def all(cls, batch_size: int) -> RowSet:
        """Returns all rows of a batch."""
        return cls(np.arange(batch_size), None)

    def __len__(self) -> int:
        return len(self.host)

    def take(self, of_batch: Tensor) -> Tensor:
        """Returns these rows of a tensor [batch, ...]: the tensor itself for all rows."""
        return of_batch if self.device is None else of_batch.index_select(0, self.device)

    def put(self, of_rows: Tensor, of_batch: Tensor) -> Tensor:
        """Returns a tensor [batch, ...] with other values of these rows: written in place, unless they are all rows."""
        return of_rows if self.device is None else of_batch.index_copy_(0, self.device, of_rows)
