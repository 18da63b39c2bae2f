"""Rows whose results can be checked by hand, one for each of the operator's eight scenarios.

Every logit is exact in float16 and bfloat16. Where a row draws, reading q by token id instead of by rank (or the other
way round) would give another id.
"""

from dataclasses import dataclass

NO_K = 2**31 - 1
NO_P = 1.0

VOCAB_SIZE = 8
ONES = (1.0,) * VOCAB_SIZE

# Total order: ids 1, 3, 6 (3.0, ties by id), 2, 7 (2.0), 0, 4, 5. Softmax: 0.254 three times, 0.093 twice, 0.034,
# 0.013, 0.005.
MIXED = (1.0, 3.0, 2.0, 3.0, 0.0, -1.0, 3.0, 2.0)
# Four equal logits, 20 above the rest: among the first four of the order each has exactly 1/4.
FOUR_EQUAL = (-18.0, 2.0, -18.0, 2.0, 2.0, -18.0, 2.0, -18.0)
# Softmax: 0.803 (id 1), 0.109 (id 3), six of 0.015.
STEEP = (0.0, 4.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Row:
    """One row and its result."""

    name: str
    logits: tuple[float, ...]
    k: int
    p: float
    q: tuple[float, ...] | None
    token: int
    kept: tuple[int, ...]
    """Token ids whose logits is_need_logits returns."""


SCENARIOS = (
    Row("softmax-argmax", MIXED, NO_K, NO_P, None, token=1, kept=tuple(range(VOCAB_SIZE))),
    Row("top-k", MIXED, 4, NO_P, None, token=1, kept=(1, 3, 6, 2)),
    # 0.254 <= 0.5 < 0.508: two stay.
    Row("top-p", MIXED, NO_K, 0.5, None, token=1, kept=(1, 3)),
    # 0.005 / 0.0001 is the largest score. By rank it would be rank 5, token 0.
    Row("sample", MIXED, NO_K, NO_P, (*ONES[:5], 0.0001, *ONES[6:]), token=5, kept=tuple(range(VOCAB_SIZE))),
    # Sums of 1/4, 1/2, 3/4: one half is not above p, so a third stays.
    Row("top-k top-p", FOUR_EQUAL, 4, 0.5, None, token=1, kept=(1, 3, 4)),
    # Equal weights: rank 2 (token 6) has half the q of ranks 0 and 1. By id, token 3 would have 0.01.
    Row("top-k sample", MIXED, 3, NO_P, (1.0, 1.0, 0.5, 0.01, *ONES[4:]), token=6, kept=(1, 3, 6)),
    # The second softmax weighs the two as exp(0.803) : exp(0.109), about 2 : 1, and 1 / 0.4 outweighs that. A draw from
    # softmax(logits), 7.4 : 1, would give token 1, as would q by id.
    Row("top-p sample", STEEP, NO_K, 0.9, (1.0, 0.4, *ONES[2:]), token=3, kept=(1, 3)),
    # Three stay as above; rank 2 is token 4. Rank 3 is out in spite of its q; by id, token 3 would have 0.001.
    Row("top-k top-p sample", FOUR_EQUAL, 4, 0.5, (1.0, 1.0, 0.25, 0.001, *ONES[4:]), token=4, kept=(1, 3, 4)),
)
