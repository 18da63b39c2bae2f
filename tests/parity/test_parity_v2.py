"""The judge of mismatches of the second operator, and its stream: what must be accepted and why, and what never."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample import TopKTopPSampleV2, top_k_top_p_sample_v2
from ascend_sample.parity import Kind, verify
from ascend_sample.parity.cases import stream
from ascend_sample.parity.cases_v2 import make_batch_v2
from ascend_sample.parity.compare import OTHER_WEIGHT, Result, compare
from ascend_sample.parity.probe import PROBES_V2
from ascend_sample.parity.row_model import V2
from ascend_sample.parity.subjects import SAMPLE_V2, SUBJECTS
from ascend_sample.reference import top_k_top_p_sample_trace
from ascend_sample.reference_v2 import top_k_top_p_sample_v2_trace
from tests.parity.parity_helpers import HALVES, SKIPS_TOP_K, Drawn, check_judged

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
NAMES = ("bfloat16", "float16", "float32")
PROBABILITIES: dict[str, Any] = {"input_is_logits": False}
TWO, ONE_FIRST = {"min_p": 0.5, "q": [1.0, 0.1, 1e-3], **PROBABILITIES}, {"min_p": 0.6 - 3e-6, "q": [10.0, 1e-3, 10.0]}
JUDGED: list[tuple[Kind | str, list[float], Drawn, Drawn, dict[str, Any]]] = [
    # Near boundaries of top-p and of min-p.
    *(
        (kind, HALVES, (0, expected), (0, actual), {"k": k, name: bound})
        for k in (3, SKIPS_TOP_K)
        for kind, name, bound, expected, actual in (
            (Kind.NEAR_BOUNDARY, "p", 0.8 + 5e-6, [0, 1, 2], [0, 1]),
            (Kind.NEAR_BOUNDARY, "p", 0.8 - 5e-6, [0, 1], [0, 1, 2]),
            (Kind.FAILED, "p", 0.8 + 1e-4, [0, 1, 2], [0, 1]),
            (Kind.NEAR_BOUNDARY, "min_p", 0.6 + 3e-6, [0], [0, 1]),
            (Kind.NEAR_BOUNDARY, "min_p", 0.6 - 3e-6, [0, 1], [0]),
            (Kind.FAILED, "min_p", 0.601, [0], [0, 1]),
        )
    ),
    # A sum that reaches p is enough.
    (Kind.TIE, [0.0] * 4, (0, [0, 1]), (1, [0, 1]), {"p": 0.5}),
    (Kind.TIE, [0.25] * 4, (0, [0, 1]), (1, [0, 1]), {"p": 0.5, **PROBABILITIES}),
    # No tolerance where sums or min-p are exact.
    (Kind.FAILED, [0.0] * 4, (0, [0, 1]), (0, [0, 1, 2]), {"p": 0.5}),
    (Kind.FAILED, [0.25] * 4, (0, [0, 1]), (0, [0, 1, 2]), {"p": 0.5, **PROBABILITIES}),
    (Kind.FAILED, [0.0] * 4, (0, [0]), (0, [0, 1]), {"p": 0.0}),
    (Kind.FAILED, [0.5, 0.25, 0.125], (0, [0, 1]), (0, [0]), {"min_p": 0.5, **PROBABILITIES}),
    (Kind.FAILED, [0.5, 0.25, 0.125], (0, [0]), (0, [0, 1]), {"min_p": 1.0, **PROBABILITIES}),
    # Below 1, min-p keeps equal entries together; the reference's own result must be admissible.
    ("2 entries are kept instead of 1 to 1", [0.0, 0.0], (0, [0]), (0, [0, 1]), {"min_p": 1.0}),
    # The noise of min-p alone is by place; with one entry more, it is read at other places.
    (Kind.EXACT, [0.25, 0.0, 0.5], (2, [0, 2]), (2, [0, 2]), TWO),
    (Kind.FAILED, [0.25, 0.0, 0.5], (2, [0, 2]), (0, [0, 2]), TWO),
    (Kind.NEAR_BOUNDARY, HALVES, (1, [0, 1]), (0, [0]), ONE_FIRST),
    (Kind.FAILED, HALVES, (1, [0, 1]), (1, [0]), ONE_FIRST),
]


def weighing_one(weigh: Callable[[Tensor], Tensor]) -> Callable[..., TopKTopPSampleV2]:
    """The operator, but with another weight of the entry that p <= 0 keeps: made of its probability."""

    def call(logits: Tensor, k: Tensor, p: Tensor, *noise: Tensor | None, **options: Any) -> TopKTopPSampleV2:
        result = top_k_top_p_sample_v2(logits, k, p, *noise, **options)
        keeps_one = p <= 0
        if result.logits_sort_masked is not None and options.get("input_is_logits", True) and bool(keeps_one.any()):
            whole = top_k_top_p_sample_v2(logits, k, torch.ones_like(p), **options).logits_sort_masked
            assert whole is not None
            best = weigh(whole.amax(dim=1))
            result.logits_sort_masked[:, 0] = torch.where(keeps_one, best, result.logits_sort_masked[:, 0])
        return result

    return call


def test_verdicts(subtests: pytest.Subtests) -> None:
    check_judged(JUDGED, V2, subtests)


@pytest.mark.parametrize(
    ("weights", "ids", "verdict"),
    [
        ([0.5, 0.25, 0.0], [2, 0, 9], Kind.EXACT),
        ([0.5 * (1 + 4e-6), 0.25, 0.0], [2, 0, 9], Kind.EXACT),
        ([0.5 * (1 + 4e-5), 0.25, 0.0], [2, 0, 9], Kind.FAILED),
        ([0.5, 0.25, 1e-6], [2, 0, 9], Kind.FAILED),
        ([0.5, 0.25, 0.0], [0, 2, 9], Kind.FAILED),
        ([0.25, 0.5, 0.0], [0, 2, 9], Kind.FAILED),
    ],
)
def test_sample_result(weights: list[float], ids: list[int], verdict: Kind) -> None:
    values = torch.tensor([[0.25, 0.0, 0.5]])
    expected = Result(torch.tensor([2]), None, torch.tensor([[2, 0, 0]]), torch.tensor([[0.5, 0.25, 0.0]]))
    actual = Result(torch.tensor([2]), None, torch.tensor([ids]), torch.tensor([weights]))
    k, p = torch.tensor([2], dtype=torch.int32), torch.tensor([1.0])
    judged = compare(values, k, p, None, 1e-8, expected, actual, rules=V2, input_is_logits=False)
    assert judged.kinds == [verdict]


@pytest.mark.parametrize(
    ("row", "k", "ids", "weights"),
    [
        (
            [1.0, -math.inf, 2.0, -math.inf, -math.inf, 0.0],
            5,
            [2, 0, 5, 1, 3],
            [0.66524094, 0.24472848, 0.09003057],
        ),
        ([0.0, -200.0, -300.0, -400.0], 4, [0, 1, 2, 3], [1.0]),
        ([0.0, -400.0, -300.0, -200.0], SKIPS_TOP_K, [0, 1, 2, 3], [1.0]),
    ],
)
def test_sample_result_of_kept_entries_that_weigh_nothing(
    row: list[float], k: int, ids: list[int], weights: list[float]
) -> None:
    size, kept = len(row), len(ids)

    def judged(*changed: int) -> Kind:
        dense_ids = torch.tensor([ids + [0] * (size - kept)])
        dense_weights = torch.tensor([weights + [0.0] * (size - len(weights))])
        other_ids = dense_ids.clone()
        for place, token in zip(range(kept - 2, size), changed, strict=False):
            other_ids[0, place] = token
        results = (Result(torch.tensor([ids[0]]), None, each, dense_weights) for each in (dense_ids, other_ids))
        k_and_p = torch.tensor([k], dtype=torch.int32), torch.tensor([1.0])
        return compare(torch.tensor([row]), *k_and_p, None, 1e-8, *results, rules=V2).kinds[0]

    assert judged() is Kind.EXACT
    assert judged(ids[-2], ids[-1], 999) is Kind.EXACT  # behind the kept ones, where there is such a place
    assert judged(999) is Kind.FAILED
    assert judged(ids[-2], -7) is Kind.FAILED
    assert judged(999, -7) is Kind.FAILED
    assert judged(ids[-1], ids[-2]) is Kind.FAILED
    assert judged(ids[0]) is Kind.FAILED


def test_scenarios_are_those_of_the_references() -> None:
    words = {"A": "top-k", "p": "top-p", "m": "min-p", "1": "one entry", "q": "sample"}
    for batch in stream(2, 300, DTYPES):
        trace = top_k_top_p_sample_trace(*batch.tensors("cpu"), batch.eps)
        assert batch.scenarios() == [row.scenario for row in trace]
    for batch in stream(2, 300, DTYPES, make_batch_v2):
        trace_v2 = top_k_top_p_sample_v2_trace(*batch.tensors("cpu"), **batch.options)
        for name, row in zip(batch.scenarios(), trace_v2, strict=True):
            expected = {words[letter] for letter in row.scenario if letter in words}
            named = name.replace("min-p", "") if "one entry" in expected else name
            assert {word for word in words.values() if word in named} == expected


@pytest.mark.parametrize(
    "change", [{"ks_max": 8}, {"min_p": None}, {"input_is_logits": True}, {"eps": 0.3}, {"p": None}], ids=str
)
def test_dropped_argument_is_seen(change: dict[str, object]) -> None:
    """As a binding would that passes one on wrongly."""

    def wrong(logits, k, p, q=None, min_p=None, **options):  # type: ignore[no-untyped-def]
        arguments = {"k": k, "p": p, "q": q, "min_p": min_p} | options | change
        return top_k_top_p_sample_v2(logits, **arguments)

    report = verify("cpu", 1200, subject=SAMPLE_V2, operator=wrong)
    assert report.tally.total(Kind.FAILED) > 0


def test_other_weight_where_p_is_0_is_named(device: str) -> None:
    report = verify(device, 1500, subject=SAMPLE_V2, operator=weighing_one(lambda weight: weight))
    assert report.problems() == []
    assert report.readings == {OTHER_WEIGHT: report.tally.total(Kind.OTHER_READING)}
    assert report.readings[OTHER_WEIGHT] >= 5
    assert report.verdict() == f"PASSED: {report.readings[OTHER_WEIGHT]} rows in another reading: {OTHER_WEIGHT}"
    answers = [finding.reading for finding in report.findings["float16"] if not finding.as_contract]
    assert answers == ["its probability"]
    assert "known" in report.to_text()
    assert report.to_json()["other_readings"] == dict(report.readings)


def test_any_third_weight_where_p_is_0_fails() -> None:
    report = verify("cpu", 1500, subject=SAMPLE_V2, operator=weighing_one(lambda weight: weight / 2))
    assert report.tally.total(Kind.OTHER_READING) == 0
    assert report.tally.total(Kind.FAILED) >= 5
    assert "answers to the probes contradict the contract" in report.problems()[-1]


def test_probes(device: str, subtests: pytest.Subtests) -> None:
    for probe in PROBES_V2:
        with subtests.test(probe.question):
            for dtype in (torch.float16, torch.float32):
                finding = probe.run(top_k_top_p_sample_v2, device, dtype)
                assert finding.as_contract, finding.reading
            assert len({(each.token, each.kept, each.weight) for each in probe.outcomes}) == len(probe.outcomes)


def test_first_operator_is_told_from_it() -> None:
    """Its answers to the questions that the two answer differently are the first operator's."""
    first = SUBJECTS["top_k_top_p_sample"].operator
    different = [probe for probe in PROBES_V2 if probe.min_p is None and not probe.options]
    answers = [probe.run(first, "cpu", torch.float16) for probe in different]
    assert sum(not finding.as_contract for finding in answers) == 5
