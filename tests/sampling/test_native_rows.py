"""sample_rows, the sampling layer's native operator: against the reference beside this file, and against itself."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from native_rows import DTYPES, GRID, KS, MIN_PS, PS, ROUTES, keys, lists, make_logits, sample_rows
from row_reference import ALL_MASKED, INF_SEEN, MOST_K, NAN_SEEN, OK, SEGMENT, Expected, Request, sample
from torch import Tensor

from ascend_sample.sampling.draws.noise import Purpose, exponential_noise
from tests.support.code_paths import assert_same_on_all_code_paths


def expect(
    logits: Tensor, requests: list[Request], purpose: int = Purpose.DRAW, keep_ties: bool = False, **key: Tensor
) -> list[Expected]:
    key = key or keys(len(requests))
    lanes = max(MOST_K, 256 + logits.shape[1] // 256 + 1)
    noise = exponential_noise(key["seed"], key["position"], lanes, purpose=Purpose(purpose)).numpy()
    values = logits.float().numpy()
    return [sample(values[i], request, noise[i], keep_ties) for i, request in enumerate(requests)]


def check(logits: Tensor, requests: list[Request], least_exact: float = 0.99, keep_ties: bool = False) -> None:
    """Every id is one that the reference allows, and nearly every one is its own."""
    token_ids, status = sample_rows(logits, requests, keep_ties=keep_ties)
    expected = expect(logits, requests, keep_ties=keep_ties)
    assert status.tolist() == [each.status for each in expected]
    kinds: Counter[bool] = Counter()
    for i, (token_id, each) in enumerate(zip(token_ids.tolist(), expected, strict=True)):
        assert token_id in each.allowed, (i, token_id, each, requests[i], logits.dtype, logits.shape)
        kinds[token_id == each.token_id] += 1
    assert kinds[True] >= least_exact * len(requests), kinds


F32, F16, BF16 = DTYPES


@pytest.mark.parametrize(
    ("dtype", "vocab_size", "repeats"),
    [(F32, 1, 1), (F16, 7, 4), (BF16, 1000, 2), (F32, 1000, 1), (F32, 50_000, 1)],
    ids=str,
)
def test_grid(dtype: torch.dtype, vocab_size: int, repeats: int) -> None:
    requests = GRID * repeats
    check(make_logits(len(requests), vocab_size, dtype), requests)


def test_shapes_of_rows() -> None:
    """Peaked and flat rows, ties, masks, and values so large or small that a sum leaves float32's range."""
    vocab_size = 3000
    base = make_logits(1, vocab_size, torch.float32, seed=3)[0]
    head = torch.full((vocab_size,), -18.0)
    head[17] = 0.0
    shapes = {
        "peaked": base * 20,
        "flat": base * 1e-3,
        "equal": torch.full((vocab_size,), 3.25),
        "ties": (base * 2).round(),
        "two values": (base > 1).float() * 4,
        "masked": base.where(torch.arange(vocab_size) % 3 == 0, torch.tensor(-torch.inf)),
        "one left": torch.full((vocab_size,), -torch.inf).index_fill(0, torch.tensor([2999]), -7.0),
        "a head far above": head,
        "far down": base - 3e4,
        "far up": base + 3e4,
        "far apart": base * 8e3,
        "sorted": base.sort().values,
    }
    requests = [request for request in GRID if request.temperature > 0]
    for number, row in enumerate(shapes.values()):
        check(row.to(DTYPES[number % 3]).expand(len(requests), -1), requests, 0.97)


