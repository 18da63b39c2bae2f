"""What a batch costs: the device's memory, and what a step sends to the device, which it never waits for."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from batch_tensors import ids, zeros
from numpy.typing import NDArray
from torch import Tensor

from ascend_sample import hostcann
from ascend_sample.npu import scratch
from ascend_sample.sampling import Sampler
from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.edits import plan, slots
from ascend_sample.sampling.requests.params import SamplingParams
from ascend_sample.sampling.rows import table as row_table

ENTRY = 8 + 4
"""An id, and what is added to its logit."""
HISTORY = 1000 * 4 + 3 * 16 * 8
"""How often each of 1000 ids has occurred, and three lists that have room for 16 tokens at first."""


def test_slots_grow_as_needed_and_are_given_back(device: str) -> None:
    batch = SamplingBatch(1000, device)
    assert batch.slot_bytes == 0
    batch.extend([SamplingParams()] * 9)
    batch.flush()
    assert batch.slot_bytes == 0, "rows that are not processed have no slots"
    biased, penalized = SamplingParams(bad_ids=[1]), SamplingParams(presence_penalty=1.0)
    batch.add(biased)
    batch.flush()
    assert batch.slot_bytes == ENTRY
    batch.extend([biased, biased])
    batch.flush()
    assert batch.slot_bytes == 4 * ENTRY, "1, 2, 4"
    batch.add(penalized)
    batch.flush()
    assert batch.slot_bytes == 4 * ENTRY + HISTORY
    batch.add(SamplingParams(repetition_penalty=2.0), [1])
    batch.flush()
    assert batch.slot_bytes == 4 * ENTRY + 2 * HISTORY
    batch.add(SamplingParams(allowed_ids=[1]))
    batch.flush()
    assert batch.slot_bytes == 4 * ENTRY + 2 * HISTORY + 32 * 4, "a bit an id, in whole words"
    batch.remove(14)
    assert batch.slot_bytes == 4 * ENTRY + 2 * HISTORY
    for row in (13, 12, 11, 10, 9):
        batch.remove(row)
    assert batch.slot_bytes == 0
    batch.flush()
    assert batch.process(zeros(batch)) is None


def test_an_expired_min_tokens_gives_its_slot_back(device: str) -> None:
    batch = SamplingBatch(8, device)
    batch.add(SamplingParams(stop_ids=[1], min_tokens=1))
    batch.flush()
    assert batch.slot_bytes == ENTRY
    batch.append(ids(device, 0))
    assert batch.slot_bytes == 0


def test_lists_are_as_wide_as_the_longest_needs(device: str) -> None:
    """By doubling; they become narrower when that has gone."""
    batch = SamplingBatch(1000, device)
    batch.add(SamplingParams(bad_ids=range(20)))
    batch.add(SamplingParams(bad_ids=[1]))
    batch.flush()
    assert batch.slot_bytes == 2 * 32 * ENTRY
    batch.add(SamplingParams(bad_ids=range(100)))
    batch.flush()
    assert batch.slot_bytes == 2 * 32 * ENTRY + 32 * 4, "a long list of bans is a mask"
    batch.remove(0)
    batch.add(SamplingParams(bad_ids=[1]))
    batch.flush()
    assert batch.slot_bytes == 2 * ENTRY + 32 * 4
    assert batch.process(zeros(batch)).logits.isinf().sum(1).tolist() == [100, 1, 1]  # type: ignore[union-attr]


def sent(counted: hostcann.Profile) -> int:
    """Bytes to the device; nothing may have waited for it, or read from it."""
    assert counted.synchronizations == {}
    assert counted.copies.get("d2h", 0) == 0
    return counted.copied_bytes.get("h2d", 0)


ROW_BYTES = 8 * 3 + 4 * 6 + 4
"""A changed row: seed, position and its number; six floats; top-k."""
MIXED = (
    SamplingParams(),
    SamplingParams(bad_ids=[1, 2]),
    SamplingParams(repetition_penalty=2.0),
    SamplingParams(logit_bias={3: 1.0}, frequency_penalty=0.5),
    SamplingParams(stop_ids=[5], min_tokens=3),
    SamplingParams(allowed_ids=[4, 5, 6], presence_penalty=0.5),
)


def test_a_step_never_waits_for_the_device(counting: None) -> None:
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
    assert sent(counted) > 0


def test_a_step_without_changes_sends_nothing(counting: None) -> None:
    batch = SamplingBatch(64, "npu")
    batch.extend([*MIXED * 2], [[1, 2]] * 12)
    logits, tokens = torch.randn(12, 64).npu(), torch.randint(0, 64, (12,)).npu()
    for _ in range(3):  # until min_tokens is over
        batch.append(tokens)
    batch.process(logits)
    with hostcann.profile() as counted:
        for _ in range(3):
            batch.process(logits)
            batch.append(tokens)
    assert sent(counted) == 0


@pytest.mark.parametrize("count", [10, 1000])
@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (lambda batch: batch.add(SamplingParams(seed=1)), 1),
        (lambda batch: batch.extend([SamplingParams()] * 3), 3),
        (lambda batch: batch.remove(4), 1),
        (lambda batch: batch.remove(len(batch) - 1), 0),
        (lambda batch: batch.swap(2, 5), 2),
        (lambda batch: batch.reorder([0, 1, 3, 4, 2, *range(5, len(batch))]), 3),
        (lambda batch: (batch.swap(2, 5), batch.swap(5, 7), batch.remove(2)), 3),
        (lambda batch: (batch.swap(3, len(batch) - 1), batch.remove(len(batch) - 1)), 1),
    ],
)
def test_a_change_sends_the_rows_that_change(
    counting: None, count: int, change: Callable[[SamplingBatch], Any], rows: int
) -> None:
    batch = SamplingBatch(64, "npu", capacity=2048)
    batch.extend([SamplingParams(seed=seed) for seed in range(count - 2)])
    # Processed rows that stay where they are cost nothing either.
    batch.extend([SamplingParams(bad_ids=[1]), SamplingParams(presence_penalty=0.5)])
    batch.swap(0, count - 2)
    batch.swap(1, count - 1)
    batch.flush()
    with hostcann.profile() as counted:
        change(batch)
        batch.flush()
    assert sent(counted) == rows * ROW_BYTES


def test_a_processed_row_sends_its_ids_and_not_the_vocabulary(counting: None) -> None:
    batch = SamplingBatch(100_000, "npu", capacity=64)
    batch.extend([SamplingParams()] * 20)
    batch.flush()
    with hostcann.profile() as counted:
        batch.add(SamplingParams(bad_ids=[1, 2], frequency_penalty=0.5), output_ids=[3])
        batch.flush()
    assert sent(counted) < 300


@pytest.mark.parametrize(
    "request_",
    [
        SamplingParams(logit_bias={3: 1.0}),
        SamplingParams(no_repeat_ngram_size=1),
        SamplingParams(repetition_penalty=2.0),
        SamplingParams(presence_penalty=2.0),
        SamplingParams(allowed_ids=[4, 5]),
    ],
)
def test_lists_that_change_cost_the_same_launches_whatever_their_number(
    counting: None, request_: SamplingParams
) -> None:
    """Of rows that come, with penalties and masks too, and of rows whose rules list other ids after each token."""
    launches = []
    for count in (2, 40):
        batch = SamplingBatch(64, "npu", capacity=64)
        with hostcann.profile() as counted:
            batch.extend([request_] * count, [[1, 2]] * count)
            batch.process(zeros(batch))
            for step in range(3):
                batch.append(ids("npu", *[step + 5] * count))
                batch.process(zeros(batch))
        launches.append(counted.launches)
    assert launches[0] == launches[1]


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


@pytest.mark.parametrize("mode", ["delayed", "lazy"])
def test_what_was_sent_may_arrive_late(emulated: None, npu: str, mode: str) -> None:
    """The host writes on while copies still wait: each must read memory of its own."""
    batch, on_cpu = SamplingBatch(16, npu), SamplingBatch(16)
    logits = torch.randn(6, 16)
    there, tokens = logits.npu(), ids(npu, 1, 2, 3, 4, 5, 6)
    torch.npu.synchronize()
    results = []
    hostcann.set_stream_mode(mode)
    try:
        for step in range(4):
            for one in (batch, on_cpu):
                if step == 0:
                    one.extend([SamplingParams(seed=seed) for seed in range(4)])
                one.add(SamplingParams(seed=step, bad_ids=[step], repetition_penalty=2.0), [step + 4])
                one.swap(0, len(one) - 1)
                one.add(SamplingParams(seed=9 + step, logit_bias={step: 1.0}, frequency_penalty=0.5))
                one.append(tokens if one is batch else torch.arange(1, 7))
                results.append(one.process(there if one is batch else logits))
                one.remove(1)
                one.remove(2)
        torch.npu.synchronize()
    finally:
        hostcann.set_stream_mode("normal")
    for late, expected in zip(results[::2], results[1::2], strict=True):
        assert late is not None
        assert expected is not None
        assert torch.equal(late.logits.cpu(), expected.logits)
        assert late.rows.tolist() == expected.host_rows
    assert batch.seed.tolist() == on_cpu.seed.tolist()
    assert batch.position.tolist() == on_cpu.position.tolist()


def test_a_batch_survives_a_device_without_memory(emulated: None, npu: str) -> None:
    batch = SamplingBatch(2**20, npu)
    batch.add(SamplingParams(seed=1))
    batch.flush()
    torch.npu.synchronize()
    gc.collect()
    scratch.release()  # what other tests have left keeps segments, with room in them, from being given back
    torch.npu.empty_cache()
    batch.add(SamplingParams(seed=2, bad_ids=[3], frequency_penalty=1.0), output_ids=[4])
    hostcann.inject("malloc", count=2)  # torch_npu tries again after it has emptied its cache
    try:
        with pytest.raises(torch.OutOfMemoryError):
            batch.flush()
    finally:
        hostcann.clear_faults()
    result = batch.process(zeros(batch))
    assert result is not None
    assert result.host_rows == [1]
    assert result.logits[0, 2:6].tolist() == [0.0, -float("inf"), -1.0, 0.0]
    assert batch.seed.tolist() == [1, 2]


def test_a_step_that_failed_can_be_taken_again(npu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a flush fails for want of memory, nothing that rows change is lost."""
    left, to_device = math.inf, row_table.to_device

    def failing(values: NDArray[Any], device: torch.device) -> Tensor:
        nonlocal left
        left -= 1
        if left == 0:
            raise torch.OutOfMemoryError("planted")
        return to_device(values, device)

    for module in (row_table, slots, plan):
        monkeypatch.setattr(module, "to_device", failing)
    logits = torch.zeros(2, 8)
    logits[:, 1], logits[:, 5], logits[:, 3] = 9.0, 8.5, 8.0
    failures = 0
    while True:
        batch = SamplingBatch(8, npu)
        batch.extend(
            [SamplingParams(temperature=0, bad_ids=[1], allowed_ids=[1, 3, 5, 6], presence_penalty=2.0)] * 2,
            output_ids=[[5]] * 2,
        )
        left = failures + 1
        try:
            Sampler()(logits.to(npu), batch, advance=False)
        except torch.OutOfMemoryError:
            failures += 1
        else:
            break
        assert Sampler()(logits.to(npu), batch, advance=False).token_ids.tolist() == [3, 3], failures
    assert failures > 8
