"""What the operators are to everybody who calls or implements one: names, limits, results.

The references have rules of their own from docs/semantics.md, docs/semantics_v2.md and docs/semantics_apply.md; the
checks are in ``csrc/checks.cpp``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

from ascend_sample._export import exportable
from ascend_sample.npu.operators import OPERATORS

OPERATOR_NAME, OPERATOR_V2_NAME, APPLY_NAME = OPERATORS
MAX_VOCAB_SIZE: Final = 2**20
MAX_TOP_K: Final = 1024
"""A larger k skips top-k; a larger top_k_guess is capped."""
SKIP_TOP_K: Final = MAX_VOCAB_SIZE + 1  # so top-k is off; small enough for a device that computes it in float32
SKIP_TOP_P: Final = 1.0


@exportable
class TopKTopPSample(NamedTuple):
    """What the operator returns.

    Attributes:
        logits_select_idx: int64 [batch], the drawn vocabulary ids.
        logits_top_kp_select: float32 [batch, vocab_size], the logits of the kept ids and -inf elsewhere; None if not
            asked for.
    """

    logits_select_idx: torch.Tensor
    logits_top_kp_select: torch.Tensor | None


@exportable
class TopKTopPSampleV2(NamedTuple):
    """What the second operator returns.

    Attributes:
        logits_select_idx: int64 [batch], the drawn vocabulary ids.
        logits_top_kp_select: float32 [batch, vocab_size], the logits of the kept ids and elsewhere -inf, or 0 where
            they are probabilities; None if not asked for.
        logits_idx: int64 [batch, vocab_size], densely the kept ids; what follows them is undefined. None if not asked
            for.
        logits_sort_masked: float32 [batch, vocab_size], their weights, then zeros; None if not asked for.
    """

    logits_select_idx: torch.Tensor
    logits_top_kp_select: torch.Tensor | None
    logits_idx: torch.Tensor | None
    logits_sort_masked: torch.Tensor | None
