"""The judge of mismatches: what it must accept, with the reason, and what it must never accept."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from ascend_sample.parity import Comparison, Kind, Result, compare
from ascend_sample.parity.cases import Batch, stream
from ascend_sample.parity.row_model import Row, model_row
from tests.operators.golden import V1 as GOLDEN
from tests.operators.golden import Case
from tests.parity.parity_helpers import CONTRACT, Reading, judge, mutant

INF = math.inf
NAN = math.nan
OFF = -1  # k that skips top-k
ALL = 1.0  # p that skips top-p
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def row(
    logits: list[float],
    k: int,
    p: float,
    q: list[float] | None,
    expected: int | tuple[int, list[int]],
    actual: int | tuple[int, list[int]],
    device_sorts_probabilities: bool = False,
) -> Comparison:
    """Judges one float32 row; a result is an id, or an id with the kept ids."""
    return judge(logits, expected, actual, k, p, q, device_sorts_probabilities=device_sorts_probabilities)


def kind(*arguments: object, **options: object) -> Kind:
    return row(*arguments, **options).kinds[0]  # type: ignore[arg-type]


def reason(*arguments: object) -> str:
    comparison = row(*arguments)  # type: ignore[arg-type]
    assert comparison.kinds == [Kind.FAILED]
    return comparison.verdicts[0].reason


def log(*probabilities: float) -> list[float]:
    return [math.log(probability) for probability in probabilities]


HALVES = log(0.5, 0.3, 0.2)


class TestTie:
    def test_equal_logits_without_q(self) -> None:
        assert kind([2.0, 2.0, 0.0], OFF, ALL, None, 0, 1) is Kind.TIE

    def test_equal_logits_and_equal_q_by_rank(self) -> None:
        assert kind([0.0, 2.0, 2.0], 2, ALL, [1.0, 1.0, 9.0], 1, 2) is Kind.TIE

    def test_equal_logits_with_unequal_q_are_no_tie(self) -> None:
        assert kind([0.0, 2.0, 2.0], 2, ALL, [1.0, 2.0, 1.0], 1, 2) is Kind.FAILED

    def test_kept_sets_do_not_tie(self) -> None:
        logits = [0.0, 2.0, 2.0, 2.0]
        assert "against the total order" in reason(logits, 2, ALL, None, (1, [1, 2]), (1, [1, 3]))

    def test_order_of_probabilities_only_where_the_device_has_it(self) -> None:
        # float32 cannot tell 1e-7 - 10 from 2e-7 - 10: by probability id 1 comes before id 2, by logit after it.
        arguments = ([10.0, 1e-7, 2e-7], OFF, 0.99997, [1e9, 1e9, 1e-3], 1, 2)
        assert kind(*arguments) is Kind.FAILED
        assert kind(*arguments, device_sorts_probabilities=True) is Kind.TIE
        in_branch_a = ([10.0, 1e-7, 2e-7], 3, ALL, [1e9, 1e9, 1e-3], 1, 2)
        assert kind(*in_branch_a, device_sorts_probabilities=True) is Kind.FAILED


class TestNearDraw:
    @pytest.mark.parametrize(("difference", "expected"), [(5e-6, Kind.NEAR_DRAW), (1e-4, Kind.FAILED)])
    @pytest.mark.parametrize(("k", "p"), [(OFF, ALL), (2, ALL), (OFF, 0.9)])
    def test_scores(self, k: int, p: float, difference: float, expected: Kind) -> None:
        assert kind([0.0, 0.0], k, p, [1.0, 1.0 + difference], 0, 1) is expected

    @pytest.mark.parametrize(("difference", "expected"), [(5e-6, Kind.NEAR_DRAW), (1e-4, Kind.FAILED)])
    def test_weights_without_q(self, difference: float, expected: Kind) -> None:
        assert kind([1.0 + difference, 1.0], OFF, ALL, None, 0, 1) is expected

    def test_an_entry_that_weighs_nothing_wins_nothing(self) -> None:
        assert kind([0.0, -INF], OFF, ALL, [1.0, 0.0], 0, 1) is Kind.FAILED

    def test_q_of_nan_is_drawn_only_among_its_like(self) -> None:
        assert kind([0.0, 0.0], OFF, ALL, [NAN, 1.0], 1, 0) is Kind.FAILED
        assert kind([0.0, 0.0], OFF, ALL, [NAN, NAN], 0, 1) is Kind.FAILED

    @pytest.mark.parametrize(("k", "p"), [(OFF, ALL), (2, ALL), (OFF, 0.5)])
    def test_a_row_of_minus_infinity_gives_id_0(self, k: int, p: float) -> None:
        assert kind([-INF, -INF], k, p, [9.0, 1.0], 0, 1) is Kind.FAILED


class TestNearBoundary:
    """The sums of HALVES are .5, .8 and 1."""

    @pytest.mark.parametrize("k", [3, OFF])
    @pytest.mark.parametrize(
        ("p", "expected", "actual", "verdict"),
        [
            (0.8 + 5e-6, [0, 1, 2], [0, 1], Kind.NEAR_BOUNDARY),
            (0.8 - 5e-6, [0, 1], [0, 1, 2], Kind.NEAR_BOUNDARY),
            (0.8 + 1e-4, [0, 1, 2], [0, 1], Kind.FAILED),
            (0.8 - 1e-4, [0, 1], [0, 1, 2], Kind.FAILED),
            (0.8 + 5e-6, [0, 1, 2], [0], Kind.FAILED),
        ],
    )
    def test_kept_set(self, k: int, p: float, expected: list[int], actual: list[int], verdict: Kind) -> None:
        assert kind(HALVES, k, p, None, (0, expected), (0, actual)) is verdict

    def test_id_of_the_other_cut(self) -> None:
        q = [10.0, 10.0, 1e-3]  # rank 2 wins if it is kept
        p = 0.8 - 5e-6
        assert kind(HALVES, 3, p, q, 0, 2) is Kind.NEAR_BOUNDARY
        assert kind(HALVES, 3, p, q, (0, [0, 1]), (2, [0, 1, 2])) is Kind.NEAR_BOUNDARY
        assert kind(HALVES, 3, 0.8 - 1e-4, q, 0, 2) is Kind.FAILED

    def test_id_must_win_under_the_cut_that_the_kept_set_shows(self) -> None:
        q = [10.0, 10.0, 1e-3]
        p = 0.8 - 5e-6
        assert "id 0 scores" in reason(HALVES, 3, p, q, (0, [0, 1]), (0, [0, 1, 2]))
        assert "not among the first 2" in reason(HALVES, 3, p, q, (0, [0, 1]), (2, [0, 1]))
        assert kind(HALVES, 3, p, q, 0, 1) is Kind.FAILED

    @pytest.mark.parametrize("others", [-INF, -1000.0])
    @pytest.mark.parametrize("k", [4, 6, OFF])
    def test_no_tolerance_where_sums_are_exact(self, k: int, others: float) -> None:
        logits = [1.0, others, 1.0, 1.0, others, 1.0]
        assert kind(logits, k, 0.5, None, (0, [0, 2, 3]), (0, [0, 2])) is Kind.FAILED
        assert kind(logits, k, 0.5 + 1e-6, None, (0, [0, 2, 3]), (0, [0, 2])) is Kind.FAILED

    def test_thirds_are_not_exact(self) -> None:
        p = float(np.float32(2 / 3))
        assert kind([0.0] * 3, 3, p, None, (0, [0, 1]), (0, [0, 1, 2])) is Kind.NEAR_BOUNDARY

    def test_hidden_entries_of_minus_infinity(self) -> None:
        assert kind([0.0, -INF, -INF], 2, ALL, None, (0, [0]), (0, [0])) is Kind.EXACT
        assert "0 entries are kept" in reason([0.0, -INF, -INF], 2, ALL, None, (0, [0]), (0, []))


class TestFailed:
    @pytest.mark.parametrize("token", [-1, 3, 2**40])
    def test_id_out_of_range_even_on_both_sides(self, token: int) -> None:
        assert "outside [0, 3)" in reason(HALVES, OFF, ALL, None, 0, token)
        assert "outside [0, 3)" in reason(HALVES, OFF, ALL, None, token, token)

    def test_expected_result_is_judged_too(self) -> None:
        assert reason(HALVES, OFF, ALL, None, 2, 0).startswith("the expected result itself")

    def test_id_that_was_filtered(self) -> None:
        assert "not among the first 1 " in reason(HALVES, 1, ALL, [1.0, 1.0, 1e-9], 0, 2)

    def test_lost_entry_without_filters(self) -> None:
        assert "against the total order" in reason(HALVES, OFF, ALL, None, (0, [0, 1, 2]), (0, [0, 2]))

    @pytest.mark.parametrize(("original", "returned"), [(1.0, 1.0000001), (-0.0, 0.0), (1.0, NAN), (1.0, INF)])
    def test_altered_value(self, original: float, returned: float) -> None:
        logits = torch.tensor([[original, -3.0]])
        expected = Result(torch.tensor([0]), logits)
        actual = Result(torch.tensor([0]), torch.tensor([[returned, -3.0]]))
        k, p = torch.tensor([2], dtype=torch.int32), torch.tensor([ALL])
        comparison = compare(logits, k, p, None, 1e-8, expected, actual)
        assert "the kept logit of id 0" in comparison.verdicts[0].reason

    def test_form_of_a_result(self) -> None:
        logits = torch.zeros(2, 3)
        k, p = torch.zeros(2, dtype=torch.int32), torch.ones(2)
        good = Result(torch.zeros(2, dtype=torch.int64), logits)
        for bad in (
            Result(torch.zeros(2, dtype=torch.int32), logits),
            Result(torch.zeros(2, 1, dtype=torch.int64), logits),
            Result(good.ids, logits.half()),
            Result(good.ids, torch.zeros(2, 4)),
            Result(good.ids, None),
        ):
            assert compare(logits, k, p, None, 1e-8, good, bad).kinds == [Kind.FAILED] * 2

    def test_only_the_wrong_row_fails(self) -> None:
        logits = torch.tensor([[0.0, 1.0]] * 3)
        k, p = torch.zeros(3, dtype=torch.int32), torch.ones(3)
        expected, actual = Result(torch.tensor([1, 1, 1]), None), Result(torch.tensor([1, 0, 1]), None)
        assert compare(logits, k, p, None, 1e-8, expected, actual).kinds == [Kind.EXACT, Kind.FAILED, Kind.EXACT]


@pytest.mark.parametrize("case", GOLDEN.cases, ids=lambda case: str(case["case"]))
def test_row_model_gives_the_golden_rows(case: Case) -> None:
    """The yardstick itself, against rows that somebody else computed."""
    logits = GOLDEN.floats(case, "logits_bits").float().numpy()
    p = GOLDEN.floats(case, "p_bits").float().tolist()
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


MUTANTS = {
    "softmax once": mutant(second_softmax=False),
    "p = 0 keeps one": mutant(keeps_one_at_zero=True),
    "ties by id descending": mutant(descending_ids=True),
    "ties at the k-th value all kept": mutant(keeps_tied=True),
    ">= for >": mutant(inclusive=True),
    "one kept too many": mutant(extra=1),
    "one kept too few": mutant(extra=-1),
    "q by id": mutant(q_by_id=True),
    "q by rank in branch C": mutant(q_by_rank=True),
    "q with its sign": mutant(signed_q=True),
    "maximum from 0": mutant(maximum_from_zero=True),
    "k above 1024 honoured": mutant(large_k="honour"),
    "k above 1024 capped": mutant(large_k="cap"),
    "filtered logits are 0": mutant(filler=0.0),
    "kept logits altered": mutant(altered=0.5),
    "a neighbour's id": mutant(lost_row=1),
    "NaN is the greatest": mutant(nan_wins=True),
}


def arguments(batch: Batch) -> tuple[object, ...]:
    q = None if batch.q is None else batch.q.view()
    tensors = (batch.logits.view(), batch.k.view(), batch.p.view(), q)
    return (*tensors, batch.eps, batch.is_need_logits, batch.top_k_guess)


@pytest.fixture(scope="module")
def judged() -> list[tuple[tuple[object, ...], Result]]:
    """Batches of the stream with small vocabularies, and the contract's results by an operator in plain float64."""
    batches = [arguments(batch) for batch in stream(1, 2500, DTYPES) if batch.shape[1] <= 1025]
    return [(inputs, Result(*CONTRACT(*inputs))) for inputs in batches]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_fails(name: str, judged: list[tuple[tuple[object, ...], Result]]) -> None:
    assert count_failed(MUTANTS[name], judged) > 0


def test_contract_passes(judged: list[tuple[tuple[object, ...], Result]]) -> None:
    from ascend_sample.reference import top_k_top_p_sample_reference

    assert count_failed(top_k_top_p_sample_reference, judged) == 0


def count_failed(operator: Reading, judged: list[tuple[tuple[object, ...], Result]]) -> int:
    failed = 0
    for inputs, expected in judged:
        actual = Result(*operator(*inputs))  # type: ignore[arg-type]
        failed += compare(*inputs[:5], expected, actual).kinds.count(Kind.FAILED)  # type: ignore[arg-type]
    return failed


def test_kinds_have_labels_for_json() -> None:
    labels = [member.label for member in Kind]
    assert json.loads(json.dumps(labels)) == ["exact", "tie", "near_draw", "near_boundary", "other_reading", "failed"]
