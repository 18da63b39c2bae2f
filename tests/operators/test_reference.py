"""The specification in code: its trace, and its parts against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_sample import reference
from ascend_sample.reference import top_k_top_p_sample_trace


def trace(row: list[float], k: int | None, p: float | None, **options: object) -> reference.RowTrace:
    return top_k_top_p_sample_trace(torch.tensor([row]), k, p, **options)[0]


@pytest.mark.parametrize(
    ("k", "p", "scenario", "kept"),
    [(None, None, "C", [0, 1, 2, 3]), (2, None, "A", [3, 1]), (None, 0.7, "Bp", [3, 1]), (3, 0.95, "Ap", [3, 1, 2])],
)
def test_trace_tells_branch_and_kept(k: int | None, p: float | None, scenario: str, kept: list[int]) -> None:
    row = trace([0.0, 2.0, 1.0, 3.0], k, p)
    assert (row.scenario, row.kept.tolist(), row.n_kept) == (scenario, kept, len(kept))
    assert row.selected == 3
    with_q = trace([0.0, 2.0, 1.0, 3.0], k, p, q=torch.tensor([[9.0, 1e-6, 9.0, 9.0]]))
    assert with_q.scenario == scenario + "q"
    assert with_q.selected == 1  # by id in C, by rank elsewhere: id 1 has rank 1


def test_guess_hit_and_full_sort_agree() -> None:
    row = [float(i % 50) / 10 for i in range(3000)]
    short = trace(row, None, 0.5, top_k_guess=1)
    long = trace(row, None, 0.5, top_k_guess=1024)
    assert (short.guess_hit, long.guess_hit) == (False, True)
    assert torch.equal(short.kept, long.kept)
    assert trace(row, 5, 0.5).guess_hit is None


def test_guess_is_capped_at_1024() -> None:
    assert trace([0.0] * 3000, None, 0.5, top_k_guess=3000).guess_hit is False


def test_scores_and_weights() -> None:
    row = trace([math.log(0.75), math.log(0.25)], 2, None, q=torch.tensor([[3.0, 0.5]]), eps=0.0)
    assert row.weights.tolist() == pytest.approx([0.75, 0.25])
    assert row.scores.tolist() == pytest.approx([0.25, 0.5])
    assert row.selected == 1


def test_second_softmax_of_branch_b() -> None:
    row = trace([math.log(0.75), math.log(0.25)], None, 0.99)
    expected = torch.softmax(torch.tensor([0.75, 0.25]), 0)
    assert row.weights.tolist() == pytest.approx(expected.tolist())


@settings(deadline=None, max_examples=60)
@given(
    values=st.lists(st.sampled_from([-math.inf, -1.0, -0.0, 0.0, 0.5, 2.0]), min_size=1, max_size=40),
    count=st.integers(1, 40),
    segment=st.integers(1, 9),
)
def test_rolling_over_segments_is_the_total_order(values: list[float], count: int, segment: int) -> None:
    x = torch.tensor(values)
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    before = reference.SEGMENT_LENGTH
    reference.SEGMENT_LENGTH = segment
    try:
        assert reference.first_of_total_order(x, count).tolist() == expected
    finally:
        reference.SEGMENT_LENGTH = before
