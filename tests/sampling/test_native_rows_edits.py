"""Edits in sample_rows: the tokens and statuses of whole rows that were edited in torch before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from native_rows import DTYPES, GRID, ROUTES, keys, lists, make_logits, sample_rows
from row_edits import FAMILIES, RowEdits, arguments_of, of_rows, packed, random_edits, whole_rows, without_repeats
from row_reference import ALL_MASKED, INF_SEEN, NAN_SEEN, OK, Request
from torch import Tensor

from tests.support.code_paths import assert_same_on_all_code_paths

GREEDY = Request(0.0, 0, 1.0, 0.0)
SHIPPED = Request(0.7, 20, 0.8, 0.0)
INF, NAN = torch.inf, torch.nan


def expect(logits: Tensor, requests: list[Request], edits: list[RowEdits], **options: bool) -> tuple[Tensor, Tensor]:
    """A row with a list is one of float32; one with masks alone keeps its dtype."""
    values = whole_rows(logits, edits)
    wide = sample_rows(values, requests, **options)
    narrow = sample_rows(values.to(logits.dtype), requests, **options)
    is_widened = torch.tensor([row.is_widened for row in edits])
    return torch.where(is_widened, wide[0], narrow[0]), torch.where(is_widened, wide[1], narrow[1])


def check(logits: Tensor, requests: list[Request], edits: list[RowEdits], **options: bool) -> None:
    expected, expected_status = expect(logits, requests, edits, **options)
    before = logits.clone()
    token_ids, status = sample_rows(logits, requests, edits=arguments_of(edits, logits.shape[1]), **options)
    wrong = (token_ids != expected).nonzero()[:, 0].tolist()
    assert wrong == [], (wrong, [(requests[i], edits[i]) for i in wrong[:2]])
    assert torch.equal(status, expected_status)
    assert torch.equal(logits.isnan(), before.isnan())
    assert torch.equal(logits.nan_to_num(7.0), before.nan_to_num(7.0))


F32, F16, BF16 = DTYPES


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(1, F32), (31, F32), (32, F16), (33, BF16), (1000, F16), (1000, BF16), (3007, F32)],
    ids=str,
)
def test_all_kinds_in_one_batch(vocab_size: int, dtype: torch.dtype) -> None:
    for seed in range(2):
        logits = make_logits(len(GRID), vocab_size, dtype, seed=seed)
        check(logits, GRID, random_edits(len(GRID), vocab_size, seed))
        check(logits, GRID, random_edits(len(GRID), vocab_size, seed + 10), keep_ties=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_vocabulary(dtype: torch.dtype) -> None:
    requests = ROUTES * 3
    for vocab_size in (20_000, 151_936):
        logits = make_logits(len(requests), vocab_size, dtype)
        check(logits, requests, random_edits(len(requests), vocab_size))


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_logits(dtype: torch.dtype) -> None:
    """In listed ids and others, allowed and forbidden."""
    vocab_size = 301
    specials = torch.tensor([-0.0, INF, NAN, -INF, 0.0], dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    for rarity in (2, 40, 300):
        logits = make_logits(len(GRID), vocab_size, dtype)
        struck = torch.randint(rarity, logits.shape, generator=generator) == 0
        logits = torch.where(struck, specials[torch.randint(5, logits.shape, generator=generator)], logits)
        check(logits, GRID, random_edits(len(GRID), vocab_size))


def test_rows_by_hand() -> None:
    """The example of apply_penalties, a bias, and a mask; greedy, so that the largest logit shows."""
    cases = [
        ([4.0, -1.0, 3.0], RowEdits(), 0),
        ([4.0, -1.0, 3.0], RowEdits(listed=[0, 1], occurrences={0: 1, 1: 4}, penalties=(2.0, 0.5, 0.25)), 2),
        ([4.0, -1.0, 3.0], RowEdits(addends={2: 1.5}), 2),
        ([4.0, -1.0, 3.0], RowEdits(addends={0: -INF, 2: -INF}), 1),
        ([4.0, -1.0, 3.0], RowEdits(mask=torch.tensor([False, True, True])), 2),
        ([4.0, -1.0, 3.0], RowEdits(bitmask=torch.tensor([False, True, False])), 1),
        # The addend first, then the division: (4 + 2) / 2 = 3 < 3.5 < 4 / 2 + 2.
        ([4.0, -1.0, 3.5], RowEdits({0: 2.0}, [0], {0: 2}, (2.0, 0.0, 0.0)), 2),
        # An id of the prompt has no count: 4 - 0, where one of the output has 4 - 2.
        ([4.0, -1.0, 3.0], RowEdits(listed=[0], occurrences={0: 1}, penalties=(1.0, 1.0, 1.0)), 0),
        ([4.0, -1.0, 3.0], RowEdits(listed=[0], occurrences={0: 2}, penalties=(1.0, 1.0, 1.0)), 2),
        # Twice in the output, and listed twice: 4 - 2 * 0.6 = 2.8, not 4 - 4 * 0.6.
        ([4.0, 1.8, 2.7], RowEdits(listed=[0, 0], occurrences={0: 4}, penalties=(1.0, 0.0, 0.6)), 0),
        # An id that is not listed has no penalty, whatever its occurrences.
        ([4.0, -1.0, 3.0], RowEdits(listed=[1], occurrences={1: 2}, penalties=(9.0, 2.0, 2.0)), 0),
    ]
    for dtype in DTYPES:
        logits = torch.tensor([case[0] for case in cases], dtype=dtype)
        edits = arguments_of([case[1] for case in cases], 3)
        token_ids, status = sample_rows(logits, [GREEDY] * len(cases), edits=edits)
        assert token_ids.tolist() == [case[2] for case in cases]
        assert not status.any()


def test_arithmetic_is_that_of_whole_rows_to_the_last_bit() -> None:
    """Beside an edited logit stands what it has to become: of equal ones the lower id is the first."""
    count = 3000
    edits = [RowEdits({0: 0.37}, [0], {0: i % 13}, (1.05, 0.3, 0.1)) for i in range(count)]
    logits = make_logits(count, 1, torch.float32)
    becomes = whole_rows(logits, edits)
    in_one_rounding = [float(np.float32(float(x) - float(np.float32(0.1)) * 3)) for x in logits]
    in_two = (logits - torch.tensor(0.1) * 3)[:, 0].tolist()
    assert sum(one != two for one, two in zip(in_one_rounding, in_two, strict=True)) > count // 10  # it would show
    for place in (0, 1):
        row = torch.cat([logits, becomes] if place == 0 else [becomes, logits], 1)
        moved = [RowEdits({place: 0.37}, [place], {place: i % 13}, (1.05, 0.3, 0.1)) for i in range(count)]
        token_ids, _ = sample_rows(row, [GREEDY] * count, edits=arguments_of(moved, 2))
        assert not token_ids.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_status_is_that_of_the_edited_row(dtype: torch.dtype) -> None:
    vocab_size = 2005
    base = make_logits(1, vocab_size, dtype)[0]
    base[3], base[2004] = NAN, INF
    allowed = {
        "all": (torch.ones(vocab_size, dtype=torch.bool), NAN_SEEN),
        "no nan": (torch.arange(vocab_size) != 3, INF_SEEN),
        "no inf": (torch.arange(vocab_size) != 2004, NAN_SEEN),
        "neither": ((torch.arange(vocab_size) != 3) & (torch.arange(vocab_size) != 2004), OK),
        "few": (torch.arange(vocab_size) % 50 == 5, OK),
        "few, one of them nan": (torch.arange(vocab_size) % 50 == 3, NAN_SEEN),
        "inf alone": (torch.arange(vocab_size) == 2004, INF_SEEN),
        "nan alone": (torch.arange(vocab_size) == 3, NAN_SEEN),
        "nothing": (torch.zeros(vocab_size, dtype=torch.bool), ALL_MASKED),
    }
    edits, statuses = [], []
    for mask, status in allowed.values():
        banned = {int(i): -INF for i in (~mask).nonzero()[:, 0]}
        edits += [RowEdits(mask=mask), RowEdits(bitmask=mask), RowEdits(banned), RowEdits({0: 0.0}, mask=mask)]
        statuses += [status] * 4
    logits, arguments = base.expand(len(edits), -1), arguments_of(edits, vocab_size)
    for request in (*ROUTES, GREEDY):
        requests = [request] * len(edits)
        check(logits, requests, edits)
        token_ids, status = sample_rows(logits, requests, edits=arguments)
        assert status.tolist() == statuses, request
        for i, (mask, _) in enumerate(allowed.values()):
            drawn = token_ids[4 * i : 4 * i + 4]
            assert mask.any().logical_not() or bool(mask[drawn].all()) or statuses[4 * i] == NAN_SEEN, request


@pytest.mark.parametrize("vocab_size", [31, 32, 33, 95])
def test_each_bit_of_a_mask(vocab_size: int) -> None:
    """One id allowed, and one forbidden; every bit beyond the vocabulary is set."""
    logits = make_logits(1, vocab_size, torch.bfloat16).expand(vocab_size, -1)
    identity = torch.eye(vocab_size, dtype=torch.bool)
    for mask, request in ((identity, SHIPPED), (identity, Request(1.0, 0, 1.0, 0.0)), (identity, GREEDY)):
        edits = arguments_of([RowEdits(bitmask=row) for row in mask], vocab_size)
        assert sample_rows(logits, [request] * vocab_size, edits=edits)[0].tolist() == list(range(vocab_size))
    best = torch.zeros(vocab_size, vocab_size)
    best[identity] = 9.0
    edits = arguments_of([RowEdits(mask=row) for row in ~identity], vocab_size)
    token_ids, _ = sample_rows(best, [GREEDY] * vocab_size, edits=edits)
    assert token_ids.tolist() == [1, *[0] * (vocab_size - 1)]


KEEPING_ONE = pytest.mark.parametrize("request_", [Request(1e6, 0, 1.0, 1.0), Request(1e6, 0, 0.0, 0.0)])


@KEEPING_ONE
def test_what_a_temperature_makes_equal_is_taken_by_the_id(request_: Request) -> None:
    """Where one entry is kept: an edited row is divided before the best is looked for, as any other."""
    logits = torch.arange(5000, dtype=torch.float32)[None] * 1e-44
    few = torch.zeros(5000, dtype=torch.bool)
    few[[30, 700, 4000]] = True
    edits = [RowEdits(bitmask=few), RowEdits(bitmask=~few), RowEdits(addends={7: -1.0, 0: -1e9})]
    check(logits.expand(3, -1), [request_] * 3, edits)
    token_ids, _ = sample_rows(logits.expand(3, -1), [request_] * 3, edits=arguments_of(edits, 5000))
    assert token_ids.tolist() == [30, 0, 1]


@KEEPING_ONE
@pytest.mark.parametrize("rule", [1, 2])
@pytest.mark.parametrize(("draft", "tokens"), [(0, [0, 0]), (4999, [0, -1])])
def test_a_draft_is_judged_by_what_a_temperature_makes_equal(
    draft: int, tokens: list[int], rule: int, request_: Request
) -> None:
    """Where one entry is kept, it is the one that is drawn: the first here, while the last is the largest logit."""
    logits = (torch.arange(5000, dtype=torch.float32)[None] * 1e-44).expand(2, -1).contiguous()
    drafts = {"draft_ids": torch.tensor([draft]), "ends": torch.tensor([2]), "rule": rule}
    assert sample_rows(logits, [request_] * 2)[0].tolist() == [0, 0]
    token_ids, _, accepted = torch.ops.ascend_sample.verify_drafts(logits, **drafts, **lists([request_] * 2), **keys(2))
    assert token_ids.tolist() == tokens
    assert accepted.tolist() == [int(draft == 0)]


def test_repeats_change_nothing() -> None:
    vocab_size = 700
    logits = make_logits(len(GRID), vocab_size, torch.bfloat16)
    edits = random_edits(len(GRID), vocab_size)
    assert any(row.listed is not None and len(set(row.listed)) < len(row.listed) for row in edits)
    once = sample_rows(logits, GRID, edits=arguments_of(without_repeats(edits), vocab_size))
    for row in edits:
        row.listed = None if row.listed is None else row.listed * 3
    thrice = sample_rows(logits, GRID, edits=arguments_of(edits, vocab_size))
    assert torch.equal(thrice[0], once[0])


def test_neutral_edits_change_nothing() -> None:
    """Empty lists, addends of 0, neutral penalties, and masks that allow everything: as float32 rows."""
    vocab_size = 1001
    logits = make_logits(len(GRID), vocab_size, torch.float32)
    everything = torch.ones(vocab_size, dtype=torch.bool)
    ids = list(range(0, vocab_size, 3))
    expected = sample_rows(logits, GRID)
    for row in (
        RowEdits(addends={}),
        RowEdits(addends={i: -0.0 for i in ids}),
        RowEdits(listed=[], occurrences={}, penalties=(2.0, 1.0, 1.0)),
        RowEdits(listed=[0], occurrences={0: 0}, penalties=(2.0, 1.0, -1.0)),  # a placeholder
        RowEdits(listed=ids, occurrences={i: 5 for i in ids}),
        RowEdits(mask=everything, bitmask=everything),
    ):
        actual = sample_rows(logits, GRID, edits=arguments_of([row] * len(GRID), vocab_size))
        assert torch.equal(actual[0], expected[0])
        assert torch.equal(actual[1], expected[1])


def test_a_row_does_not_depend_on_its_batch() -> None:
    """In another order, by `rows`, alone, with tables of other strides, on other numbers of threads."""
    vocab_size = 2001
    requests = GRID
    count = len(requests)
    edits = arguments_of(random_edits(count, vocab_size), vocab_size)
    threads = torch.get_num_threads()
    for dtype in DTYPES:
        logits = make_logits(count, vocab_size, dtype)
        expected, expected_status = sample_rows(logits, requests, edits=edits)
        try:
            for number in (1, 2, 5):
                torch.set_num_threads(number)
                assert torch.equal(sample_rows(logits, requests, edits=edits)[0], expected)
        finally:
            torch.set_num_threads(threads)
        wide = torch.zeros(count, 2 * vocab_size, dtype=dtype)
        wide[:, ::2] = logits
        strided = {name: torch.stack([value, value], -1)[..., 0] for name, value in edits.items()}
        cut = {
            name: torch.cat([value, value], -1)[:, : value.shape[1]] for name, value in edits.items() if value.ndim == 2
        }
        for other in (strided, edits | cut):
            assert torch.equal(sample_rows(wide[:, ::2], requests, edits=other)[0], expected)
        rows = torch.randperm(count)
        keyed = {name: value[rows] for name, value in keys(count).items()}
        chosen = [requests[i] for i in rows.tolist()]
        token_ids, status = sample_rows(logits, chosen, rows=rows, edits=of_rows(edits, rows), **keyed)
        assert torch.equal(token_ids, expected[rows])
        assert torch.equal(status, expected_status[rows])
        for i in range(0, count, 11):
            keyed = {name: value[i : i + 1] for name, value in keys(count).items()}
            alone = of_rows(edits, torch.tensor([i]))
            assert sample_rows(logits[i : i + 1], [requests[i]], edits=alone, **keyed)[0].item() == expected[i]


def test_each_family_alone() -> None:
    vocab_size = 333
    logits = make_logits(len(GRID), vocab_size, torch.float16)
    edits = random_edits(len(GRID), vocab_size)
    arguments = arguments_of(edits, vocab_size)
    for family, names in FAMILIES.items():
        own = [
            RowEdits(
                row.addends if family == "addends" else None,
                *((row.listed, row.occurrences, row.penalties) if family == "penalties" else ()),
                mask=row.mask if family == "masks" else None,
                bitmask=row.bitmask if family == "bitmask" else None,
            )
            for row in edits
        ]
        token_ids, status = sample_rows(logits, GRID, edits={name: arguments[name] for name in names})
        expected, expected_status = expect(logits, GRID, own)
        assert torch.equal(token_ids, expected)
        assert torch.equal(status, expected_status)


def test_no_rows() -> None:
    edits = {name: value[:0] for name, value in arguments_of([RowEdits({1: 2.0}, [1], {1: 2})], 5).items()}
    edits["penalties"] = torch.empty(3, 0)
    token_ids, status = sample_rows(torch.zeros(0, 5), [], edits=edits)
    assert (token_ids.shape, status.shape) == ((0,), (0,))


def test_shared_slots() -> None:
    """Rows of one grammar state, or of one list, share what they have."""
    vocab_size = 500
    mask = torch.arange(vocab_size) % 3 == 0
    count = len(GRID)
    logits = make_logits(count, vocab_size, torch.bfloat16)
    slot = torch.zeros(count, dtype=torch.int64)
    shared = {
        "bitmask_rows": slot,
        "bitmask": packed([mask], vocab_size),
        "addend_slot": slot,
        "addend_ids": torch.tensor([[4, 9, 3]]),
        "addends": torch.tensor([[1.0, -2.0, -INF]]),
        "addend_lengths": torch.tensor([3]),
    }
    token_ids, _ = sample_rows(logits, GRID, edits=shared)
    edits = [RowEdits({4: 1.0, 9: -2.0, 3: -INF}, bitmask=mask)] * count
    assert torch.equal(token_ids, expect(logits, GRID, edits)[0])


SCRIPT = """
import hashlib
from native_rows import DTYPES, GRID, ROUTES, make_logits, sample_rows
from row_edits import arguments_of, random_edits
digest = hashlib.sha256()
for dtype in DTYPES:
    for vocab_size, requests in ((1003, GRID), (70_001, ROUTES)):
        edits = arguments_of(random_edits(len(requests), vocab_size), vocab_size)
        for part in sample_rows(make_logits(len(requests), vocab_size, dtype), requests, edits=edits):
            digest.update(part.numpy().tobytes())
