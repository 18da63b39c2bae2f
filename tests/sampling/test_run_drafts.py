"""The program of make test-drafts: it passes, and notices another draw."""

from __future__ import annotations

from typing import Any

import drafting
import pytest
import run_drafts


def test_texts_are_those_without_drafts(device: str) -> None:
    found = [run_drafts.try_batch(number, device) for number in range(16 if device == "cpu" else 5)]
    assert [outcome.wrong for outcome in found] == [[]] * len(found)
    assert sum(outcome.noted for outcome in found) > 0


def test_another_draw_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    verify_drafts = drafting.verify_drafts

    def later(logits: Any, draft_ids: Any, batch: Any, **options: Any) -> Any:
        advanced = drafting.new_batch(batch.params, [[0] * 50] * len(batch), batch.vocab_size)
        verified = verify_drafts(logits, draft_ids, advanced, **options)
        return verified

    monkeypatch.setattr(drafting, "verify_drafts", later)
    found = [run_drafts.try_batch(number, "cpu") for number in range(6)]
    # The other texts are drawn the same by any noise: greedy ones, and those of one likely id.
    assert sum(len(outcome.wrong) for outcome in found) > sum(outcome.tried for outcome in found) / 5
