"""The batch, step by step: rows that one can check by hand, arguments that it refuses, and what it costs."""

from __future__ import annotations

import doctest
import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from ascend_sample import hostcann
from ascend_sample._validate import SKIP_TOP_K
from ascend_sample.sampling import batch as batch_module
from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.params import SamplingParams

INF = math.inf


def ids(device: str, *values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64).to(device)


def processed(batch: SamplingBatch, logits: Tensor) -> dict[int, list[float]]:
    """What `process` gives, by row."""
    result = batch.process(logits)
    if result is None:
        return {}
    assert result.logits.dtype == torch.float32
    assert result.rows.dtype == torch.int64
    assert result.rows.device == batch.device
    assert result.rows.tolist() == result.host_rows
    return dict(zip(result.host_rows, result.logits.tolist(), strict=True))


def zeros(batch: SamplingBatch) -> Tensor:
    return torch.zeros(len(batch), batch.vocab_size, device=batch.device)


# Rows and their parameters.


def test_a_row_has_its_parameters(device: str) -> None:
    batch = SamplingBatch(100, device)
    params = SamplingParams(
        temperature=0.5,
        top_k=7,
        top_p=0.25,
        min_p=0.125,
        repetition_penalty=2.0,
        presence_penalty=-1.0,
        frequency_penalty=0.75,
        seed=2**63 + 5,
        logprobs=3,
    )
    assert batch.add(params, [4, 5, 6]) == 0
    assert batch.temperature.tolist() == [0.5]
    assert batch.top_k.tolist() == [7]
    assert batch.top_p.tolist() == [0.25]
    assert batch.min_p.tolist() == [0.125]
    assert batch.repetition_penalty.tolist() == [2.0]
    assert batch.presence_penalty.tolist() == [-1.0]
    assert batch.frequency_penalty.tolist() == [0.75]
    assert batch.seed.tolist() == [5 - 2**63]
    assert batch.position.tolist() == [3]
    assert batch.host.logprobs.tolist() == [3]
    assert batch.host.is_processed.tolist() == [True]
    assert batch.params == (params,)
    dtypes = {
        name: getattr(batch, name).dtype for name in ("temperature", "top_k", "top_p", "min_p", "seed", "position")
    }
    assert list(dtypes.values()) == [torch.float32, torch.int32, torch.float32, torch.float32, torch.int64, torch.int64]


def test_what_is_off(device: str) -> None:
    batch = SamplingBatch(100, device)
    batch.extend(
        [SamplingParams(), SamplingParams(top_k=100), SamplingParams(top_k=2**64 - 1), SamplingParams(top_k=99)]
    )
    assert batch.top_k.tolist() == [SKIP_TOP_K, SKIP_TOP_K, SKIP_TOP_K, 99]
    assert batch.host.top_k.tolist() == [SKIP_TOP_K, SKIP_TOP_K, SKIP_TOP_K, 99]
    assert batch.temperature.tolist() == [1.0] * 4
    assert batch.top_p.tolist() == [1.0] * 4
    assert batch.min_p.tolist() == [0.0] * 4
    assert batch.repetition_penalty.tolist() == [1.0] * 4
    assert batch.host.logprobs.tolist() == [-1] * 4
    assert not batch.host.is_processed.any()
    assert batch.process(zeros(batch)) is None


def test_a_top_p_below_1_is_not_off_in_float32(device: str) -> None:
    batch = SamplingBatch(100, device)
    batch.add(SamplingParams(top_p=1.0 - 2.0**-40, min_p=1.0 - 2.0**-40, temperature=0))
    assert batch.top_p.tolist() == [1.0 - 2.0**-24]
    assert batch.min_p.tolist() == [1.0 - 2.0**-24]
    assert batch.temperature.tolist() == [0.0]


def with_seeds(device: str, *seeds: int, **options: Any) -> SamplingBatch:
    batch = SamplingBatch(10, device, **options)
    for seed in seeds:
        batch.add(SamplingParams(seed=seed), position=100 + seed)
    return batch


