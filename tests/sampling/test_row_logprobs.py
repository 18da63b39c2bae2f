"""row_logprobs, the native operator: numbers within 1e-6 of float64, exact ranks and ids, the same bits always."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MANY_ROWS = ((70_000, 16), (25_000, 65), (4_500, 400), (500, 3000))
"""100,000 of small vocabularies."""
NAN, INF = math.nan, math.inf
SPECIAL_ROWS = torch.tensor(
    [
        [NAN, 2.0, NAN, 2.0, 1.0],
        [-INF, INF, 3.0, INF, 4.0],
        [-INF, NAN, -INF, -INF, -INF],
        [-INF] * 5,
        [NAN] * 5,
        [-0.0, 0.0, -0.0, 0.0, -1.0],
        [3e38, -3e38, 3e38, -3e38, 0.0],
        [NAN, INF, -INF, 0.0, INF],
        [1e-45, 0.0, -1e-45, 1e-45, -0.0],
        [7.0] * 5,
    ]
)


class Found(NamedTuple):
    """What the operator returns, or has to."""

    values: Tensor
    token_ids: Tensor
    ranks: Tensor
    entropies: Tensor


def with_entropies(logits: Tensor, rows: Tensor | None, given: Tensor, count: int) -> Found:
    values, ids, of_rows = torch.ops.ascend_sample.row_logprobs(logits, rows, given, count, entropy=True)
    return Found(values, ids, *of_rows)


def row_logprobs(logits: Tensor, given: Tensor, count: int, is_normalised: bool = True, **more: Tensor) -> Found:
    """With entropies, where there are any: everything else has the same bits without them."""
    operator = torch.ops.ascend_sample.row_logprobs
    values, ids, (ranks,) = operator(logits, more.pop("rows", None), given, count, is_normalised, **more)
    plain = Found(values, ids, ranks, torch.empty(0))
    if not is_normalised or more:
        return plain
    found = with_entropies(logits, None, given, count) if len(given) == len(logits) else plain
    assert found is plain or same(plain, found._replace(entropies=plain.entropies))
    return found


def in_float64(logits: Tensor, given: Tensor, count: int, is_normalised: bool = True) -> Found:
    """The definition, in float64 and by a stable sort."""
    values = logits.double().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    ids = torch.cat((given[:, None], values.sort(dim=1, descending=True, stable=True).indices[:, :count]), dim=1)
    entropies = torch.empty(0, dtype=torch.float64)
    if is_normalised:
        best = values.amax(1, keepdim=True)
        values = torch.where(best == torch.inf, torch.where(values == torch.inf, 0.0, -torch.inf), values)
        entropies = torch.special.entr(values.softmax(1)).sum(1).masked_fill(best.squeeze(1) == -torch.inf, 0.0)
        values = values.log_softmax(1).nan_to_num_(nan=-torch.inf, neginf=-torch.inf)
    numbers = values.gather(1, ids)
    return Found(numbers, ids, (values >= numbers[:, :1]).sum(1), entropies)


def check(found: Found, expected: Found) -> None:
    """Entropies are within 1e-6, of themselves where they are more than 1."""
    torch.testing.assert_close(found.values.double(), expected.values, atol=1e-6, rtol=2**-24)
    assert torch.equal(found.token_ids, expected.token_ids)
    assert torch.equal(found.ranks, expected.ranks)
    if len(found.entropies):
        error = (found.entropies.double() - expected.entropies).abs() / expected.entropies.clamp(min=1)
        assert error.amax() <= 1e-6


def same(one: Found, other: Found) -> bool:
    """Bit for bit, of float32 as of int64."""
    return all(torch.equal(mine.view(torch.int32), its.view(torch.int32)) for mine, its in zip(one, other, strict=True))


def logits_with_ties(rows: int, vocab_size: int, dtype: torch.dtype) -> Tensor:
    """Logits so far apart that different ones have different numbers in float32; most rows have equal ones as well."""
    generator = torch.Generator().manual_seed(rows + vocab_size)
    return (torch.randn(rows, vocab_size, generator=generator) * 32).round().div_(16).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_rows_against_float64(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    for (rows, vocab_size), count in zip(MANY_ROWS, (5, 0, 20, 100), strict=True):
        logits = logits_with_ties(rows, vocab_size, dtype)
        given = torch.randint(vocab_size, (rows,), generator=generator)
        check(row_logprobs(logits, given, count), in_float64(logits, given, count))


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_rows_against_float64(dtype: torch.dtype) -> None:
    logits = logits_with_ties(3, 151_936, dtype)
    given = torch.stack((logits[0].argmax(), logits[1].argmin(), torch.tensor(151_935)))
    for count, is_normalised in ((1, True), (5, False), (1024, False), (1025, True)):
        found = row_logprobs(logits, given, count, is_normalised)
        check(found, in_float64(logits, given, count, is_normalised))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_ranks_are_those_of_all_reported_numbers(scale: float) -> None:
    """Different logits may have the same number in float32. The rank counts what is reported, whoever looks."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 700, generator=generator) * scale
    given = torch.randint(700, (200,), generator=generator)
    everything = row_logprobs(logits, given, 700)
    ranks = (everything.values[:, 1:] >= everything.values[:, :1]).sum(1)
    for count in (0, 3, 700):
        found = row_logprobs(logits, given, count)
        assert torch.equal(found.ranks, ranks)
        assert torch.equal(found.values, everything.values[:, : 1 + count])
    expected = in_float64(logits, given, 0).entropies
    assert ((everything.entropies - expected).abs() / expected.clamp(min=1)).amax() <= 1e-6


