"""The adapter for vLLM where vLLM is not installed: its draws, its seeds, and its plugin on modules that look like it.

`nox -s integrations` runs the same class beside vLLM's own (vllm_parity.py).
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ascend_sample.integrations import vllm as adapter
from ascend_sample.integrations import vllm_served, vllm_shards
from ascend_sample.integrations._generators import CountedGenerator, SeedSource
from ascend_sample.integrations.vllm import TopKTopPSampler
from ascend_sample.integrations.vllm_served import Served, WorkerExtension, served
from tests.integrations.vllm_stand_ins import DeviceGenerator

ROWS, COLUMNS = 6, 40


def logits() -> Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(3)) * 2


def seeded(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


class TestSampler:
    def test_disabled_rows_and_absent_filters_are_the_same(self) -> None:
        """Rows without a filter arrive as k == vocab_size and p == 1, or as None where no row has one."""
        k, p = torch.full((ROWS,), COLUMNS, dtype=torch.int32), torch.ones(ROWS)
        drawn = []
        for filters in ((None, None), (k, None), (None, p), (k, p), (k.long(), p)):
            generators = dict(enumerate(seeded(*range(ROWS))))
            drawn.append(TopKTopPSampler()(logits(), generators, *filters)[0])
        assert all(torch.equal(drawn[0], ids) for ids in drawn)
        assert drawn[0].dtype == torch.int64

    def test_a_request_does_not_depend_on_its_batchmates(self) -> None:
        """Row 2's tokens over five steps: alone, in a batch, and with seeded or unseeded others that come and go."""
        k, p = torch.randint(1, 30, (ROWS,), dtype=torch.int32), torch.rand(ROWS) * 0.9 + 0.1
        alone, together, last = (TopKTopPSampler() for _ in range(3))
        (first,), (second,), (third, other) = seeded(42), seeded(42), seeded(42, 9)
        for step in range(5):
            given = logits() + step
            expected = alone(given[2:3], {0: first}, k[2:3], p[2:3])[0]
            assert torch.equal(together(given, {2: second}, k, p)[0][2:3], expected)
            generators = {0: third} if step % 2 else {4: other, 0: third}
            reordered = torch.cat((given[2:3], given))
            found = last(reordered, generators, torch.cat((k[2:3], k)), torch.cat((p[2:3], p)))[0]
            assert torch.equal(found[:1], expected)

    def test_unseeded_rows_come_from_the_default_generator(self) -> None:
        def run(seed: int) -> list[int]:
            torch.manual_seed(seed)
            sampler = TopKTopPSampler()
            return [token for _ in range(5) for token in sampler(logits(), {}, None, None)[0].tolist()]

        assert run(1) == run(1) != run(2)
        assert len(set(SeedSource().take(1000, {})[0].tolist())) == 1000

    def test_processed_modes(self) -> None:
        k, given = torch.tensor([1, 2, 3, 4, 5, COLUMNS], dtype=torch.int32), logits()
        values = TopKTopPSampler("processed_logits")(given, {}, k, None)[1]
        assert torch.equal(given, logits()), "they are not changed"
        assert values is not None
        assert (values > -torch.inf).sum(1).tolist() == k.tolist()
        assert torch.equal(values[5], logits()[5])
        logprobs = TopKTopPSampler("processed_logprobs")(logits(), {}, k, None)[1]
        torch.testing.assert_close(logprobs, values.log_softmax(1))
        for mode in ("raw_logprobs", "raw_logits"):
            assert TopKTopPSampler(mode)(logits(), {}, k, None)[1] is None
        tied, k = torch.tensor([[2.0, 1.0, 2.0, 2.0]]), torch.tensor([2], dtype=torch.int32)
        for keep_ties, expected in ((False, [0, 2]), (True, [0, 2, 3])):
            values = TopKTopPSampler("processed_logits", keep_ties=keep_ties)(tied, {}, k, None)[1]
            assert values is not None
            assert (values[0] > -torch.inf).nonzero().flatten().tolist() == expected


def test_what_was_drawn_is_counted_and_the_first_step_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(vllm_served, "_served", Served(0, 0))
    caplog.set_level("INFO", "vllm.ascend_sample")
    TopKTopPSampler()(logits(), {}, None, None)
    TopKTopPSampler("processed_logits")(logits()[:2], {}, None, torch.full((2,), 0.5))
    assert served() == Served(2, ROWS + 2)
    assert WorkerExtension().ascend_sample_served() == served()._asdict()
    assert caplog.messages == [f"ascend_sample has drawn a step in this process: {ROWS} rows."]


