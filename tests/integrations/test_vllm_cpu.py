"""What the plugin does around vLLM's draws on a CPU: vLLM's own numbers; what is on a device stays vLLM's."""

from __future__ import annotations

import sys
import types
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from ascend_sample.integrations import vllm as adapter
from ascend_sample.integrations import vllm_cpu

ROWS, COLUMNS = 40, 700


class LogprobsTensors(NamedTuple):
    """vLLM's."""

    logprob_token_ids: Tensor
    logprobs: Tensor
    selected_token_ranks: Tensor
    cu_num_generated_tokens: list[int] | None = None


class Sampler:
    """What V1's sampler does on its own, by its source."""

    @staticmethod
    def gather_logprobs(logprobs: Tensor, num_logprobs: int, token_ids: Tensor) -> LogprobsTensors:
        best = logprobs.topk(num_logprobs, dim=-1)
        given = logprobs.gather(-1, token_ids.unsqueeze(-1))
        ids = torch.cat((token_ids.unsqueeze(-1), best.indices), dim=1).to(torch.int32)
        return LogprobsTensors(ids, torch.cat((given, best.values), dim=1), (logprobs >= given).sum(-1))

    @staticmethod
    def apply_temperature(logits: Tensor, temp: Tensor, all_random: bool) -> Tensor:
        if not all_random:
            temp = torch.where(temp < 1e-5, 1.0, temp)
        return logits.div_(temp.unsqueeze(dim=1))


def apply_penalties(
    logits: Tensor, prompt: Tensor, output: Tensor, presence: Tensor, frequency: Tensor, repetition: Tensor
) -> Tensor:
    """What vLLM does, by its source: with a table of counts of all ids."""

    def counts_of(ids: Tensor) -> Tensor:
        counts = torch.zeros(len(ids), logits.shape[1] + 1, dtype=torch.int64)
        return counts.scatter_add_(1, ids, torch.ones_like(ids))[:, :-1]

    counts = counts_of(output)
    penalties = torch.where((counts_of(prompt) > 0) | (counts > 0), repetition.unsqueeze(1), 1.0)
    logits *= torch.where(logits > 0, 1.0 / penalties, penalties)
    logits -= frequency.unsqueeze(1) * counts
    logits -= presence.unsqueeze(1) * (counts > 0)
    return logits


class MinPLogitsProcessor:
    """vLLM's, by its source, as far as it is applied."""

    def __init__(self, min_p: Tensor) -> None:
        self.min_p = min_p.unsqueeze(1)
        self.min_p_count = int((min_p > 0).sum())

    def apply(self, logits: Tensor) -> Tensor:
        if not self.min_p_count:
            return logits
        probabilities = logits.softmax(dim=-1)
        mask = probabilities < probabilities.amax(dim=-1, keepdim=True).mul_(self.min_p)
        return logits.masked_fill_(mask, -torch.inf)


