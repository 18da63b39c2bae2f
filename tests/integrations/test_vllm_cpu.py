"""What the plugin does around vLLM's draws on a CPU: vLLM's own numbers; what is on a device stays vLLM's."""

from __future__ import annotations

import sys
import types
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from ascend_sample.integrations import _broken_logits, vllm_cpu
from ascend_sample.integrations import vllm as adapter
from tests.integrations import vllm_stand_ins
from tests.integrations.vllm_batches import Request, asked_of
from tests.integrations.vllm_stand_ins import (
    Foreign,
    LogitBiasLogitsProcessor,
    LogitsProcessors,
    LogprobsTensors,
    MinPLogitsProcessor,
    Sampler,
    SamplingMetadata,
    apply_penalties,
)
from tests.statistics.covering import covering_rows

ROWS, COLUMNS = 40, 700


class Installed(NamedTuple):
    """vLLM's parts, with the plugin's functions in them."""

    sampler: Any
    penalties: Any


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Parts of its own, in which the functions are put twice, and vLLM's module of outputs as far as that is read."""
    monkeypatch.setitem(sys.modules, "vllm.v1.outputs", vllm_stand_ins)
    parts = Installed(type("Sampler", (Sampler,), {}), types.SimpleNamespace(apply_penalties=apply_penalties))
    for name, module in (
        (vllm_cpu.SAMPLER, types.SimpleNamespace(Sampler=parts.sampler)),
        (vllm_cpu.PENALTIES, parts.penalties),
    ):
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    vllm_cpu.install()
    vllm_cpu.install()
    return parts


def distinct(rows: int) -> Tensor:
    """Rows of logprobs in which no two are equal, so that a topk has no choice."""
    generator = torch.Generator().manual_seed(5)
    order = torch.stack([torch.randperm(COLUMNS, generator=generator) for _ in range(rows)])
    return order.float().mul_(-0.01).log_softmax(1)


def random_rows(rows: int = ROWS) -> Tensor:
    return torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(1)) * 3


def step(rows: int, **changes: Any) -> Any:
    """The metadata of rows with seeds."""
    generators = {row: torch.Generator().manual_seed(row) for row in range(rows)}
    nothing = {"generators": generators, "logitsprocs": LogitsProcessors()}
    return asked_of(SamplingMetadata, rows, **(nothing | changes))


def with_min_p(min_p: Tensor) -> LogitsProcessors:
    requests = [Request(min_p=number) for number in min_p.tolist()]
    return LogitsProcessors([MinPLogitsProcessor(requests)], [LogitBiasLogitsProcessor(requests)])


@pytest.mark.parametrize("count", [0, 1, 20, COLUMNS])
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


@pytest.mark.parametrize("kind", ["temperature", "min_p", "top_k", "top_p", "top_k min_p", "top_p min_p", "all"])
def test_a_step_draws_what_vllm_draws_from(vllm: Installed, kind: str) -> None:
    """Greedy rows take the best token, the others the one that vLLM's own steps lead to."""
    generator = torch.Generator().manual_seed(3)
    temperature = torch.rand(ROWS, generator=generator) * 1.5 + 0.1
    temperature[::7], temperature[1::7] = 0, 1
    min_p = torch.rand(ROWS, generator=generator) * 0.5
    min_p[::4], min_p[1] = 0, 1
    top_k = torch.randint(1, COLUMNS, (ROWS,), generator=generator, dtype=torch.int32)
    top_p = torch.rand(ROWS, generator=generator) * 0.9 + 0.05
    top_k[::5], top_p[::3] = COLUMNS, 1
    options: dict[str, Any] = {"temperature": temperature}
    options |= {"logitsprocs": with_min_p(min_p if "min_p" in kind or kind == "all" else 0 * min_p)}
    options |= {name: tensor for name, tensor in (("top_k", top_k), ("top_p", top_p)) if name in kind or kind == "all"}
    logits = random_rows()
    given = logits.clone()
    found = vllm.sampler()(given, step(ROWS, **options)).sampled_token_ids
    own = Sampler()(logits.clone(), step(ROWS, **options)).sampled_token_ids
    assert torch.equal(found, own)
    is_masked = (min_p > 0) & (top_p < 1) & (temperature > 0) & (kind in ("top_p min_p", "all"))
    assert torch.equal(given[~is_masked], logits[~is_masked])
    assert not is_masked.any() or not torch.equal(given, logits)