class TestSeedSource:
    def test_each_draw_of_a_generator_has_a_position_of_its_own(self) -> None:
        source, (generator, other) = SeedSource(), seeded(3, 3)
        rows = [{0: generator}, {2: generator, 1: other}, {1: generator}]
        positions = [source.take(3, generators)[1].tolist() for generators in rows]
        assert positions == [[0, 0, 0], [0, 0, 1], [0, 2, 0]]

    @pytest.mark.parametrize("kind", [DeviceGenerator, CountedGenerator])
    def test_a_draw_that_is_taken_back_is_drawn_again(self, kind: Any) -> None:
        """vLLM moves the offset back by 4 where a step was one of a prompt's middle parts."""
        source, generator = SeedSource(), kind(2**64 - 3)
        positions = []
        for step in range(4):
            seed, position = source.take(2, {1: generator})
            positions.append(position[1].item())
            assert seed[1] == -3
            if step == 1:
                generator.set_offset(generator.get_offset() - 4)
        assert positions == [0, 1, 1, 2]

    def test_generators_that_are_gone_are_forgotten(self) -> None:
        source = SeedSource()
        source.take(2, dict(enumerate(seeded(1, 2))))
        gc.collect()
        assert len(source._draws) == (0 if torch.Generator.__weakrefoffset__ else 2), "older torches cannot tell"


class PlainSampler(nn.Module):
    """What vLLM's class looks like from outside."""

    def __init__(self, logprobs_mode: str = "raw_logprobs", use_fp64_gumbel: bool = False) -> None:
        super().__init__()
        self.logprobs_mode = logprobs_mode
        self.forward = self.forward_cuda

    def forward_native(self, logits: Tensor, generators: Any, k: Any, p: Any) -> tuple[Tensor, None]:
        return torch.full((len(logits),), -1), None

    def forward_cuda(self, logits: Tensor, generators: Any, k: Any, p: Any) -> tuple[Tensor, None]:
        return torch.full((len(logits),), -2), None


class PlainBatch:
    """What V1's batch looks like."""

    def add_request(self, request: Any) -> Any:
        return request.generator

    def _make_sampling_metadata(self) -> None: ...


class V2Sampler:
    """What V2's class looks like."""

    def __call__(self, logits: Tensor, batch: Any) -> None: ...

    def sample(self, logits: Tensor) -> None: ...

    def apply_sampling_params(self, logits: Tensor, skip_top_k_top_p: bool = False) -> None: ...


V1, ASCEND = "vllm.v1.sample.sampler", "vllm_ascend.sample.sampler"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """vLLM and vllm_ascend as far as the plugin looks at them."""
    if importlib.util.find_spec("vllm") is not None:
        pytest.fail("vLLM is installed here, and these tests put their own in its place")
    config = types.SimpleNamespace(enable_reduce_sample=False)
    classes: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": adapter.TESTED_VERSIONS[-1]},
        "vllm_ascend.ascend_config": {"get_ascend_config": lambda: config},
        "vllm.v1.sample.ops.topk_topp_sampler": {"TopKTopPSampler": PlainSampler},
        V1: {"TopKTopPSampler": PlainSampler},
        ASCEND: {
            "AscendTopKTopPSampler": type(
                "AscendTopKTopPSampler",
                (PlainSampler,),
                {"__module__": ASCEND, "set_q_event": lambda self, q, event: setattr(self, "q", q)},
            )
        },
        adapter.INPUT_BATCH: {"InputBatch": type("InputBatch", (PlainBatch,), {})},
        adapter.V2_SAMPLER: {"Sampler": type("Sampler", (V2Sampler,), {}), "gumbel_sample": lambda logits: None},
        adapter.V2_REJECTION_SAMPLER: {
            "RejectionSampler": type("RejectionSampler", (), {"_verify": lambda self: None})
        },
    }
    runner = type("NPUModelRunner", (), {"_update_seq_lens_cpu": lambda self: None})
    classes[adapter.ASCEND_V2_RUNNER] = {"NPUModelRunner": runner}
    for name, class_name in adapter.REJECTION_SAMPLERS.items():
        classes[name] = {class_name: type(class_name, (), {"forward": lambda self: "its own"})}
    made = {name: types.ModuleType(name) for name in classes}
    for name, module in made.items():
        vars(module).update(classes[name])
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv(adapter.SWITCH, raising=False)
    monkeypatch.setenv(adapter.RAY_COPIES, "")
    return made


