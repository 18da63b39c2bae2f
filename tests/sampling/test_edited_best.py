"""Edits in sample_rows of what would be drawn: the best logits forbidden, lowered, lifted, or equal to others.

Rows with a small top-k are not copied for their edits: what is edited is left out of the pass over them, and joins the
candidates that it finds.
"""

from __future__ import annotations

import pytest
import torch
from native_rows import DTYPES, make_logits
from row_edits import RowEdits
from row_reference import Request
from test_native_rows_edits import check
from torch import Tensor

VOCAB_SIZES = (1025, 3007, 40_001)
REQUESTS = [
    Request(0.0, 0, 1.0, 0.0),
    Request(1.0, 1, 1.0, 0.0),
    Request(1.0, 7, 1.0, 0.0),
    Request(0.7, 20, 0.8, 0.0),
    Request(1.3, 64, 0.95, 0.01),
    Request(0.7, 65, 0.8, 0.0),
    Request(1.0, 20, 0.0, 0.0),
    Request(1.0, 20, 1.0, 1.0),
]
PENALTIES = (1.3, 0.5, 0.25)


def best_of(row: Tensor, count: int) -> list[int]:
    return row.float().topk(min(count, len(row))).indices.tolist()


def forbidden(row: Tensor, count: int) -> RowEdits:
    return RowEdits(addends=dict.fromkeys(best_of(row, count), -torch.inf))


def penalised(row: Tensor, count: int) -> RowEdits:
    ids = best_of(row, count)
    return RowEdits(listed=ids + ids[: count // 2], occurrences={i: i % 5 for i in ids}, penalties=PENALTIES)


def lifted(row: Tensor, count: int) -> RowEdits:
    ids = row.float().topk(count, largest=False).indices.tolist()
    top = row.float().max().item()
    return RowEdits(addends={i: top - row[i].item() + 0.25 * (i % 3) for i in ids})


def both(row: Tensor, count: int) -> RowEdits:
    edits = penalised(row, count)
    edits.addends = {i: 0.5 - i % 2 for i in best_of(row, count)[::3]}
    return edits


def masked(row: Tensor, count: int) -> RowEdits:
    """The best are forbidden by a mask, and a list lifts some of them, which stay forbidden."""
    allowed = torch.ones(len(row), dtype=torch.bool)
    allowed[best_of(row, count)] = False
    return RowEdits(addends=dict.fromkeys(best_of(row, 3), 30.0), mask=allowed)


def half_masked(row: Tensor, count: int) -> RowEdits:
    return RowEdits(bitmask=torch.arange(len(row)) % 2 == count % 2)


KINDS = (forbidden, penalised, lifted, both, masked, half_masked)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_best_are_edited(kind: object, vocab_size: int, dtype: torch.dtype) -> None:
    assert callable(kind)
    for count in (1, 20, 63, 64, 65, 300, 1000):
        logits = make_logits(len(REQUESTS), vocab_size, dtype, seed=count)
        check(logits, REQUESTS, [kind(row, count) for row in logits])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("step", [0.25, 4.0])
def test_ties_at_the_end_of_top_k(step: float, dtype: torch.dtype) -> None:
    """Edited and other logits are equal, and the id decides: of few values, or of hardly any."""
    for count, kind in enumerate(KINDS * 3):
        logits = make_logits(len(REQUESTS), 5003, dtype, seed=count)
        logits = ((logits / step).round() * step).to(dtype)
        check(logits, REQUESTS, [kind(row, 10 + count) for row in logits])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_edited_logits_that_are_no_ordinary_ones(value: float, dtype: torch.dtype) -> None:
    """A ban takes a NaN and an infinity away, other edits leave them; what is seen is that of the edited row."""
    logits = make_logits(len(REQUESTS), 3007, dtype)
    places = [5, 32, 77]
    logits[:, places] = value
    for addends in (
        dict.fromkeys(places, -torch.inf),
        dict.fromkeys(places, 1.0),
        dict.fromkeys(places[:2], -torch.inf),
    ):
        check(logits, REQUESTS, [RowEdits(addends=addends) for _ in logits])
    allowed = torch.ones(3007, dtype=torch.bool)
    allowed[places] = False
    check(logits, REQUESTS, [RowEdits(mask=allowed) for _ in logits])
    check(logits, REQUESTS, [RowEdits(mask=allowed, addends={5: 2.0, 6: 2.0}) for _ in logits])


def test_edits_that_overflow() -> None:
    """An infinity that only edits have made is seen as one."""
    for dtype in (torch.float32, torch.bfloat16):
        logits = make_logits(len(REQUESTS), 3007, dtype)
        logits[:, 700] = 3e38
        check(logits, REQUESTS, [RowEdits(addends={700: 3e38, 5: 1.0}) for _ in logits])
        edits = RowEdits(listed=[700], occurrences={700: 2}, penalties=(0.25, 0.0, 0.0))
        check(logits, REQUESTS, [edits for _ in logits])


@pytest.mark.parametrize("dtype", DTYPES)
def test_little_is_left(dtype: torch.dtype) -> None:
    """Fewer than k, or nothing."""
    logits = make_logits(len(REQUESTS), 2000, dtype)
    for left in (0, 1, 19, 64):
        rows = torch.full_like(logits, -torch.inf)
        rows[:, :left] = logits[:, :left]
        check(rows, REQUESTS, [RowEdits(addends={0: -torch.inf, 1: 3.0}) for _ in rows])
        every = dict.fromkeys(range(2000), -torch.inf) | {i: 0.5 for i in range(left)}
        check(logits, REQUESTS, [RowEdits(addends=every) for _ in rows])


def test_a_row_leaves_nothing_to_the_next_one() -> None:
    """The same row after one that edits the ids it would draw."""
    row = make_logits(1, 3007, torch.bfloat16)
    rows = row.expand(4, -1).contiguous()
    edits = [
        forbidden(rows[0], 40),
        RowEdits(addends={3000: 0.5}),
        penalised(rows[0], 40),
        RowEdits(listed=[], occurrences={}, penalties=PENALTIES),
    ]
    check(rows, [Request(0.0, 0, 1.0, 0.0)] * 4, edits)
    check(rows, [Request(0.7, 20, 0.8, 0.0)] * 4, edits)
