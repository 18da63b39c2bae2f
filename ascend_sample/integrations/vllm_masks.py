"""vLLM's sampling masks, ``return_sampling_mask`` of its V2 runner: listed by torch's operators on any device.

vLLM lists what is kept by a Triton kernel. Beside the ids it sends a bitmask of the whole vocabulary to the host, for
rows that keep more ids than there is room for. Rows that are filtered here never do, as top-k keeps no ties.

Nothing of vLLM is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from ascend_sample.integrations._replacing import replacing
from ascend_sample.sampling.edits.processing import bits_of_bytes

MOST_LISTED: Final = "MAX_COMPACT_SUPPORT"
"""What vLLM calls the largest number of ids that it lists of a row: of larger sets the host reads the bitmask."""


def without_ties(logits: Tensor) -> Tensor:
    """Notes that a row of these logits has no more ids above -inf than its top-k, and returns them."""
    logits.is_without_ties = True  # type: ignore[attr-defined]
    return logits


def install(module: Any) -> None:
    """Lets V2's sampling masks be made here; a second call changes nothing, nor does one for a vLLM without them.

    Args:
        module: `vllm.v1.worker.gpu.sample.output`.
    """
    masks = getattr(module, "SamplingMaskTensors", None)
    fields = getattr(masks, "_fields", ())
    has_drafts = "rows_per_request" in fields  # as of 0.32
    if "token_ids" not in fields:
        return

    @replacing(masks, "from_logits")
    def listed_here(from_logits: Callable[..., Any], cls: Any, logits: Tensor, *given: Any) -> Any:
        """Takes where the rows of requests begin, if there are drafts; how many gave a token; and the top-k."""
        starts = given[0] if has_drafts else torch.arange(len(logits) + 1, device=logits.device)
        num_sampled_tokens, max_num_kept, *more = given[1:] if has_drafts else given
        rows_per_request = more[0] if more else 1
        most, vocab_size = min(max_num_kept, logits.shape[1]), logits.shape[1]
        width = min(most, getattr(module, MOST_LISTED))
        is_kept = logits.abs() < torch.inf  # neither is NaN
        ids, counts = listed(logits, is_kept, width)
        is_listed = most == width and getattr(logits, "is_without_ties", False)
        bits = ids.new_empty(len(logits), 0, dtype=torch.uint8) if is_listed else packed(is_kept)
        # The rows of a request that gave a token are its first ones.
        columns = torch.arange(rows_per_request, device=logits.device)
        is_there = columns < num_sampled_tokens.unsqueeze(1)
        rows = torch.where(is_there, starts[:-1].unsqueeze(1) + columns, 0).view(-1)
        ids, bits, counts = (each.index_select(0, rows) for each in (ids, bits, counts))
        counts.masked_fill_(~is_there.view(-1), 0)
        return cls(ids, bits, counts, vocab_size, *([rows_per_request] if has_drafts else []))


def listed(logits: Tensor, is_kept: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Lists what is kept of rows, and counts it.

    Args:
        logits: float [rows, vocab_size].
        is_kept: bool, the same.
        width: how many ids are listed at most, those with the largest logits.

    Returns:
        The ids, int32 [rows, width], ascending, then the vocab_size; and int32 [rows], how many are kept.

    Example:
        >>> row = torch.tensor([[3.0, -torch.inf, 1.0, 2.0]])
        >>> listed(row, row > -torch.inf, 4)
        (tensor([[0, 2, 3, 4]], dtype=torch.int32), tensor([3], dtype=torch.int32))
    """
    best = logits.masked_fill(~is_kept, -torch.inf).topk(width, 1)
    ids = best.indices.masked_fill_(best.values == -torch.inf, logits.shape[1]).sort(1).values
    return ids.to(torch.int32), is_kept.sum(1, dtype=torch.int32)


def packed(is_kept: Tensor) -> Tensor:
    """Packs bool [rows, vocab_size] as bits, the lowest first: uint8 [rows, ceil(vocab_size / 8)].

    Example:
        >>> packed(torch.tensor([[True, False, True, False, False, False, False, False, True]]))
        tensor([[5, 1]], dtype=torch.uint8)
    """
    octets = pad(is_kept.to(torch.int32), (0, -is_kept.shape[1] % 8)).view(len(is_kept), -1, 8)
    return octets.mul_(bits_of_bytes(is_kept.device)).sum(2, dtype=torch.int32).to(torch.uint8)
