"""The program of make test-rows: it passes, and notices another draw."""

from __future__ import annotations

from typing import Any

import pytest
import run_rows


def test_rows_are_the_references(device: str) -> None:
    for number in range(3):
        assert run_rows.try_batch(number, device).wrong == []


def test_another_draw_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run_rows.expected

    def of_the_next_position(logits: Any, params: Any, position: int, *others: Any) -> object:
        return expected(logits, params, position + 1, *others)

    monkeypatch.setattr(run_rows, "expected", of_the_next_position)
    outcomes = [run_rows.try_batch(number, "cpu") for number in range(3)]
    # The other rows draw the same by any noise: greedy ones, and those of one likely id.
    assert sum(len(outcome.wrong) for outcome in outcomes) > sum(outcome.tried for outcome in outcomes) / 5
