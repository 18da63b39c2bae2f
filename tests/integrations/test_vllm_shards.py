"""vLLM's V1 runner under tensor parallelism where vLLM is not installed: ranks draw from their parts of the logits.

`make test-integrations` looks at the real classes (vllm_parity.py).
"""

from __future__ import annotations

import os
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ascend_sample.integrations import _engine_rows, _late_tensors, _vllm_metadata, vllm_cpu, vllm_shards
from ascend_sample.integrations import vllm as adapter
from tests.decoding.planting import Trap, assert_caught
from tests.integrations import split_engine_checks, vllm_split_engine, vllm_stand_ins
from tests.integrations.vllm_split_engine import Engine, InputBatch, Ranks, Runner, here
from tests.sampling.vocabulary_parallel.shard_ranks import Exchange, on_threads
from tests.support.warm_python import run_warm

SIZE = 2


def on_ranks(check: Callable[[], Any], size: int = SIZE) -> list[Any]:
    def run(exchange: Exchange) -> Any:
        here.ranks = Ranks(exchange)
        return check()

    return on_threads(size, run)


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}
    vllm_split_engine.install_modules(made)
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("check", split_engine_checks.CHECKS, ids=lambda check: check.__name__)
def test_ranks_that_are_threads(check: Callable[[], Any]) -> None:
    found = on_ranks(check, 4 if check is split_engine_checks.check_changes else SIZE)
    assert all(each == found[0] for each in found)


