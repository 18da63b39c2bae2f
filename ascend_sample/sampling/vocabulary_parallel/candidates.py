"""The best logits of a shard, and of all shards: greedy rows and rows with top-k."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ascend_sample.sampling.vocabulary_parallel.local_rows import Source


class Best(NamedTuple):
    """The first of a row's part.

    Attributes:
        value: float32 [rows]; -inf where nothing is above that.
        token_id: int64 [rows], in the part; 0 then.
        status: int8 [rows], of the part.
    """

    value: Tensor
    token_id: Tensor
    status: Tensor


def best_of(source: Source) -> Best:
    """Finds the best logit of each row, in one pass that tells its status as well."""
    count = len(source.batch_rows)
    zeros, noise = torch.zeros(count), torch.zeros(count, dtype=torch.int64)
    token_id, status = torch.ops.ascend_sample.sample_rows(
        source.logits, source.rows, zeros, torch.ones(count, dtype=torch.int32), zeros + 1, zeros, noise, noise
    )
    rows = torch.arange(len(source.logits)) if source.rows is None else source.rows
    value = source.logits[rows, token_id].float().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    return Best(value, token_id.masked_fill(value == -torch.inf, 0), status)


def first_of(source: Source, best: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the first of the total order of each row.

    Args:
        source: the rows.
        best: int64 [rows], the first of each, which spares a search for its rank.
        count: how many are wanted.

    Returns:
        Values, float32 [rows, count], and ids in the part, int64: -inf and 0 where the row has no more.
    """
    width = source.logits.shape[1]
    values, ids, _ = torch.ops.ascend_sample.row_logprobs(source.logits, source.rows, best, min(count, width), False)
    values, ids = values[:, 1:], ids[:, 1:].masked_fill(values[:, 1:] == -torch.inf, 0)
    missing = count - values.shape[1]
    if missing > 0:
        values = torch.cat((values, values.new_full((len(values), missing), -torch.inf)), 1)
        ids = torch.cat((ids, ids.new_zeros(len(ids), missing)), 1)
    return values, ids


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
    is_masked, is_nan, is_infinite = (parts == 1).all(0), (parts == 2).any(0), (parts == 3).any(0)
    return torch.where(is_nan, 2, torch.where(is_infinite, 3, is_masked.to(torch.int64))).to(torch.int8)
