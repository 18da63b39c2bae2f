"""The program of make test-rows: it passes, and notices another draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import run_rows


def test_rows_are_the_references(device: str) -> None:
    for number in range(3):
        assert run_rows.try_batch(number, device).wrong == []


def test_another_draw_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_the_next_position(race: Callable[..., Any]) -> Callable[..., Any]:
        return lambda logits, params, position, *others: race(logits, params, position + 1, *others)

    monkeypatch.setattr(run_rows, "expected", of_the_next_position(run_rows.expected))
    outcomes = [run_rows.try_batch(number, "cpu") for number in range(3)]
    # The other rows draw the same by any noise: greedy ones, and those of one likely id.
    assert sum(len(outcome.wrong) for outcome in outcomes) > sum(outcome.rows for outcome in outcomes) / 5
