"""Facts about an engine's device tensors: found for these tensors as they are, and for nothing else."""

from __future__ import annotations

import gc
import random
import types
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ascend_sample import hostcann
from ascend_sample.integrations import _host_values
from ascend_sample.integrations import vllm as adapter
from ascend_sample.integrations._host_values import facts_of, note
from ascend_sample.integrations.vllm import TopKTopPSampler
from ascend_sample.sampling.rows.parameters import Facts, RowParameters

VOCAB_SIZE = 2000
ROOM = 8


class PlainInputBatch:
    """What V1's batch looks like: host arrays that requests change, and buffers that hold copies of them."""

    def __init__(self, device: str) -> None:
        self.num_reqs = 0
        self.temperature_cpu = np.ones(ROOM, np.float32)
        self.top_k_cpu = np.full(ROOM, VOCAB_SIZE, np.int32)
        self.top_p_cpu = np.ones(ROOM, np.float32)
        self.temperature = torch.zeros(ROOM, device=device)
        self.top_k = torch.zeros(ROOM, dtype=torch.int32, device=device)
        self.top_p = torch.zeros(ROOM, device=device)
        self.sampling_metadata = self._make_sampling_metadata()

    def _make_sampling_metadata(self) -> Any:
        rows = slice(self.num_reqs)
        has_top_k = bool((self.top_k_cpu[rows] < VOCAB_SIZE).any())
        has_top_p = bool((self.top_p_cpu[rows] < 1).any())
        if has_top_k:
            self.top_k[rows].copy_(torch.from_numpy(self.top_k_cpu[rows].copy()))
        if has_top_p:
            self.top_p[rows].copy_(torch.from_numpy(self.top_p_cpu[rows].copy()))
        return types.SimpleNamespace(
            temperature=self.temperature[rows].copy_(torch.from_numpy(self.temperature_cpu[rows].copy())),
            top_k=self.top_k[rows] if has_top_k else None,
            top_p=self.top_p[rows] if has_top_p else None,
        )

    def add(self, temperature: float, top_k: int, top_p: float) -> None:
        row = self.num_reqs
        self.temperature_cpu[row], self.top_k_cpu[row], self.top_p_cpu[row] = temperature, top_k, top_p
        self.num_reqs += 1

    def remove(self, row: int) -> None:
        """The last one takes its place, as `condense` does it."""
        self.num_reqs -= 1
        for values in (self.temperature_cpu, self.top_k_cpu, self.top_p_cpu):
            values[row] = values[self.num_reqs]

    def swap(self, first: int, second: int) -> None:
        for values in (self.temperature_cpu, self.top_k_cpu, self.top_p_cpu):
            values[[first, second]] = values[[second, first]]

    def refresh(self) -> Any:
        self.sampling_metadata = self._make_sampling_metadata()
        return self.sampling_metadata


@pytest.fixture
def batch(device: str) -> PlainInputBatch:
    noted = type("InputBatch", (PlainInputBatch,), {"_make_sampling_metadata": PlainInputBatch._make_sampling_metadata})
    adapter._note_host_values(noted)
    installed = noted._make_sampling_metadata
    adapter._note_host_values(noted)
    assert noted._make_sampling_metadata is installed, "again changes nothing"
    made: PlainInputBatch = noted(device)
    return made


def found(batch: PlainInputBatch, metadata: Any) -> Facts | None:
    return facts_of(batch.num_reqs, metadata.top_k, metadata.top_p)


def assert_true(facts: Facts, metadata: Any) -> None:
    """What the facts say of a call with these tensors is what they hold."""
    rows = len(facts["temperature"])
    numbers = torch.zeros(rows, dtype=torch.int64)
    given = {"temperature": torch.ones(rows), "min_p": None, "seed": numbers, "position": numbers}
    given |= {name: None if (t := getattr(metadata, name)) is None else t.cpu() for name in ("top_k", "top_p")}
    completed = RowParameters.of_tensors("test", torch.zeros(rows, VOCAB_SIZE), given, facts)
    assert completed.facts is not None
    for name in ("top_k", "top_p", "min_p"):
        assert completed.facts[name].tolist() == getattr(completed, name).tolist()


