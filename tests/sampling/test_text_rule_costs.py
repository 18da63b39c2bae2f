"""What a token costs the rules that look at a text: lines that run, which no other process disturbs."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import torch

from ascend_sample.sampling import SamplingBatch, SamplingParams, verify_drafts
from ascend_sample.sampling.drafts import places as draft_places
from ascend_sample.sampling.edits import text_indexes, text_rules
from ascend_sample.sampling.edits.slots import addend_of
from ascend_sample.sampling.edits.text_rules import TextRules


@contextmanager
def counted_lines() -> Iterator[list[int]]:
    """Counts the lines that the indexes and rules run."""
    lines = [0]
    files = {text_indexes.__file__, text_rules.__file__}

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        lines[0] += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


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
        with counted_lines() as lines:
            for token in text[length : length + 50]:
                rules.extend([token])
                entries += len(rules.addends()[0])
        cost[length] = lines[0] / entries
    assert cost[32_768] < 1.5 * cost[1024], cost


def test_a_place_of_drafts_takes_the_list_that_its_request_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list without the stop ids is made for the places alone at which `min_tokens` are there."""
    made = []

    def noting(*given: Any) -> Any:
        made.append(given)
        return addend_of(*given)

    monkeypatch.setattr(draft_places, "addend_of", noting)
    batch = SamplingBatch(9)
    ruled = {"no_repeat_ngram_size": 2, "logit_bias": {3: 1.0}, "stop_ids": [4]}
    batch.extend([SamplingParams(min_tokens=count, **ruled) for count in (0, 2, 9)])  # type: ignore[arg-type]
    verify_drafts(torch.zeros(12, 9), torch.arange(9), batch, counts=[3, 3, 3])
    # One slot for all places of the second request, as if it had no rules, and lists for its third and fourth place.
    assert [given[0].min_tokens for given in made] == [2] * 3