def test_the_last_row_moves_into_the_hole(device: str) -> None:
    batch = with_seeds(device, 0, 1, 2, 3)
    assert batch.remove(1) == 3
    assert batch.seed.tolist() == [0, 3, 2]
    assert batch.position.tolist() == [100, 103, 102]
    assert batch.host.seed.tolist() == [0, 3, 2]
    assert batch.remove(2) is None
    assert batch.seed.tolist() == [0, 3]
    assert batch.remove(0) == 1
    assert batch.remove(0) is None
    assert len(batch) == 0
    assert batch.seed.tolist() == []
    assert batch.process(zeros(batch)) is None
    assert batch.add(SamplingParams(seed=9)) == 0
    assert batch.seed.tolist() == [9]


def test_rows_change_places(device: str) -> None:
    batch = with_seeds(device, 0, 1, 2, 3)
    batch.swap(0, 3)
    assert batch.seed.tolist() == [3, 1, 2, 0]
    batch.swap(1, 1)
    batch.reorder([1, 0, 2, 3])
    assert batch.seed.tolist() == [1, 3, 2, 0]
    batch.reorder(numpy.array([2, 0, 1, 3]))  # a cycle, which an in-place copy would break
    assert batch.seed.tolist() == [2, 1, 3, 0]
    assert batch.position.tolist() == [102, 101, 103, 100]
    assert [one.seed for one in batch.params] == [2, 1, 3, 0]


def test_growth_keeps_rows(device: str) -> None:
    batch = with_seeds(device, 0, capacity=1)
    assert batch.seed.tolist() == [0]
    batch.extend([SamplingParams(seed=seed) for seed in range(1, 9)], [[0] * n for n in range(8)])
    assert batch.seed.tolist() == list(range(9))
    assert batch.host.seed.tolist() == list(range(9))
    assert batch.position.tolist() == [100, *range(8)]


def test_growth_keeps_what_only_the_device_has_advanced(device: str) -> None:
    batch = with_seeds(device, 0, capacity=1)
    batch.append(ids(device, 3))
    batch.add(SamplingParams(seed=1))
    assert batch.position.tolist() == [101, 0]


def test_host_mirrors_are_valid_before_a_flush_and_cannot_be_written() -> None:
    batch = with_seeds("cpu", 4)
    assert batch.host.seed.tolist() == [4]
    with pytest.raises(ValueError, match="read-only"):
        batch.host.seed[0] = 5


def test_the_version_changes_with_rows_order_and_min_tokens() -> None:
    batch = SamplingBatch(10)
    versions = [batch.version]

    def changed() -> bool:
        versions.append(batch.version)
        return versions[-1] > versions[-2]

    batch.add(SamplingParams(stop_ids=[1], min_tokens=2))
    assert changed()
    batch.add(SamplingParams())
    assert changed()
    batch.swap(0, 1)
    assert changed()
    batch.swap(0, 0)
    assert not changed()
    batch.reorder([0, 1])
    assert not changed()
    batch.reorder([1, 0])
    assert changed()
    batch.flush()
    assert not changed()
    batch.append(ids("cpu", 0, 0))
    assert not changed()
    batch.append(ids("cpu", 0, 0))
    assert changed(), "min_tokens is over"
    batch.append(ids("cpu", 0, 0))
    assert not changed()
    batch.remove(0)
    assert changed()


# Seeds.


def test_rows_without_a_seed_get_theirs_from_the_generator(device: str) -> None:
    def seeds(*requests: SamplingParams) -> list[int]:
        batch = SamplingBatch(10, device, generator=torch.Generator().manual_seed(7))
        batch.extend(requests)
        assert batch.host.seed.tolist() == batch.seed.tolist()
        return list(batch.seed.tolist())

    unseeded = SamplingParams()
    first = seeds(*[unseeded] * 50)
    assert len(set(first)) == 50
    assert first == seeds(*[unseeded] * 50)
    assert min(first) < 0 < max(first), "all 64 bits are drawn"
    # Given seeds take nothing from the generator, wherever they stand.
    mixed = seeds(SamplingParams(seed=5), unseeded, SamplingParams(seed=6), unseeded)
    assert mixed == [5, first[0], 6, first[1]]


