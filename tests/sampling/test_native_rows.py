"""sample_rows, the sampling layer's native operator: rows by hand, the float64 reference, and rows beside others.

`test_functional.py` compares a grid of requests with the reference, `run_rows.py` random ones.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from native_rows import (
    ALL_MASKED,
    DTYPES,
    GRID,
    INF_SEEN,
    NAN_SEEN,
    OK,
    ROUTES,
    Request,
    check_by_reference,
    keys,
    make_logits,
    sample_rows,
)

from ascend_sample.sampling.draws.noise import Purpose, exponential_noise
from ascend_sample.sampling.draws.segmented import SEGMENT


def test_shapes_of_rows() -> None:
    """Peaked and flat rows, ties, masks, and values so large or small that a sum leaves float32's range."""
    base = make_logits(1, 3000, torch.float32, seed=3)[0]
    head = torch.full((3000,), -18.0)
    head[17] = 0.0
    shapes = {
        "normal": base,
        "peaked": base * 20,
        "flat": base * 1e-3,
        "equal": torch.full((3000,), 3.25),
        "ties": (base * 2).round(),
        "two values": (base > 1).float() * 4,
        "masked": base.where(torch.arange(3000) % 3 == 0, torch.tensor(-torch.inf)),
        "one left": torch.full((3000,), -torch.inf).index_fill(0, torch.tensor([2999]), -7.0),
        "a head far above": head,
        "far down": base - 3e4,
        "far up": base + 3e4,
        "far apart": base * 8e3,
        "sorted": base.sort().values,
    }
    requests = [request for request in GRID if request.temperature > 0 and request.min_p < 1]
    for number, row in enumerate(shapes.values()):
        some = requests[number % 5 :: 5]
        check_by_reference(row.to(DTYPES[number % 3]).expand(len(some), -1), some)
        check_by_reference(row.to(DTYPES[number % 3]).expand(len(some), -1)[::3], some[::3], keep_ties=True)


@pytest.mark.parametrize("count", [10_000, pytest.param(40_000, marks=pytest.mark.long)])
def test_hand_worked_rows(count: int) -> None:
    """{.1, .2, .3, .4}: with k = 3 the draws are .444, .333, .222, whatever the temperature makes of them."""
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    cases = {
        (1.0, 3, 1.0, 0.0): [0, 2 / 9, 3 / 9, 4 / 9],
        (1.0, 0, 1.0, 0.0): [0.1, 0.2, 0.3, 0.4],
        (0.5, 0, 1.0, 0.0): [1 / 30, 4 / 30, 9 / 30, 16 / 30],
        (0.5, 3, 1.0, 0.0): [0, 4 / 29, 9 / 29, 16 / 29],
        (1.0, 0, 0.65, 0.0): [0, 0, 3 / 7, 4 / 7],
        (1.0, 0, 0.75, 0.0): [0, 2 / 9, 3 / 9, 4 / 9],
        (1.0, 3, 0.7, 0.0): [0, 0, 3 / 7, 4 / 7],
        (1.0, 0, 1.0, 0.45): [0, 2 / 9, 3 / 9, 4 / 9],
        (0.5, 0, 1.0, 0.45): [0, 0, 9 / 25, 16 / 25],
        (1.0, 3, 0.7, 0.8): [0, 0, 0, 1],
    }
    for arguments, probabilities in cases.items():
        token_ids, _ = sample_rows(logits.expand(count, -1), [Request(*arguments)] * count)
        counts = torch.bincount(token_ids, minlength=4).double()
        for drawn, probability in zip(counts.tolist(), probabilities, strict=True):
            deviation = (count * probability * (1 - probability)) ** 0.5
            assert abs(drawn - count * probability) <= 5 * deviation, (arguments, counts)


def drawn_of(row: torch.Tensor, request: Request) -> set[int]:
    return set(sample_rows(row.expand(300, -1), [request] * 300)[0].tolist())


@pytest.mark.parametrize("temperature", [1e6, 3e38, torch.inf])
def test_logits_that_a_temperature_makes_equal(temperature: float) -> None:
    """Top-k goes by the logit; top-p and min-p take equals of the quotient by their ids."""
    row = torch.arange(8.0) * 1e-44
    assert drawn_of(row, Request(temperature, 3)) == {5, 6, 7}
    assert drawn_of(row, Request(temperature, 0, 0.5)) == {0, 1, 2, 3, 4}
    assert drawn_of(row, Request(temperature, 0, 1.0, 0.9)) == set(range(8))
    assert drawn_of(row, Request(temperature, 3, 0.5)) == {6, 7}


def test_division_rounds_as_division_does() -> None:
    """Logits that only a division makes equal, and others that only a product with 1 / temperature would."""
    temperature = np.float32(0.7)
    logits = -(np.float32(0.375) + np.arange(20_000, dtype=np.float32) * np.float32(2.0**-25))
    divided, multiplied = logits / temperature, logits * (np.float32(1) / temperature)
    are_equal = divided[:-1] == divided[1:]
    would_be = multiplied[:-1] == multiplied[1:]
    for places, kept in ((are_equal & ~would_be, {0, 1}), (~are_equal & would_be, {0, 2})):
        place = int(np.flatnonzero(places)[0])
        row = torch.tensor([0.0, logits[place + 1], logits[place]])  # 0.6 takes two: of equals that with the lower id
        assert drawn_of(row, Request(0.7, 0, 0.6)) == kept


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_temperature_near_0_takes_the_largest(dtype: torch.dtype) -> None:
    logits = make_logits(len(ROUTES), 2000, dtype)
    for temperature in (1e-38, 1e-6, 0.0, -1.0):
        token_ids, _ = sample_rows(logits, [request._replace(temperature=temperature) for request in ROUTES])
        assert torch.equal(logits.gather(1, token_ids[:, None])[:, 0], logits.max(1).values)


