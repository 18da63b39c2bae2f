"""row_logprobs, the native operator: numbers within 1e-6 of float64, exact ranks and ids, the same bits always."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tests.support.code_paths import assert_same_on_all_code_paths

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MANY_ROWS = ((70_000, 16), (25_000, 65), (4_500, 400), (500, 3000))
"""100,000 of small vocabularies."""


class Found(NamedTuple):
    """What the operator returns."""

    values: Tensor
    token_ids: Tensor
    ranks: Tensor


def row_logprobs(
    logits: Tensor, given: Tensor, count: int, is_normalised: bool = True, rows: Tensor | None = None
) -> Found:
    *found, entropies = torch.ops.ascend_sample.row_logprobs(logits, rows, given, count, is_normalised)
    assert entropies.shape == (0,)
    return Found(*found)


def in_float64(logits: Tensor, given: Tensor, count: int, is_normalised: bool = True) -> Found:
    """The definition, in float64 and by a stable sort."""
    values = logits.double().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    ids = torch.cat((given[:, None], values.sort(dim=1, descending=True, stable=True).indices[:, :count]), dim=1)
    if is_normalised:
        shared = torch.where(values == torch.inf, 0.0, -torch.inf)
        values = torch.where(values.amax(1, keepdim=True) == torch.inf, shared, values).log_softmax(1)
        values.nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    numbers = values.gather(1, ids)
    return Found(numbers, ids, (values >= numbers[:, :1]).sum(1))


def check(found: Found, expected: Found) -> None:
    torch.testing.assert_close(found.values.double(), expected.values, atol=1e-6, rtol=2**-24)
    assert torch.equal(found.token_ids, expected.token_ids)
    assert torch.equal(found.ranks, expected.ranks)


def same(one: Found, other: Found) -> bool:
    return (
        torch.equal(one.values.view(torch.int32), other.values.view(torch.int32))
        and torch.equal(one.token_ids, other.token_ids)
        and torch.equal(one.ranks, other.ranks)
    )


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


@pytest.mark.parametrize("is_normalised", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_long_rows_against_float64(dtype: torch.dtype, is_normalised: bool) -> None:
    logits = logits_with_ties(3, 151_936, dtype)
    given = torch.stack((logits[0].argmax(), logits[1].argmin(), torch.tensor(151_935)))
    for count in (1, 5, 1024, 1025):
        expected = in_float64(logits, given, count, is_normalised)
        check(row_logprobs(logits, given, count, is_normalised), expected)


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


@pytest.mark.parametrize("is_normalised", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_named_ids_have_the_numbers_of_all(dtype: torch.dtype, is_normalised: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    for rows, vocab_size in ((64, 700), (3, 151_936)):
        logits = logits_with_ties(rows, vocab_size, dtype)
        logits[0, :20], logits[1, 5], logits[2] = -torch.inf, torch.inf, torch.nan
        given = torch.randint(vocab_size, (rows,), generator=generator)
        named = torch.randint(vocab_size, (rows, 9), generator=generator)
        named[:2, :2] = torch.tensor([[7, 7], [5, 5]])
        everything = row_logprobs(logits, given, vocab_size, is_normalised)
        by_id = torch.empty(rows, vocab_size).scatter_(1, everything.token_ids[:, 1:], everything.values[:, 1:])
        for count, places in ((0, slice(None)), (4, torch.randperm(rows, generator=generator))):
            options = (None if count == 0 else places, given[places], count, is_normalised)
            of_rows = torch.stack((named, named), 2)[places, :, 0]
            *found, _ = torch.ops.ascend_sample.row_logprobs(logits, *options, named=of_rows)
            values, ids = (
                torch.cat((of[places, : 1 + count], at), 1)
                for of, at in (
                    (everything.values, by_id.gather(1, named)[places]),
                    (everything.token_ids, named[places]),
                )
            )
            assert same(Found(*found), Found(values, ids, everything.ranks[places]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_below_the_best(dtype: torch.dtype) -> None:
    """Sums of equal numbers, which float32 rounds in one direction: one logit, and all others so far below it."""
    below = torch.cat((torch.linspace(0, 16, 1000), torch.tensor([12.558]))).unsqueeze(1)
    for vocab_size in (1000, 1024, 5000):
        logits = -below.repeat(1, vocab_size).to(dtype)
        logits[:, vocab_size // 3] = 0
        given = torch.full((len(logits),), vocab_size // 3)
        check(row_logprobs(logits, given, 2), in_float64(logits, given, 2))


@pytest.mark.parametrize("is_normalised", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_temperature_divides_numbers_and_leaves_the_order(dtype: torch.dtype, is_normalised: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = (torch.randn(60, 3000, generator=generator) * 8).to(dtype)
    logits[3, :9], logits[4, 7] = -torch.inf, torch.nan
    given = torch.randint(3000, (60,), generator=generator)
    temperature = torch.rand(60, generator=generator) * 3 + 0.3
    temperature[::5] = 0  # which counts as 1
    values, ids, ranks, _ = torch.ops.ascend_sample.row_logprobs(
        logits, None, given, 1500, is_normalised, temperature=temperature
    )
    divided = logits.double() / temperature.double().where(temperature > 0, torch.ones(1))[:, None]
    expected = in_float64(divided, given, 1500, is_normalised)
    torch.testing.assert_close(values.double(), expected.values, atol=1e-6, rtol=2**-24)
    assert torch.equal(ids, in_float64(logits, given, 1500).token_ids)
    everything = torch.ops.ascend_sample.row_logprobs(
        logits, None, given, 3000, is_normalised, temperature=temperature
    )[0]
    assert torch.equal(ranks, (everything[:, 1:] >= everything[:, :1]).sum(1).where(ranks < 3000, ranks))
    near = torch.tensor([[20.0, 1.0, 1.0000001]]).repeat(2, 1)
    found = torch.ops.ascend_sample.row_logprobs(near, None, TWO, 3, is_normalised, temperature=torch.tensor([1.0, 3]))
    assert found[1].tolist() == [[0, 0, 2, 1]] * 2


def special_rows() -> Iterator[list[float]]:
    nan, inf = math.nan, math.inf
    yield [nan, 2.0, nan, 2.0, 1.0]
    yield [-inf, inf, 3.0, inf, 4.0]
    yield [-inf, nan, -inf, -inf, -inf]
    yield [-inf] * 5
    yield [nan] * 5
    yield [-0.0, 0.0, -0.0, 0.0, -1.0]
    yield [3e38, -3e38, 3e38, -3e38, 0.0]
    yield [nan, inf, -inf, 0.0, inf]
    yield [1e-45, 0.0, -1e-45, 1e-45, -0.0]
    yield [7.0] * 5


@pytest.mark.parametrize("is_normalised", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("repeats", [1, 7, 1000])
def test_special_rows(dtype: torch.dtype, is_normalised: bool, repeats: int) -> None:
    logits = torch.tensor(list(special_rows())).to(dtype).repeat(1, repeats)
    for count in (0, 1, 4, 5, 5 * repeats):
        for token in range(5):
            given = torch.full((len(logits),), 5 * (repeats // 2) + token)
            found = row_logprobs(logits, given, count, is_normalised)
            expected = in_float64(logits, given, count, is_normalised)
            # -3e38 - 3e38 is -inf in float32
            expected = expected._replace(values=expected.values.float().double())
            expected = expected._replace(
                ranks=torch.where(expected.values[:, 0] == -torch.inf, logits.shape[1], expected.ranks)
            )
            check(found, expected)


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
        alone = Found(*(tensor[part] for tensor in together))
        assert same(row_logprobs(logits[part], given[part], 5), alone)
        fewer = row_logprobs(logits[part], given[part], 2)
        assert same(fewer, Found(alone.values[:, :3], alone.token_ids[:, :3], alone.ranks))


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_places_and_no_rows(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(6, 700, generator=generator).to(dtype)
    given = torch.randint(700, (6,), generator=generator)
    wide = torch.zeros(12, 1400, dtype=dtype)
    wide[::2, 1::2] = logits
    expected = row_logprobs(logits, given, 9)
    assert same(row_logprobs(wide[::2, 1::2], given, 9), expected)
    assert same(row_logprobs(logits.t().contiguous().t(), torch.stack((given, given), 1)[:, 0], 9), expected)
    places = torch.tensor([5, 0, 5, 3])
    chosen = Found(*(tensor[places] for tensor in expected))
    assert same(row_logprobs(logits, given[places], 9, rows=places), chosen)
    assert same(row_logprobs(logits, given[places], 9, rows=torch.stack((places, places), 1)[:, 0]), chosen)
    none = row_logprobs(logits, given[:0], 2, rows=places[:0])
    assert [tuple(tensor.shape) for tensor in none] == [(0, 3), (0, 3), (0,)]


# ---- entropies ----


def entropies_of(logits: Tensor, rows: Tensor | None = None) -> Tensor:
    """What the operator tells, and that everything else is what it is without them."""
    given = torch.zeros(len(logits) if rows is None else len(rows), dtype=torch.int64)
    *found, entropies = torch.ops.ascend_sample.row_logprobs(logits, rows, given, 1, entropy=True)
    assert same(Found(*found), row_logprobs(logits, given, 1, rows=rows))
    assert entropies.dtype == torch.float32
    assert entropies.shape == given.shape
    result: Tensor = entropies
    return result


def entropies_in_float64(logits: Tensor) -> Tensor:
    """The definition."""
    values = logits.double().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    best = values.amax(1, keepdim=True)
    values = torch.where(best == torch.inf, torch.where(values == torch.inf, 0.0, -torch.inf), values)
    found = torch.special.entr(values.softmax(1)).sum(1)
    return found.masked_fill(best.squeeze(1) == -torch.inf, 0.0)


def check_entropies(logits: Tensor) -> None:
    """Within 1e-6 of float64, of the entropy where that is more than 1."""
    expected = entropies_in_float64(logits)
    error = (entropies_of(logits).double() - expected).abs() / expected.clamp(min=1)
    assert error.amax() <= 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
def test_entropies_against_float64(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    for rows, vocab_size in ((10_000, 16), (4_500, 400), (500, 3000), (4, 151_936)):
        for scale in (1e-3, 1.0, 6.0, 30.0):
            check_entropies((torch.randn(rows, vocab_size, generator=generator) * scale).to(dtype))


def test_entropies_of_equals_below_the_best() -> None:
    """Sums of equal numbers, which float32 rounds in one direction: one logit, and all others so far below it."""
    below = torch.linspace(0, 16, 4000).unsqueeze(1)
    for vocab_size in (1024, 5000):
        logits = -below.repeat(1, vocab_size)
        logits[:, vocab_size // 3] = 0
        check_entropies(logits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("repeats", [1, 7, 1000])
def test_entropies_of_special_rows(dtype: torch.dtype, repeats: int) -> None:
    check_entropies(torch.tensor(list(special_rows())).to(dtype).repeat(1, repeats))


@pytest.mark.parametrize("dtype", DTYPES)
def test_entropies_that_are_exact(dtype: torch.dtype) -> None:
    logits = torch.full((6, 5000), -torch.inf, dtype=dtype)
    logits[1, 4999] = -3.0
    logits[2, 1030] = torch.inf
    logits[3] = torch.nan
    logits[4, ::1000] = 7.0
    logits[5, ::1250] = torch.inf
    logs = torch.tensor([5.0, 4.0]).log()
    assert torch.equal(entropies_of(logits), torch.cat((torch.zeros(4), logs)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_entropies_have_the_same_bits_alone_in_any_batch_and_for_any_number_of_threads(dtype: torch.dtype) -> None:
    logits = (torch.randn(6, 50_000, generator=torch.Generator().manual_seed(2)) * 4).to(dtype)
    together = entropies_of(logits)
    threads = torch.get_num_threads()
    try:
        for others in (1, 3):
            torch.set_num_threads(others)
            assert torch.equal(entropies_of(logits), together)
    finally:
        torch.set_num_threads(threads)
    places = torch.tensor([5, 0, 5, 3])
    assert torch.equal(entropies_of(logits, places), together[places])
    wide = torch.zeros(12, 100_000, dtype=dtype)
    wide[::2, 1::2] = logits
    assert torch.equal(entropies_of(wide[::2, 1::2]), together)
    for row in range(6):
        assert torch.equal(entropies_of(logits[row : row + 1]), together[row : row + 1])


PROGRAM = """
import hashlib, torch, ascend_sample
digest = hashlib.sha256()
generator = torch.Generator().manual_seed(0)
for vocab_size in (1, 15, 33, 1000, 5000):
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        logits = (torch.randn(20, vocab_size, generator=generator) * 4).to(dtype)
        given = torch.randint(vocab_size, (20,), generator=generator)
        logits[1, 1:], logits[2, ::3], logits[3, ::4] = -torch.inf, torch.nan, -80.0
        for count in {0, min(40, vocab_size), vocab_size}:
            for options in ((True, True), (True, False), (False, False)):
                for found in torch.ops.ascend_sample.row_logprobs(logits, None, given, count, *options):
                    digest.update(found.numpy().tobytes())