def test_one_by_one_or_together_the_same_seeds_are_drawn() -> None:
    together, one_by_one = (SamplingBatch(10, generator=torch.Generator().manual_seed(7)) for _ in range(2))
    together.extend([SamplingParams()] * 20)
    for _ in range(20):
        one_by_one.add(SamplingParams())
    assert together.seed.tolist() == one_by_one.seed.tolist()


def test_torchs_own_generator_is_the_default() -> None:
    torch.manual_seed(3)
    first, second = SamplingBatch(10), SamplingBatch(10)
    first.add(SamplingParams())
    second.add(SamplingParams())
    assert first.seed.tolist() != second.seed.tolist()
    torch.manual_seed(3)
    third = SamplingBatch(10)
    third.add(SamplingParams())
    assert third.seed.tolist() == first.seed.tolist()


def test_a_removed_rows_seed_does_not_come_back(device: str) -> None:
    batch = SamplingBatch(10, device, generator=torch.Generator().manual_seed(7))
    batch.add(SamplingParams(seed=5))
    batch.flush()
    batch.remove(0)
    batch.extend([SamplingParams(), SamplingParams()])
    assert 5 not in batch.seed.tolist()
    assert len(set(batch.seed.tolist())) == 2
    assert batch.position.tolist() == [0, 0]


# Masks and biases.


def test_bias_and_masks(device: str) -> None:
    batch = SamplingBatch(5, device)
    batch.extend(
        [
            SamplingParams(),
            SamplingParams(logit_bias={1: 2.5, 3: -1.0}),
            SamplingParams(bad_ids=[0, 4], logit_bias={1: 0.5}),
            SamplingParams(allowed_ids=[1, 2, 3], bad_ids=[2], logit_bias={3: 4.0}),
            SamplingParams(logit_bias={1: 0.0}),
        ]
    )
    assert batch.host.is_processed.tolist() == [False, True, True, True, False]
    logits = torch.tensor([[1.0, 1.0, 1.0, INF, math.nan]]).repeat(5, 1).to(device)
    assert processed(batch, logits) == {
        1: [1.0, 3.5, 1.0, INF, pytest.approx(math.nan, nan_ok=True)],
        2: [-INF, 1.5, 1.0, INF, -INF],
        3: [-INF, 1.0, -INF, INF, -INF],
    }
    assert logits[0, :4].tolist() == [1.0, 1.0, 1.0, INF], "the logits stay as they are"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_bias_is_added_in_float32(device: str, dtype: torch.dtype) -> None:
    batch = SamplingBatch(2, device)
    batch.add(SamplingParams(logit_bias={0: 2.0**-12}))
    assert processed(batch, torch.full((1, 2), 16.0, dtype=dtype, device=device)) == {0: [16.0 + 2.0**-12, 16.0]}


def test_stop_ids_are_forbidden_for_min_tokens(device: str) -> None:
    batch = SamplingBatch(4, device)
    batch.extend(
        [
            SamplingParams(stop_ids=[1], min_tokens=2),
            SamplingParams(stop_ids=[1, 2], min_tokens=1, bad_ids=[2], logit_bias={1: 3.0}),
            SamplingParams(stop_ids=[1]),
            SamplingParams(stop_ids=[1, 3], min_tokens=3, allowed_ids=[0, 1]),
        ]
    )
    assert batch.host.min_tokens_left.tolist() == [2, 1, 0, 3]
    first = {0: [0, -INF, 0, 0], 1: [0, -INF, -INF, 0], 3: [0, -INF, -INF, -INF]}
    assert processed(batch, zeros(batch)) == first
    batch.append(ids(device, 0, 0, 0, 0))
    assert processed(batch, zeros(batch)) == first | {1: [0, 3, -INF, 0]}
    batch.append(ids(device, 0, 0, 0, 0))
    assert processed(batch, zeros(batch)) == {1: [0, 3, -INF, 0], 3: [0, -INF, -INF, -INF]}
    assert batch.host.is_processed.tolist() == [False, True, False, True]
    batch.append(ids(device, 0, 0, 0, 0))
    assert processed(batch, zeros(batch)) == {1: [0, 3, -INF, 0], 3: [0, 0, -INF, -INF]}
    assert batch.host.min_tokens_left.tolist() == [0, 0, 0, 0]


