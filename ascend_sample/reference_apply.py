"""The specification of the operator that filters alone, in code: pure PyTorch, any device, one row after the other.

Written to be checked against ``docs/semantics_apply.md`` line by line, not to be fast. The numbers in the comments are
the document's sections.
"""

from __future__ import annotations

import math

import torch

from ascend_sample._contract import APPLY_NAME
from ascend_sample._validate import convert_filters
from ascend_sample.reference import as_values, softmax


def apply_top_k_top_p_reference(
    logits: torch.Tensor,
    k: int | torch.Tensor | None = None,
    p: float | torch.Tensor | None = None,
) -> torch.Tensor:
    """Filters exactly as the specification says.

    Arguments, result and errors are those of :func:`ascend_sample.apply_top_k_top_p`.

    Example:
        >>> apply_top_k_top_p_reference(torch.tensor([[1.0, 3.0, 2.0]]), k=2)
        tensor([[-inf, 3., 2.]])

    Source: aclnnApplyTopKTopP; docs/semantics_apply.md.
    """
    converted_p, converted_k = convert_filters(logits, k, p)
    getattr(torch.ops.ascend_sample, f"check_{APPLY_NAME}")(logits, converted_p, converted_k)
    filtered = torch.full(logits.shape, -math.inf, dtype=logits.dtype, device=logits.device)
    for b, row in enumerate(logits):
        values = as_values(row)
        row_k = 0 if converted_k is None else int(converted_k[b])
        row_p = math.nan if converted_p is None else float(converted_p[b])
        kept = kept_ids(values, row_k, row_p)
        filtered[b, kept] = values[kept].to(logits.dtype)
    return filtered


def kept_ids(values: torch.Tensor, k: int, p: float) -> torch.Tensor:
    """Returns what is kept of a row, in ascending order.

    Args:
        values: float32 [vocab_size], without NaN.
        k: not between 1 and vocab_size skips top-k.
        p: NaN skips top-p.

    Example:
        >>> kept_ids(torch.tensor([0.0, 3.0, 2.0, 2.0]), k=0, p=0.7).tolist()
        [3, 1]
    """
    # 2. The order
    order = torch.sort(values, stable=True).indices
    # 3. Top-k, and all ties of the k-th
    if 1 <= k <= values.numel():
        order = order[values[order] >= values[order[-k]]]
    # 4. Top-p, by the sums from the least
    sums = torch.cumsum(softmax(values[order]).to(torch.float64), dim=0)
    tail = torch.tensor(1.0) - torch.tensor(p, dtype=torch.float32)
    is_kept = ~(sums <= float(tail))  # also where p is NaN
    is_kept[-1] = True
    return order[is_kept]