print(digest.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits() -> None:
    assert_same_on_all_code_paths(PROGRAM)


TWO = torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.zeros(3), None, TWO, 1), ValueError, r"logits must have shape \[batch, vocab_size\]"),
        (
            (torch.zeros(2, 3, dtype=torch.float64), None, TWO, 1),
            TypeError,
            "logits must be float32, float16 or bfloat16",
        ),
        ((torch.zeros(2, 3), None, TWO, -1), ValueError, "count must be >= 0, got -1. 0 reports the given tokens"),
        ((torch.zeros(2, 3), None, TWO, 4), ValueError, r"count must be at most the vocabulary size of logits \(3\)"),
        ((torch.zeros(2, 3), None, TWO.int(), 1), TypeError, "token_ids must be .*, got .*"),
        ((torch.zeros(2, 3), None, TWO[:1], 1), ValueError, r"token_ids must have one value for each row \(2\), got 1"),
        ((torch.zeros(2, 3), TWO[:1], TWO, 1), ValueError, r"token_ids must have one value for each row \(1\), got 2"),
        ((torch.zeros(2, 3), TWO.int(), TWO, 1), TypeError, "rows must be .*, got .*"),
        (
            (torch.zeros(2, 3), None, TWO, 1, False, True),
            ValueError,
            "is_normalised must be True where entropies are wanted, got False. Ask for",
        ),
        (
            (torch.zeros(2, 3), None, TWO, 1, True, False, TWO[:1, None]),
            ValueError,
            r"named must have one row for each of token_ids \(2\), got 1. Repeat an id where",
        ),
        (
            (torch.zeros(2, 3), None, TWO, 1, True, False, TWO[:, None] - 1),
            ValueError,
            r"named must be between 0 and the vocabulary size of logits \(3\) - 1, got -1. Give ids",
        ),
        (
            (torch.zeros(2, 3), None, TWO, 1, True, False, None, torch.ones(1)),
            ValueError,
            r"temperature must have one value for each row \(2\), got 1",
        ),
        (
            (torch.zeros(2, 3), None, TWO + 3, 1),
            ValueError,
            r"token_ids must be between 0 and the vocabulary size of logits \(3\) - 1, got 3. Give ids",
        ),
        (
            (torch.zeros(2, 3), TWO - 1, TWO, 1),
            ValueError,
            r"rows must be between 0 and the batch size of logits \(2\) - 1, got -1. Pass None for all rows",
        ),
    ],
)
def test_bad_arguments(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^row_logprobs: {message}"):
        torch.ops.ascend_sample.row_logprobs(*arguments)


def test_opcheck() -> None:
    operator = torch.ops.ascend_sample.row_logprobs.default
    torch.library.opcheck(operator, (torch.randn(2, 30), None, TWO, 3))
    torch.library.opcheck(operator, (torch.randn(2, 30), TWO[:1] + 1, TWO[:1], 0, False))
    torch.library.opcheck(operator, (torch.randn(2, 30), None, TWO, 3, True, True))
    torch.library.opcheck(operator, (torch.randn(2, 30), None, TWO, 3, True, False, TWO[:, None] + 5, torch.ones(2)))