@pytest.mark.parametrize("is_normalised", [True, False])
def test_named_ids_have_the_numbers_of_all(is_normalised: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    for rows, vocab_size, dtype in ((64, 700, torch.float32), (64, 700, torch.float16), (3, 40_001, torch.bfloat16)):
        logits = logits_with_ties(rows, vocab_size, dtype)
        logits[0, :20], logits[1, 5], logits[2] = -torch.inf, torch.inf, torch.nan
        given = torch.randint(vocab_size, (rows,), generator=generator)
        named = torch.randint(vocab_size, (rows, 9), generator=generator)
        named[:2, :2] = torch.tensor([[7, 7], [5, 5]])
        all_ids = row_logprobs(logits, given, vocab_size, is_normalised)
        by_id = torch.empty(rows, vocab_size).scatter_(1, all_ids.token_ids[:, 1:], all_ids.values[:, 1:])
        for count, places in ((0, torch.arange(rows)), (4, torch.randperm(rows, generator=generator))):
            found = row_logprobs(logits, given[places], count, is_normalised, rows=places, named=named[places])
            values = torch.cat((all_ids.values[:, : 1 + count], by_id.gather(1, named)), 1)[places]
            ids = torch.cat((all_ids.token_ids[:, : 1 + count], named), 1)[places]
            assert same(found, Found(values, ids, all_ids.ranks[places], torch.empty(0)))


@pytest.mark.parametrize("vocab_size", [1000, 1024, 5000])
def test_equals_below_the_best(vocab_size: int) -> None:
    """Sums of equal numbers, which float32 rounds in one direction: one logit, and all others so far below it."""
    below = torch.cat((torch.linspace(0, 16, 1000), torch.tensor([12.558]))).unsqueeze(1)
    for dtype in DTYPES:
        logits = -below.repeat(1, vocab_size).to(dtype)
        logits[:, vocab_size // 3] = 0
        given = torch.full((len(logits),), vocab_size // 3)
        check(row_logprobs(logits, given, 2), in_float64(logits, given, 2))
    logits = -torch.linspace(0, 16, 4000).unsqueeze(1).repeat(1, vocab_size)
    logits[:, vocab_size // 3] = 0
    found = with_entropies(logits, None, torch.zeros(4000).long(), 0).entropies
    expected = torch.special.entr(logits.double().softmax(1)).sum(1)
    assert ((found - expected).abs() / expected.clamp(min=1)).amax() <= 1e-6


@pytest.mark.parametrize("is_normalised", [True, False])
@pytest.mark.parametrize("repeats", [1, 7, 1000])
def test_special_rows(is_normalised: bool, repeats: int) -> None:
    for dtype in DTYPES:
        logits = SPECIAL_ROWS.to(dtype).repeat(1, repeats)
        for number, count in enumerate((0, 1, 4, 5, 5 * repeats)):
            given = torch.full((len(logits),), 5 * (repeats // 2) + number)
            expected = in_float64(logits, given, count, is_normalised)
            # -3e38 - 3e38 is -inf in float32
            values = expected.values.float().double()
            ranks = torch.where(values[:, 0] == -torch.inf, logits.shape[1], expected.ranks)
            found = row_logprobs(logits, given, count, is_normalised)
            check(found, expected._replace(values=values, ranks=ranks))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_of_a_row_is_nan_where_there_is_one(dtype: torch.dtype) -> None:
    """Whose best values are those of a row without it."""
    logits = SPECIAL_ROWS.to(dtype).repeat(1, 300)
    values, _, (largest,) = torch.ops.ascend_sample.row_logprobs(
        logits, None, None, 3, is_normalised=False, largest=True
    )
    torch.testing.assert_close(largest, logits.float().amax(1), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(values[:, 0], logits.float().nan_to_num(-torch.inf, torch.inf, -torch.inf).amax(1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_alone_in_any_batch_and_for_any_number_of_threads(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = (torch.randn(6, 50_000, generator=generator) * 4).to(dtype)
    given = torch.randint(50_000, (6,), generator=generator)
    together = row_logprobs(logits, given, 5)
    threads = torch.get_num_threads()
    try:
        for others in (1, 3):
            torch.set_num_threads(others)
            assert same(row_logprobs(logits, given, 5), together)
    finally:
        torch.set_num_threads(threads)
    for row in range(6):
        part = slice(row, row + 1)
        values, *others = (tensor[part] for tensor in together)
        assert same(row_logprobs(logits[part], given[part], 5), Found(values, *others))
        fewer = row_logprobs(logits[part], given[part], 2)
        assert same(fewer, Found(values[:, :3].contiguous(), others[0][:, :3].contiguous(), *others[1:]))
    rows = torch.tensor([5, 0, 5, 3])
    found = with_entropies(logits, rows, given[rows], 5)
    assert same(found, Found(*(tensor[rows] for tensor in together)))
