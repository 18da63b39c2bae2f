"""Rows of a batch that ranks decide together, and the part of their logits that a rank has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.draws.best_tokens import best_entries, chunk_lanes
from ascend_sample.sampling.draws.placed_noise import DrawKeys
from ascend_sample.sampling.draws.weights import StatusConstants, largest_of, status_of
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.vocabulary_parallel.exchange import Field

Rows = npt.NDArray[np.int64]


class OwnPart(NamedTuple):
    """Logits of a rank.

    Attributes:
        ids: Their ids, without padding.
        logits: [batch, ids], edited where the rows are; one column of -inf for a rank without ids.
    """

    ids: range
    logits: Tensor


class RowsOfVerb:
    """Some rows of a batch that the ranks decide together, with logits of one dtype.

    Args:
        name: Prefix of the names of their fields.
        rows: The rows of the batch, ascending.
        batch: The requests.
        like: A tensor on the device of the logits, in the dtype of these rows.
    """

    def __init__(self, name: str, rows: Rows, batch: SamplingBatch, like: Tensor) -> None:
        self.name, self.rows, self.dtype = name, RowSet.of(rows, len(batch), like.device), like.dtype
        self.parameters = batch.row_parameters().of_rows(self.rows)
        self._constants, self._lanes = StatusConstants.like(like), chunk_lanes(like.device)

    def select(self, tensor: Tensor) -> Tensor:
        """Returns these rows of a tensor of the batch."""
        return self.rows.take(tensor)

    def keys(self, batch: SamplingBatch) -> DrawKeys:
        """Returns the seeds and positions of these rows, on the host."""
        return DrawKeys(batch.host.seed, batch.host.position).of_rows(self.rows.host)

    def first(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the first logits of this rank in the total order, without NaN, and the largest with it.

        Args:
            logits: [rows, ids].
            count: Number of logits.

        Returns:
            Values and ids [rows, count], -inf where there are fewer; the largest logit [rows, 1].
        """
        fewer = min(count, logits.shape[1])
        if logits.is_cpu:
            operator = torch.ops.ascend_sample.row_logprobs.default
            values, ids, (largest,) = operator(logits, None, None, fewer, is_normalised=False, largest=True)
            largest = largest.unsqueeze(1)
        else:
            largest = largest_of(logits)
            logits = logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
            if count == 1:
                ids = logits.argmax(1, keepdim=True)
                values = logits.gather(1, ids)
            else:
                values, ids = best_entries(logits, fewer, self._lanes)
        if count > fewer:
            values, ids = pad(values, (0, count - fewer), value=-torch.inf), pad(ids, (0, count - fewer))
        return values, ids, largest

    def field(self, name: str, values: Tensor, dtype: torch.dtype | None = None) -> Field:
        """Returns values of these rows as a field of a message, in the dtype of the logits or another one."""
        return Field(f"{self.name} {name}", self.dtype if dtype is None else dtype, values)

    def gathered(self, fields: Mapping[str, Tensor], name: str) -> Tensor:
        """Returns the values of all ranks: [ranks, rows, values]."""
        values = fields[f"{self.name} {name}"]
        return values.view(len(values), len(self.rows), -1)

    def status(self, fields: Mapping[str, Tensor]) -> Tensor:
        """Returns the statuses of whole rows, int8 [rows], from the largest logits of all ranks."""
        return status_of(self.gathered(fields, "largest").amax(0), self._constants)
