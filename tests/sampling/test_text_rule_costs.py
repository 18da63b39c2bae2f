"""What a token costs the rules and stops that look at a text: lines that run, which no other process disturbs."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

from ascend_sample.sampling import SamplingBatch, SamplingParams
from ascend_sample.sampling.edits.stops import StopMatcher
from ascend_sample.sampling.edits.text_rules import TextRules

RULED: dict[str, Any] = {"stop_sequences": [2, [5, 6], [3, 5, 6], [4, 4]]}


def lines_of(call: Callable[[], object]) -> int:
    """Counts the lines of Python that a call runs."""
    lines = 0

    def look(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


def natural(length: int) -> list[int]:
    """Ids as often as words are in a language, and phrases that come again."""
    rng = random.Random(1)
    text = [int(4000 ** rng.random()) for _ in range(length)]
    for _ in range(length // 50):
        start, place = rng.randrange(length - 9), rng.randrange(length - 9)
        text[place : place + 8] = text[start : start + 8]
    return text


@pytest.mark.parametrize("kind", ["natural", "one id", "one phrase"])
def test_a_token_costs_the_same_after_any_text(kind: str) -> None:
    """But for the ids that are listed: the more have followed, the more there are."""
    params = SamplingParams(
        no_repeat_ngram_size=4, no_repeat_ngram_window=90, dry_multiplier=0.8, dry_base=9.0, dry_sequence_breakers=[0]
    )
    cost = {}
    for length in (1024, 32_768):
        text = {"natural": natural(length + 50), "one id": [7] * (length + 50), "one phrase": [1, 2, 3] * length}[kind]
        rules, entries = TextRules(params, text[:length], 5000), 0
        lines = 0
        for token in text[length : length + 50]:
            lines += lines_of(lambda token=token, rules=rules: rules.extend([token]))  # type: ignore[misc]
            lines += lines_of(rules.addends)
            entries += len(rules.addends()[0])
        cost[length] = lines / entries
    assert cost[32_768] < 1.5 * cost[1024], cost


def test_a_token_costs_stops_the_same_after_any_text() -> None:
    lines = []
    for length in (100, 30_000):
        matcher = StopMatcher(SamplingParams(**RULED), [1, 3] * (length // 2), 9)
        matcher.extend([1] * length)
        lines.append(lines_of(lambda matcher=matcher: matcher.extend([5, 1, 6, 3])))  # type: ignore[misc]
    assert lines[0] == lines[1] < 100


def test_a_step_costs_the_same_beside_any_rows_without_stops_and_rules() -> None:
    def lines_beside(rows: int) -> int:
        asking = [SamplingParams(stop_sequences=[[3, 4]]), SamplingParams(no_repeat_ngram_size=3)]
        batch, tokens = SamplingBatch(9), torch.ones(rows + 2, dtype=torch.int64)
        batch.extend([*[SamplingParams()] * rows, *asking])
        batch.append(tokens)
        return lines_of(lambda: batch.append(tokens)) + lines_of(batch.ended)

    assert lines_beside(10) == lines_beside(1000)
