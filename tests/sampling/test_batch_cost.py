"""What a batch costs: the device's memory, and what a step sends to the device, which it never waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from test_batch import ids, zeros

import hostcann
from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.requests.params import SamplingParams

ENTRY = 8 + 4
"""An id, and what is added to its logit."""
HISTORY = 1000 * 4 + 16 * 8
"""How often each of 1000 ids has occurred, and a list that has room for 16 tokens at first."""


def bytes_with(batch: SamplingBatch, *params: SamplingParams) -> int:
    """The bytes of the slots when requests have been added."""
    batch.extend(params)
    batch.flush()
    return batch.slot_bytes


def test_slots_grow_as_needed_and_are_given_back(device: str) -> None:
    batch = SamplingBatch(1000, device)
    biased, penalized = SamplingParams(suppress_token_ids=[1]), SamplingParams(presence_penalty=1.0)
    assert bytes_with(batch, *[SamplingParams()] * 9) == 0, "rows that are not processed have no slots"
    assert bytes_with(batch, biased) == ENTRY
    assert bytes_with(batch, biased, biased) == 4 * ENTRY, "1, 2, 4"
    assert bytes_with(batch, penalized) == 4 * ENTRY + HISTORY
    assert bytes_with(batch, penalized) == 4 * ENTRY + 2 * HISTORY
    allowing = bytes_with(batch, SamplingParams(allowed_token_ids=[1]))
    assert allowing == 4 * ENTRY + 2 * HISTORY + 32 * 4, "a bit an id, in whole words"
    batch.remove(14)
    assert batch.slot_bytes == 4 * ENTRY + 2 * HISTORY
    for row in (13, 12, 11, 10, 9):
        batch.remove(row)
    assert batch.slot_bytes == 0
    assert batch.process(zeros(batch)) is None
    assert bytes_with(batch, SamplingParams(stop_token_ids=[1], min_tokens=1)) == ENTRY
    batch.append(torch.zeros(len(batch), dtype=torch.int64, device=device))
    assert batch.slot_bytes == 0, "the minimum is over"


def test_lists_are_as_wide_as_the_longest_needs(device: str) -> None:
    """By doubling; they become narrower when that has gone."""
    batch, short = SamplingBatch(1000, device), SamplingParams(suppress_token_ids=[1])
    assert bytes_with(batch, SamplingParams(suppress_token_ids=range(20)), short) == 2 * 32 * ENTRY
    long = bytes_with(batch, SamplingParams(suppress_token_ids=range(100)))
    assert long == 2 * 32 * ENTRY + 32 * 4, "a long list of bans is a mask"
    batch.remove(0)
    assert bytes_with(batch, short) == 2 * ENTRY + 32 * 4
    assert batch.process(zeros(batch)).logits.isinf().sum(1).tolist() == [100, 1, 1]  # type: ignore[union-attr]


def sent(counted: hostcann.Profile, reads: int = 0) -> int:
    """Bytes to the device; nothing may have waited for it, and only tokens that may be stops are read."""
    assert counted.synchronizations == {}
    assert counted.copies.get("d2h", 0) == reads
    return counted.copied_bytes.get("h2d", 0)


ROW_BYTES = 8 * 3 + 4 * 6 + 4
"""A changed row: seed, position and its number; six floats; top-k."""
MIXED = (
    SamplingParams(),
    SamplingParams(suppress_token_ids=[1, 2]),
    SamplingParams(repetition_penalty=2.0),
    SamplingParams(logit_bias={3: 1.0}, frequency_penalty=0.5),
    SamplingParams(stop_token_ids=[5], min_tokens=3),
    SamplingParams(allowed_token_ids=[4, 5, 6], presence_penalty=0.5),
)


def test_a_step_never_waits_and_one_without_changes_sends_nothing(counting: None) -> None:
    batch = SamplingBatch(64, "npu", capacity=2)
    logits = torch.randn(24, 64).npu()
    tokens = torch.randint(0, 64, (24,)).npu()
    with hostcann.profile() as counted:
        batch.extend([*MIXED * 4], [[1, 2]] * 24)
        for step in range(5):
            batch.process(logits[: len(batch)])
            batch.append(tokens[: len(batch)])
            batch.append(tokens[:3], rows=[0, 2, 2])
            batch.swap(0, 5)
            batch.remove(3)
            batch.add(MIXED[step], [7])
            batch.reorder(list(reversed(range(len(batch)))))
            batch.flush()
    assert sent(counted, reads=5) > 0
    batch = SamplingBatch(64, "npu")
    batch.extend([*MIXED * 4], [[1, 2]] * 24)
    for _ in range(3):  # until min_tokens is over
        batch.append(tokens)
    batch.process(logits)
    with hostcann.profile() as counted:
        for _ in range(3):
            batch.process(logits)
            batch.append(tokens)
    assert sent(counted, reads=3) == 0


CHANGES: list[tuple[Callable[[SamplingBatch], Any], int]] = [
    (lambda batch: batch.add(SamplingParams(seed=1)), 1),
    (lambda batch: batch.extend([SamplingParams()] * 3), 3),
    (lambda batch: batch.remove(4), 1),
    (lambda batch: batch.remove(len(batch) - 1), 0),
    (lambda batch: batch.reorder([0, 1, 3, 4, 2, *range(5, len(batch))]), 3),
    (lambda batch: (batch.swap(2, 5), batch.swap(5, 7), batch.remove(2)), 3),
    (lambda batch: (batch.swap(3, len(batch) - 1), batch.remove(len(batch) - 1)), 1),
]
"""A change, and of how many rows the device must be told."""


def test_a_change_sends_the_rows_that_change(counting: None) -> None:
    """Processed rows that stay where they are cost nothing either."""
    for place, (change, rows) in enumerate(CHANGES):
        batch = SamplingBatch(64, "npu", capacity=2048)
        batch.extend([SamplingParams(suppress_token_ids=[1]), SamplingParams(presence_penalty=0.5)])
        batch.extend([SamplingParams(seed=seed) for seed in range(1000 if place % 2 else 8)])
        batch.flush()
        with hostcann.profile() as counted:
            change(batch)
            batch.flush()
        assert sent(counted) == rows * ROW_BYTES, place


LISTED = (
    {"logit_bias": {3: 1.0}},
    {"no_repeat_ngram_size": 1},
    {"repetition_penalty": 2.0},
    {"presence_penalty": 2.0},
    {"allowed_token_ids": [4, 5]},
)


def test_lists_that_change_cost_the_same_launches_whatever_their_number(counting: None) -> None:
    """Of rows that come, with penalties and masks too, and of rows whose rules list other ids after each token."""
    for fields in LISTED:
        launches = []
        for count in (2, 40):
            batch = SamplingBatch(64, "npu", capacity=64)
            with hostcann.profile() as counted:
                batch.extend([SamplingParams(**fields)] * count, [[1, 2]] * count)  # type: ignore[arg-type]
                batch.process(zeros(batch))
                for step in range(3):
                    batch.append(ids("npu", *[step + 5] * count))
                    batch.process(zeros(batch))
            launches.append(counted.launches)
        assert launches[0] == launches[1], fields


def test_growth_copies_rows_a_constant_number_of_times(counting: None) -> None:
    batch = SamplingBatch(8, "npu", capacity=1)
    with hostcann.profile() as counted:
        for seed in range(256):
            batch.add(SamplingParams(seed=seed))
            batch.flush()
    assert sent(counted) == 256 * ROW_BYTES
    copied = counted.copied_bytes.get("d2d", 0)
    assert copied <= 2 * 256 * ROW_BYTES
    assert batch.seed.tolist() == list(range(256))


def test_what_was_sent_may_arrive_late(late: str) -> None:
    """The host writes on while copies still wait: each must read memory of its own."""
    batch, on_cpu = SamplingBatch(16, late), SamplingBatch(16)
    logits = torch.randn(6, 16)
    there, tokens = logits.to(late), ids(late, 1, 2, 3, 4, 5, 6)
    results = []
    for step in range(4):
        for one in (batch, on_cpu):
            if step == 0:
                one.extend([SamplingParams(seed=seed) for seed in range(4)])
            one.add(SamplingParams(seed=step, suppress_token_ids=[step], repetition_penalty=2.0), [step + 4])
            one.swap(0, len(one) - 1)
            one.add(SamplingParams(seed=9 + step, logit_bias={step: 1.0}, frequency_penalty=0.5))
            one.append(tokens if one is batch else torch.arange(1, 7))
            results.append(one.process(there if one is batch else logits))
            one.remove(1)
            one.remove(2)
    for found, expected in zip(results[::2], results[1::2], strict=True):
        assert found is not None
        assert expected is not None
        assert torch.equal(found.logits.cpu(), expected.logits)
        assert found.rows.tolist() == expected.host_rows
    assert batch.seed.tolist() == on_cpu.seed.tolist()
    assert batch.position.tolist() == on_cpu.position.tolist()