def test_a_request_that_comes_back_has_generated_already(device: str) -> None:
    batch = SamplingBatch(4, device)
    batch.add(SamplingParams(stop_ids=[1], min_tokens=3), [0, 0], output_ids=[2, 2])
    batch.add(SamplingParams(stop_ids=[1], min_tokens=2), [0, 0], output_ids=[2, 2])
    batch.add(SamplingParams(frequency_penalty=1.0), [0, 0], output_ids=[2, 2, 3])
    assert batch.host.min_tokens_left.tolist() == [1, 0, 0]
    assert batch.position.tolist() == [4, 4, 5]
    assert processed(batch, zeros(batch)) == {0: [0, -INF, 0, 0], 2: [0, 0, -2, -1]}


# Penalties.


def test_penalties_follow_the_tokens(device: str) -> None:
    batch = SamplingBatch(4, device)
    batch.extend(
        [
            SamplingParams(repetition_penalty=2.0),
            SamplingParams(),
            SamplingParams(presence_penalty=0.5, frequency_penalty=0.25),
        ],
        [[0, 0, 1], [0], [0, 1]],
    )
    logits = torch.tensor([[4.0, -4.0, 4.0, 4.0]]).repeat(3, 1).to(device)
    assert processed(batch, logits) == {0: [2, -8, 4, 4], 2: [4, -4, 4, 4]}
    batch.append(ids(device, 3, 3, 3))
    assert processed(batch, logits) == {0: [2, -8, 4, 2], 2: [4, -4, 4, 3.25]}
    batch.append(ids(device, 3, 3, 3))
    assert processed(batch, logits) == {0: [2, -8, 4, 2], 2: [4, -4, 4, 3.0]}
    assert batch.position.tolist() == [5, 3, 4]
    batch.remove(0)  # the row with the counts moves
    assert processed(batch, logits[:2]) == {0: [4, -4, 4, 3.0]}
    batch.append(ids(device, 0, 0))
    assert processed(batch, logits[:2]) == {0: [3.25, -4, 4, 3.0]}


def test_masks_and_penalties_together(device: str) -> None:
    batch = SamplingBatch(3, device)
    batch.extend(
        [
            SamplingParams(frequency_penalty=1.0),
            SamplingParams(bad_ids=[2]),
            SamplingParams(frequency_penalty=1.0, logit_bias={0: 2.0}, bad_ids=[1]),
        ]
    )
    batch.append(ids(device, 0, 0, 0))
    assert processed(batch, zeros(batch)) == {0: [-1, 0, 0], 1: [0, 0, -INF], 2: [1, -INF, 0]}


def test_some_rows_get_tokens_and_some_get_several(device: str) -> None:
    batch = SamplingBatch(4, device)
    batch.extend(
        [
            SamplingParams(frequency_penalty=1.0),
            SamplingParams(frequency_penalty=1.0),
            SamplingParams(),
            SamplingParams(stop_ids=[3], min_tokens=2),
        ]
    )
    batch.append(ids(device, 3, 3, 0, 1, 1, 1), rows=[0, 0, 0, 3, 3, 2])
    assert batch.position.tolist() == [3, 0, 1, 2]
    assert batch.host.position.tolist() == [3, 0, 1, 2]
    assert processed(batch, zeros(batch)) == {0: [-1, 0, 0, -2], 1: [0, 0, 0, 0]}
    batch.append(ids(device), rows=[])
    batch.append(ids(device, 2), rows=torch.tensor([1]))
    assert batch.position.tolist() == [3, 1, 1, 2]
    assert processed(batch, zeros(batch))[1] == [0, 0, -1, 0]


def test_placeholders_count_for_no_penalty(device: str) -> None:
    batch = SamplingBatch(4, device)
    batch.extend([SamplingParams(frequency_penalty=1.0)] * 3)
    batch.append(ids(device, -1, 4, 3))
    assert processed(batch, zeros(batch)) == {0: [0] * 4, 1: [0] * 4, 2: [0, 0, 0, -1]}
    assert batch.position.tolist() == [1, 1, 1]