class TestRegister:
    def test_every_class_is_rebound_and_once(self, modules: dict[str, Any]) -> None:
        adapter.register()
        of_v2 = modules[adapter.V2_SAMPLER].Sampler, modules[adapter.V2_REJECTION_SAMPLER].RejectionSampler
        first = modules[V1].TopKTopPSampler, of_v2[0].sample, of_v2[1]._verify
        adapter.register()
        assert first == (modules[V1].TopKTopPSampler, of_v2[0].sample, of_v2[1]._verify)
        for name, class_name in adapter.CLASS_NAMES.items():
            sampler = getattr(modules[name], class_name)(logprobs_mode="processed_logits")
            assert isinstance(sampler, PlainSampler)
            ids, values = sampler(logits(), {0: seeded(5)[0]}, torch.full((ROWS,), 2, dtype=torch.int32), None)
            assert (ids >= 0).all()
            assert (values > -torch.inf).sum(1).tolist() == [2] * ROWS
        assert modules[ASCEND].AscendTopKTopPSampler().set_q_event(torch.ones(1), None) is None
        for name, class_name in adapter.REJECTION_SAMPLERS.items():
            assert getattr(modules[name], class_name).forward.replaced(None) == "its own", class_name

    def test_requests_have_generators_that_can_be_moved_back(self, modules: dict[str, Any]) -> None:
        """A request keeps its generator while it waits, so it is the request's that is changed, and once."""
        adapter.register()
        adapter.register()
        batch = modules[adapter.INPUT_BATCH].InputBatch()
        seeds: tuple[Any, ...] = (torch.Generator().manual_seed(-7), DeviceGenerator(5), None)
        requests = [types.SimpleNamespace(generator=generator) for generator in seeds]
        first, *others = [batch.add_request(request) for request in requests]
        assert isinstance(first, CountedGenerator)
        assert first.initial_seed() == seeds[0].initial_seed()
        assert others == [*seeds[1:]]
        first.set_offset(12)
        assert batch.add_request(requests[0]) is first

    def test_a_class_that_derives_from_a_rebound_one(self, modules: dict[str, Any]) -> None:
        """vllm_ascend is imported while the plugin runs, and its class draws in a way of its own."""
        del modules[ASCEND].AscendTopKTopPSampler
        adapter.register()
        body = {"forward_native": lambda *arguments: pytest.fail("vllm_ascend draws")}
        modules[ASCEND].AscendTopKTopPSampler = type("Derived", (modules[V1].TopKTopPSampler,), body)
        adapter.register()
        assert (modules[ASCEND].AscendTopKTopPSampler()(logits(), {}, None, None)[0] >= 0).all()

    def test_a_class_that_draws_itself_says_so(self, modules: dict[str, Any]) -> None:
        """vllm_ascend's for the 310P."""
        adapter.register()
        body = {"__module__": "vllm_ascend._310p.sample.sampler", "forward_native": lambda self: "its own"}
        kind = type("AscendTopKTopPSampler310", (modules[ASCEND].AscendTopKTopPSampler,), body)
        with pytest.warns(UserWarning, match="Sampler310 draws in its own way, so tokens are drawn by vllm_ascend's"):
            assert kind().forward() == "its own"

    def test_no_noise_is_made_beside_the_model(self, modules: dict[str, Any]) -> None:
        """vllm_ascend's enable_async_exponential, but for a class that draws itself."""
        made = []

        class AscendSampler:
            def __init__(self) -> None:
                self.topk_topp_sampler = modules[ASCEND].AscendTopKTopPSampler()

            def do_async_exponential(self, b_s: int, head_dim: int, generators: dict[int, torch.Generator]) -> None:
                made.append(b_s)

        modules[ASCEND].AscendSampler = AscendSampler
        adapter.register()
        sampler = AscendSampler()
        sampler.do_async_exponential(b_s=3, head_dim=8, generators={})
        sampler.topk_topp_sampler = PlainSampler()
        sampler.do_async_exponential(b_s=4, head_dim=8, generators={})
        assert made == [4]

    def test_no_kernel_draws_a_step_by_itself(self, modules: dict[str, Any]) -> None:
        """0.33's of aiter, on ROCm, which V1's sampler asks before anything else."""
        modules[V1].mixed_sample_eligible = lambda sampling_metadata, predict_bonus_token: True
        adapter.register()
        assert modules[V1].mixed_sample_eligible(None, predict_bonus_token=False) is False

    @pytest.mark.usefixtures("modules")
    def test_workers_of_ray_have_the_switches_of_the_engine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """vLLM copies what begins with VLLM_ and what it is told: a switch would hold in the engine's process alone."""
        adapter.register()
        assert os.environ[adapter.RAY_COPIES] == ""
        monkeypatch.setenv(adapter.RAY_COPIES, "OTHER")
        for name, value in ((vllm_shards.SWITCH, "1"), (adapter.SWITCH, "0")):
            monkeypatch.setenv(name, value)
            adapter.register()
            adapter.register()
        assert os.environ[adapter.RAY_COPIES] == "OTHER,ASCEND_SAMPLE_VLLM_SHARDS,ASCEND_SAMPLE_VLLM"

    @pytest.mark.parametrize(
        ("version", "switch", "is_served", "warning"),
        [
            ("0.33.7", "1", True, None),
            (f"{adapter.TESTED_VERSIONS[-1]}+cpu", "", True, None),
            ("0.32.0", "", True, None),
            ("0.18.0rc2", "", True, None),
            ("0.33.1.dev412+g0a1b2c3", "", True, "0.33.1.dev412 is no release, and is served as 0.33. If it"),
            ("0.31.0", "", False, "got 0.31.0. vLLM keeps its own"),  # no vllm_ascend pairs with it
            ("9.9", "0", False, None),
            ("0.33.0", "0", False, None),
        ],
    )
    def test_versions_and_the_switch(
        self,
        modules: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch,
        recwarn: pytest.WarningsRecorder,
        caplog: pytest.LogCaptureFixture,
        version: str,
        switch: str,
        is_served: bool,
        warning: str | None,
    ) -> None:
        caplog.set_level("INFO", "vllm.ascend_sample")
        modules["vllm"].__version__ = version
        if switch:
            monkeypatch.setenv(adapter.SWITCH, switch)
        adapter.register()
        assert (modules[V1].TopKTopPSampler is not PlainSampler) is is_served
        rejection = modules["vllm.v1.sample.rejection_sampler"].RejectionSampler
        assert hasattr(rejection.forward, "replaced") is is_served
        assert hasattr(modules[adapter.V2_SAMPLER].Sampler.sample, "replaced") is is_served
        assert hasattr(modules[adapter.V2_REJECTION_SAMPLER].RejectionSampler._verify, "replaced") is is_served
        runner = modules[adapter.ASCEND_V2_RUNNER].NPUModelRunner
        assert hasattr(runner._update_seq_lens_cpu, "replaced") is is_served
        said = version.partition("+")[0]
        message = f"ascend_sample draws the tokens of vLLM {said}; ASCEND_SAMPLE_VLLM=0 switches it off."
        assert caplog.messages == [message] * is_served
        messages = [str(each.message) for each in recwarn]
        assert len(messages) == (warning is not None), messages
        assert warning is None or warning in messages[0]

    def test_sharded_logits_stay_with_vllm_ascend(self, modules: dict[str, Any]) -> None:
        adapter.register()
        modules["vllm_ascend.ascend_config"].get_ascend_config().enable_reduce_sample = True
        sampler = modules[ASCEND].AscendTopKTopPSampler()
        with pytest.warns(UserWarning, match="the vocabulary alone, so tokens are drawn by vllm_ascend's own"):
            assert sampler(logits(), {}, None, None)[0].tolist() == [-1] * ROWS
        assert (modules[V1].TopKTopPSampler()(logits(), {}, None, None)[0] >= 0).all()

    def test_an_older_v2_is_left(self, modules: dict[str, Any]) -> None:
        """0.18's sampler, which cannot leave top-k and top-p out, and 0.23's drafts, which one method verifies."""
        of_v2 = modules[adapter.V2_SAMPLER].Sampler, modules[adapter.V2_REJECTION_SAMPLER].RejectionSampler
        of_v2[0].apply_sampling_params = lambda self, logits: logits
        del of_v2[1]._verify
        adapter.register()
        for kind, what in zip(of_v2, ("tokens are drawn", "drafts are verified"), strict=True):
            with pytest.warns(UserWarning, match=f"VLLM_USE_V2_MODEL_RUNNER=0 chooses V1.*so {what} by vllm's own"):
                kind()
