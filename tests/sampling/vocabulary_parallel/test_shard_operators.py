"""What ranks find of their parts of rows: what logprobs are made of, leads and histograms."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from torch.nn.functional import pad

from ascend_sample.sampling import exponential_noise
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.draws.segmented import SEGMENT

OPERATORS = torch.ops.ascend_sample
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def rows_of(dtype: torch.dtype, vocab_size: int = 3500) -> torch.Tensor:
    """Rows of normal logits, of ones with -inf and NaN, with +inf in two chunks, and of -inf alone."""
    logits = 5 * torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(vocab_size))
    logits[1, ::3] = -torch.inf
    logits[1, 1::7] = torch.nan
    logits[2, 5], logits[2, 2000:2003] = torch.inf, torch.inf
    logits[3] = -torch.inf
    return logits.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_chunks_make_the_sum_of_the_row(dtype: torch.dtype) -> None:
    logits = rows_of(dtype)
    maxima, sums, none = OPERATORS.chunk_sums(logits, None)
    assert none.shape == (0, 4)
    assert maxima.shape == sums.shape == (5, 4)
    in_parts = [OPERATORS.chunk_sums(part, None) for part in (logits[:, :2048], logits[:, 2048:])]
    assert torch.equal(torch.cat([part[0] for part in in_parts], 1), maxima)
    assert torch.equal(torch.cat([part[1] for part in in_parts], 1), sums)
    assert sums[2].tolist()[:2] == [1, 3]  # of +inf: how many
    assert OPERATORS.chunk_sums(torch.full((2, 1030), torch.inf, dtype=dtype), None)[1].tolist() == [[1024, 6]] * 2
    maximum, log_sum, none = OPERATORS.log_of_sums(maxima, sums)
    assert none.shape == (0,)
    clean = logits.float().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    assert torch.equal(maximum, clean.amax(1))
    finite = torch.tensor([0, 1, 4])
    expected = (clean[finite].double() - maximum[finite, None]).logsumexp(1)
    torch.testing.assert_close(log_sum[finite], expected, rtol=0, atol=1e-6)
    assert log_sum[2] == torch.tensor(4.0).double().log()
    assert log_sum[3] == 0
    best = OPERATORS.row_logprobs(logits, finite, clean[finite].argmax(1), 0, True)[0]
    assert torch.equal(best[:, 0], (-log_sum[finite]).float())


@pytest.mark.parametrize("dtype", DTYPES)
def test_distances_of_chunks_make_the_entropy_of_the_row(dtype: torch.dtype) -> None:
    logits = rows_of(dtype)
    found = OPERATORS.chunk_sums(logits, None, entropy=True)
    for one, other in zip(found[:2], OPERATORS.chunk_sums(logits, None), strict=False):
        assert torch.equal(one, other)
    in_parts = [OPERATORS.chunk_sums(part, None, entropy=True) for part in (logits[:, :2048], logits[:, 2048:])]
    assert torch.equal(torch.cat([part[2] for part in in_parts], 1), found[2])
    assert not found[2][3].any()
    *whole, entropies = OPERATORS.log_of_sums(*found)
    for one, other in zip(whole, OPERATORS.log_of_sums(*found[:2]), strict=False):
        assert torch.equal(one, other)
    expected = OPERATORS.row_logprobs(logits, None, torch.zeros(5, dtype=torch.int64), 0, entropy=True)[3]
    assert torch.equal(entropies, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_above_a_bound_are_counted(dtype: torch.dtype) -> None:
    for vocab_size in (1, 31, 33, 1024, 3500):
        logits = rows_of(dtype, max(vocab_size, 2003))[:, :vocab_size]
        rows = torch.tensor([4, 1, 2, 3, 0])
        for bounds in (logits[rows, vocab_size // 2].float(), torch.full((5,), -torch.inf), torch.zeros(5)):
            expected = (logits[rows].float() > bounds[:, None]).sum(1)
            assert torch.equal(OPERATORS.count_above(logits, rows, bounds), expected)


@pytest.mark.parametrize("slack", [0.0, 0.9])
@pytest.mark.parametrize("before", [0, 40])  # of the first segment, ids that another part has
@pytest.mark.parametrize("segments", [1, 2, 9])
def test_leads_are_the_first_the_best_and_the_last_segment(segments: int, before: int, slack: float) -> None:
    """Of cuts that differ: a score each, what others may reach, and the same of the places of a segment."""
    rows, vocab_size, first_id = 100, SEGMENT * segments - before - 7, 3 * SEGMENT + before
    generator = torch.Generator().manual_seed(segments)
    logits, shift = (torch.randn(rows, size, generator=generator).mul(4).round().div(8) for size in (vocab_size, 2))
    values = shift.sort(1, descending=True).values + torch.tensor([1.0, 0.0])
    last_ids = torch.randint(-1, vocab_size, (rows, 2), generator=generator)
    every, ones = torch.arange(rows), torch.ones(rows)
    weights = (logits - logits.amax(1, keepdim=True)).double().exp()
    noise = exponential_noise(every, every, SEGMENT * (segments + 4)).double()
    for _ in range(2):
        cuts = [cut for pair in zip(values.unbind(1), last_ids.unbind(1), strict=True) for cut in pair]
        leads, ids, own, _ = OPERATORS.shard_leads(
            logits, None, first_id, ones, ones * 0, every, every, Purpose.DRAW, slack, None, *cuts
        )
        assert torch.equal(own, logits.amax(1))
        beyond, ends = torch.arange(vocab_size) > last_ids.unsqueeze(2), values.unsqueeze(2)
        kept = (logits.unsqueeze(1) > ends) | ((logits.unsqueeze(1) == ends) & ~beyond)
        padded = pad(weights.unsqueeze(1) * kept, (before, 7)).view(rows, 2, segments, SEGMENT)
        scores = padded.sum(3) / noise[:, None, SEGMENT + 3 : SEGMENT + 3 + segments]
        places = padded / noise[:, None, None, :SEGMENT]
        for row, (number, there) in itertools.product(range(rows), enumerate(([0], range(1, segments - 1), [-1]))):
            found, token_id = leads[row, number].tolist(), int(ids[row, number])
            least, most = scores[row, :, list(there)].tolist()
            if max(most, default=0) == 0 or (number == 2 and segments == 1):
                assert not any(found), (row, number)
                continue
            segment, place = divmod(token_id + before, SEGMENT)
            index = segment - 1 if number == 1 else 0
            assert found[:2] == pytest.approx([max(least), most[index]])
            assert found[0] == pytest.approx(least[index])
            others = most[:index] + most[index + 1 :]
            assert found[2] <= max(others, default=0) * (1 + 1e-6)
            assert found[2] >= max((one for one in others if one >= found[0] * (1 - slack)), default=0) * (1 - 1e-6)
            first, second = places[row, 1, segment].topk(2).values.tolist()
            assert found[3:] == pytest.approx([float(places[row, 0, segment, place]), first, second])
            assert float(places[row, 1, segment, place]) == pytest.approx(first)
        # Of each row, the least that keeps one of its leads.
        last_ids[:, 0] = ids[every, every % 3]
        values[:, 0] = logits[every, last_ids[:, 0]].maximum(values[:, 1])


def test_strides_rows_and_nothing() -> None:
    logits = rows_of(torch.float32)
    wide = torch.zeros(10, 7000)
    wide[::2, 1::2] = logits
    rows = torch.tensor([3, 0, 0])
    for found, expected in zip(
        OPERATORS.chunk_sums(wide[::2, 1::2], rows, True), OPERATORS.chunk_sums(logits, None, True), strict=True
    ):
        assert torch.equal(found, expected[rows])
    numbers, ones = torch.arange(5), torch.ones(5)
    whole = OPERATORS.shard_leads(logits, None, 300, ones, 0 * ones, numbers, numbers)
    keyed = (300, ones[:3], 0 * ones[:3], rows, rows)
    for view in (logits, wide[::2, 1::2]):
        for found, expected in zip(OPERATORS.shard_leads(view, rows, *keyed), whole, strict=True):
            assert torch.equal(found, expected[rows])
    assert OPERATORS.chunk_sums(logits, rows[:0])[0].shape == (0, 4)
    assert OPERATORS.count_above(logits, rows[:0], torch.empty(0)).shape == (0,)


MAXIMA, SUMS, _ = OPERATORS.chunk_sums(torch.zeros(2, 1500), None)
BAD = [
    ("chunk_sums", (torch.zeros(2), None), ValueError, "chunk_sums: logits must"),
    ("chunk_sums", (torch.zeros(2, 5), torch.tensor([2])), ValueError, "chunk_sums: rows must be between 0 and"),
    ("log_of_sums", (MAXIMA.double(), SUMS), TypeError, "log_of_sums: maxima must be Float, got Double"),
    ("log_of_sums", (MAXIMA, SUMS[:, :1]), ValueError, "log_of_sums: sums must have the shape [rows, chunks]"),
    ("log_of_sums", (MAXIMA, SUMS, SUMS), TypeError, "log_of_sums: distances must be Float, got Double"),
    (
        "log_of_sums",
        (MAXIMA, SUMS, MAXIMA[:1]),
        ValueError,
        "log_of_sums: distances must have the shape [rows, chunks]",
    ),
    ("log_of_sums", (MAXIMA, SUMS.to("meta")), ValueError, "log_of_sums: sums must be on the device of maxima (cpu)"),
    ("log_of_sums", (MAXIMA[:, :0], SUMS[:, :0]), ValueError, "log_of_sums: maxima must have the shape [rows, chunks]"),
    ("count_above", (torch.zeros(2, 5), None, torch.zeros(3)), ValueError, "count_above: bounds must"),
]
BAD += [
    ("first_of_rows", (torch.zeros(2, size), None, count), ValueError, f"first_of_rows: count must be {rule}")
    for size, count, rule in (
        (5, 0, "between 1 and 1024, got 0"),
        (2000, 1025, "between 1 and 1024, got 1025"),
        (5, 6, "at most the vocabulary size of logits (5), got 6"),
    )
]
ONES, IDS = torch.ones(2), torch.arange(2)
BAD += [
    (
        "shard_histogram",
        (torch.zeros(2, 5), None, ONES, ONES > 0, IDS, digit),
        ValueError,
        f"shard_histogram: digit must be between 0 and 3, got {digit}",
    )
    for digit in (-1, 4)
]
LEADING = (torch.zeros(2, 5), None, 0, ONES, ONES, IDS, IDS, 0, 0.0, None)
BAD += [
    ("shard_leads", (*LEADING[:place], bad, *LEADING[place + 1 :]), ValueError, f"shard_leads: {rule}, got ")
    for place, rule, values in (
        (2, "first_id must be between 0 and 1048576", (-1, 1048577)),
        (7, "purpose must be between 0 and 2^32 - 1", (-1, 1 << 32)),
        (8, "slack must be in [0, 1)", (-0.1, 1.0, float("nan"))),
    )
    for bad in values
]
BAD += [
    ("shard_leads", (*LEADING, *cuts), ValueError, f"shard_leads: {name} must be given together with least_values")
    for name, cuts in (
        ("most_values", (ONES, IDS, None, IDS)),
        ("least_last_ids", (ONES, None, ONES, IDS)),
        ("most_last_ids", (None, None, None, IDS)),
    )
]


@pytest.mark.parametrize(("name", "arguments", "error", "message"), BAD)
def test_bad_arguments(name: str, arguments: tuple[object, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match="^" + re.escape(message)):
        getattr(OPERATORS, name)(*arguments)


def test_the_dispatcher_is_content() -> None:
    logits = rows_of(torch.bfloat16)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(OPERATORS.chunk_sums.default, (logits, None), test_utils=tests)
    torch.library.opcheck(OPERATORS.chunk_sums.default, (logits, None, True), test_utils=tests)
    torch.library.opcheck(OPERATORS.log_of_sums.default, (MAXIMA, SUMS), test_utils=tests)
    torch.library.opcheck(OPERATORS.log_of_sums.default, (MAXIMA, SUMS, MAXIMA), test_utils=tests)
    torch.library.opcheck(OPERATORS.count_above.default, (logits, None, torch.zeros(5)), test_utils=tests)
    rows, ones = torch.tensor([4, 0]), torch.ones(2)
    for arguments in ((logits, None, 3), (logits, rows, 3)):
        torch.library.opcheck(OPERATORS.first_of_rows.default, arguments, test_utils=tests)
    torch.library.opcheck(
        OPERATORS.shard_histogram.default, (logits, rows, ones, ones > 0, torch.zeros_like(rows), 3), test_utils=tests
    )
    torch.library.opcheck(
        OPERATORS.shard_leads.default, (logits, rows, 17, ones, ones / 9, rows, rows), test_utils=tests
    )
    cuts = (ones, rows, ones, rows)
    arguments = (logits, rows, 17, ones, ones / 9, rows, rows, 0, 0.1, ones, *cuts)
    torch.library.opcheck(OPERATORS.shard_leads.default, arguments, test_utils=tests)


@pytest.mark.parametrize("first_id", [0, 17, 256])
def test_nothing_leads_beside_a_maximum_that_is_none(first_id: int) -> None:
    logits, number, ones = rows_of(torch.float32, 100), torch.arange(5), torch.ones(5)
    leads, ids, _, _ = OPERATORS.shard_leads(
        logits, None, first_id, ones, 0 * ones, number, number, maximum=torch.nan * ones
    )
    assert not leads.any()
    assert not ids.any()