class Installed(NamedTuple):
    """vLLM's parts, with the plugin's functions in them."""

    sampler: Any
    penalties: Any
    min_p: Any


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Parts of its own, in which the functions are put twice, and vLLM's module of outputs as far as that is read."""
    for name in ("vllm", "vllm.v1", "vllm.v1.outputs"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["vllm.v1.outputs"].LogprobsTensors = LogprobsTensors  # type: ignore[attr-defined]
    parts = Installed(
        type("Sampler", (Sampler,), {}),
        types.SimpleNamespace(apply_penalties=apply_penalties),
        type("MinPLogitsProcessor", (MinPLogitsProcessor,), {}),
    )
    modules = {
        vllm_cpu.SAMPLER: types.SimpleNamespace(Sampler=parts.sampler),
        vllm_cpu.PENALTIES: parts.penalties,
        vllm_cpu.PROCESSORS: types.SimpleNamespace(MinPLogitsProcessor=parts.min_p),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    vllm_cpu.install()
    vllm_cpu.install()
    return parts


def distinct(rows: int) -> Tensor:
    """Rows of logprobs in which no two are equal, so that a topk has no choice."""
    generator = torch.Generator().manual_seed(5)
    order = torch.stack([torch.randperm(COLUMNS, generator=generator) for _ in range(rows)])
    return order.float().mul_(-0.01).log_softmax(1)


@pytest.mark.parametrize("count", [0, 1, 5, 20, COLUMNS])
def test_logprobs_are_vllms_own(vllm: Installed, count: int) -> None:
    logprobs = distinct(ROWS)
    logprobs[3, :600] = -torch.inf  # what processed modes have; more than are wanted stay, but for all of them
    drawn = torch.cat((logprobs[:4].argmax(1), torch.arange(ROWS - 4)))
    found = vllm.sampler.gather_logprobs(logprobs, count, token_ids=drawn)
    own = Sampler.gather_logprobs(logprobs, count, drawn)
    assert isinstance(found, LogprobsTensors)
    assert [tensor.dtype for tensor in found[:3]] == [tensor.dtype for tensor in own[:3]]
    assert torch.equal(found.logprobs, own.logprobs)
    assert torch.equal(found.selected_token_ranks, own.selected_token_ranks)
    is_told = torch.ones_like(own.logprobs, dtype=torch.bool) if count < 100 else own.logprobs > -torch.inf
    assert torch.equal(found.logprob_token_ids[is_told], own.logprob_token_ids[is_told])


def test_equals_are_told_by_ascending_id(vllm: Installed) -> None:
    logprobs = torch.tensor([[-2.0, -1.0, -1.0, -1.0]])
    found = vllm.sampler.gather_logprobs(logprobs=logprobs, num_logprobs=3, token_ids=torch.tensor([2]))
    assert found.logprob_token_ids.tolist() == [[2, 1, 2, 3]]
    assert found.selected_token_ranks.tolist() == [3]


@pytest.mark.parametrize("tokens", [0, 1, 300])
def test_penalties_are_vllms_own_bit_for_bit(vllm: Installed, tokens: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    logits = torch.randn(ROWS, COLUMNS, generator=generator) * 4
    logits[:, :3] = torch.tensor([-torch.inf, 0.0, -0.0])
    ids = [torch.randint(0, COLUMNS, (ROWS, count), generator=generator) for count in (1 + tokens, tokens)]
    lengths = [torch.randint(1, 2 + count, (ROWS, 1), generator=generator) for count in (tokens, tokens)]
    lengths[1] -= 1  # of outputs some are empty
    for part, length in zip(ids, lengths, strict=True):
        part[torch.arange(part.shape[1]) >= length] = COLUMNS  # as vLLM pads them
        part[:5, : part.shape[1] // 2] = 7  # often
    presence, frequency, repetition = torch.rand(3, ROWS, generator=generator) * 2
    presence[::3], frequency[::4], repetition[::5] = 0, 0, 1
    options = (*ids, presence, frequency, repetition + 0.5)
    expected = apply_penalties(logits.clone(), *options)
    given = logits.clone()
    found = vllm.penalties.apply_penalties(given, *options)
    assert found is given
    assert torch.equal(found, expected)
    assert tokens == 0 or not torch.equal(found, logits)
    wide = torch.zeros(ROWS, COLUMNS + 1)[:, :COLUMNS].copy_(logits)
    assert torch.equal(vllm.penalties.apply_penalties(wide, *options), expected)


def test_what_min_p_masks_is_what_vllm_masks(vllm: Installed) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(ROWS, COLUMNS, generator=generator) * 3
    logits[3, 5], logits[4] = torch.nan, -torch.inf
    logits[5, 1:] = -torch.inf
    min_p = torch.rand(ROWS, generator=generator) * 0.5
    min_p[::4], min_p[1] = 0, 1
    given = logits.clone()
    found, own = vllm.min_p(min_p).apply(given), MinPLogitsProcessor(min_p).apply(logits.clone())
    assert found is given
    assert torch.equal(found.nan_to_num(), own.nan_to_num())  # no value is so near to a bound that rounding decides
    assert (found[1] > -torch.inf).sum() == 1
    assert vllm.min_p(torch.zeros(ROWS)).apply(logits) is logits


@pytest.mark.parametrize(
    ("temperatures", "all_random", "divides"),
    [
        ((1.0, 1.0), True, False),
        ((0.0, 1.0), False, False),
        ((1e-6, 1.0), False, False),
        ((1.0, 0.7), True, True),
        ((0.0, 0.7), False, True),
        ((1e-6, 1.0), True, True),
    ],
)
def test_temperatures_of_1_divide_nothing(
    vllm: Installed, monkeypatch: pytest.MonkeyPatch, temperatures: tuple[float, float], all_random: bool, divides: bool
) -> None:
    divided: list[int] = []
    own = Tensor.div_
    monkeypatch.setattr(Tensor, "div_", lambda *arguments: divided.append(1) or own(*arguments))
    logits, temp = torch.tensor([[2.0, -1.0], [0.5, 3.0]]), torch.tensor(temperatures)
    expected = logits / (temp if all_random else torch.where(temp < 1e-5, 1.0, temp)).unsqueeze(1)
    found = vllm.sampler.apply_temperature(logits, temp, all_random)
    assert found is logits
    assert torch.equal(found, expected)
    assert bool(divided) == divides


def test_what_is_on_a_device_stays_vllms(vllm: Installed, npu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any) -> Any:
        raise AssertionError("the CPU kernel was asked")

    monkeypatch.setattr(torch.ops.ascend_sample, "row_logprobs", asked)
    logprobs, drawn = distinct(3).to(npu), torch.tensor([5, 6, 7], device=npu)
    found, own = vllm.sampler.gather_logprobs(logprobs, 2, drawn), Sampler.gather_logprobs(logprobs, 2, drawn)
    assert all(torch.equal(one.cpu(), other.cpu()) for one, other in zip(found[:3], own[:3], strict=True))


def test_the_plugin_installs_it_once(vllm: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert vllm.sampler.gather_logprobs.replaced is Sampler.gather_logprobs
    module = types.ModuleType(vllm_cpu.SAMPLER)
    module.Sampler = type("Sampler", (Sampler,), {})  # type: ignore[attr-defined]
    modules = {"vllm": types.ModuleType("vllm"), vllm_cpu.SAMPLER: module}
    modules["vllm"].__version__ = adapter.TESTED_VERSIONS[-1]  # type: ignore[attr-defined]
    for name, installed in modules.items():
        monkeypatch.setitem(sys.modules, name, installed)
    monkeypatch.delenv(adapter.SWITCH, raising=False)
    adapter.register()
    assert module.Sampler.gather_logprobs.replaced is Sampler.gather_logprobs