def test_rows_of_nan_or_nothing_hurt_no_other(vllm: Installed) -> None:
    logits = random_rows(4)
    logits[1, 5], logits[2] = torch.nan, -torch.inf

    def drawn(rows: list[int]) -> list[int]:
        options = {"logitsprocs": with_min_p(torch.full((len(rows),), 0.2)), "top_p": torch.full((len(rows),), 0.9)}
        generators = {place: torch.Generator().manual_seed(row) for place, row in enumerate(rows)}
        found = vllm.sampler()(logits[rows], step(len(rows), **options, generators=generators))
        ids: list[int] = found.sampled_token_ids[:, 0].tolist()
        return ids

    together = drawn([0, 1, 2, 3])
    assert [together[0], together[3]] == drawn([0, 3])
    assert len(set(together)) > 1


def test_a_greedy_row_gets_the_id_of_its_nan_beside_others_too(
    vllm: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As vLLM's argmax takes it in a step of greedy rows alone; logprobs are vLLM's NaN, and somebody is told once."""
    monkeypatch.setattr(_broken_logits, "_seen", set())
    nan, inf = torch.nan, torch.inf
    logits = torch.tensor([[1.0, 3.0, nan, 2.0], [1.0, 3.0, nan, 2.0], [inf, 2.0, 3.0, inf]])
    beside = {"temperature": torch.tensor([0.0, 1.0, 0.0]), "top_k": torch.tensor([4, 1, 4], dtype=torch.int32)}
    with pytest.warns(UserWarning, match="a NaN") as told:
        alone = vllm.sampler()(logits.clone(), step(3, temperature=None, max_num_logprobs=1))
    assert len(told) == 2  # of +inf too
    mixed = vllm.sampler()(logits.clone(), step(3, **beside, max_num_logprobs=1))
    assert alone.sampled_token_ids[:, 0].tolist() == [2, 2, 0]
    assert mixed.sampled_token_ids[:, 0].tolist() == [2, 1, 0]
    of_prompt = vllm.sampler.gather_logprobs(vllm.sampler.compute_logprobs(logits), 1, torch.tensor([1, 1, 1]))
    for found in (alone.logprobs_tensors, mixed.logprobs_tensors, of_prompt):
        assert found.logprobs[:2].isnan().all()


class Thinking:
    """A budget that is used up: one id may come."""

    def has_tracked_requests(self) -> bool:
        return True

    def apply_to_logits(self, logits: Tensor) -> Tensor:
        logits[:, 8:] = -torch.inf
        return logits


EDITS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "temperature": {"temperature": torch.tensor([0.5, 0.0, 1.0, 2.0])},
    "greedy": {"temperature": None},
    "min-p": {"logitsprocs": with_min_p(torch.full((4,), 0.3))},
    "min-p and top-p": {"logitsprocs": with_min_p(torch.full((4,), 0.3)), "top_p": torch.full((4,), 0.9)},
    "allowed ids": {"allowed_token_ids_mask": torch.arange(4 * COLUMNS).view(4, COLUMNS) % 3 > 0},
    "penalties": {
        "no_penalties": False,
        "prompt_token_ids": torch.arange(400).view(4, 100),
        "repetition_penalties": torch.full((4,), 2.0),
    },
    "bad words": {"bad_words_token_ids": {1: [[token] for token in range(300)]}},
    "a bias": {"logitsprocs": LogitsProcessors([], [LogitBiasLogitsProcessor([Request(bias={5: 9.0})])])},
    "a thinking budget": {"thinking_budget_state_holder": Thinking()},
    "a foreign processor": {"logitsprocs": LogitsProcessors([], [Foreign()])},
    "a foreign one of draws": {"logitsprocs": LogitsProcessors([Foreign()], [])},
}
REPORTED: tuple[tuple[int | None, dict[int, list[int]] | None], ...] = (
    *((3, None), (-1, None), (None, {0: [3, 9, 3], 2: [0], 3: []}), (3, {0: [3, 9, 3], 2: [0], 3: []}), (3, {1: []})),
)
"""How many of the best a step reports, and the ids that rows name."""
MODES = ("raw_logprobs", "raw_logits", "processed_logprobs")
DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize(
    ("edit", "reported", "mode", "dtype"),
    [(edit, REPORTED[0], "raw_logprobs", torch.float32) for edit in EDITS]  # those that may be made late
    + [
        ([*EDITS][edit], REPORTED[reported], MODES[mode], DTYPES[dtype])
        for edit, reported, mode, dtype in covering_rows([len(EDITS), len(REPORTED), len(MODES), len(DTYPES)], 0)
    ],
)
def test_what_a_step_reports_is_vllms_own(
    vllm: Installed, edit: str, reported: tuple[int | None, Any], mode: str, dtype: torch.dtype
) -> None:
    logits, (most, named) = random_rows(4).to(dtype), reported
    asked = {"max_num_logprobs": most, "top_k": torch.full((4,), 40, dtype=torch.int32), **EDITS[edit]}
    metadata = partial(step, 4, **asked, logprob_token_ids=named)
    found, own = (kind(mode)(logits.clone(), metadata()) for kind in (vllm.sampler, Sampler))
    assert torch.equal(found.sampled_token_ids, own.sampled_token_ids)
    ours, theirs = found.logprobs_tensors, own.logprobs_tensors
    if named is None and most == -1:
        assert type(ours) is Tensor
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0)
        return
    assert isinstance(ours, LogprobsTensors)
    torch.testing.assert_close(ours.logprobs, theirs.logprobs, atol=2e-6, rtol=0)
    assert torch.equal(ours.selected_token_ranks, theirs.selected_token_ranks)
    assert ours.logprob_token_ids.dtype == theirs.logprob_token_ids.dtype
    assert named is None or torch.equal(ours.logprob_token_ids, theirs.logprob_token_ids)


def test_logprobs_that_are_looked_up_are_not_made(vllm: Installed) -> None:
    logits = random_rows(4)
    asked = step(4, max_num_logprobs=1, **EDITS["penalties"])
    vllm.sampler()(logits.clone(), asked)  # says nothing of the next ones
    late = vllm.sampler.compute_logprobs(logits)
    found = vllm.sampler.gather_logprobs(late, 2, torch.arange(4))
    assert not late.is_made
    own = Sampler.gather_logprobs(Sampler.compute_logprobs(logits), 2, torch.arange(4))
    torch.testing.assert_close(found.logprobs, own.logprobs, atol=2e-6, rtol=0)
    vllm.sampler().gather_specific_token_logprobs(late, {0: [5, 6], 3: [9]}, torch.arange(4))
    assert not late.is_made
    late[:, 7] = 0.0  # what was done to them counts
    assert vllm.sampler.gather_logprobs(late, 1, torch.arange(4)).logprob_token_ids[:, 1].tolist() == [7] * 4


def test_what_is_on_a_device_stays_vllms(vllm: Installed, accelerator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.ascend_sample, "row_logprobs", lambda *_: pytest.fail("the CPU kernel was asked"))
    logprobs, drawn = distinct(3).to(accelerator), torch.tensor([5, 6, 7], device=accelerator)
    found, own = vllm.sampler.gather_logprobs(logprobs, 2, drawn), Sampler.gather_logprobs(logprobs, 2, drawn)
    assert type(vllm.sampler.compute_logprobs(logprobs)) is Tensor
    assert all(torch.equal(one.cpu(), other.cpu()) for one, other in zip(found[:3], own[:3], strict=True))


def test_the_plugin_installs_it_once(vllm: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert vllm.sampler.gather_logprobs.replaced is Sampler.gather_logprobs
    assert vllm.penalties.apply_penalties.replaced is apply_penalties
    sampler = type("Sampler", (Sampler,), {})
    monkeypatch.setitem(sys.modules, vllm_cpu.SAMPLER, types.SimpleNamespace(Sampler=sampler))
    monkeypatch.setitem(sys.modules, "vllm", types.SimpleNamespace(__version__=adapter.TESTED_VERSIONS[-1]))
    monkeypatch.delenv(adapter.SWITCH, raising=False)
    adapter.register()
    assert sampler.gather_logprobs.replaced is Sampler.gather_logprobs