def test_on_devices(accelerator: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        on_ranks(lambda dtype=dtype: split_engine_checks.compare(device=accelerator, dtype=dtype))  # type: ignore[misc]


def test_processes_of_gloo() -> None:
    program = str(Path(__file__).with_name("split_engine_ranks.py"))
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", program)
    finished = run_warm(command, os.environ, Path.cwd(), seconds=150)
    assert finished.returncode == 0, finished.stderr
    # 50 values and ids, and what a message has beside its rows; a gather of the logits sends 32,000.
    sent = re.search(r"(\d+) bytes a row and step", finished.stdout)
    assert sent is not None
    assert int(sent[1]) <= 8 * 50 + 1 + 72 / 8


class TestLeftAlone:
    """What is no step of an engine, or verifies drafts, gathers at once."""

    def gathers(self, run: Callable[[Engine], Any]) -> None:
        def check() -> None:
            engine = Engine(True)
            engine.take(*split_engine_checks.plain_requests())
            logits = run(engine)
            assert type(logits) is torch.Tensor
            assert logits.shape[1] == engine.vocab_size
            assert len(here.ranks.gathered) == 1

        on_ranks(check)

    def test_logits_of_a_draft_or_a_prompt(self) -> None:
        self.gathers(lambda engine: engine.runner.model.compute_logits(torch.zeros(6, 16)))

    def test_with_speculation(self) -> None:
        def run(engine: Engine) -> Any:
            engine.runner.speculative_config = object()
            engine.runner.execute_model(torch.zeros(6, 16))
            return engine.runner.logits

        self.gathers(run)

    def test_where_one_rank_alone_samples(self) -> None:
        def run(engine: Engine) -> Any:
            engine.runner.model.processor.use_all_gather = False
            engine.runner.execute_model(torch.zeros(6, 16))
            return engine.runner.logits

        self.gathers(run)

    def test_logits_of_a_single_rank(self) -> None:
        def check() -> None:
            engine = Engine(True)
            engine.take(*split_engine_checks.plain_requests())
            engine.step()
            assert len(here.ranks.gathered) == 1

        on_ranks(check, size=1)

    def test_rows_of_which_the_host_knows_nothing(self) -> None:
        def check() -> None:
            engine = Engine(True)
            engine.take(*split_engine_checks.plain_requests())
            engine.batch.metadata.top_k.mul_(1)
            engine.step()
            assert len(here.ranks.gathered) == 1

        on_ranks(check)


class TestReducedSamplingOfVllmAscend:
    class NPUModelRunner(Runner):
        __module__ = "vllm_ascend.worker.model_runner_v1"

    def run(self, monkeypatch: pytest.MonkeyPatch, speculative_config: object = None) -> bool:
        config = types.SimpleNamespace(enable_reduce_sample=True)
        vllm_stand_ins.configure_ascend(monkeypatch, config)
        runner = type("NPUModelRunner", (self.NPUModelRunner,), {"__module__": self.NPUModelRunner.__module__})
        vllm_shards.install_runner(types.SimpleNamespace(apply_grammar_bitmask=lambda *arguments: None), runner)
        engine = runner(types.SimpleNamespace(compute_logits=lambda hidden: hidden), None, None, None)
        engine.speculative_config = speculative_config
        engine.execute_model(torch.zeros(1, 2))
        return config.enable_reduce_sample

    def test_is_taken_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.warns(UserWarning, match="enable_reduce_sample of vllm_ascend is switched off"):
            assert not self.run(monkeypatch)

    def test_stays_with_speculation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.run(monkeypatch, object())


class TestInstall:
    def test_with_the_first_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        runner = type("GPUModelRunner", (Runner,), {})
        processor = type("LogitsProcessor", (vllm_split_engine.LogitsProcessor,), {})
        sampler = type("Sampler", (vllm_split_engine.Sampler,), {})
        for name, attributes in (
            (next(iter(vllm_shards.RUNNERS)), {"GPUModelRunner": runner, "apply_grammar_bitmask": lambda: None}),
            (vllm_shards.LOGITS_PROCESSOR, {"LogitsProcessor": processor}),
            (vllm_cpu.SAMPLER, {"Sampler": sampler}),
        ):
            monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(**attributes))
        kind = type("InputBatch", (InputBatch,), {"_make_sampling_metadata": InputBatch._make_sampling_metadata})
        adapter._note_host_values(kind)
        adapter._note_host_values(kind)

        class NPUInputBatch(kind):  # type: ignore[misc,valid-type]
            """As vllm_ascend's, it does not call what makes the class that it derives from."""

            def __init__(self) -> None:
                vars(self).update(vars(InputBatch(300)))

        for is_on in (False, True, True):
            monkeypatch.setenv(vllm_shards.SWITCH, str(int(is_on)))
            NPUInputBatch().refresh()
            assert hasattr(runner.execute_model, "replaced") is is_on
        for function in (runner.execute_model, processor.forward, sampler.forward):
            assert not hasattr(function.replaced, "replaced")

    @pytest.mark.parametrize(("value", "is_on"), [(None, False), ("", False), ("0", False), ("1", True)])
    def test_the_switch(self, value: str | None, is_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(vllm_shards.SWITCH, raising=False)
        if value is not None:
            monkeypatch.setenv(vllm_shards.SWITCH, value)
        assert vllm_shards.is_switched_on() is is_on

    @pytest.mark.parametrize("module", [adapter, vllm_shards], ids=["plugin", "shards"])
    def test_a_switch_is_0_or_1(self, module: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(module.SWITCH, "false")
        ask = adapter.register if module is adapter else vllm_shards.is_switched_on
        with pytest.raises(ValueError, match=f"{module.SWITCH} must be 0 or 1, got 'false'. Leave it out for [01]."):
            ask()


TRAPS = (
    Trap(
        "whoever looks at late logits sees the part",
        _late_tensors,
        "self._whole = self._make(self.source)",
        "self._whole = self.source",
        lambda: on_ranks(split_engine_checks.check_whole),
    ),
    Trap(
        "what was done to gathered logits is lost",
        _late_tensors,
        "and not tensor.is_made else None",
        "else None",
        lambda: on_ranks(split_engine_checks.check_whole),
    ),
    Trap(
        "all steps are plain",
        vllm_shards,
        "if not vllm_served.draws_here(sampler.topk_topp_sampler) or not _is_plain(sampling_metadata):",
        "if not vllm_served.draws_here(sampler.topk_topp_sampler):",
        lambda: on_ranks(split_engine_checks.check_whole),
    ),
    Trap(
        "a foreign processor of logits is taken for idle",
        _vllm_metadata,
        "return is_vllms(processor) and",
        "return not is_vllms(processor) or",
        lambda: on_ranks(split_engine_checks.check_whole),
    ),
    Trap(
        "words that were added for LoRA are taken for the vocabulary's",
        vllm_shards,
        'getattr(lm_head, "num_added_embeddings", None) != 0',
        "False",
        lambda: on_ranks(split_engine_checks.check_whole),
    ),
    Trap(
        "the first id of every part is that of the first",
        vllm_shards,
        "group.rank_in_group * width, width",
        "0, width",
        lambda: on_ranks(split_engine_checks.check_plain),
    ),
    Trap(
        "logits are not divided by the temperature",
        vllm_shards,
        "if not sampling_metadata.all_greedy:",
        "if sampling_metadata.all_greedy:",
        lambda: on_ranks(split_engine_checks.check_plain),
    ),
    Trap(
        "rows stay what they were when the batch changes",
        vllm_shards,
        "if self._rows is None or not self._rows.is_for(facts, seeds):",
        "if self._rows is None:",
        lambda: on_ranks(split_engine_checks.check_changes),
    ),
    Trap(
        "a draw that is taken back is not drawn again",
        _engine_rows,
        "np.where(self._has_seed, position.numpy(), self._steps)",
        "np.full(len(self), self._steps)",
        lambda: on_ranks(split_engine_checks.check_discarded_draws),
    ),
    Trap(
        "requests without a seed draw the same noise in each step",
        _engine_rows,
        "self._steps += 1",
        "self._steps = 0",
        lambda: on_ranks(split_engine_checks.check_unseeded),
    ),
)


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.name)
def test_trap(trap: Trap) -> None:
    assert_caught(trap)