class TestFacts:
    def test_are_those_of_the_batch(self, batch: PlainInputBatch) -> None:
        batch.add(0.0, VOCAB_SIZE, 1.0)
        batch.add(0.7, 50, 1.0)
        metadata = batch.refresh()
        facts = found(batch, metadata)
        assert facts is not None
        assert_true(facts, metadata)
        assert facts["temperature"].tolist() == [0, 1], "vLLM has divided by the others"

    def test_end_with_the_next_copy_though_the_slice_is_an_old_one(self, batch: PlainInputBatch) -> None:
        batch.add(1.0, 50, 0.9)
        batch.add(1.0, 7, 0.5)
        old = batch.refresh()
        batch.swap(0, 1)
        assert_true(found(batch, old) or facts_of(2, None, None), old)  # the device has the old values still
        new = batch.refresh()
        assert found(batch, old) is None
        assert old.top_k.tolist() == [7, 50]
        assert_true(found(batch, new) or facts_of(2, None, None), new)

    @pytest.mark.parametrize("is_inside", [False, True])
    def test_end_with_any_write(self, batch: PlainInputBatch, is_inside: bool) -> None:
        batch.add(1.0, 50, 0.9)
        with torch.inference_mode(is_inside):
            for write in ("top_k", "top_p"):
                metadata = batch.refresh()
                assert found(batch, metadata) is not None
                getattr(batch, write)[:1].zero_()
                assert found(batch, metadata) is None

    def test_are_of_these_tensors_alone(self, batch: PlainInputBatch, device: str) -> None:
        batch.add(1.0, 50, 0.9)
        metadata = batch.refresh()
        other = PlainInputBatch(device)
        other.add(1.0, 3, 0.5)
        unknown = other.refresh()
        assert facts_of(1, metadata.top_k.clone(), metadata.top_p) is None
        assert facts_of(1, metadata.top_k[:], metadata.top_p) is None
        assert facts_of(1, unknown.top_k, unknown.top_p) is None
        note(dict.fromkeys(("temperature", "top_k", "top_p"), np.ones(1)), unknown.top_k, unknown.top_p)
        assert facts_of(1, metadata.top_k, unknown.top_p) is None
        assert facts_of(2, metadata.top_k, metadata.top_p) is None

    def test_what_is_not_handed_over_is_off(self, batch: PlainInputBatch) -> None:
        batch.add(1.0, 50, 0.9)
        metadata = batch.refresh()
        for given in ({"top_k": None}, {"top_p": None}):
            asked = types.SimpleNamespace(**(vars(metadata) | given))
            facts = found(batch, asked)
            assert facts is not None
            assert_true(facts, asked)
        none = facts_of(3, None, None)
        assert none is not None
        assert_true(none, types.SimpleNamespace(top_k=None, top_p=None))

    def test_of_tensors_whose_writes_are_not_counted_are_not_kept(self, device: str) -> None:
        with torch.inference_mode():
            top_k = torch.ones(1, dtype=torch.int32, device=device)
        note({"temperature": np.ones(1, np.float32), "top_k": np.ones(1, np.int32)}, top_k, None)
        assert facts_of(1, top_k, None) is None

    def test_go_with_the_tensors(self, batch: PlainInputBatch) -> None:
        batch.add(1.0, 50, 0.9)
        before = len(_host_values._noted)
        for _ in range(5):
            batch.refresh()
        gc.collect()
        assert len(_host_values._noted) <= before + 2

    def test_are_true_or_absent_whatever_the_engine_does(self, batch: PlainInputBatch) -> None:
        """Requests come, go and change places; metadata is made now and then, and old ones are asked about too."""
        choose = random.Random(3)
        kept: list[tuple[int, Any]] = []
        present = 0
        for _ in range(150):
            action = choose.randrange(4)
            if action == 0 and batch.num_reqs < ROOM:
                batch.add(choose.choice((0.0, 1.0)), choose.choice((1, 50, VOCAB_SIZE)), choose.choice((0.5, 1.0)))
            elif action == 1 and batch.num_reqs:
                batch.remove(choose.randrange(batch.num_reqs))
            elif action == 2 and batch.num_reqs:
                batch.swap(choose.randrange(batch.num_reqs), choose.randrange(batch.num_reqs))
            else:
                kept.append((batch.num_reqs, batch.refresh()))
                assert found(batch, batch.sampling_metadata) is not None
            for rows, metadata in kept[-4:]:
                facts = facts_of(rows, metadata.top_k, metadata.top_p)
                if facts is not None:
                    present += 1
                    assert_true(facts, metadata)
        assert present > 100


