"""The best logits of a shard, and of all shards: greedy rows and rows with top-k."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad


def first_of(logits: Tensor, rows: Tensor | None, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the first of the total order of rows' parts, in one pass that tells their statuses as well.

    Args:
        logits: floats [rows of the tensor, ids].
        rows: int64, which of them; None: all.
        count: how many are wanted, at most 1024.

    Returns:
        Values, float32 [rows, count], and ids in the part, int64: -inf and 0 where a row has no more. Statuses, int8.
    """
    values, ids, status = torch.ops.ascend_sample.first_of_rows(logits, rows, min(count, logits.shape[1]))
    missing = count - values.shape[1]
    if missing > 0:
        values, ids = pad(values, (0, missing), value=-torch.inf), pad(ids, (0, missing))
    return values, ids, status


def merged(values: Tensor, ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Merges the candidates of all ranks into the first of the total order of whole rows.

    Equal values stay in the order of the ranks, whose ids ascend.

    Args:
        values: float32 [ranks, rows, k], descending.
        ids: int64 [ranks, rows, k], of the vocabulary.
        count: how many are wanted.

    Example:
        >>> values, ids = torch.tensor([[[3.0, 1.0]], [[3.0, 2.0]]]), torch.tensor([[[5, 0]], [[8, 9]]])
        >>> merged(values, ids, 3)
        (tensor([[3., 3., 2.]]), tensor([[5, 8, 9]]))
    """
    values, ids = (tensor.transpose(0, 1).flatten(1) for tensor in (values, ids))
    ordered, places = values.sort(stable=True, dim=1, descending=True)
    return ordered[:, :count].contiguous(), ids.gather(1, places[:, :count])


def status_of_parts(parts: Tensor) -> Tensor:
    """Returns the statuses of rows: int8 [rows].

    Args:
        parts: int8 [ranks, rows], those of their parts: 1 where all is -inf; 2 for NaN comes before 3 for +inf.

    Example:
        >>> status_of_parts(torch.tensor([[1, 1, 3, 0], [1, 0, 2, 3]], dtype=torch.int8))
        tensor([1, 0, 2, 3], dtype=torch.int8)
    """
    of_ranks = parts.numpy()
    status = (of_ranks == 1).all(0).astype(np.int8)
    status[(of_ranks == 3).any(0)] = 3
    status[(of_ranks == 2).any(0)] = 2
    return torch.from_numpy(status)
