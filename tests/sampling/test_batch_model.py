"""Random sequences of the batch's methods, compared with a naive model step by step."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
import torch
from batch_model import Model
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.requests.params import SamplingParams

VOCAB_SIZE = 7
ALWAYS_ALLOWED = 6
ON_DEVICE = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "position",
)
ON_HOST = (*ON_DEVICE, "logprobs", "min_tokens_left", "is_processed")

ids = st.integers(0, VOCAB_SIZE - 1)
tokens = st.lists(ids, max_size=5)
logits_of_rows = st.lists(
    st.one_of(st.floats(-30, 30, width=32), st.sampled_from([math.inf, -math.inf, math.nan, 0.0, 3e38])),
    min_size=VOCAB_SIZE,
    max_size=VOCAB_SIZE,
)


def mostly(default: Any, other: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.just(default), other)


# Made once: hypothesis looks through each strategy that it has not seen yet.
bad_ids = mostly([], st.lists(st.integers(0, 2), unique=True))
allowed_ids = mostly(None, st.lists(ids, unique=True).map(lambda chosen: sorted({*chosen, ALWAYS_ALLOWED})))
stop_ids = st.lists(st.integers(2, 4), unique=True)
biases = st.floats(-9, 9, width=32)
minima = mostly(0, st.integers(0, 4))
plain_fields = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 1e30]),
        "top_k": mostly(None, st.integers(1, 2 * VOCAB_SIZE)),
        "top_p": mostly(1.0, st.floats(0.01, 1.0)),
        "min_p": mostly(0.0, st.floats(0.01, 1.0)),
        "repetition_penalty": mostly(1.0, st.sampled_from([0.7, 1.3, 2.0])),
        "presence_penalty": mostly(0.0, st.floats(-2, 2, width=32)),
        "frequency_penalty": mostly(0.0, st.floats(-2, 2, width=32)),
        "bad_words": mostly([], st.lists(st.lists(ids, min_size=2, max_size=3).map(tuple), max_size=3, unique=True)),
        "no_repeat_ngram_size": mostly(0, st.integers(1, 3)),
        "no_repeat_ngram_window": mostly(None, st.integers(3, 6)),
        "no_repeat_ngram_whitelist": mostly([], st.just([1])),
        "dry_multiplier": mostly(0.0, st.sampled_from([0.5, 1.25])),
        "dry_allowed_length": st.integers(1, 2),
        "dry_sequence_breakers": mostly([], st.just([0, (1, 2)])),
        "dry_range": mostly(None, st.integers(1, 6)),
        "seed": mostly(None, st.integers(0, 2**64 - 1)),
        "logprobs": mostly(None, st.integers(0, VOCAB_SIZE)),
    }
)


logit_biases = mostly({}, st.dictionaries(st.sampled_from(range(VOCAB_SIZE)), biases))


@st.composite
def requests(draw: st.DrawFn) -> SamplingParams:
    """Any request that is none of the contradictory ones."""
    bad, allowed, stop = draw(bad_ids), draw(allowed_ids), draw(stop_ids)
    return SamplingParams(
        **draw(plain_fields),
        logit_bias=draw(logit_biases),
        allowed_ids=allowed,
        bad_ids=bad,
        min_tokens=draw(minima) if stop else 0,
        stop_ids=stop,
    )


arrivals = st.tuples(requests(), tokens, tokens, st.none() | st.integers(0, 2**40))


class BatchMachine(RuleBasedStateMachine):
    """Does everything twice. The device is read by some steps only, so that what is written lazily can pile up."""

    device = "cpu"

    @initialize(capacity=st.integers(1, 5), seed=st.integers(0, 99))
    def start(self, capacity: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.batch = SamplingBatch(VOCAB_SIZE, self.device, capacity=capacity, generator=generator)
        self.model = Model(VOCAB_SIZE, seed)
        self.version = self.batch.version
        self.must_change = False

    def some_row(self, data: st.DataObject) -> int:
        return int(data.draw(st.integers(0, len(self.model.rows) - 1), "row"))

    @rule(arrival=arrivals)
    def add(self, arrival: Any) -> None:
        params, prompt, output, position = arrival
        assert self.batch.add(params, prompt, output_ids=output, position=position) == len(self.model.rows)
        self.model.add(*arrival)
        self.must_change = True

    @rule(many=st.lists(arrivals, max_size=6))
    def extend(self, many: Any) -> None:
        count = len(self.model.rows)
        params, prompts, outputs, positions = ([one[part] for one in many] for part in range(4))
        rows = self.batch.extend(params, prompts, output_ids=outputs, positions=positions)
        assert rows == range(count, count + len(many))
        for arrival in many:
            self.model.add(*arrival)
        self.must_change = bool(many)

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        row = self.some_row(data)
        assert self.batch.remove(row) == self.model.remove(row)
        self.must_change = True

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def swap(self, data: st.DataObject) -> None:
        first, second = self.some_row(data), self.some_row(data)
        self.batch.swap(first, second)
        rows = self.model.rows
        rows[first], rows[second] = rows[second], rows[first]
        self.must_change = first != second

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        permutation = data.draw(st.permutations(range(len(self.model.rows))))
        self.batch.reorder(permutation)
        self.model.rows = [self.model.rows[row] for row in permutation]
        self.must_change = permutation != sorted(permutation)

    @rule(data=st.data())
    def append_to_all(self, data: st.DataObject) -> None:
        count = len(self.model.rows)
        drawn = data.draw(st.lists(st.integers(-1, VOCAB_SIZE), min_size=count, max_size=count))
        self.append(drawn, None, range(count))

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def append_to_some(self, data: st.DataObject) -> None:
        rows = data.draw(st.lists(st.integers(0, len(self.model.rows) - 1), max_size=8))
        drawn = data.draw(st.lists(ids, min_size=len(rows), max_size=len(rows)))
        self.append(drawn, rows, rows)

    def append(self, drawn: list[int], rows: list[int] | None, model_rows: Any) -> None:
        masked = [row.left > 0 for row in self.model.rows]
        self.batch.append(torch.tensor(drawn, dtype=torch.int64).to(self.device), rows)
        for row, token in zip(model_rows, drawn, strict=True):
            self.model.rows[row].take(token)
        self.must_change = masked != [row.left > 0 for row in self.model.rows]

    @rule()
    def flush(self) -> None:
        self.batch.flush()

    @rule(dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]), data=st.data())
    def process(self, dtype: torch.dtype, data: st.DataObject) -> None:
        count = len(self.model.rows)
        drawn = data.draw(st.lists(logits_of_rows, min_size=count, max_size=count))
        logits = torch.tensor(drawn).reshape(count, VOCAB_SIZE).to(dtype)
        result = self.batch.process(logits.to(self.device))
        expected = {row for row in range(count) if self.model.column("is_processed")[row]}
        if result is None:
            assert not expected
            return
        assert sorted(result.host_rows) == sorted(expected)
        assert result.rows.tolist() == result.host_rows
        for row, processed in zip(result.host_rows, result.logits.tolist(), strict=True):
            numpy.testing.assert_array_equal(processed, self.model.rows[row].process(logits[row].float().tolist()))

    @rule()
    def read_the_device(self) -> None:
        for name in ON_DEVICE:
            tensor = getattr(self.batch, name)
            assert tensor.device == self.batch.device
            assert tensor.tolist() == self.model.column(name), name

    @invariant()
    def mirrors_are_valid(self) -> None:
        assert len(self.batch) == len(self.model.rows)
        assert list(self.batch.params) == [row.params for row in self.model.rows]
        for name in ON_HOST:
            assert getattr(self.batch.host, name).tolist() == self.model.column(name), name

    @invariant()
    def the_version_changes_with_what_a_plan_depends_on(self) -> None:
        assert (self.batch.version != self.version) == self.must_change
        self.version, self.must_change = self.batch.version, False

    @invariant()
    def slots_are_held_by_one_row_each_and_by_no_other(self) -> None:
        slots = {name: getattr(self.batch.host, name) for name in ("addend_slot", "mask_slot", "penalty_slot")}
        is_masked_or_biased = (slots["addend_slot"] >= 0) | (slots["mask_slot"] >= 0)
        assert is_masked_or_biased.tolist() == [row.is_masked_or_biased for row in self.model.rows]
        assert (slots["penalty_slot"] >= 0).tolist() == [row.is_penalized for row in self.model.rows]
        for some in slots.values():
            held = some[some >= 0].tolist()
            assert len(set(held)) == len(held)
        if not any(row.is_masked_or_biased or row.is_penalized for row in self.model.rows):
            assert self.batch.slot_bytes == 0

    def teardown(self) -> None:
        if hasattr(self, "batch"):
            self.read_the_device()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("examples", [5, pytest.param(60, marks=pytest.mark.long)])
def test_random_sequences(device: str, examples: int) -> None:
    """The emulated device takes longer."""
    machine = type("Machine", (BatchMachine,), {"device": device})
    examples, steps = (3 * examples, 40) if device == "cpu" else (examples, 30)
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,  # what fails once fails always
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