@pytest.mark.parametrize(
    ("temperature", "dtype"), [(1e-38, F32), (1e-6, F16), (1e6, BF16), (3e38, F32), (float("inf"), BF16)], ids=str
)
def test_extreme_temperatures(dtype: torch.dtype, temperature: float) -> None:
    requests = [Request(temperature, k, p, min_p) for k, p, min_p in itertools.product(KS, PS, MIN_PS)]
    logits = make_logits(len(requests), 2000, dtype)
    logits[:, ::7] = -torch.inf
    check(logits, requests)
    check(logits * 1e3, requests)
    if temperature < 1:
        token_ids, _ = sample_rows(logits, requests)
        values = logits.gather(1, token_ids[:, None])[:, 0]
        assert torch.equal(values, logits.max(1).values)  # perhaps among ties


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
        requests = [Request(*arguments)] * count
        token_ids, _ = sample_rows(logits.expand(count, -1), requests)
        counts = torch.bincount(token_ids, minlength=4).double()
        for drawn, probability in zip(counts.tolist(), probabilities, strict=True):
            deviation = (count * probability * (1 - probability)) ** 0.5
            assert abs(drawn - count * probability) <= 5 * deviation, (arguments, counts)


def test_top_p_keeps_until_the_sum_exceeds_p() -> None:
    """Four equal logits and p = 1/2: with two, the sum only reaches p, so three are kept."""
    count = 3000
    for k in (0, 4):
        token_ids, _ = sample_rows(torch.zeros(count, 4), [Request(1.0, k, 0.5, 0.0)] * count)
        counts = torch.bincount(token_ids, minlength=4).tolist()
        assert counts[3] == 0
        assert min(counts[:3]) > 900


def test_p_is_not_rounded_to_the_dtype_of_logits() -> None:
    """In bfloat16, 0.999 would become 1, and keep the last logit too."""
    logits = torch.zeros(2000, 2, dtype=torch.bfloat16)
    logits[:, 1] = -7.0  # a probability of 0.0009
    token_ids, _ = sample_rows(logits, [Request(1.0, 0, 0.999, 0.0)] * 2000)
    assert not token_ids.any()
    token_ids, _ = sample_rows(logits.expand(-1, 2), [Request(1.0, 0, 1.0, 0.0)] * 2000)
    assert token_ids.any()