def test_p_is_not_rounded_to_the_dtype_of_logits() -> None:
    """In bfloat16, 0.999 would become 1, and keep the last logit too, which has 0.0009."""
    logits = torch.tensor([0.0, -7.0], dtype=torch.bfloat16).expand(2000, 2)
    assert not sample_rows(logits, [Request(1.0, 0, 0.999)] * 2000)[0].any()
    assert sample_rows(logits, [Request()] * 2000)[0].any()


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(5, torch.float32), (1000, torch.bfloat16), (5000, torch.float16)], ids=str
)
def test_status(vocab_size: int, dtype: torch.dtype) -> None:
    """Every kind of number in every place of a row, in every route."""
    nan, inf = torch.tensor(torch.nan, dtype=dtype), torch.inf
    kinds = (([], OK), ([nan], NAN_SEEN), ([-nan], NAN_SEEN), ([inf], INF_SEEN), ([-inf], OK), ([inf, -nan], NAN_SEEN))
    rows, expected = [], []
    for place, (specials, status) in itertools.product(
        (0, vocab_size - 1, vocab_size // 2, vocab_size // 3, vocab_size * 5 // 7), kinds
    ):
        row = make_logits(1, vocab_size, dtype, seed=place)[0]
        for offset, special in enumerate(specials):
            row[(place + offset) % vocab_size] = special
        rows.append(row)
        expected.append(status)
    for filled, ends, status in (
        (-inf, -inf, ALL_MASKED),
        (nan, nan, NAN_SEEN),
        (-nan, -nan, NAN_SEEN),
        (-inf, nan, NAN_SEEN),
        (-inf, -60000.0, OK),
        (inf, inf, INF_SEEN),
    ):
        rows.append(torch.full((vocab_size,), filled, dtype=dtype))
        rows[-1][-1] = ends
        expected.append(status)
    logits = torch.stack(rows)
    for request in ROUTES:
        token_ids, found = sample_rows(logits, [request] * len(rows))
        assert found.tolist() == expected, request
        assert ((token_ids >= 0) & (token_ids < vocab_size)).all()


def test_a_row_does_not_depend_on_its_batch() -> None:
    """Alone, elsewhere in another batch, on other numbers of threads."""
    requests = (GRID * 2)[1:]  # no multiple of what a thread takes at a time
    count = len(requests)
    threads = torch.get_num_threads()
    for dtype in DTYPES:
        logits = make_logits(count, 3000, dtype)
        expected, status = sample_rows(logits, requests)
        try:
            for number in (1, 2, 5):
                torch.set_num_threads(number)
                assert torch.equal(sample_rows(logits, requests)[0], expected)
        finally:
            torch.set_num_threads(threads)
        for rows in (torch.randperm(count), torch.tensor([5, 5, 0]), torch.tensor([9])):
            keyed = {name: value[rows] for name, value in keys(count).items()}
            found = sample_rows(logits, [requests[row] for row in rows.tolist()], rows=rows, **keyed)
            assert torch.equal(found[0], expected[rows])
            assert torch.equal(found[1], status[rows])


def test_purposes_differ() -> None:
    logits = make_logits(300, 500, torch.bfloat16, scale=0.5)
    drawn = [sample_rows(logits, [Request()] * 300, purpose=purpose)[0] for purpose in Purpose]
    assert torch.equal(drawn[0], sample_rows(logits, [Request()] * 300)[0])
    assert all((one != other).float().mean() > 0.9 for one, other in itertools.combinations(drawn, 2))


@pytest.mark.parametrize(
    ("seed", "first", "other"),
    [
        (892, [16], [94]),  # places of one segment, whose noise is equal
        (22594, [14 * SEGMENT + 3], [61 * SEGMENT + 3]),  # the same of segments
        # The noise of the first segment is twice the other's, and so is its weight: the other is looked at before.
        (152, [114 * SEGMENT + 9, 114 * SEGMENT + 3], [150 * SEGMENT + 3]),
    ],
)
def test_of_equal_scores_the_first_wins(seed: int, first: list[int], other: list[int]) -> None:
    requests = [Request(*each) for each in itertools.product((1.0, 0.5), (0, 3, 1500), (1.0, 0.95), (0.0, 0.1))]
    requests = [request for request in requests if request.k != 3]  # by rank
    count = len(requests)
    lanes = exponential_noise(torch.tensor([seed]), torch.tensor([0]), 512)[0]
    noise = lanes[:SEGMENT] if first[0] < SEGMENT else lanes[SEGMENT:].repeat_interleave(SEGMENT)
    assert noise[first[0]] == len(first) * noise[other[0]]
    key = {"seed": torch.full((count,), seed), "position": torch.zeros(count, dtype=torch.int64)}
    for dtype in DTYPES:
        logits = torch.full((count, 200 * SEGMENT), -torch.inf, dtype=dtype)
        logits[:, first + other] = 2.0
        token_ids, _ = sample_rows(logits, requests, **key)
        assert token_ids.tolist() == first[:1] * count


def test_min_p_that_ends_at_the_last_logit_of_top_k_keeps_no_more_equals() -> None:
    """Of 2000 logits of -1 top-k keeps 500; the least float that min-p keeps is -1."""
    count, min_p = 300, float(torch.tensor(0.36787942))
    assert math.exp(-1 - 2.0**-23) < min_p <= math.exp(-1)
    logits = torch.cat([torch.full((2000,), -1.0), torch.zeros(1000)])
    token_ids, _ = sample_rows(logits.expand(count, -1), [Request(1.0, 1500, 1.0, min_p)] * count)
    of_equals = token_ids[token_ids < 2000]
    assert len(of_equals) > 20
    assert of_equals.max() < 500
