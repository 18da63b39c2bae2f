"""The adapter for vLLM where vLLM is not installed: its draws, its seeds, and its plugin on modules that look like it.

`make test-integrations` runs the same class beside vLLM's own (vllm_parity.py).
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import types
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ascend_sample.integrations import vllm as adapter
from ascend_sample.integrations import vllm_served, vllm_shards, vllm_v2
from ascend_sample.integrations._generators import CountedGenerator, SeedSource
from ascend_sample.integrations.vllm import TopKTopPSampler
from ascend_sample.integrations.vllm_served import Served, WorkerExtension, served
from ascend_sample.sampling.rows.parameters import RowParameters
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

    def test_logits_are_not_changed(self) -> None:
        given = logits()
        TopKTopPSampler("processed_logits")(given, {}, torch.full((ROWS,), 3, dtype=torch.int32), None)
        assert torch.equal(given, logits())

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

    def test_processed_modes(self) -> None:
        k = torch.tensor([1, 2, 3, 4, 5, COLUMNS], dtype=torch.int32)
        values = TopKTopPSampler("processed_logits")(logits(), {}, k, None)[1]
        assert values is not None
        assert (values > -torch.inf).sum(1).tolist() == k.tolist()
        assert torch.equal(values[5], logits()[5])
        logprobs = TopKTopPSampler("processed_logprobs")(logits(), {}, k, None)[1]
        assert logprobs is not None
        torch.testing.assert_close(logprobs, values.log_softmax(1))
        for mode in ("raw_logprobs", "raw_logits"):
            assert TopKTopPSampler(mode)(logits(), {}, k, None)[1] is None

    def test_ties(self) -> None:
        tied, k = torch.tensor([[2.0, 1.0, 2.0, 2.0]]), torch.tensor([2], dtype=torch.int32)
        for keep_ties, expected in ((False, [0, 2]), (True, [0, 2, 3])):
            values = TopKTopPSampler("processed_logits", keep_ties=keep_ties)(tied, {}, k, None)[1]
            assert values is not None
            assert (values[0] > -torch.inf).nonzero().flatten().tolist() == expected


def test_what_was_drawn_is_counted() -> None:
    before = served()
    TopKTopPSampler()(logits(), {}, None, None)
    TopKTopPSampler("processed_logits")(logits()[:2], {}, None, torch.full((2,), 0.5))
    assert served() == Served(before.steps + 2, before.rows + ROWS + 2)
    TestV2().run([0, 1, 2], [10, 11, 12])
    assert served() == Served(before.steps + 3, before.rows + ROWS + 5)
    assert WorkerExtension().ascend_sample_served() == served()._asdict()


def test_the_first_step_of_a_process_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(vllm_served, "_served", Served(0, 0))
    caplog.set_level("INFO", "vllm.ascend_sample")
    for _ in range(2):
        TopKTopPSampler()(logits(), {}, None, None)
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

    def test_unseeded_rows_differ(self) -> None:
        assert len(set(SeedSource().take(1000, {})[0].tolist())) == 1000


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

    def __init__(self) -> None:
        self.generators: list[Any] = []

    def add_request(self, request: Any) -> int:
        self.generators.append(request.generator)
        return len(self.generators) - 1

    def _make_sampling_metadata(self) -> None: ...


class PlainState:
    """What a model state of V2 looks like."""

    def __init__(self, speculative_config: object = None) -> None:
        self.vllm_config = types.SimpleNamespace(speculative_config=speculative_config)

    def custom_sampler(self, sampler: Any) -> Any:
        return None


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, types.ModuleType]:
    """vLLM and vllm_ascend as far as the plugin looks at them."""
    if importlib.util.find_spec("vllm") is not None:
        pytest.fail("vLLM is installed here, and these tests put their own in its place")
    names = [
        *adapter.CLASS_NAMES,
        *adapter.REJECTION_SAMPLERS,
        adapter.V2_INTERFACE,
        adapter.V2_SAMPLER,
        adapter.INPUT_BATCH,
        "vllm",
        "vllm_ascend.ascend_config",
    ]
    made = {name: types.ModuleType(name) for name in names}
    made["vllm"].__version__ = adapter.TESTED_VERSIONS[-1]  # type: ignore[attr-defined]
    for name in ("vllm.v1.sample.ops.topk_topp_sampler", "vllm.v1.sample.sampler"):
        made[name].TopKTopPSampler = PlainSampler  # type: ignore[attr-defined]

    class AscendTopKTopPSampler(PlainSampler):
        __module__ = "vllm_ascend.sample.sampler"

        def set_q_event(self, q: Tensor, event: object) -> None:
            self.q = q

    made["vllm_ascend.sample.sampler"].AscendTopKTopPSampler = AscendTopKTopPSampler  # type: ignore[attr-defined]
    for name, class_name in adapter.REJECTION_SAMPLERS.items():
        setattr(made[name], class_name, type(class_name, (), {"forward": lambda self: "its own"}))
    config = types.SimpleNamespace(enable_reduce_sample=False)
    made["vllm_ascend.ascend_config"].get_ascend_config = lambda: config  # type: ignore[attr-defined]
    made[adapter.INPUT_BATCH].InputBatch = type("InputBatch", (PlainBatch,), {})  # type: ignore[attr-defined]
    made[adapter.V2_INTERFACE].ModelState = type("ModelState", (PlainState,), {})  # type: ignore[attr-defined]
    made[adapter.V2_SAMPLER].Sampler = type("Sampler", (PlainSampler,), {})  # type: ignore[attr-defined]
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv(adapter.SWITCH, raising=False)
    monkeypatch.setenv(adapter.RAY_COPIES, "")
    return made


class TestRegister:
    V1 = "vllm.v1.sample.sampler"
    ASCEND = "vllm_ascend.sample.sampler"

    def test_rebinds_every_class(self, modules: dict[str, Any]) -> None:
        adapter.register()
        for name, class_name in adapter.CLASS_NAMES.items():
            if hasattr(modules[name], class_name):
                sampler = getattr(modules[name], class_name)(logprobs_mode="processed_logits")
                assert isinstance(sampler, PlainSampler)
                ids, values = sampler(logits(), {0: seeded(5)[0]}, torch.full((ROWS,), 2, dtype=torch.int32), None)
                assert (ids >= 0).all()
                assert (values > -torch.inf).sum(1).tolist() == [2] * ROWS
        assert modules[self.ASCEND].AscendTopKTopPSampler().set_q_event(torch.ones(1), None) is None

    def test_rejection_samplers_verify_here(self, modules: dict[str, Any]) -> None:
        adapter.register()
        adapter.register()
        for name, class_name in adapter.REJECTION_SAMPLERS.items():
            forward = getattr(modules[name], class_name).forward
            assert forward.replaced(None) == "its own", class_name

    def test_requests_have_generators_that_can_be_moved_back(self, modules: dict[str, Any]) -> None:
        """A request keeps its generator while it waits, so it is the request's that is changed, and once."""
        adapter.register()
        adapter.register()
        batch = modules[adapter.INPUT_BATCH].InputBatch()
        seeds = (torch.Generator().manual_seed(-7), DeviceGenerator(5), None)
        requests = [types.SimpleNamespace(generator=generator) for generator in seeds]
        assert [batch.add_request(request) for request in requests] == [0, 1, 2]
        first = batch.generators[0]
        assert isinstance(first, CountedGenerator)
        assert first.initial_seed() == seeds[0].initial_seed()  # type: ignore[union-attr]
        assert batch.generators[1:] == [*seeds[1:]]
        first.set_offset(12)
        batch.add_request(requests[0])
        assert batch.generators[-1] is requests[0].generator is first

    def test_again_changes_nothing(self, modules: dict[str, Any]) -> None:
        adapter.register()
        first = modules[self.V1].TopKTopPSampler, modules[adapter.V2_INTERFACE].ModelState.custom_sampler
        adapter.register()
        assert first == (modules[self.V1].TopKTopPSampler, modules[adapter.V2_INTERFACE].ModelState.custom_sampler)

    def test_a_class_that_derives_from_a_rebound_one(self, modules: dict[str, Any]) -> None:
        """vllm_ascend is imported while the plugin runs, and its class draws in a way of its own."""
        ascend = modules[self.ASCEND]
        del ascend.AscendTopKTopPSampler
        adapter.register()

        class AscendTopKTopPSampler(modules[self.V1].TopKTopPSampler):  # type: ignore[name-defined,misc]
            def forward_native(self, *arguments: object) -> None:
                pytest.fail("vllm_ascend draws")

        ascend.AscendTopKTopPSampler = AscendTopKTopPSampler
        adapter.register()
        assert (ascend.AscendTopKTopPSampler()(logits(), {}, None, None)[0] >= 0).all()

    def test_a_class_that_draws_itself_says_so(self, modules: dict[str, Any]) -> None:
        """vllm_ascend's for the 310P."""
        adapter.register()

        class AscendTopKTopPSampler310(modules[self.ASCEND].AscendTopKTopPSampler):  # type: ignore[misc]
            __module__ = "vllm_ascend._310p.sample.sampler"

            def forward_native(self, *arguments: object) -> str:
                return "its own"

        with pytest.warns(UserWarning, match="Sampler310 draws in its own way, so tokens are drawn by vllm_ascend's"):
            assert AscendTopKTopPSampler310().forward() == "its own"

    def test_no_noise_is_made_beside_the_model(self, modules: dict[str, Any]) -> None:
        """vllm_ascend's enable_async_exponential, but for a class that draws itself."""
        made = []

        class AscendSampler:
            def __init__(self) -> None:
                self.topk_topp_sampler = modules[TestRegister.ASCEND].AscendTopKTopPSampler()

            def do_async_exponential(self, b_s: int, head_dim: int, generators: dict[int, torch.Generator]) -> None:
                made.append(b_s)

        modules[self.ASCEND].AscendSampler = AscendSampler
        adapter.register()
        adapter.register()
        sampler = AscendSampler()
        sampler.do_async_exponential(b_s=3, head_dim=8, generators={})
        sampler.topk_topp_sampler = PlainSampler()
        sampler.do_async_exponential(b_s=4, head_dim=8, generators={})
        assert made == [4]

    def test_no_kernel_draws_a_step_by_itself(self, modules: dict[str, Any]) -> None:
        """0.33's of aiter, on ROCm, which V1's sampler asks before anything else."""
        modules[self.V1].mixed_sample_eligible = lambda sampling_metadata, predict_bonus_token: True
        adapter.register()
        assert modules[self.V1].mixed_sample_eligible(None, predict_bonus_token=False) is False

    def test_switched_off(self, modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(adapter.SWITCH, "0")
        modules["vllm"].__version__ = "9.9"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            adapter.register()
        assert modules[self.V1].TopKTopPSampler is PlainSampler
        assert not hasattr(modules["vllm.v1.sample.rejection_sampler"].RejectionSampler.forward, "replaced")

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

    def test_an_untested_version(self, modules: dict[str, Any]) -> None:
        modules["vllm"].__version__ = "9.9"
        with pytest.warns(UserWarning, match=r"the version of vLLM must be one of .*, got 9\.9\. vLLM keeps its own"):
            adapter.register()
        assert modules[self.V1].TopKTopPSampler is PlainSampler

    def test_a_build_with_a_local_version(self, modules: dict[str, Any]) -> None:
        modules["vllm"].__version__ += "+cpu"
        adapter.register()
        assert modules[self.V1].TopKTopPSampler is not PlainSampler

    @pytest.mark.parametrize(("version", "has_v2"), [("0.33.7", True), ("0.25.0", False), ("0.18.0rc2", False)])
    def test_other_patches_of_a_tested_version(
        self, modules: dict[str, Any], caplog: pytest.LogCaptureFixture, version: str, has_v2: bool
    ) -> None:
        caplog.set_level("INFO", "vllm.ascend_sample")
        modules["vllm"].__version__ = version
        adapter.register()
        assert modules[self.V1].TopKTopPSampler is not PlainSampler
        assert hasattr(modules[adapter.V2_INTERFACE].ModelState.custom_sampler, "replaced") is has_v2
        assert ("V1 runner" in caplog.text) is not has_v2

    def test_what_is_no_release_says_so(self, modules: dict[str, Any]) -> None:
        """Of main, or of a release with changes of somebody's own: what its interface is nobody knows."""
        modules["vllm"].__version__ = "0.33.1.dev412+g0a1b2c3"
        with pytest.warns(UserWarning, match=r"0\.33\.1\.dev412 is no release, and is served as 0\.33\. If it"):
            adapter.register()
        assert modules[self.V1].TopKTopPSampler is not PlainSampler

    @pytest.mark.parametrize(("version", "is_said"), [("0.32.0", False), ("0.31.0", True)])
    def test_a_runner_with_another_interface_says_that_it_draws_itself(
        self, modules: dict[str, Any], recwarn: pytest.WarningsRecorder, version: str, is_said: bool
    ) -> None:
        """From 0.29 on V2 is the runner that vLLM takes unless it is told otherwise."""
        modules["vllm"].__version__ = version
        adapter.register()
        adapter.register()
        modules[adapter.V2_SAMPLER].Sampler("raw_logits")
        said = [str(warning.message) for warning in recwarn if "VLLM_USE_V2_MODEL_RUNNER=0" in str(warning.message)]
        assert len(said) == is_said

    def test_it_says_that_it_is_on(self, modules: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "vllm.ascend_sample")
        adapter.register()
        version = modules["vllm"].__version__
        assert caplog.messages == [
            f"ascend_sample draws the tokens of vLLM {version}; ASCEND_SAMPLE_VLLM=0 switches it off."
        ]

    def test_without_vllm_ascend(self, modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        for name in list(modules):
            if name.startswith("vllm_ascend"):
                monkeypatch.delitem(sys.modules, name)
        adapter.register()
        assert modules[self.V1].TopKTopPSampler is not PlainSampler

    def test_sharded_logits_stay_with_vllm_ascend(self, modules: dict[str, Any]) -> None:
        adapter.register()
        modules["vllm_ascend.ascend_config"].get_ascend_config().enable_reduce_sample = True
        sampler = modules[self.ASCEND].AscendTopKTopPSampler()
        with pytest.warns(UserWarning, match="the vocabulary alone, so tokens are drawn by vllm_ascend's own"):
            assert sampler(logits(), {}, None, None)[0].tolist() == [-1] * ROWS
        assert (modules[self.V1].TopKTopPSampler()(logits(), {}, None, None)[0] >= 0).all()


class FakeV2Sampler:
    """V2's sampler, whose kernels need a device: rows map to requests, parameters are by request."""

    def __init__(self, takes_vocab_size: bool = True) -> None:
        def buffer(*values: float, dtype: torch.dtype = torch.float32) -> Any:
            tensor = torch.tensor(values, dtype=dtype)
            return types.SimpleNamespace(gpu=tensor, np=tensor.numpy().copy())

        self.logprobs_mode = "processed_logprobs"
        self.return_sampling_mask = False
        self.top_k = buffer(3, COLUMNS, COLUMNS, dtype=torch.int32)
        newer = lambda mapping, mapping_np, vocab_size: (self.top_k.gpu[mapping], None, False)  # noqa: E731
        older = lambda mapping, mapping_np: (self.top_k.gpu[mapping], None)  # noqa: E731
        self.sampling_states = types.SimpleNamespace(
            temperature=buffer(1.0, 0.0, 0.7),
            top_k=self.top_k,
            top_p=buffer(0.5, 1.0, 1.0),  # which get_top_k_top_p hands over as off
            seeds=buffer(5, 6, 7, dtype=torch.int64),
            get_top_k_top_p=newer if takes_vocab_size else older,
        )

    def apply_sampling_params(self, logits: Tensor, *arguments: Any, skip_top_k_top_p: bool = False) -> Tensor:
        assert skip_top_k_top_p
        assert len(arguments) == 7
        return logits.clone()

    def sample(self, *arguments: Any, **named: Any) -> Any:
        raise AssertionError("this needs a device")


FakeV2Sampler.__name__ = "Sampler"


class TestV2:
    def run(
        self, mapping: list[int], positions: list[int], takes_vocab_size: bool = True, masks: bool = False, **named: Any
    ) -> tuple[Tensor, Tensor]:
        sampler, rejection = adapter.custom_sampler(FakeV2Sampler(takes_vocab_size))
        assert rejection is None
        sampler.return_sampling_mask = masks
        rows = torch.tensor(mapping)
        given = logits()[rows]
        ids, processed = sampler.sample(
            given, rows, rows, rows.numpy(), torch.tensor(positions), None, None, None, **named
        )
        return ids, processed

    def test_rows_depend_on_request_and_position_alone(self) -> None:
        ids, _ = self.run([0, 1, 2], [10, 11, 12])
        again, _ = self.run([2, 0], [12, 10], takes_vocab_size=False)  # as before 0.33
        assert again.tolist() == [ids[2], ids[0]]
        assert ids[1] == logits()[1].argmax()

    def test_facts_are_the_hosts_where_a_row_is_a_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given: list[Any] = []

        def draw(logits: Tensor, **named: Any) -> Tensor:
            facts = named.pop("facts")
            given.append(facts and RowParameters.of_tensors("draw", logits, named | {"min_p": None}, facts).facts)
            return logits.argmax(1)

        monkeypatch.setattr(vllm_v2, "draw", draw)
        self.run([2, 0, 1], [1, 2, 3])
        facts = given.pop()
        assert facts["temperature"].tolist() == [1, 1, 0]
        assert facts["top_k"].tolist() == [COLUMNS, 3, COLUMNS]
        assert facts["top_p"].tolist() == [1, 1, 1]
        sampler, _ = adapter.custom_sampler(FakeV2Sampler())
        requests, expanded = torch.tensor([0, 2]), torch.tensor([0, 0, 2])
        sampler.sample(logits()[:3], expanded, requests, requests.numpy(), torch.arange(3), None, None, None)
        assert given == [None], "a request has several rows"

    @pytest.mark.parametrize("asked", [{"return_logprobs": True}, {"masks": True}], ids=["logprobs", "masks"])
    def test_processed_logits(self, asked: dict[str, bool]) -> None:
        """Those from which rows are drawn: vLLM reports them, and makes its sampling masks of them."""
        ids, processed = self.run([0, 1, 2], [1, 2, 3], **asked)
        assert (processed.gather(1, ids.unsqueeze(1)) > -torch.inf).all()
        assert (processed > -torch.inf).sum(1).tolist() == [3, COLUMNS, COLUMNS]  # the greedy row is not filtered

    def test_the_plugin_installs_it(self, modules: dict[str, Any]) -> None:
        adapter.register()
        state = modules[adapter.V2_INTERFACE].ModelState
        sampler = FakeV2Sampler()
        assert state().custom_sampler(sampler) == (sampler, None)
        speculating = FakeV2Sampler()
        assert state(speculative_config=object()).custom_sampler(speculating) is None
        assert "sample" in vars(speculating)
        other = PlainSampler()
        with pytest.warns(UserWarning, match="PlainSampler draws in its own way, so tokens are drawn by vllm's own"):
            assert state().custom_sampler(other) is None

    def test_a_state_with_a_sampler_of_its_own_keeps_it(self, modules: dict[str, Any]) -> None:
        own = (PlainSampler(), object())
        modules[adapter.V2_INTERFACE].ModelState.custom_sampler = lambda self, sampler: own
        adapter.register()
        with pytest.warns(UserWarning, match="PlainSampler draws in its own way"):
            assert modules[adapter.V2_INTERFACE].ModelState().custom_sampler(FakeV2Sampler()) is own
