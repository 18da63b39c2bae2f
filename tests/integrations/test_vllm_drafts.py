"""Drafts of vLLM's V1 runner where vLLM is not installed: on stand-ins for its classes, on the CPU and on an NPU.

`nox -s integrations` runs the same checks inside vLLM (vllm_drafts_parity.py).
"""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch

from ascend_sample.integrations import _drafts, vllm_drafts
from ascend_sample.integrations._generators import SeedSource
from ascend_sample.integrations._late_counts import LateCounts
from ascend_sample.integrations.vllm import TopKTopPSampler
from tests.integrations import drafting_engine, vllm_stand_ins
from tests.integrations.drafting_checks import DraftChecks
from tests.integrations.drafting_engine import LENGTH, PLAIN, VOCAB_SIZE, Engine, requests
from tests.integrations.vllm_batches import Request
from tests.integrations.vllm_stand_ins import DeviceGenerator
from tests.support.emulation import nobody_waits

MOST_LAUNCHES = {(False, False): 81, (False, True): 52, (True, False): 195, (True, True): 118}
"""Of a step that verifies drafts, by whether these were drawn, and whether the host knows the requests' filters."""


@pytest.fixture
def classes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-ins, in which the plugin is installed."""
    monkeypatch.setitem(sys.modules, "vllm.v1.outputs", vllm_stand_ins)
    sampler = type("RejectionSampler", (vllm_stand_ins.RejectionSampler,), {})
    vllm_drafts.install(sampler)
    return types.SimpleNamespace(**(vars(vllm_stand_ins) | {"RejectionSampler": sampler}))


class TestStandIns(DraftChecks):
    """All that must hold."""


def on_device(classes: Any, accelerator: str, **options: Any) -> Engine:
    engine = Engine(classes, requests(PLAIN), device=accelerator, **options)
    for request in engine.requests:
        if request.seed is not None:
            request.generator = DeviceGenerator(request.seed)
    return engine


@pytest.fixture(params=["arrived", "late"])
def has_arrived(request: pytest.FixtureRequest, accelerator: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the host ever learns what the device has accepted."""
    if request.param == "late":
        monkeypatch.setattr(torch.get_device_module(accelerator).Event, "query", lambda event: False)
    return bool(request.param == "arrived")