print(digest.hexdigest())
"""


def test_instruction_sets_agree() -> None:
    assert_same_on_all_code_paths(SCRIPT)


BAD = [
    ("addend_slot", 4, r"addend_slot must be between -1 and the number of slots \(4\) - 1, got 4"),
    ("penalty_slot", -2, r"penalty_slot must be between -1 and .* \(4\) - 1, got -2"),
    ("mask_slot", 2**62, r"mask_slot must be between -1 and the number of masks \(4\) - 1, got 4611686018"),
    ("bitmask_rows", 4, r"bitmask_rows must be between -1 and the number of bitmasks \(4\) - 1, got 4"),
    ("addend_lengths", 4, r"addend_lengths must be between 0 and the columns of addend_ids \(3\), got 4"),
    ("penalty_lengths", -1, r"penalty_lengths must be between 0 and .* \(3\), got -1"),
    ("addend_ids", 70, r"addend_ids must be between 0 and the vocabulary size of logits \(70\) - 1, got 70"),
    ("penalty_ids", -1, r"penalty_ids must be between 0 and .* \(70\) - 1, got -1. Give ids of the voca"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_bad_values(name: str, value: int, message: str) -> None:
    row = RowEdits(
        {0: 1.0}, [5], {5: 3}, mask=torch.ones(70, dtype=torch.bool), bitmask=torch.ones(70, dtype=torch.bool)
    )
    edits = arguments_of([row, row, RowEdits(), RowEdits()], 70)
    slot = edits[f"{name.split('_')[0]}_slot"][1] if name.endswith(("_ids", "_lengths")) else 1
    edits[name][(slot, 0) if name.endswith("_ids") else slot] = value
    with pytest.raises(ValueError, match=f"^sample_rows: {message}"):
        sample_rows(make_logits(4, 70, torch.float32), [SHIPPED] * 4, edits=edits)


def test_a_family_is_given_as_a_whole_or_not_at_all() -> None:
    edits = arguments_of([RowEdits()] * 4, 70)
    for names in FAMILIES.values():
        for name in names:
            with pytest.raises(ValueError, match=f"must be given together with {name}, got None. Give both"):
                sample_rows(torch.zeros(4, 70), [SHIPPED] * 4, edits={name: edits[name]})
