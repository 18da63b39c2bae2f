"""Edits in sample_rows: the tokens and statuses of whole rows that were edited in torch before.

Rows with a small top-k are not copied for their edits: what is edited is left out of the pass over them, and joins the
candidates that it finds. So the best logits are edited here too: forbidden, lowered, lifted, or equal to others.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from native_rows import DTYPES, GRID, ROUTES, Request, keys, lists, make_logits, sample_rows
from row_edits import FAMILIES, RowEdits, arguments_of, random_edits, whole_rows
from torch import Tensor

GREEDY, SHIPPED = Request(0.0), Request(0.7, 20, 0.8)
INF, NAN = torch.inf, torch.nan


def check(logits: Tensor, requests: list[Request], edits: list[RowEdits], keep_ties: bool = False) -> None:
    """A row with a list is one of float32; one with masks alone keeps its dtype."""
    values, before = whole_rows(logits, edits), logits.clone()
    wide = sample_rows(values, requests, keep_ties=keep_ties)
    narrow = sample_rows(values.to(logits.dtype), requests, keep_ties=keep_ties)
    is_widened = torch.tensor([row.is_widened for row in edits])
    arguments = arguments_of(edits, logits.shape[1])
    found = sample_rows(logits, requests, edits=arguments, keep_ties=keep_ties)
    for one, of_wide, of_narrow in zip(found, wide, narrow, strict=True):
        wrong = (one != torch.where(is_widened, of_wide, of_narrow)).nonzero()[:, 0].tolist()
        assert wrong == [], (wrong, [(requests[i], edits[i]) for i in wrong[:2]])
    assert torch.equal(logits.nan_to_num(7.0), before.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_kinds_in_one_batch(dtype: torch.dtype) -> None:
    """Sizes around words of a mask, and large ones; lists with ids several times."""
    for seed, vocab_size in enumerate((1, 31, 32, 33, 1000, 3007)):
        logits = make_logits(len(GRID), vocab_size, dtype, seed=seed)
        check(logits, GRID, random_edits(len(GRID), vocab_size, seed), keep_ties=seed % 3 == 2)
    logits = make_logits(len(ROUTES), 151_936, dtype)
    check(logits, ROUTES, random_edits(len(ROUTES), 151_936))


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_logits(dtype: torch.dtype) -> None:
    """In listed ids and others, allowed and forbidden; an infinity that only edits have made is one as well."""
    specials = torch.tensor([-0.0, INF, NAN, -INF, 0.0], dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    for rarity, vocab_size in ((2, 301), (40, 301), (300, 301), (3000, 3007)):
        logits = make_logits(len(GRID), vocab_size, dtype)
        struck = torch.randint(rarity, logits.shape, generator=generator) == 0
        logits = torch.where(struck, specials[torch.randint(5, logits.shape, generator=generator)], logits)
        check(logits, GRID, random_edits(len(GRID), vocab_size))
        bans = [{int(i): -INF for i in row.isnan().nonzero()[:, 0]} for row in logits]
        check(logits, GRID, [RowEdits(ban) for ban in bans])
    logits = make_logits(len(SMALL_K), 3007, dtype)
    logits[:, 77] = 6e4 if dtype == torch.float16 else 3e38
    for edits in (RowEdits({77: 3e38}), RowEdits(listed=[77], occurrences={77: 2}, penalties=(1e-36, 0.0, 0.0))):
        check(logits, SMALL_K, [edits] * len(SMALL_K))


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
        token_ids, status = sample_rows(
            logits, [GREEDY] * len(cases), edits=arguments_of([case[1] for case in cases], 3)
        )
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


KEEPING_ONE = pytest.mark.parametrize("request_", [Request(1e6, 0, 1.0, 1.0), Request(1e6, 0, 0.0, 0.0)])


@KEEPING_ONE
def test_what_a_temperature_makes_equal_is_taken_by_the_id(request_: Request) -> None:
    """Where one entry is kept: an edited row is divided before the best is looked for, as any other."""
    logits = torch.arange(5000, dtype=torch.float32)[None] * 1e-44
    few = torch.zeros(5000, dtype=torch.bool)
    few[[30, 700, 4000]] = True
    edits = [RowEdits(bitmask=few), RowEdits(bitmask=~few), RowEdits(addends={7: -1.0, 0: -1e9})]
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
    token_ids, _, accepted = torch.ops.ascend_sample.verify_drafts(logits, **drafts, **lists([request_] * 2), **keys(2))
    assert token_ids.tolist() == tokens
    assert accepted.tolist() == [int(draft == 0)]


def test_tables_of_any_strides_each_family_alone_and_any_number_of_threads() -> None:
    edits = random_edits(len(GRID), 701)
    arguments = arguments_of(edits, 701)
    logits = make_logits(len(GRID), 701, torch.float16)
    expected = sample_rows(logits, GRID, edits=arguments)[0]
    strided = {name: torch.stack([value, value], -1)[..., 0] for name, value in arguments.items()}
    cut = {name: torch.cat([it, it], -1)[:, : it.shape[1]] for name, it in arguments.items() if it.ndim == 2}
    threads = torch.get_num_threads()
    try:
        for number, given in enumerate((strided, arguments | cut, arguments), start=1):
            torch.set_num_threads(number)
            assert torch.equal(sample_rows(logits, GRID, edits=given)[0], expected)
    finally:
        torch.set_num_threads(threads)
    fields = {"addends": ["addends"], "penalties": ["listed", "occurrences", "penalties"], "masks": ["mask"]}
    for family, names in FAMILIES.items():
        own = [RowEdits(**{name: getattr(row, name) for name in fields.get(family, ["bitmask"])}) for row in edits]
        alone = sample_rows(logits, GRID, edits={name: arguments[name] for name in names})
        whole = sample_rows(logits, GRID, edits=arguments_of(own, 701))
        assert all(torch.equal(one, other) for one, other in zip(alone, whole, strict=True))


# ---- what would be drawn is edited ----

SMALL_K = [
    *(GREEDY, Request(1.0, 1), Request(1.0, 7), SHIPPED, Request(1.3, 64, 0.95, 0.01), Request(0.7, 65, 0.8)),
    *(Request(1.0, 20, 0.0), Request(1.0, 20, 1.0, 1.0)),
]
PENALTIES = (1.3, 0.5, 0.25)


def best_of(row: Tensor, count: int) -> list[int]:
    return row.float().topk(min(count, len(row))).indices.tolist()


def forbidden(row: Tensor, count: int) -> RowEdits:
    return RowEdits(addends=dict.fromkeys(best_of(row, count), -INF))


def penalised(row: Tensor, count: int) -> RowEdits:
    ids = best_of(row, count)
    return RowEdits(listed=ids + ids[: count // 2], occurrences={i: i % 5 for i in ids}, penalties=PENALTIES)


def lifted(row: Tensor, count: int) -> RowEdits:
    top = row.float().max().item()
    return RowEdits(addends={i: top - row[i].item() + 0.25 * (i % 3) for i in best_of(-row, count)})


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


@pytest.mark.parametrize("kind", [forbidden, penalised, lifted, both, masked, half_masked], ids=lambda k: k.__name__)
def test_the_best_are_edited(kind: object) -> None:
    """Of many values, of few, and of hardly any, where edited and other logits are equal at the end of top-k."""
    assert callable(kind)
    for number, count in enumerate((1, 20, 63, 64, 65, 300, 1000)):
        for step in (0.0, 0.25, 4.0):
            dtype, vocab_size = DTYPES[(number + int(step)) % 3], (1025, 3007, 10_001)[number // 2 % 3]
            logits = make_logits(len(SMALL_K), vocab_size, dtype, seed=count)
            logits = ((logits / step).round() * step).to(dtype) if step else logits
            check(logits, SMALL_K, [kind(row, count) for row in logits])


def test_a_row_leaves_nothing_to_the_next_one() -> None:
    """The same row after one that edits the ids it would draw."""
    rows = make_logits(1, 3007, torch.bfloat16).expand(4, -1).contiguous()
    edits = [
        forbidden(rows[0], 40),
        RowEdits(addends={3000: 0.5}),
        penalised(rows[0], 40),
        RowEdits(listed=[], occurrences={}, penalties=PENALTIES),
    ]
    check(rows, [GREEDY] * 4, edits)
    check(rows, [SHIPPED] * 4, edits)