@pytest.mark.parametrize(("vocab_size", "dtype"), [(5, F32), (1000, BF16), (5000, F16), (40_000, BF16)], ids=str)
def test_status(vocab_size: int, dtype: torch.dtype) -> None:
    """Every kind of number in every place of a row, in every route."""
    nan = torch.tensor(torch.nan, dtype=dtype)
    kinds = {
        "nothing": ([], OK),
        "nan": ([nan], NAN_SEEN),
        "minus nan": ([-nan], NAN_SEEN),
        "inf": ([torch.inf], INF_SEEN),
        "minus inf": ([-torch.inf], OK),
        "two infs": ([torch.inf] * 2, INF_SEEN),
        "nan and inf": ([torch.inf, -nan], NAN_SEEN),
    }
    rows, expected = [], []
    places = [0, vocab_size - 1, vocab_size // 2, vocab_size // 3, vocab_size * 5 // 7]
    for place, (specials, status) in itertools.product(places, kinds.values()):
        row = make_logits(1, vocab_size, dtype, seed=place)[0]
        for offset, special in enumerate(specials):
            row[(place + offset) % vocab_size] = special
        rows.append(row)
        expected.append(status)
    masked = torch.full((vocab_size,), -torch.inf, dtype=dtype)
    for row, status in (
        (masked, ALL_MASKED),
        (masked.clone().fill_(torch.nan), NAN_SEEN),
        (-masked.clone().fill_(torch.nan), NAN_SEEN),
        (masked.clone().index_fill_(0, torch.tensor([vocab_size - 1]), torch.nan), NAN_SEEN),
        (masked.clone().index_fill_(0, torch.tensor([0]), -60000.0), OK),
        (-masked, INF_SEEN),
    ):
        rows.append(row)
        expected.append(status)
    logits = torch.stack(rows)
    for request in ROUTES:
        assert sample_rows(logits, [request] * len(rows))[1].tolist() == expected, request
        if vocab_size <= 1000:
            check(logits, [request] * len(rows), 0.95)


def test_infinities_share_the_mass() -> None:
    logits = make_logits(6000, 3000, torch.bfloat16)
    logits[:, [5, 1500, 2999]] = torch.inf
    for request in ROUTES:
        token_ids, status = sample_rows(logits, [request] * 6000)
        assert status.eq(INF_SEEN).all()
        counts = torch.bincount(token_ids, minlength=3000)[[5, 1500, 2999]].tolist()
        assert sum(counts) == 6000
        kept = 1 if request.temperature == 0 or request.k == 1 or request.min_p >= 1 else 2 if request.p == 0.5 else 3
        assert all(abs(count - 6000 / kept) < 250 for count in counts[:kept]), (request, counts)
    logits[:, 1000:] = torch.inf  # more of them than top-k keeps
    check(logits[: 20 * len(ROUTES)], ROUTES * 20)


def test_greedy_rows_have_the_lowest_id_of_the_largest() -> None:
    for dtype, vocab_size in itertools.product(DTYPES, (2, 33, 1025, 9000)):
        logits = make_logits(64, vocab_size, dtype).round()
        for request in (Request(0.0, 0, 1.0, 0.0), Request(0.0, 40, 0.3, 0.2), Request(2.0, 1, 0.3, 0.0)):
            token_ids, _ = sample_rows(logits, [request] * 64)
            assert torch.equal(token_ids, logits.float().argmax(1)), (dtype, vocab_size, request)
        negative, _ = sample_rows(logits, [Request(-1.0, 0, 1.0, 0.0)] * 64)
        assert torch.equal(negative, logits.float().argmax(1))


def test_equals_dividing_first_where_that_keeps_logits_apart() -> None:
    """A temperature that is a power of two divides exactly: the same as logits that were divided before."""
    for dtype, temperature in itertools.product(DTYPES, (0.5, 2.0)):
        requests = [request for request in GRID if request.temperature == 1.0]
        logits = make_logits(len(requests), 6000, dtype)
        divided, _ = sample_rows((logits.float() / temperature), requests)
        tempered = [Request(temperature, request.k, request.p, request.min_p) for request in requests]
        token_ids, _ = sample_rows(logits, tempered)
        assert (divided != token_ids).sum() <= 1  # a near tie


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(255, F16), (256, F32), (257, BF16), (2000, F16), (4097, BF16)], ids=str
)
def test_ties_that_top_k_keeps(vocab_size: int, dtype: torch.dtype) -> None:
    """All that is equal to the k-th, in rows of a few values, some of which are masked."""
    requests = [request for request in GRID if request.k != 1]
    logits = make_logits(len(requests), vocab_size, dtype).round()
    logits[::2, ::3] = -torch.inf
    check(logits, requests, keep_ties=True)
    logits[:, vocab_size // 2] = torch.inf
    check(logits, requests, keep_ties=True)


@pytest.mark.parametrize("vocab_size", [255, 256, 257, 511, 513, 1023, 1025, 8191, 8193])
def test_last_segments_of_any_length(vocab_size: int) -> None:
    """Half of the weight is on the last ids."""
    requests = [request for request in ROUTES if request.k in (0, 1500)] * 20
    logits = make_logits(len(requests), vocab_size, torch.float32, scale=0.5)
    logits[:, -7:] += float(np.log(vocab_size / 7))
    check(logits, requests, 1.0)


def test_division_rounds_as_division_does() -> None:
    """Logits that only a division makes equal, and others that only a product with 1 / temperature would.

    Among equal ones the lower id has the lower lane, so that the order shows in what is drawn.
    """
    temperature = np.float32(0.7)
    logits = -(np.float32(0.375) + np.arange(20_000, dtype=np.float32) * np.float32(2.0**-25))
    divided, multiplied = logits / temperature, logits * (np.float32(1) / temperature)
    are_equal = divided[:-1] == divided[1:]
    would_be = multiplied[:-1] == multiplied[1:]
    for places in (np.flatnonzero(are_equal & ~would_be), np.flatnonzero(~are_equal & would_be)):
        assert places.size > 0
        place = int(places[0])
        row = torch.tensor([0.0, logits[place + 1], logits[place]])
        check(row.expand(300, -1), [Request(0.7, 0, 0.9999, 0.0)] * 300, 1.0)


def test_a_row_does_not_depend_on_its_batch() -> None:
    """Alone, in another place, with other rows, on other numbers of threads."""
    requests = (GRID * 2)[1:]  # no multiple of what a thread takes at a time
    count = len(requests)
    threads = torch.get_num_threads()
    for dtype in DTYPES:
        logits = make_logits(count, 3000, dtype)
        expected, _ = sample_rows(logits, requests)
        try:
            for number in (1, 2, 5):
                torch.set_num_threads(number)
                assert torch.equal(sample_rows(logits, requests)[0], expected)
        finally:
            torch.set_num_threads(threads)
        for i in range(0, count, 7):
            keyed = {name: value[i : i + 1] for name, value in keys(count).items()}
            assert sample_rows(logits[i : i + 1], [requests[i]], **keyed)[0].item() == expected[i]


def test_purposes_differ() -> None:
    logits = make_logits(300, 500, torch.bfloat16, scale=0.5)
    requests = [Request(1.0, 0, 1.0, 0.0)] * 300
    drawn = [sample_rows(logits, requests, purpose=purpose)[0] for purpose in Purpose]
    assert torch.equal(drawn[0], sample_rows(logits, requests)[0])
    for one, other in itertools.combinations(drawn, 2):
        assert (one != other).float().mean() > 0.9


SCRIPT = """
import hashlib, torch
from native_rows import DTYPES, GRID, ROUTES, make_logits, sample_rows
digest = hashlib.sha256()
for dtype in DTYPES:
    for vocab_size, requests in ((1000, GRID), (20_000, GRID[::3]), (70_001, ROUTES)):
        for part in sample_rows(make_logits(len(requests), vocab_size, dtype), requests):
            digest.update(part.numpy().tobytes())
print(digest.hexdigest())
"""


def test_instruction_sets_agree() -> None:
    assert_same_on_all_code_paths(SCRIPT)


def test_memory_of_a_long_row() -> None:
    """The largest vocabulary, whose last lines are not whole."""
    logits = make_logits(len(ROUTES), 2**20 - 3, torch.bfloat16, scale=1.5)
    token_ids, status = sample_rows(logits, ROUTES)
    assert status.eq(OK).all()
    assert np.all((token_ids.numpy() >= 0) & (token_ids.numpy() < 2**20 - 3))


@pytest.mark.parametrize("near", [None, 0.4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("seed", "first", "other"),
    [
        (892, [16], [94]),  # places of one segment, whose noise is equal
        (22594, [14 * SEGMENT + 3], [61 * SEGMENT + 3]),  # the same of segments
        # The noise of the first segment is twice the other's, and so is its weight: the other is looked at before.
        (152, [114 * SEGMENT + 9, 114 * SEGMENT + 3], [150 * SEGMENT + 3]),
    ],
)
def test_of_equal_scores_the_first_wins(
    seed: int, first: list[int], other: list[int], dtype: torch.dtype, near: float | None
) -> None:
    requests = [Request(*each) for each in itertools.product((1.0, 0.5), (0, 3, 1500), (1.0, 0.95), (0.0, 0.1))]
    requests = [request for request in requests if near is not None or request.k != 3]  # by rank
    count = len(requests)
    lanes = exponential_noise(torch.tensor([seed]), torch.tensor([0]), 512)[0]
    races = (lanes[:SEGMENT], lanes[SEGMENT:])
    noise = races[0] if first[0] < SEGMENT else races[1].repeat_interleave(SEGMENT)
    assert noise[first[0]] == len(first) * noise[other[0]]
    logits = torch.full((count, 200 * SEGMENT), -torch.inf, dtype=dtype)
    logits[:, first + other] = 2.0
    key = {"seed": torch.full((count,), seed), "position": torch.zeros(count, dtype=torch.int64)}
    if near is None:
        token_ids, _ = sample_rows(logits, requests, **key)
    else:
        none = torch.zeros(count, dtype=torch.bool)
        token_ids = torch.ops.ascend_sample.sample_kept_rows(
            logits, None, none, **lists(requests), **key, near=torch.full((count,), near)
        )[0]
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