class TestOnADevice:
    @pytest.mark.usefixtures("has_arrived")
    def test_texts_are_those_of_a_cpu_without_speculation(self, classes: Any, accelerator: str) -> None:
        plain = Engine(classes, requests(PLAIN)).decode(LENGTH)
        rows = drafting_engine.is_reproducible(PLAIN)
        for name, drafter in drafting_engine.drafters(plain, PLAIN).items():
            found = on_device(classes, accelerator).decode(LENGTH, drafter)
            assert [found[row] for row in rows] == [plain[row] for row in rows], name

    @pytest.mark.usefixtures("has_arrived")
    def test_drawn_drafts_are_judged_as_on_a_cpu(self, classes: Any, accelerator: str) -> None:
        drafts = [[1, 2, 3], [], [5, 9], [4, 5, 6]]
        probabilities = torch.rand(8, VOCAB_SIZE).softmax(1)
        found = []
        for engine in (Engine(classes, requests(PLAIN)), on_device(classes, accelerator)):
            for step in range(10):
                engine.step([[(token + step) % VOCAB_SIZE for token in each] for each in drafts], probabilities)
            found.append([engine.requests[row].output for row in drafting_engine.is_reproducible(PLAIN)])
        assert found[0] == found[1]

    @pytest.mark.parametrize(("is_drawn", "is_noted"), MOST_LAUNCHES)
    def test_nobody_waits_for_it(self, classes: Any, accelerator: str, is_drawn: bool, is_noted: bool) -> None:
        engine = on_device(classes, accelerator, is_noted=is_noted)
        drafts = [[1, 2], [], [3], [4, 5, 6]]
        for _ in range(2):
            metadata, of_drafts = engine.metadata(drafts), engine.spec_metadata(drafts)
            logits = torch.randn(10, VOCAB_SIZE).to(accelerator)
            probabilities = torch.full((6, VOCAB_SIZE), 1 / 24).to(accelerator) if is_drawn else None
            with nobody_waits(accelerator, copies_back=True) as counted:
                engine.rejection_sampler(of_drafts, probabilities, logits, metadata)
            assert counted is None or counted.totals.launches <= MOST_LAUNCHES[is_drawn, is_noted]

    def test_memory(self, classes: Any, accelerator: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """An engine gives what is left to its cache, and vllm_ascend rehearses no sampling before it does."""
        monkeypatch.setattr(drafting_engine, "VOCAB_SIZE", 20_000)
        engine = Engine(classes, [Request([1, 2]) for _ in range(20)], device=accelerator)
        drafts = [[1, 2, 3] for _ in engine.requests]
        metadata, of_drafts = engine.metadata(drafts), engine.spec_metadata(drafts)
        logits, memory = torch.randn(80, 20_000).to(accelerator), torch.get_device_module(accelerator)
        for _ in range(2):
            before = memory.memory_allocated()
            memory.reset_peak_memory_stats()
            engine.rejection_sampler(of_drafts, None, logits, metadata)
        assert memory.max_memory_allocated() - before <= 2.3 * logits.numel() * 4


def test_the_block_rule_of_vllm_ascend(classes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for in vllm_ascend's configuration, and holds for drafts that were drawn, from three on."""
    rejection = types.SimpleNamespace(enable_block_verify=True)
    config = types.SimpleNamespace(rejection_sampler_config=rejection, enable_reduce_sample=False)
    vllm_stand_ins.configure_ascend(monkeypatch, config)
    monkeypatch.setattr(classes.RejectionSampler, "__module__", "vllm_ascend.sample.rejection_sampler")
    rules: list[str] = []
    own = _drafts.judge_with
    monkeypatch.setattr(_drafts, "judge_with", lambda rule, *more: rules.append(rule) or own(rule, *more))
    engine = Engine(classes, requests(PLAIN))
    for count in (2, 3):
        q = torch.full((count * len(PLAIN), VOCAB_SIZE), 1 / VOCAB_SIZE)
        engine.step([[1, 2, 3][:count] for _ in PLAIN], q)
    engine.step([[1, 2, 3] for _ in PLAIN])
    assert rules == ["standard", "block"]


class TestLateCounts:
    def test_generators_move_when_the_host_learns_of_it(self, accelerator: str, has_arrived: bool) -> None:
        counts, kept = LateCounts(), DeviceGenerator(1)

        def move(generator: Any, number: int) -> None:
            generator.offset += number

        for step in range(20):
            gone = DeviceGenerator(2)
            added = torch.tensor([5, 1], device=accelerator)
            counts.add({1: kept, 0: gone}, added)  # type: ignore[dict-item]
            torch.get_device_module(accelerator).synchronize()
            counts.settle(move)
            late = counts.of(3, {2: kept, 1: gone})  # type: ignore[dict-item]
            assert (late is None) is has_arrived
            known = np.array([0, gone.offset, kept.offset])
            assert (known + (0 if late is None else late.cpu().numpy())).tolist() == [0, 5, step + 1]
        assert len(counts._late) == (0 if has_arrived else 20)

    @pytest.mark.usefixtures("has_arrived")
    def test_a_draw_that_is_taken_back_keeps_what_was_accepted(self, accelerator: str) -> None:
        """vLLM moves the offset back by 4 where a step was one of a prompt's middle parts."""
        source, generator = SeedSource(), DeviceGenerator(1)
        of_first: Any = {0: generator}
        source.accept(of_first, torch.tensor([3], device=accelerator))
        assert source.take(1, of_first)[1].tolist() == [3]
        generator.set_offset(generator.get_offset() - 4)
        assert source.take(1, of_first)[1].tolist() == [3]
        assert source.take(2, {1: generator})[1].tolist() == [0, 4]  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("config", "change", "reason"),
    [
        ({}, None, None),
        ({"enable_reduce_sample": True}, None, "each rank has a part of the vocabulary alone"),
        ({"enable_entropy_verify": True}, None, "the rule looks at the entropy"),
        ({}, "processor", "a logits processor knows requests alone, and no places"),
        ({}, "use_fly", "the rule is FLy"),
        ({}, "sampler", "its sampler is not the one of ascend_sample"),
    ],
)
def test_what_is_no_rule_of_this_project_stays_with_the_engine(
    classes: Any, monkeypatch: pytest.MonkeyPatch, config: dict[str, bool], change: str | None, reason: str | None
) -> None:
    rejection = types.SimpleNamespace(**config)
    vllm_stand_ins.configure_ascend(monkeypatch, types.SimpleNamespace(rejection_sampler_config=rejection, **config))
    monkeypatch.setattr(classes.RejectionSampler, "__module__", "vllm_ascend.sample.rejection_sampler")
    engine = Engine(classes, requests())
    if change == "processor":
        engine.processors.argmax_invariant.append(object())
    elif change == "use_fly":
        engine.rejection_sampler.use_fly = True
    elif change == "sampler":
        own = type("AscendTopKTopPSampler310", (TopKTopPSampler,), {"forward_native": lambda *_: pytest.fail("drawn")})
        engine.sampler.topk_topp_sampler = own()
    metadata = engine.metadata([[] for _ in engine.requests])
    assert vllm_drafts._why_left(engine.rejection_sampler, metadata) == reason
