"""The batch, step by step: rows that one can check by hand, arguments that it refuses, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from ascend_sample._contract import SKIP_TOP_K
from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.requests.params import SamplingParams
from ascend_sample.sampling.rows.table import TABLE
from ascend_sample.sampling.sampler import Sampler

INF = math.inf


def ids(device: str, *values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64).to(device)


def zeros(batch: SamplingBatch) -> Tensor:
    return torch.zeros(len(batch), batch.vocab_size, device=batch.device)


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


# Rows and their parameters.


def test_a_row_has_its_parameters(device: str) -> None:
    batch = SamplingBatch(100, device)
    numbers = {"temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.125, "repetition_penalty": 2.0}
    numbers |= {"presence_penalty": -1.0, "frequency_penalty": 0.75}
    params = SamplingParams(**numbers, seed=2**63 + 5, logprobs=3)
    assert batch.add(params, [4, 5, 6]) == 0
    assert {name: getattr(batch, name).tolist() for name in numbers} == {name: [one] for name, one in numbers.items()}
    assert (batch.seed.tolist(), batch.position.tolist()) == ([5 - 2**63], [3])
    assert (batch.host.logprobs.tolist(), batch.host.is_processed.tolist()) == ([3], [True])
    assert batch.params == [params]
    for name, column in TABLE.items():
        if column.is_on_device:
            assert getattr(batch, name).tolist() == getattr(batch.host, name).tolist(), name
    with pytest.raises(AttributeError, match="'HostMirrors' object has no attribute 'top_q'"):
        batch.host.top_q  # noqa: B018
    dtypes = [getattr(batch, name).dtype for name in ("temperature", "top_k", "top_p", "min_p", "seed", "position")]
    assert dtypes == [torch.float32, torch.int32, torch.float32, torch.float32, torch.int64, torch.int64]


def test_what_is_off(device: str) -> None:
    batch = SamplingBatch(100, device)
    below = 1.0 - 2.0**-40  # float32 would round it to 1, which is off
    batch.extend([SamplingParams(), SamplingParams(top_k=100), SamplingParams(top_k=2**64 - 1)])
    batch.add(SamplingParams(top_k=99, top_p=below, min_p=below, temperature=0))
    assert batch.top_k.tolist() == batch.host.top_k.tolist() == [SKIP_TOP_K, SKIP_TOP_K, SKIP_TOP_K, 99]
    assert batch.temperature.tolist() == [1.0, 1.0, 1.0, 0.0]
    assert batch.top_p.tolist() == [1.0, 1.0, 1.0, 1.0 - 2.0**-24]
    assert batch.min_p.tolist() == [0.0, 0.0, 0.0, 1.0 - 2.0**-24]
    assert batch.process(zeros(batch)) is None


def batch_of(device: str, vocab_size: int, *params: SamplingParams, prompts: Any = None) -> SamplingBatch:
    batch = SamplingBatch(vocab_size, device)
    batch.extend(params, prompts)
    return batch


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


def test_growth_keeps_rows_and_what_only_the_device_has_advanced(device: str) -> None:
    batch = with_seeds(device, 0, capacity=1)
    batch.append(ids(device, 3))
    batch.extend([SamplingParams(seed=seed) for seed in range(1, 9)], [[0] * n for n in range(8)])
    assert batch.seed.tolist() == batch.host.seed.tolist() == list(range(9))
    assert batch.position.tolist() == [101, *range(8)]


def test_a_batch_on_the_cpu_has_its_rows_once() -> None:
    batch = SamplingBatch(vocab_size=8)
    batch.extend([SamplingParams(), SamplingParams(temperature=0.5)])
    position, temperature = batch.position, batch.temperature
    batch.append(ids("cpu", 3, 4))
    batch.append(ids("cpu", 5), rows=[1])
    batch.swap(0, 1)
    assert position.tolist() == batch.host.position.tolist() == [2, 1]
    assert temperature.tolist() == [0.5, 1]
    assert position.data_ptr() == batch.host.position.ctypes.data
    with pytest.raises(ValueError, match="read-only"):
        batch.host.position[0] = 5


def test_the_version_changes_with_rows_order_and_min_tokens() -> None:
    batch = SamplingBatch(10)
    zero = ids("cpu", 0, 0)
    changes: list[tuple[Callable[[], object], bool]] = [
        (lambda: batch.add(SamplingParams(stop_token_ids=[1], min_tokens=2)), True),
        (lambda: batch.add(SamplingParams()), True),
        (lambda: batch.swap(0, 1), True),
        (lambda: batch.swap(0, 0), False),
        (lambda: batch.reorder([0, 1]), False),
        (lambda: batch.reorder([1, 0]), True),
        (batch.flush, False),
        (lambda: batch.append(zero), False),
        (lambda: batch.append(zero), True),  # min_tokens is over
        (lambda: batch.append(zero), False),
        (lambda: batch.remove(0), True),
    ]
    for place, (change, is_new) in enumerate(changes):
        before = batch.version
        change()
        assert (batch.version > before) == is_new, place


# Masks and biases.


def test_bias_and_masks(device: str) -> None:
    batch = batch_of(
        device,
        5,
        SamplingParams(),
        SamplingParams(logit_bias={1: 2.5, 3: -1.0}),
        SamplingParams(suppress_token_ids=[0, 4], logit_bias={0: 9.0, 1: 0.5}),
        SamplingParams(allowed_token_ids=[1, 2, 3], suppress_token_ids=[2], logit_bias={0: 9.0, 1: 4.0, 2: 9.0}),
        SamplingParams(logit_bias={1: 0.0}),
    )
    assert batch.host.is_processed.tolist() == [False, True, True, True, False]
    logits = torch.tensor([[1.0, 1.0, 1.0, INF, math.nan]]).repeat(5, 1).to(device)
    assert processed(batch, logits) == {
        1: [1.0, 3.5, 1.0, INF, pytest.approx(math.nan, nan_ok=True)],
        2: [-INF, 1.5, 1.0, INF, -INF],
        3: [-INF, 5.0, -INF, INF, -INF],
    }
    assert logits[0, :4].tolist() == [1.0, 1.0, 1.0, INF], "the logits stay as they are"


def test_processed_rows_are_found_where_they_have_moved(device: str) -> None:
    batch = SamplingBatch(2, device)
    batch.extend(
        [SamplingParams(suppress_token_ids=[0]), *[SamplingParams()] * 4, SamplingParams(suppress_token_ids=[1])]
    )
    assert processed(batch, zeros(batch)) == {0: [-INF, 0], 5: [0, -INF]}
    batch.swap(0, 3)
    assert processed(batch, zeros(batch)) == {3: [-INF, 0], 5: [0, -INF]}
    batch.remove(1)
    assert processed(batch, zeros(batch)) == {3: [-INF, 0], 1: [0, -INF]}
    batch.reorder([3, 1, 4, 2, 0])
    assert processed(batch, zeros(batch)) == {0: [-INF, 0], 1: [0, -INF]}


def test_a_bias_is_added_in_float32(device: str) -> None:
    batch = batch_of(device, 2, SamplingParams(logit_bias={0: 2.0**-12}))
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert processed(batch, torch.full((1, 2), 16.0, dtype=dtype, device=device)) == {0: [16.0 + 2.0**-12, 16.0]}


def test_stop_ids_are_forbidden_for_min_tokens(device: str) -> None:
    batch = batch_of(
        device,
        4,
        SamplingParams(stop_token_ids=[1], min_tokens=2),
        SamplingParams(stop_token_ids=[1, 2], min_tokens=1, suppress_token_ids=[2], logit_bias={1: 3.0}),
        SamplingParams(stop_token_ids=[1]),
        SamplingParams(stop_token_ids=[1, 3], min_tokens=3, allowed_token_ids=[0, 1]),
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
    batch.add(SamplingParams(stop_token_ids=[1], min_tokens=3), [0, 0], output_ids=[2, 2])
    batch.add(SamplingParams(stop_token_ids=[1], min_tokens=2), [0, 0], output_ids=[2, 2])
    batch.add(SamplingParams(frequency_penalty=1.0), [0, 0], output_ids=[2, 2, 3])
    assert batch.host.min_tokens_left.tolist() == [1, 0, 0]
    assert batch.position.tolist() == [4, 4, 5]
    assert processed(batch, zeros(batch)) == {0: [0, -INF, 0, 0], 2: [0, 0, -2, -1]}


# Penalties.


def test_penalties_follow_the_tokens(device: str) -> None:
    batch = batch_of(
        device,
        4,
        SamplingParams(repetition_penalty=2.0),
        SamplingParams(),
        SamplingParams(presence_penalty=0.5, frequency_penalty=0.25),
        prompts=[[0, 0, 1], [0], [0, 1]],
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


def test_some_rows_get_tokens_and_some_get_several(device: str) -> None:
    batch = batch_of(
        device,
        4,
        SamplingParams(frequency_penalty=1.0),
        SamplingParams(frequency_penalty=1.0),
        SamplingParams(),
        SamplingParams(stop_token_ids=[3], min_tokens=2),
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
    batch = batch_of(device, 4, *[SamplingParams(frequency_penalty=1.0)] * 3)
    batch.append(ids(device, -1, 4, 3))
    assert processed(batch, zeros(batch)) == {0: [0] * 4, 1: [0] * 4, 2: [0, 0, 0, -1]}
    batch.advance(ids(device, 4, 0, 3))
    batch.append(ids(device, 1, -100, 3))  # beside id 0, which is the first of the batch's ids
    assert processed(batch, zeros(batch)) == {0: [0, -1, 0, 0], 1: [-1, 0, 0, 0], 2: [0, 0, 0, -3]}
    assert batch.position.tolist() == [3, 3, 3]


def test_a_slot_is_clean_when_it_is_given_again(device: str) -> None:
    batch = SamplingBatch(4, device)
    params = SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0, suppress_token_ids=[0])
    batch.extend([params, params], [[1], [1]])
    batch.append(ids(device, 2, 2))
    batch.remove(0)
    batch.add(SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0, suppress_token_ids=[3]), [2])
    logits = torch.full((2, 4), -1.0, device=device)
    assert processed(batch, logits) == {0: [-INF, -2, -3, -1], 1: [-1, -1, -2, -INF]}


def test_a_request_that_goes_before_its_first_step(device: str) -> None:
    edits: list[dict[str, Any]] = [
        {"suppress_token_ids": [2]},
        {"repetition_penalty": 2.0},
        {"allowed_token_ids": [2, 3]},
    ]
    for edit in (*edits, {"mirostat_tau": 2.0}):
        batch, sampler, logits = SamplingBatch(8, device), Sampler(), torch.zeros(3, 8, device=device)
        batch.extend([SamplingParams(**edit, seed=row) for row in range(3)])
        expected = sampler(logits, batch, advance=False).token_ids.tolist()
        for row in range(3, 9):
            batch.add(SamplingParams(**edit, seed=row))
        for row in range(8, 2, -1):
            batch.remove(row)
        assert sampler(logits, batch, advance=False).token_ids.tolist() == expected


# Seeds.


def test_rows_without_a_seed_get_theirs_from_the_generator(device: str) -> None:
    def seeds(*requests: SamplingParams, at_once: bool = True) -> list[int]:
        batch = SamplingBatch(10, device, generator=torch.Generator().manual_seed(7))
        for some in (requests,) if at_once else ((one,) for one in requests):
            batch.extend(some)
        assert batch.host.seed.tolist() == batch.seed.tolist()
        return list(batch.seed.tolist())

    unseeded = SamplingParams()
    first = seeds(*[unseeded] * 50)
    assert len(set(first)) == 50
    assert first == seeds(*[unseeded] * 50, at_once=False)
    assert min(first) < 0 < max(first), "all 64 bits are drawn"
    # Given seeds take nothing from the generator, wherever they stand.
    mixed = seeds(SamplingParams(seed=5), unseeded, SamplingParams(seed=6), unseeded)
    assert mixed == [5, first[0], 6, first[1]]


def test_torchs_own_generator_is_the_default() -> None:
    seeds = []
    for _ in range(2):
        torch.manual_seed(3)
        batch = SamplingBatch(10)
        batch.extend([SamplingParams()] * 2)
        seeds.append(batch.seed.tolist())
    assert seeds[0] == seeds[1]
    assert seeds[0][0] != seeds[0][1]
