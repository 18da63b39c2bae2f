"""A device that has no room in the middle of a call: the batch is as it was before, and the call can be made again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams, verify_drafts

REQUESTS = (
    SamplingParams(seed=1, frequency_penalty=0.5, repetition_penalty=2.0),
    SamplingParams(seed=2, no_repeat_ngram_size=1),
    SamplingParams(seed=3, dry_multiplier=1.0, dry_allowed_length=1, presence_penalty=0.5),
    SamplingParams(seed=4, stop_sequences=[[1, 1]]),
    SamplingParams(seed=5, stop_token_ids=[2], min_tokens=2, logit_bias={3: 1.0}),
    SamplingParams(seed=6, suppress_token_ids=[5]),
)
VOCAB_SIZE = 8


class NoRoom(TorchDispatchMode):
    """Raises at one of the calls that allocate: neither in place nor of a view."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.left = nth

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not (func._schema.is_mutable or func.is_view):
            self.left -= 1
            if self.left == 0:
                raise torch.OutOfMemoryError("no room")
        return func(*args, **(kwargs or {}))


def disturbed(batch: SamplingBatch, call: Callable[[SamplingBatch], object], every: int = 1) -> Iterator[SamplingBatch]:
    """Yields copies of the batch for which the call has failed, each at another place, and was made again."""
    nth, has_failed = 0, True
    while has_failed:
        nth, has_failed = nth + every, False
        one = copy.deepcopy(batch)
        try:
            with NoRoom(nth):
                call(one)
        except torch.OutOfMemoryError:
            has_failed = True
            call(one)
            yield one
    assert nth > every


def known(batch: SamplingBatch) -> tuple[object, ...]:
    """Returns all that a batch knows of its rows."""
    processed = batch.process(torch.zeros(len(batch), batch.vocab_size, device=batch.device))
    assert processed is not None
    rows = (batch.position.tolist(), batch.host.position.tolist(), batch.host.min_tokens_left.tolist())
    return processed.host_rows, processed.logits.tolist(), *rows, batch.ended(), batch.slot_bytes


def check_disturbed(batch: SamplingBatch, call: Callable[[SamplingBatch], object], every: int = 1) -> None:
    """Raises unless a call that failed and was made again leaves the batch as one that did not fail."""
    undisturbed = copy.deepcopy(batch)
    call(undisturbed)
    expected = known(undisturbed)
    for one in disturbed(batch, call, every):
        assert known(one) == expected


@pytest.mark.parametrize("rows", [None, [0, 1, 2, 3, 4, 5, 0, 1, 2, 4]])
def test_tokens_are_taken_in_once(device: str, rows: list[int] | None) -> None:
    batch = SamplingBatch(VOCAB_SIZE, device)
    batch.extend(REQUESTS, [[1, 2, 3]] * len(REQUESTS), output_ids=[[4]] * len(REQUESTS))
    tokens = torch.tensor([1, 2, 3, 1, 6, 7, 3, 1, 2, 7] if rows else [1, 2, 3, 1, 6, 7]).to(device)
    check_disturbed(batch, lambda one: one.append(tokens, rows))


def test_rows_are_added_once(accelerator: str) -> None:
    """A table that must grow keeps the rows that it has."""
    batch = SamplingBatch(VOCAB_SIZE, accelerator, capacity=1)
    batch.extend(REQUESTS[:3], [[1, 2, 3]] * 3)
    check_disturbed(batch, lambda one: one.extend(REQUESTS[3:], [[4]] * 3))


def test_places_of_drafts_hold_nothing_afterwards(device: str) -> None:
    """Where `min_tokens` ends among the drafts, and where rules look at them, places have slots of their own."""
    batch = SamplingBatch(VOCAB_SIZE, device)
    batch.extend(REQUESTS, [[1, 2, 3]] * len(REQUESTS))
    counts = [2] * len(REQUESTS)
    drafts = torch.arange(12).remainder(VOCAB_SIZE).to(device)
    logits = torch.randn(18, VOCAB_SIZE).to(device)

    def verify(one: SamplingBatch) -> None:
        verify_drafts(logits, drafts, one, counts=counts)

    verify(batch)
    held = [slots.lengths.tolist() for slots in batch.row_edits.slots.values()]
    for one in disturbed(batch, verify, every=7):
        assert [slots.lengths.tolist() for slots in one.row_edits.slots.values()] == held
        assert known(one) == known(copy.deepcopy(batch))


def test_a_step_is_taken_once(device: str) -> None:
    """Rows that are drawn from in all ways have tables that were not written yet."""
    batch = SamplingBatch(VOCAB_SIZE, device)
    batch.extend(
        [
            *REQUESTS,
            SamplingParams(seed=7, allowed_token_ids=[1, 3], return_sampling_mask=True),
            SamplingParams(mirostat_tau=2.0),
        ]
    )
    logits = torch.randn(len(batch), VOCAB_SIZE).to(device)
    check_disturbed(batch, lambda one: Sampler()(logits, one), every=7)
