"""Facts about an engine's device tensors: found for these tensors as they are, and for nothing else."""

from __future__ import annotations

import gc
import random
import types
from typing import Any

import numpy as np
import pytest
import torch

import hostcann
from ascend_sample.integrations import _host_values
from ascend_sample.integrations._host_values import facts_of, note
from ascend_sample.integrations.vllm import TopKTopPSampler
from ascend_sample.sampling.rows.parameters import Facts, RowParameters
from tests.integrations.vllm_batches import InputBatch, NotedBatch, Request

VOCAB_SIZE = 2000
ROOM = 8


def assert_true(facts: Facts | None, metadata: Any) -> None:
    """What the facts say of a call with these tensors is what they hold."""
    assert facts is not None
    rows = len(facts["temperature"])
    numbers = torch.zeros(rows, dtype=torch.int64)
    given = {"temperature": torch.ones(rows), "min_p": None, "seed": numbers, "position": numbers}
    given |= {name: None if (t := getattr(metadata, name)) is None else t.cpu() for name in ("top_k", "top_p")}
    completed = RowParameters.of_tensors("test", torch.zeros(rows, VOCAB_SIZE), given, facts)
    assert completed.facts is not None
    for name in ("top_k", "top_p", "min_p"):
        assert completed.facts[name].tolist() == getattr(completed, name).tolist()


class TestFacts:
    def test_are_true_or_absent_whatever_the_engine_does(self, device: str) -> None:
        """Requests come, go and change places; metadata is made now and then, and old ones are asked about too."""
        batch, choose = NotedBatch(VOCAB_SIZE, ROOM, device), random.Random(3)
        asked, kept, present, before = batch.requests, list[tuple[int, Any]](), 0, len(_host_values._noted)
        for _ in range(150):
            action = choose.randrange(4)
            if action == 0 and len(asked) < ROOM:
                values = (choose.choice(each) for each in ((0.0, 1.0), (1, 50, None), (0.5, 1.0)))
                asked.append(Request(**dict(zip(("temperature", "top_k", "top_p"), values, strict=True))))
            elif action == 1 and asked:
                row, last = choose.randrange(len(asked)), asked.pop()
                asked[row : row + 1] = [last] if row < len(asked) else []
            elif action == 2 and asked:
                first, second = choose.randrange(len(asked)), choose.randrange(len(asked))
                asked[first], asked[second] = asked[second], asked[first]
            elif action == 3 and asked:
                new = batch.refresh()
                kept.append((len(asked), new))
                facts = facts_of(len(asked), new.top_k, new.top_p)
                assert facts is not None
                assert facts["temperature"].tolist() == [each.temperature for each in asked]
            for rows, metadata in kept[-4:]:
                facts = facts_of(rows, metadata.top_k, metadata.top_p)
                if facts is not None:
                    present += 1
                    assert_true(facts, metadata)
        assert present > 100
        kept.clear()
        gc.collect()
        assert len(_host_values._noted) <= before + 6, "they go with the tensors"

    @pytest.mark.parametrize("is_inside", [False, True])
    def test_end_with_any_write(self, device: str, is_inside: bool) -> None:
        batch = NotedBatch(VOCAB_SIZE, ROOM, device)
        batch.requests.append(Request(top_k=50, top_p=0.9))
        with torch.inference_mode(is_inside):
            for write in ("top_k", "top_p"):
                metadata = batch.refresh()
                assert_true(facts_of(1, metadata.top_k, metadata.top_p), metadata)
                batch.buffers[write][:1].zero_()
                assert facts_of(1, metadata.top_k, metadata.top_p) is None

    def test_are_of_these_tensors_alone(self, device: str) -> None:
        batch, other = NotedBatch(VOCAB_SIZE, ROOM, device), InputBatch(VOCAB_SIZE, ROOM, device)
        for each in (batch, other):
            each.requests.append(Request(top_k=50, top_p=0.9))
        metadata, unknown = batch.refresh(), other.refresh()
        assert facts_of(1, metadata.top_k.clone(), metadata.top_p) is None
        assert facts_of(1, metadata.top_k[:], metadata.top_p) is None
        assert facts_of(1, unknown.top_k, unknown.top_p) is None
        note(dict.fromkeys(("temperature", "top_k", "top_p"), np.ones(1)), unknown.top_k, unknown.top_p)
        assert facts_of(1, metadata.top_k, unknown.top_p) is None
        assert facts_of(2, metadata.top_k, metadata.top_p) is None
        for given in ({"top_k": None}, {"top_p": None}, {"top_k": None, "top_p": None}):  # what is not given is off
            less = types.SimpleNamespace(**(vars(metadata) | given))
            assert_true(facts_of(1, less.top_k, less.top_p), less)
        with torch.inference_mode():  # whose writes are not counted
            top_k = torch.ones(1, dtype=torch.int32, device=device)
        note({"temperature": np.ones(1, np.float32), "top_k": np.ones(1, np.int32)}, top_k, None)
        assert facts_of(1, top_k, None) is None


SORTS = {"aclnnTopk", "aclnnSort"}
ROWS, COLUMNS = 8, 32_000
GREEDY = np.array([0, 1] * (ROWS // 2), np.float32)
"""Temperatures of which every other is 0."""


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits", "processed_logprobs"])
@pytest.mark.parametrize(
    ("top_k", "top_p", "temperature", "most_launches", "most_moved"),
    [
        (50, 0.9, np.ones(ROWS, np.float32), 40, 10),
        (50, None, GREEDY, 360, 30),  # a lane of noise for each id of the vocabulary is saved
        (None, None, None, 360, 30),
    ],
)
@pytest.mark.usefixtures("counting")
def test_what_a_step_launches_and_moves(
    mode: str, top_k: int | None, top_p: float | None, temperature: Any, most_launches: int, most_moved: float
) -> None:
    """It waits for nothing, sorts nothing, moves the logits a few times, and draws and reports what a CPU does."""
    logits = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))
    k = None if top_k is None else torch.full((ROWS,), top_k, dtype=torch.int32)
    p = None if top_p is None else torch.full((ROWS,), top_p)
    there = [None if each is None else each.npu() for each in (k, p)]
    if temperature is not None:
        known = {"temperature": temperature, "top_k": k, "top_p": p}
        note({name: np.asarray(each) for name, each in known.items() if each is not None}, *there)
    of_device = logits.npu()
    generators = {row: torch.Generator().manual_seed(row) for row in range(ROWS)}
    with hostcann.profile() as counters:
        ids, reported = TopKTopPSampler(mode)(of_device, generators, *there)
    assert not any(counters.synchronizations.values())
    assert counters.copies.get("d2h", 0) == 0
    assert not SORTS & counters.launches.keys()
    assert sum(counters.launches.values()) <= most_launches
    if mode == "raw_logprobs":
        assert (counters.totals.read + counters.totals.written) / logits.nbytes <= most_moved
    generators = {row: torch.Generator().manual_seed(row) for row in range(ROWS)}
    expected, values = TopKTopPSampler(mode)(logits, generators, k, p)
    if temperature is GREEDY:  # vLLM takes the best token for them, whatever is drawn
        expected = torch.where(torch.from_numpy(GREEDY) == 0, logits.argmax(1), expected)
    assert torch.equal(ids.cpu(), expected)
    if values is not None:  # of greedy rows too, as vLLM does it
        torch.testing.assert_close(reported.cpu(), values, rtol=1e-6, atol=1e-6)
