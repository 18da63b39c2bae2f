"""The total order of a row's logits: value descending, then vocabulary id ascending (docs/semantics.md, section 2).

Each function is a few whole-batch torch operators on whatever device the logits are, without a synchronisation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ascend_sample._contract import MAX_VOCAB_SIZE
from ascend_sample.sampling.rows.parameters import is_limited

ID_BITS = (MAX_VOCAB_SIZE - 1).bit_length()  # an id fits
ID_MASK = (1 << ID_BITS) - 1
MAGNITUDE_MASK = 0x7FFFFFFF  # the bits of a float32 but for its sign


def order_keys(logits: Tensor) -> Tensor:
    """Returns one integer per logit, unequal within a row: the larger one comes first in the total order.

    Args:
        logits: float32 [rows, vocab_size] without NaN.

    Returns:
        int64 [rows, vocab_size]: the rank of the value's bits above `ID_BITS` bits that descend with the id.

    Example:
        >>> order_keys(torch.tensor([[1.0, 3.0, 3.0, -0.0, 0.0]])).argsort(descending=True)
        tensor([[1, 2, 0, 3, 4]])
    """
    bits = (logits + 0.0).view(torch.int32)  # -0 becomes +0
    ascending = torch.where(bits < 0, bits ^ MAGNITUDE_MASK, bits).to(torch.int64)
    ids = torch.arange(logits.shape[1], device=logits.device)
    return ascending * (1 << ID_BITS) + (ID_MASK - ids)


def first_of_total_order(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the first ``count`` entries of each row, in the total order.

    Args:
        logits: float32 [rows, vocab_size] without NaN.
        count: how many, at most vocab_size.

    Returns:
        Their logits, float32 [rows, count], and ids, int64 [rows, count].
    """
    ids = ID_MASK - (order_keys(logits).topk(count, dim=1).values & ID_MASK)
    return logits.gather(1, ids), ids


def mask_below_top_k(logits: Tensor, top_k: Tensor, keep_ties: bool, most: int | None = None) -> Tensor:
    """Replaces by -inf what top-k does not keep.

    Args:
        logits: float32 [rows, vocab_size] without NaN.
        top_k: int [rows]; a value outside [1, vocab_size) keeps the whole row.
        keep_ties: keep every logit that is equal to the k-th, instead of the first k of the total order.
        most: no value of ``top_k`` inside [1, vocab_size) is larger, where the caller knows that.

    Returns:
        float32 [rows, vocab_size].

    Example:
        >>> mask_below_top_k(torch.tensor([[1.0, 2.0, 1.0]]), torch.tensor([2]), keep_ties=False)
        tensor([[1., 2., -inf]])
    """
    vocab_size = logits.shape[1]
    is_on = is_limited(top_k, vocab_size).unsqueeze(1)
    last_rank = torch.where(is_on, top_k.to(torch.int64).unsqueeze(1) - 1, 0)
    keys = logits if keep_ties else order_keys(logits)
    last = keys.topk(most or vocab_size, dim=1).values.gather(1, last_rank)
    return logits.masked_fill((keys < last) & is_on, -torch.inf)