@pytest.mark.usefixtures("counting")
class TestDevice:
    """What a step launches and moves on the device, and that it waits for nothing."""

    ROWS = 8

    def step(self, top_k: Tensor | None, top_p: Tensor | None, sampler: Any = None) -> tuple[Tensor, float, Any]:
        """The ids, what was moved in sizes of the logits, and hostcann's counters."""
        vocab_size = 32_000
        logits = torch.randn(self.ROWS, vocab_size, generator=torch.Generator().manual_seed(1)).npu()
        generators = {row: torch.Generator().manual_seed(row) for row in range(self.ROWS)}
        with hostcann.profile() as counters:
            ids = (sampler or TopKTopPSampler())(logits, generators, top_k, top_p)[0]
        assert not any(counters.synchronizations.values())
        assert counters.copies.get("d2h", 0) == 0
        moved = counters.totals.read + counters.totals.written
        return ids.cpu(), moved / logits.nbytes, counters

    def test_top_k_moves_a_few_times_the_logits(self) -> None:
        top_k = torch.full((self.ROWS,), 50, dtype=torch.int32).npu()
        top_p = torch.full((self.ROWS,), 0.9).npu()
        ids, without, counters = self.step(top_k, top_p)
        assert "aclnnSort" in counters.launches
        ones = np.ones(self.ROWS, np.float32)
        note({"temperature": ones, "top_k": top_k.cpu().numpy(), "top_p": top_p.cpu().numpy()}, top_k, top_p)
        same, moved, counters = self.step(top_k, top_p)
        assert torch.equal(ids, same)
        assert not {"aclnnTopk", "aclnnSort"} & counters.launches.keys()
        assert sum(counters.launches.values()) <= 40
        assert moved <= 10
        assert without > 4 * moved

    @pytest.mark.parametrize("mode", ["processed_logits", "processed_logprobs"])
    def test_what_is_processed_is_not_sorted(self, mode: str) -> None:
        top_k, top_p = torch.full((self.ROWS,), 50, dtype=torch.int32), torch.full((self.ROWS,), 0.9)
        k, p = top_k.npu(), top_p.npu()
        temperature = np.ones(self.ROWS, np.float32)
        temperature[::2] = 0  # reported as filtered too, as vLLM does it
        note({"temperature": temperature, "top_k": top_k.numpy(), "top_p": top_p.numpy()}, k, p)
        logits = torch.randn(self.ROWS, 32_000, generator=torch.Generator().manual_seed(1))
        sampler, there = TopKTopPSampler(mode), logits.npu()
        with hostcann.profile() as counters:
            found = sampler(there, {}, k, p)[1]
        assert not {"aclnnTopk", "aclnnSort"} & counters.launches.keys()
        assert not any(counters.synchronizations.values())
        torch.testing.assert_close(found.cpu(), sampler(logits, {}, top_k, top_p)[1], rtol=1e-6, atol=1e-6)

    def test_without_filters_nothing_is_sorted(self) -> None:
        _, _, counters = self.step(None, None)
        assert not {"aclnnTopk", "aclnnSort"} & counters.launches.keys()

    @pytest.mark.parametrize(("mode", "launches"), [("processed_logits", 1), ("processed_logprobs", 2)])
    def test_what_no_filter_processes_is_hardly_touched(self, mode: str, launches: int) -> None:
        logits = torch.randn(self.ROWS, 32_000, generator=torch.Generator().manual_seed(1))
        logits[0, 5] = torch.nan
        there = logits.npu()
        _, _, without = self.step(None, None)
        with hostcann.profile() as counters:
            found = TopKTopPSampler(mode)(there, {}, None, None)[1]
        assert sum(counters.launches.values()) == sum(without.launches.values()) + launches
        assert torch.equal(there.cpu().isnan(), logits.isnan())
        torch.testing.assert_close(found.cpu(), TopKTopPSampler(mode)(logits, {}, None, None)[1], rtol=1e-6, atol=1e-6)

    def test_greedy_requests_draw_nothing(self) -> None:
        """vLLM takes the argmax for them, whatever is drawn; a lane for each id of the vocabulary is saved."""
        values = torch.full((self.ROWS,), 50, dtype=torch.int32)
        values[::2] = 32_000
        top_k = values.npu()
        temperature = np.ones(self.ROWS, np.float32)
        temperature[::2] = 0
        ids, _, _ = self.step(top_k, None)
        note({"temperature": temperature, "top_k": values.numpy()}, top_k)
        found, moved, counters = self.step(top_k, None)
        assert torch.equal(found[1::2], ids[1::2])
        best = torch.randn(self.ROWS, 32_000, generator=torch.Generator().manual_seed(1)).argmax(1)
        assert torch.equal(found[::2], best[::2])
        assert moved <= 30
        assert sum(counters.launches.values()) <= 360
