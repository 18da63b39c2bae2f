"""The judge of mismatches: what it must accept, with the reason, and what it must never accept."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from ascend_sample.parity import Kind, Result, compare
from ascend_sample.parity.cases import stream
from ascend_sample.parity.row_model import V1, Row, model_row
from ascend_sample.reference import top_k_top_p_sample_reference
from tests.operators.golden import V1 as GOLDEN
from tests.operators.golden import Case
from tests.parity.parity_helpers import HALVES, READINGS, SKIPS_TOP_K, Drawn, check_judged

INF = math.inf
NAN = math.nan
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FILTERS: list[dict[str, Any]] = [{}, {"k": 2}, {"p": 0.9}]
LAST_WINS = [10.0, 10.0, 1e-3]  # rank 2, if it is kept
THIRDS = float(np.float32(2 / 3))
UNTOLD = [10.0, 1e-7, 2e-7]  # float32 cannot tell 1e-7 - 10 from 2e-7 - 10, by probability id 1 comes before id 2
JUDGED: list[tuple[Kind | str, list[float], Drawn, Drawn, dict[str, Any]]] = [
    # Ties: equal logits with equal noise, and never of kept sets.
    (Kind.TIE, [2.0, 2.0, 0.0], 0, 1, {}),
    (Kind.TIE, [0.0, 2.0, 2.0], 1, 2, {"k": 2, "q": [1.0, 1.0, 9.0]}),
    (Kind.FAILED, [0.0, 2.0, 2.0], 1, 2, {"k": 2, "q": [1.0, 2.0, 1.0]}),
    ("against the total order", [0.0, 2.0, 2.0, 2.0], (1, [1, 2]), (1, [1, 3]), {"k": 2}),
    # The order of probabilities, only where the device has it, and never with top-k.
    (Kind.FAILED, UNTOLD, 1, 2, {"p": 0.99997, "q": [1e9, 1e9, 1e-3]}),
    (Kind.TIE, UNTOLD, 1, 2, {"p": 0.99997, "q": [1e9, 1e9, 1e-3], "device_sorts_probabilities": True}),
    (Kind.FAILED, UNTOLD, 1, 2, {"k": 3, "q": [1e9, 1e9, 1e-3], "device_sorts_probabilities": True}),
    # Near draws: scores, and weights without noise.
    *((Kind.NEAR_DRAW, [0.0, 0.0], 0, 1, {**filters, "q": [1.0, 1.0 + 5e-6]}) for filters in FILTERS),
    *((Kind.FAILED, [0.0, 0.0], 0, 1, {**filters, "q": [1.0, 1.0 + 1e-4]}) for filters in FILTERS),
    (Kind.NEAR_DRAW, [1.0 + 5e-6, 1.0], 0, 1, {}),
    (Kind.FAILED, [1.0 + 1e-4, 1.0], 0, 1, {}),
    (Kind.FAILED, [0.0, -INF], 0, 1, {"q": [1.0, 0.0]}),
    (Kind.FAILED, [0.0, 0.0], 1, 0, {"q": [NAN, 1.0]}),
    (Kind.FAILED, [0.0, 0.0], 0, 1, {"q": [NAN, NAN]}),
    *((Kind.FAILED, [-INF, -INF], 0, 1, {**filters, "q": [9.0, 1.0]}) for filters in FILTERS),
    # Near boundaries: the sums of HALVES are .5, .8 and 1.
    *(
        (kind, HALVES, (0, expected), (0, actual), {"k": k, "p": p})
        for k in (3, SKIPS_TOP_K)
        for kind, p, expected, actual in (
            (Kind.NEAR_BOUNDARY, 0.8 + 5e-6, [0, 1, 2], [0, 1]),
            (Kind.NEAR_BOUNDARY, 0.8 - 5e-6, [0, 1], [0, 1, 2]),
            (Kind.FAILED, 0.8 + 1e-4, [0, 1, 2], [0, 1]),
            (Kind.FAILED, 0.8 - 1e-4, [0, 1], [0, 1, 2]),
            (Kind.FAILED, 0.8 + 5e-6, [0, 1, 2], [0]),
        )
    ),
    # An id must win under the cut that the kept set shows.
    (Kind.NEAR_BOUNDARY, HALVES, 0, 2, {"k": 3, "p": 0.8 - 5e-6, "q": LAST_WINS}),
    (Kind.NEAR_BOUNDARY, HALVES, (0, [0, 1]), (2, [0, 1, 2]), {"k": 3, "p": 0.8 - 5e-6, "q": LAST_WINS}),
    (Kind.FAILED, HALVES, 0, 2, {"k": 3, "p": 0.8 - 1e-4, "q": LAST_WINS}),
    (Kind.FAILED, HALVES, 0, 1, {"k": 3, "p": 0.8 - 5e-6, "q": LAST_WINS}),
    ("id 0 scores", HALVES, (0, [0, 1]), (0, [0, 1, 2]), {"k": 3, "p": 0.8 - 5e-6, "q": LAST_WINS}),
    ("not among the first 2", HALVES, (0, [0, 1]), (2, [0, 1]), {"k": 3, "p": 0.8 - 5e-6, "q": LAST_WINS}),
    # No tolerance where sums are exact; thirds are not.
    *(
        (Kind.FAILED, [1.0, others, 1.0, 1.0, others, 1.0], (0, [0, 2, 3]), (0, [0, 2]), {"k": k, "p": p})
        for others in (-INF, -1000.0)
        for k in (4, 6, SKIPS_TOP_K)
        for p in (0.5, 0.5 + 1e-6)
    ),
    (Kind.NEAR_BOUNDARY, [0.0] * 3, (0, [0, 1]), (0, [0, 1, 2]), {"k": 3, "p": THIRDS}),
    (Kind.EXACT, [0.0, -INF, -INF], (0, [0]), (0, [0]), {"k": 2}),
    ("0 entries are kept", [0.0, -INF, -INF], (0, [0]), (0, []), {"k": 2}),
    # Failures: an id that is none, even on both sides, one that was filtered, and a lost entry.
    *(("outside [0, 3)", HALVES, expected, token, {}) for token in (-1, 3, 2**40) for expected in (0, token)),
    ("the expected result itself", HALVES, 2, 0, {}),
    ("not among the first 1 ", HALVES, 0, 2, {"k": 1, "q": [1.0, 1.0, 1e-9]}),
    ("against the total order", HALVES, (0, [0, 1, 2]), (0, [0, 2]), {}),
]


def test_verdicts(subtests: pytest.Subtests) -> None:
    check_judged(JUDGED, V1, subtests)


@pytest.mark.parametrize(("original", "returned"), [(1.0, 1.0000001), (-0.0, 0.0), (1.0, NAN), (1.0, INF)])
def test_altered_value(original: float, returned: float) -> None:
    logits = torch.tensor([[original, -3.0]])
    expected = Result(torch.tensor([0]), logits)
    actual = Result(torch.tensor([0]), torch.tensor([[returned, -3.0]]))
    k, p = torch.tensor([2], dtype=torch.int32), torch.tensor([1.0])
    comparison = compare(logits, k, p, None, 1e-8, expected, actual)
    assert "the kept logit of id 0" in comparison.verdicts[0].reason


def test_form_of_a_result() -> None:
    logits = torch.zeros(2, 3)
    k, p = torch.zeros(2, dtype=torch.int32), torch.ones(2)
    good = Result(torch.zeros(2, dtype=torch.int64), logits)
    for bad in (
        Result(torch.zeros(2, dtype=torch.int32), logits),
        Result(torch.zeros(2, 1, dtype=torch.int64), logits),
        Result(good.ids, logits.half()),
        Result(good.ids, torch.zeros(2, 4)),
        Result(good.ids, None),
        Result(good.ids, logits, torch.zeros(2, 3, dtype=torch.int64), logits),  # with a sample result
    ):
        assert compare(logits, k, p, None, 1e-8, good, bad).kinds == [Kind.FAILED] * 2


def test_only_the_wrong_row_fails() -> None:
    logits = torch.tensor([[0.0, 1.0]] * 3)
    k, p = torch.zeros(3, dtype=torch.int32), torch.ones(3)
    expected, actual = Result(torch.tensor([1, 1, 1]), None), Result(torch.tensor([1, 0, 1]), None)
    assert compare(logits, k, p, None, 1e-8, expected, actual).kinds == [Kind.EXACT, Kind.FAILED, Kind.EXACT]


def test_row_model_gives_the_golden_rows(subtests: pytest.Subtests) -> None:
    """The yardstick itself, against rows that somebody else computed."""
    for case in GOLDEN.cases:
        with subtests.test(f"{case['case']}-{case['name']}"):
            check_row_model(case)


def check_row_model(case: Case) -> None:
    logits = GOLDEN.floats(case, "logits").float().numpy()
    p = GOLDEN.floats(case, "p").float().tolist()
    k, ids = GOLDEN.tensor(case, "k").tolist(), GOLDEN.ids(case)
    kept = GOLDEN.kept(case).numpy()
    q = GOLDEN.tensor(case, "q").numpy() if case["has_q"] else [None] * len(ids)
    for b, token in enumerate(ids):
        model = model_row(Row(logits[b], k[b], p[b], q[b], case["eps"]))
        ids_kept, scores = model.scores(model.strict)
        shown = np.zeros_like(kept[b])
        shown[ids_kept] = True
        assert (shown & (logits[b] > -INF) == kept[b] & (logits[b] > -INF)).all()
        assert ids_kept[scores.argmax()] == token


@pytest.fixture(scope="module")
def judged() -> list[tuple[tuple[object, ...], Result]]:
    """Batches of the stream with small vocabularies, and their results."""
    batches = []
    for batch in stream(1, 2000, DTYPES):
        if batch.shape[1] <= 1025:
            q = None if batch.q is None else batch.q.view()
            inputs = (batch.logits.view(), batch.k.view(), batch.p.view(), q, batch.eps, batch.is_need_logits)
            batches.append((inputs, Result(*top_k_top_p_sample_reference(*inputs))))
    return batches


@pytest.mark.parametrize("name", [name for name, reading in READINGS.items() if not reading.is_by_probes_alone])
def test_another_reading_fails(name: str, judged: list[tuple[Any, Result]]) -> None:
    operator = READINGS[name].operator()
    kinds = (compare(*inputs[:5], expected, Result(*operator(*inputs))).kinds for inputs, expected in judged)
    assert any(Kind.FAILED in each for each in kinds)