def test_a_slot_is_clean_when_it_is_given_again(device: str) -> None:
    batch = SamplingBatch(4, device)
    params = SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0, bad_ids=[0])
    batch.extend([params, params], [[1], [1]])
    batch.append(ids(device, 2, 2))
    batch.remove(0)
    batch.add(SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0, bad_ids=[3]), [2])
    logits = torch.full((2, 4), -1.0, device=device)
    assert processed(batch, logits) == {0: [-INF, -2, -3, -1], 1: [-1, -1, -2, -INF]}


# Memory.


def test_slots_grow_as_needed_and_are_given_back(device: str) -> None:
    batch = SamplingBatch(8, device)
    assert batch.slot_bytes == 0
    batch.extend([SamplingParams()] * 9)
    batch.flush()
    assert batch.slot_bytes == 0, "rows that are not processed have no slots"
    biased, penalized = SamplingParams(bad_ids=[1]), SamplingParams(presence_penalty=1.0)
    batch.add(biased)
    batch.flush()
    assert batch.slot_bytes == 8 * 4
    batch.extend([biased, biased])
    batch.flush()
    assert batch.slot_bytes == 4 * 8 * 4, "1, 2, 4"
    batch.add(penalized)
    batch.flush()
    assert batch.slot_bytes == 5 * 8 * 4, "counts, and no prompts"
    batch.add(SamplingParams(repetition_penalty=2.0), [1])
    batch.flush()
    assert batch.slot_bytes == 4 * 8 * 4 + 2 * 8 * (4 + 1)
    batch.remove(13)
    assert batch.slot_bytes == 4 * 8 * 4 + 2 * 8 * 4, "no prompt matters any more"
    for row in (12, 11, 10, 9):
        batch.remove(row)
    assert batch.slot_bytes == 0
    batch.flush()
    assert batch.process(zeros(batch)) is None


def test_an_expired_min_tokens_gives_its_slot_back(device: str) -> None:
    batch = SamplingBatch(8, device)
    batch.add(SamplingParams(stop_ids=[1], min_tokens=1))
    batch.flush()
    assert batch.slot_bytes == 8 * 4
    batch.append(ids(device, 0))
    assert batch.slot_bytes == 0


# What a step costs.


