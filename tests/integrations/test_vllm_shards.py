"""vLLM's V1 runner under tensor parallelism where vLLM is not installed: ranks draw from their parts of the logits.

`nox -s integrations` looks at the real classes (vllm_parity.py).
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ascend_sample.integrations import vllm as adapter
from ascend_sample.integrations import vllm_cpu, vllm_shards
from tests.integrations import vllm_split_engine, vllm_stand_ins
from tests.integrations.vllm_batches import InputBatch
from tests.integrations.vllm_split_engine import CHECKS, Engine, Ranks, Runner, here, plain_requests
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


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_ranks(check: Callable[[], Any]) -> None:
    found = on_ranks(check, 4 if check is vllm_split_engine.check_changes else SIZE)
    assert all(each == found[0] for each in found)


def test_on_devices(accelerator: str) -> None:
    on_ranks(lambda: vllm_split_engine.compare(device=accelerator, dtype=torch.bfloat16))


@pytest.mark.long
def test_processes_of_gloo() -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    finished = run_warm((*launcher, "-m", vllm_split_engine.__name__), os.environ, Path.cwd(), seconds=150)
    assert finished.returncode == 0, finished.stderr


def draft_or_prompt(engine: Engine) -> None:
    assert type(engine.runner.model.compute_logits(torch.zeros(6, 16))) is torch.Tensor


def with_speculation(engine: Engine) -> None:
    engine.runner.speculative_config = object()
    engine.step()


def one_rank_alone_samples(engine: Engine) -> None:
    engine.runner.model.processor.use_all_gather = False
    engine.step()


def unknown_rows(engine: Engine) -> None:
    engine.batch.sampling_metadata.top_k.mul_(1)
    engine.step()


@pytest.mark.parametrize("run", [draft_or_prompt, with_speculation, one_rank_alone_samples, unknown_rows, Engine.step])
def test_what_gathers_at_once(run: Callable[[Engine], Any]) -> None:
    """What is no step of an engine, or verifies drafts, or is of one rank, or of rows that the host does not know."""

    def check() -> None:
        engine = Engine(True)
        engine.take(*plain_requests())
        run(engine)
        assert len(here.ranks.gathered) == 1

    on_ranks(check, 1 if run is Engine.step else SIZE)


@pytest.mark.parametrize("speculative_config", [None, object()])
def test_reduced_sampling_of_vllm_ascend_is_taken_over(
    speculative_config: object, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    config = types.SimpleNamespace(enable_reduce_sample=True)
    vllm_stand_ins.configure_ascend(monkeypatch, config)
    runner = type("NPUModelRunner", (Runner,), {"__module__": "vllm_ascend.worker.model_runner_v1"})
    vllm_shards.install_runner(types.SimpleNamespace(apply_grammar_bitmask=lambda *arguments: None), runner)
    engine = runner(types.SimpleNamespace(compute_logits=lambda hidden: hidden), None, None, None)
    engine.speculative_config = speculative_config
    engine.execute_model(torch.zeros(1, 2))
    stays = speculative_config is not None
    assert config.enable_reduce_sample is stays
    assert ["is switched off" in str(warning.message) for warning in recwarn] == ([] if stays else [True])


def test_it_is_installed_with_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = type("GPUModelRunner", (Runner,), {})
    processor = type("LogitsProcessor", (vllm_split_engine.LogitsProcessor,), {})
    sampler = type("Sampler", (vllm_split_engine.Sampler,), {})
    for name, attributes in (
        (next(iter(vllm_shards.RUNNERS)), {"GPUModelRunner": runner, "apply_grammar_bitmask": lambda: None}),
        (vllm_shards.LOGITS_PROCESSOR, {"LogitsProcessor": processor}),
        (vllm_cpu.SAMPLER, {"Sampler": sampler}),
    ):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(**attributes))
    kind = type("InputBatch", (InputBatch,), {})
    adapter._note_host_values(kind)

    class NPUInputBatch(kind):  # type: ignore[misc,valid-type]
        """As vllm_ascend's, it does not call what makes the class that it derives from."""

        def __init__(self) -> None:
            vars(self).update(vars(InputBatch(300)))

    for value, is_on in ((None, False), ("", False), ("0", False), ("1", True), ("1", True)):
        monkeypatch.delenv(vllm_shards.SWITCH, raising=False)
        if value is not None:
            monkeypatch.setenv(vllm_shards.SWITCH, value)
        NPUInputBatch().refresh()
        assert hasattr(runner.execute_model, "replaced") is is_on
    for function in (runner.execute_model, processor.forward, sampler.forward):
        assert not hasattr(function.replaced, "replaced")


@pytest.mark.parametrize(
    ("switch", "ask"), [(adapter.SWITCH, adapter.register), (vllm_shards.SWITCH, vllm_shards.is_switched_on)]
)
def test_a_switch_is_0_or_1(switch: str, ask: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(switch, "false")
    with pytest.raises(ValueError, match=f"{switch} must be 0 or 1, got 'false'. Leave it out for [01]."):
        ask()
