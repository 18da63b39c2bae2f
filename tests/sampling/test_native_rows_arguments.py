"""What sample_rows takes and refuses: rows, strides, nothing at all, bad arguments, and torch's own checks.

And what the sampling layer's operators refuse of any tensor.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from native_rows import DTYPES, GRID, keys, lists, make_logits, sample_rows
from row_edits import RowEdits, arguments_of
from row_reference import Request


def test_rows_and_strides() -> None:
    requests = GRID * 2
    count = len(requests)
    for dtype in DTYPES:
        logits = make_logits(count, 700, dtype)
        expected, expected_status = sample_rows(logits, requests)
        wide = torch.zeros(2 * count, 1400, dtype=dtype)
        wide[::2, 1::2] = logits
        for view in (wide[::2, 1::2], logits.t().contiguous().t(), torch.cat([logits, logits], 1)[:, 700:]):
            token_ids, status = sample_rows(view, requests)
            assert torch.equal(token_ids, expected)
            assert torch.equal(status, expected_status)
        order = torch.randperm(count)
        for rows in (order, torch.stack([order, order], 1)[:, 0]):
            # Row i of the request is row rows[i] of the logits.
            keyed = {name: value[rows] for name, value in keys(count).items()}
            chosen = [requests[i] for i in rows.tolist()]
            token_ids, status = sample_rows(logits, chosen, rows=rows, **keyed)
            assert torch.equal(token_ids, expected[rows])
            assert torch.equal(status, expected_status[rows])
        few = torch.tensor([5, 5, 0])
        keyed = {name: value[few] for name, value in keys(count).items()}
        token_ids, _ = sample_rows(logits, [requests[i] for i in few.tolist()], rows=few, **keyed)
        assert torch.equal(token_ids, expected[few])
        strided = {
            name: torch.stack([value, value], 1)[:, 0] for name, value in {**lists(requests), **keys(count)}.items()
        }
        token_ids, _ = torch.ops.ascend_sample.sample_rows(logits, None, **strided)
        assert torch.equal(token_ids, expected)


def test_nothing_to_sample() -> None:
    for logits, rows in ((torch.zeros(0, 5), None), (torch.zeros(3, 5), torch.empty(0, dtype=torch.int64))):
        token_ids, status = sample_rows(logits, [], rows=rows)
        assert (token_ids.shape, token_ids.dtype) == ((0,), torch.int64)
        assert (status.shape, status.dtype) == ((0,), torch.int8)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"logits": torch.zeros(4, 0)}, "logits must have at least one column"),
    ({"rows": torch.tensor([0, 1, 4, 2])}, r"rows must be between 0 and .* \(4\) - 1, got 4"),
    ({"rows": torch.tensor([0, -1, 3, 2])}, "rows must be between 0 and .* got -1"),
    ({"rows": torch.tensor([0, 1, 2])}, r"temperature must have one value for each row \(3\), got 4"),
    ({"purpose": -1}, r"purpose must be between 0 and 2\^32 - 1, got -1"),
    ({"purpose": 1 << 32}, r"purpose must be between 0 and 2\^32 - 1, got 4294967296"),
]
"""Values; the table of all operators below has dtypes, shapes and devices."""


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_bad_values(changes: dict[str, Any], message: str) -> None:
    arguments = {"logits": make_logits(4, 10, torch.float32), "rows": None, **FILTERS, **keys(4)}
    with pytest.raises(ValueError, match=f"^sample_rows: {message}"):
        torch.ops.ascend_sample.sample_rows(**arguments | changes)


@pytest.mark.parametrize("typical_p", [0.0, -1.0, -torch.inf])
@pytest.mark.parametrize("vocab_size", [7, 100, 5000])
def test_typical_sampling_keeps_a_value(vocab_size: int, typical_p: float) -> None:
    """That which is nearest, whatever the number is."""
    logits = make_logits(4, vocab_size, torch.float32)
    requests = [
        Request(1.0, 0, 1.0, 0.0),
        Request(1.0, 3, 1.0, 0.0),
        Request(1.0, 0, 0.9, 0.0),
        Request(1.0, 0, 1.0, 0.1),
    ]
    ranges = torch.zeros(7, 4)
    ranges[0] = 2.0**-126
    expected, _ = sample_rows(logits, requests, edits={"ranges": ranges})
    assert ((expected >= 0) & (expected < vocab_size)).all()
    ranges[0] = typical_p
    token_ids, _ = sample_rows(logits, requests, edits={"ranges": ranges})
    assert torch.equal(token_ids, expected)


ONES, IDS, LOGITS = torch.ones(4), torch.arange(4), make_logits(4, 40, torch.float32)
FILTERS = lists([Request(1.0, 2, 0.9, 0.1)] * 4)
EDITS = arguments_of([RowEdits({3: 1.0}, [5], {5: 3}, mask=LOGITS[0] < 9, bitmask=LOGITS[0] < 9)] * 4, 40)
EDITS["ranges"] = torch.zeros(7, 4)
ROWS = {"logits": LOGITS, "rows": IDS}
REQUESTS = FILTERS | keys(4) | EDITS
CUTS = {"least_values": ONES, "least_last_ids": IDS, "most_values": ONES, "most_last_ids": IDS}
DRAFTS = {"draft_ids": IDS[:2], "ends": torch.tensor([2, 4]), "parents": torch.tensor([-1, 0, -1, 0])}
PROPOSALS = {"rule": 1, "draft_probabilities": torch.ones(2, 3), "draft_candidates": IDS[:3].repeat(2, 1)}
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("exponential_noise", keys(4) | {"lanes": 8}),
    ("sample_rows", ROWS | REQUESTS),
    ("sample_kept_rows", ROWS | {"is_wanted": ONES > 0, "near": ONES} | REQUESTS),
    ("sample_ranked_rows", {"logits": LOGITS, "asking": IDS, "count": 2, "is_normalised": True} | REQUESTS),
    ("verify_drafts", {"logits": LOGITS} | REQUESTS | DRAFTS),
    ("verify_drafts", {"logits": LOGITS, "draft_ids": IDS[:2], "ends": DRAFTS["ends"]} | REQUESTS | PROPOSALS),
    ("filter_probabilities", {"logits": LOGITS} | FILTERS),
    ("filter_logits", {"logits": LOGITS} | FILTERS | EDITS),
    ("value_ranges", {"logits": LOGITS, "temperature": ONES, "ranges": EDITS["ranges"]}),
    ("best_tokens", {"logits": LOGITS, "count": 1}),
    ("row_logprobs", ROWS | {"token_ids": IDS, "count": 1, "named": IDS[:, None]}),
    ("first_of_rows", ROWS | {"count": 1}),
    ("shard_histogram", ROWS | {"maximum": ONES, "counts": ONES > 0, "prefix": IDS, "digit": 0}),
    ("chunk_sums", ROWS),
    ("log_of_sums", {"maxima": ONES[None], "sums": ONES[None].double(), "distances": ONES[None]}),
    ("count_above", ROWS | {"bounds": ONES}),
    ("shard_leads", ROWS | {"first_id": 0, "temperature": ONES, "min_p": ONES, "maximum": ONES} | keys(4) | CUTS),
]
LEADING = (
    "logits",
    "rows",
    "asking",
    "ends",
    "addend_ids",
    "penalty_ids",
    "masks",
    "bitmask",
    "draft_candidates",
    "named",
)
"""Whose sizes decide those of others, which are refused then, or of what is returned."""


@pytest.mark.parametrize(("operator", "good"), GOOD[:8])
def test_torch_checks_operators_that_draw_and_filter(operator: str, good: dict[str, Any]) -> None:
    torch.library.opcheck(getattr(torch.ops.ascend_sample, operator).default, (), good)


@pytest.mark.parametrize(("operator", "good"), GOOD)
def test_every_tensor_has_its_dtype_its_shape_and_its_device(operator: str, good: dict[str, Any]) -> None:
    getattr(torch.ops.ascend_sample, operator)(**good)
    for name, value in good.items():
        if isinstance(value, torch.Tensor):
            assert_checked(operator, good, name)


def assert_checked(operator: str, good: dict[str, Any], name: str) -> None:
    def says(error: type[Exception], rule: str, bad: torch.Tensor) -> None:
        with pytest.raises(error, match=f"^{operator}: {name} must {rule}"):
            getattr(torch.ops.ascend_sample, operator)(**good | {name: bad})

    value = good[name]
    says(TypeError, "be .*, got ComplexFloat", value.to(torch.complex64))
    says(TypeError, "be .*, got ", value.double() if value.dtype != torch.double else value.float())
    for other in (value[None], value[0]):
        says(ValueError, r"have (the )?shape \[", other)
    if (operator, name) in (("exponential_noise", "seed"), ("log_of_sums", "maxima")) or name == "logits":
        return
    says(ValueError, "be on the device of ", value.to("meta"))
    if name not in LEADING:
        for dimension in range(value.dim()):
            for size in (value.shape[dimension] - 1, value.shape[dimension] + 1):
                positions = torch.arange(size).clamp(max=value.shape[dimension] - 1)
                says(ValueError, "have ", value.index_select(dimension, positions))
