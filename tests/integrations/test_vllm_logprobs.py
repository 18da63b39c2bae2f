"""vLLM's logprobs on a CPU: the numbers of a gather, a topk and a count; what is on a device stays vLLM's."""

from __future__ import annotations

import sys
import types
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from ascend_sample.integrations import vllm as adapter
from ascend_sample.integrations import vllm_logprobs

ROWS, COLUMNS = 40, 700


class LogprobsTensors(NamedTuple):
    """vLLM's."""

    logprob_token_ids: Tensor
    logprobs: Tensor
    selected_token_ranks: Tensor
    cu_num_generated_tokens: list[int] | None = None


class Sampler:
    """What V1's sampler does with logprobs, by its source."""

    @staticmethod
    def gather_logprobs(logprobs: Tensor, num_logprobs: int, token_ids: Tensor) -> LogprobsTensors:
        best = logprobs.topk(num_logprobs, dim=-1)
        given = logprobs.gather(-1, token_ids.unsqueeze(-1))
        ids = torch.cat((token_ids.unsqueeze(-1), best.indices), dim=1).to(torch.int32)
        return LogprobsTensors(ids, torch.cat((given, best.values), dim=1), (logprobs >= given).sum(-1))


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A class of its own, with the lookup installed twice, and vLLM's module of outputs as far as that is read."""
    for name in ("vllm", "vllm.v1", "vllm.v1.outputs"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["vllm.v1.outputs"].LogprobsTensors = LogprobsTensors  # type: ignore[attr-defined]
    made = type("Sampler", (Sampler,), {})
    vllm_logprobs.install(made)
    vllm_logprobs.install(made)
    return made()


def distinct(rows: int) -> Tensor:
    """Rows of logprobs in which no two are equal, so that a topk has no choice."""
    generator = torch.Generator().manual_seed(5)
    order = torch.stack([torch.randperm(COLUMNS, generator=generator) for _ in range(rows)])
    return order.float().mul_(-0.01).log_softmax(1)


@pytest.mark.parametrize("count", [0, 1, 5, 20, COLUMNS])
def test_what_is_reported_is_vllms_own(sampler: Any, count: int) -> None:
    logprobs = distinct(ROWS)
    logprobs[3, :600] = -torch.inf  # what processed modes have; more than are wanted stay, but for all of them
    drawn = torch.cat((logprobs[:4].argmax(1), torch.arange(ROWS - 4)))
    found, own = sampler.gather_logprobs(logprobs, count, drawn), Sampler.gather_logprobs(logprobs, count, drawn)
    assert sampler.gather_logprobs.replaced is Sampler.gather_logprobs
    assert isinstance(found, LogprobsTensors)
    assert [tensor.dtype for tensor in found[:3]] == [tensor.dtype for tensor in own[:3]]
    assert torch.equal(found.logprobs, own.logprobs)
    assert torch.equal(found.selected_token_ranks, own.selected_token_ranks)
    is_told = torch.ones_like(own.logprobs, dtype=torch.bool) if count < 100 else own.logprobs > -torch.inf
    assert torch.equal(found.logprob_token_ids[is_told], own.logprob_token_ids[is_told])


def test_equals_are_told_by_ascending_id(sampler: Any) -> None:
    logprobs = torch.tensor([[-2.0, -1.0, -1.0, -1.0]])
    found = sampler.gather_logprobs(logprobs, 3, torch.tensor([2]))
    assert found.logprob_token_ids.tolist() == [[2, 1, 2, 3]]
    assert found.selected_token_ranks.tolist() == [3]


def test_what_is_on_a_device_stays_vllms(sampler: Any, npu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def gathered(*_: Any) -> Any:
        raise AssertionError("the CPU kernel was asked")

    monkeypatch.setattr(vllm_logprobs, "gathered", gathered)
    logprobs, drawn = distinct(3).to(npu), torch.tensor([5, 6, 7], device=npu)
    found, own = sampler.gather_logprobs(logprobs, 2, drawn), Sampler.gather_logprobs(logprobs, 2, drawn)
    assert all(torch.equal(one.cpu(), other.cpu()) for one, other in zip(found[:3], own[:3], strict=True))


def test_the_plugin_installs_it(sampler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(adapter.SAMPLERS)
    module.Sampler = type("Sampler", (Sampler,), {})  # type: ignore[attr-defined]
    modules = {"vllm": types.ModuleType("vllm"), adapter.SAMPLERS: module}
    modules["vllm"].__version__ = adapter.TESTED_VERSIONS[-1]  # type: ignore[attr-defined]
    monkeypatch.setattr(adapter, "_import_if_installed", modules.get)
    monkeypatch.setitem(sys.modules, "vllm", modules["vllm"])
    monkeypatch.delenv(adapter.SWITCH, raising=False)
    adapter.register()
    assert module.Sampler.gather_logprobs.replaced is Sampler.gather_logprobs