class Traffic:
    """What hostcann saw since the start: synchronisations, and bytes sent to the device."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        torch.npu.synchronize()
        hostcann.reset_counters()

    def sent(self) -> int:
        """Bytes to the device so far; nothing may have waited for it, or read from it."""
        counters = hostcann.counters()
        assert not any(counters.synchronizations.values()), counters.synchronizations
        torch.npu.synchronize()  # copies are counted when they run
        counters = hostcann.counters()
        assert counters.copies.get("d2h", 0) == 0
        return counters.copied_bytes.get("h2d", 0)


@pytest.fixture
def traffic(npu: str) -> Traffic:
    if not hostcann.is_active():
        pytest.skip("the emulated device counts, a real one does not")
    return Traffic()


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


def test_a_step_never_waits_for_the_device(traffic: Traffic) -> None:
    batch = SamplingBatch(64, "npu", capacity=2)
    logits = torch.randn(24, 64).npu()
    tokens = torch.randint(0, 64, (24,)).npu()
    traffic.reset()
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
    assert traffic.sent() > 0


def test_a_step_without_changes_sends_nothing(traffic: Traffic) -> None:
    batch = SamplingBatch(64, "npu")
    batch.extend([*MIXED * 2], [[1, 2]] * 12)
    logits, tokens = torch.randn(12, 64).npu(), torch.randint(0, 64, (12,)).npu()
    for _ in range(3):  # until min_tokens is over
        batch.append(tokens)
    batch.process(logits)
    traffic.reset()
    for _ in range(3):
        batch.process(logits)
        batch.append(tokens)
    assert traffic.sent() == 0


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
    ],
)
def test_a_change_sends_the_rows_that_change(
    traffic: Traffic, count: int, change: Callable[[SamplingBatch], Any], rows: int
) -> None:
    batch = SamplingBatch(64, "npu", capacity=2048)
    batch.extend([SamplingParams(seed=seed) for seed in range(count - 2)])
    # Processed rows that stay where they are cost nothing either.
    batch.extend([SamplingParams(bad_ids=[1]), SamplingParams(presence_penalty=0.5)])
    batch.swap(0, count - 2)
    batch.swap(1, count - 1)
    batch.flush()
    traffic.reset()
    change(batch)
    batch.flush()
    assert traffic.sent() == rows * ROW_BYTES


def test_a_processed_row_sends_its_ids_and_not_the_vocabulary(traffic: Traffic) -> None:
    batch = SamplingBatch(100_000, "npu", capacity=64)
    batch.extend([SamplingParams()] * 20)
    batch.flush()
    traffic.reset()
    batch.add(SamplingParams(bad_ids=[1, 2], frequency_penalty=0.5), output_ids=[3])
    batch.flush()
    assert traffic.sent() < 300


def test_growth_copies_rows_a_constant_number_of_times(traffic: Traffic) -> None:
    batch = SamplingBatch(8, "npu", capacity=1)
    traffic.reset()
    for seed in range(256):
        batch.add(SamplingParams(seed=seed))
        batch.flush()
    assert traffic.sent() == 256 * ROW_BYTES
    copied = hostcann.counters().copied_bytes.get("d2d", 0)
    assert copied <= 2 * 256 * ROW_BYTES
    assert batch.seed.tolist() == list(range(256))


# What it refuses.


def example(device: str = "cpu") -> SamplingBatch:
    batch = SamplingBatch(10, device)
    batch.extend([SamplingParams(seed=1), SamplingParams(seed=2, frequency_penalty=1.0)])
    return batch


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda batch: batch.add({"top_k": 5}), TypeError, "params must be SamplingParams, got dict."),
        (
            lambda batch: batch.add(SamplingParams(bad_ids=[10])),
            ValueError,
            "bad_ids must hold ids in [0, 10), got 10.",
        ),
        (
            lambda batch: batch.add(SamplingParams(logit_bias={99: 1.0})),
            ValueError,
            "logit_bias must hold ids in [0, 10)",
        ),
        (
            lambda batch: batch.add(SamplingParams(vocab_size=11)),
            ValueError,
            "vocab_size must be the batch's, 10, got 11.",
        ),
        (
            lambda batch: batch.add(SamplingParams(logprobs=11)),
            ValueError,
            "logprobs must be an int in [0, 10], got 11.",
        ),
        (lambda batch: batch.add(SamplingParams(bad_ids=range(10))), ValueError, "bad_ids must leave at least one"),
        (
            lambda batch: batch.add(SamplingParams(repetition_penalty=2.0), [3, 10]),
            ValueError,
            "prompt_ids must hold ids in [0, 10), got 10.",
        ),
        (
            lambda batch: batch.add(SamplingParams(frequency_penalty=2.0), output_ids=[-1]),
            ValueError,
            "output_ids must hold ids in [0, 10), got -1.",
        ),
        (
            lambda batch: batch.add(SamplingParams(repetition_penalty=2.0), [0.5]),
            TypeError,
            "prompt_ids must be a list of ints",
        ),
        (lambda batch: batch.add(SamplingParams(), position=-1), ValueError, "position must be in [0, "),
        (lambda batch: batch.add(SamplingParams(), position=1.0), TypeError, "position must be an int, got 1.0."),
        (
            lambda batch: batch.extend([SamplingParams()] * 2, [[1]]),
            ValueError,
            "prompt_ids must be as many as params, 2, got 1.",
        ),
        (
            lambda batch: batch.extend([SamplingParams(bad_ids=[3]), SamplingParams(bad_ids=[10])]),
            ValueError,
            "bad_ids must hold ids in [0, 10), got 10.",
        ),
        (lambda batch: batch.remove(2), IndexError, "row must be in [0, 2), got 2."),
        (lambda batch: batch.remove(-1), IndexError, "row must be in [0, 2), got -1."),
        (lambda batch: batch.remove(True), TypeError, "row must be an int, got True."),
        (lambda batch: batch.swap(0, 2), IndexError, "row must be in [0, 2), got 2."),
        (lambda batch: batch.reorder([0]), ValueError, "permutation must name each of 2 rows once, got [0]."),
        (lambda batch: batch.reorder([0, 0]), ValueError, "permutation must name each of 2 rows once"),
        (lambda batch: batch.reorder([0, 2]), ValueError, "permutation must name each of 2 rows once"),
        (lambda batch: batch.reorder([0.0, 1.0]), ValueError, "permutation must name each of 2 rows once"),
        (lambda batch: batch.append([1, 2]), TypeError, "token_ids must be an int64 tensor, got list."),
        (lambda batch: batch.append(torch.tensor([1.0, 2.0])), TypeError, "got a tensor of torch.float32."),
        (
            lambda batch: batch.append(torch.tensor([1, 2, 3])),
            ValueError,
            "token_ids must have the shape [2], got [3].",
        ),
        (
            lambda batch: batch.append(torch.tensor([[1], [2]])),
            ValueError,
            "token_ids must have the shape [2], got [2, 1].",
        ),
        (
            lambda batch: batch.append(torch.tensor([1]), [0, 1]),
            ValueError,
            "token_ids must have the shape [2], got [1].",
        ),
        (lambda batch: batch.append(torch.tensor([1]), [2]), IndexError, "row must be in [0, 2), got 2."),
        (lambda batch: batch.append(torch.tensor([1]), [-1]), IndexError, "row must be in [0, 2), got -1."),
        (lambda batch: batch.append(torch.tensor([1]), [0.5]), TypeError, "rows must be ints, got [0.5]."),
        (lambda batch: batch.append(torch.tensor([1]), [True]), TypeError, "rows must be ints, got [True]."),
        (lambda batch: batch.process(None), TypeError, "logits must be a floating-point tensor, got NoneType."),
        (lambda batch: batch.process(torch.zeros(2, 10).int()), TypeError, "got a tensor of torch.int32."),
        (lambda batch: batch.process(torch.zeros(2, 9)), ValueError, "logits must have the shape [2, 10], got [2, 9]."),
        (
            lambda batch: batch.process(torch.zeros(3, 10)),
            ValueError,
            "logits must have the shape [2, 10], got [3, 10].",
        ),
    ],
)
def test_a_wrong_call_is_refused_and_changes_nothing(
    call: Callable[[SamplingBatch], Any], error: type[Exception], message: str
) -> None:
    batch, untouched = example(), example()
    with pytest.raises(error) as caught:
        call(batch)
    assert message in str(caught.value)
    assert str(caught.value).endswith(".")
    assert batch.version == untouched.version
    assert batch.params == untouched.params
    for name, buffer in batch.host.buffers.items():
        assert (buffer == untouched.host.buffers[name]).all()
    assert batch.slot_bytes == 0
    batch.flush()
    assert batch.seed.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"vocab_size": 0}, ValueError, "vocab_size must be in [1, 1048576], got 0."),
        ({"vocab_size": 2**20 + 1}, ValueError, "vocab_size must be in [1, 1048576], got 1048577."),
        ({"vocab_size": 8.0}, TypeError, "vocab_size must be an int, got 8.0."),
        ({"vocab_size": 8, "capacity": 0}, ValueError, "capacity must be in [1, 2147483647], got 0."),
        ({"vocab_size": 8, "capacity": True}, TypeError, "capacity must be an int, got True."),
        ({"vocab_size": 8, "generator": 3}, TypeError, "generator must be a torch.Generator, got 3."),
    ],
)
def test_a_wrong_batch_is_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        SamplingBatch(**arguments)
    assert message in str(caught.value)


def test_tensors_of_another_device_are_refused(npu: str) -> None:
    batch = example(npu)
    with pytest.raises(ValueError, match="token_ids must be on npu:0, got cpu"):
        batch.append(torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="logits must be on npu:0, got cpu"):
        batch.process(torch.zeros(2, 10))
    with pytest.raises(ValueError, match="rows must be on the host, got a tensor on npu:0"):
        batch.append(ids(npu, 1), rows=ids(npu, 0))
    with pytest.raises(ValueError, match="generator must be on the CPU, got one on npu"):
        SamplingBatch(8, generator=torch.Generator(npu))


def test_the_examples_of_the_docstrings() -> None:
    assert doctest.testmod(batch_module).failed == 0
