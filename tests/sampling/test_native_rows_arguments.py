"""What sample_rows takes and refuses: rows, strides, nothing at all, bad arguments, and torch's own checks."""

from __future__ import annotations

import pytest
import torch
from native_rows import DTYPES, GRID, keys, lists, make_logits, sample_rows
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


BAD = [
    (
        {"logits": lambda x: x.double()},
        TypeError,
        "sample_rows: logits must be float32, float16 or bfloat16, got Double",
    ),
    ({"logits": lambda x: x[0]}, ValueError, r"logits must have shape \[batch, vocab_size\]"),
    ({"logits": lambda x: x[:, :0]}, ValueError, "logits must have at least one column"),
    ({"rows": lambda x: torch.tensor([0, 1, 4, 2])}, ValueError, r"rows must be between 0 and .* \(4\) - 1, got 4"),
    ({"rows": lambda x: torch.tensor([0, -1, 3, 2])}, ValueError, "rows must be between 0 and .* got -1"),
    ({"rows": lambda x: torch.tensor([0, 1, 3, 2], dtype=torch.int32)}, TypeError, "rows must be Long, got Int"),
    ({"rows": lambda x: torch.tensor([[0, 1, 3, 2]])}, ValueError, r"rows must have shape \[batch\], got 2 dimensions"),
    (
        {"rows": lambda x: torch.tensor([0, 1, 2])},
        ValueError,
        r"temperature must have one value for each row \(3\), got 4",
    ),
    ({"temperature": lambda x: x.half()}, TypeError, "temperature must be Float, got Half"),
    ({"temperature": lambda x: x[:3]}, ValueError, r"temperature must have one value for each row \(4\), got 3"),
    ({"k": lambda x: x.long()}, TypeError, "k must be Int, got Long"),
    ({"k": lambda x: x[None]}, ValueError, r"k must have shape \[batch\], got 2 dimensions"),
    ({"p": lambda x: x.bfloat16()}, TypeError, "p must be Float, got BFloat16"),
    ({"min_p": lambda x: x.double()}, TypeError, "min_p must be Float, got Double"),
    ({"min_p": lambda x: x[:0]}, ValueError, r"min_p must have one value for each row \(4\), got 0"),
    ({"seed": lambda x: x.int()}, TypeError, "seed must be Long, got Int"),
    ({"position": lambda x: x.float()}, TypeError, "position must be Long, got Float"),
    ({"position": lambda x: x.to("meta")}, ValueError, r"position must be on the device of logits \(cpu\), got meta"),
    ({"purpose": lambda x: -1}, ValueError, r"purpose must be between 0 and 2\^32 - 1, got -1"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD)
def test_bad_arguments(changes: dict, error: type[Exception], message: str) -> None:
    requests = [Request(1.0, 2, 0.9, 0.1)] * 4
    arguments = {"logits": make_logits(4, 10, torch.float32), "rows": None, **lists(requests), **keys(4), "purpose": 0}
    torch.ops.ascend_sample.sample_rows(**arguments)
    for name, change in changes.items():
        arguments[name] = change(arguments[name])
    with pytest.raises(error, match=message):
        torch.ops.ascend_sample.sample_rows(**arguments)


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


@pytest.mark.parametrize("dtype", DTYPES)
def test_operator(dtype: torch.dtype) -> None:
    operator = torch.ops.ascend_sample.sample_rows.default
    requests = GRID[::20]
    count = len(requests)
    logits = make_logits(count, 100, dtype)
    rows = torch.arange(count).flip(0)
    for arguments in ((logits, None), (logits, rows), (logits.t().contiguous().t(), rows)):
        torch.library.opcheck(operator, (*arguments, *lists(requests).values(), *keys(count).values()))
