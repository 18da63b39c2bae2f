"""Positions of SGLang's requests on the host; `sglang_npu.py` has SGLang's own runner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.integrations import sglang as adapter
from ascend_sample.integrations import sglang_positions
from tests.integrations.sglang_stand_ins import batch_info, batch_of
from tests.support.emulation import nobody_waits

ROWS, COLUMNS, MOST_LAUNCHES = 4, 1400, 15
LENGTHS = torch.tensor([5, 1, 900, 77])


class Runner:
    """Does what SGLang's `ModelRunner` does behind the model."""

    def sample(self, logits_output: Tensor, forward_batch: Any) -> Tensor:
        positions = forward_batch.seq_lens - 1
        info = forward_batch.sampling_info
        return adapter._forward(SimpleNamespace(masked_rows=None), logits_output, info, False, False, positions)[0]


@pytest.fixture
def runner() -> Any:
    own = type("ModelRunner", (Runner,), {"sample": Runner.sample})
    sglang_positions.take_runner(own)
    sglang_positions.take_runner(own)
    assert not hasattr(own.sample.replaced, "replaced"), "it is wrapped once"  # type: ignore[attr-defined]
    return own()


def info_on(device: str) -> Any:
    """Requests with a top-k, of which the host knows all, as it does in SGLang."""
    asked = ((0.7, 20, 0.9, 0.0), (1.0, 1, 1.0, 0.0), (1.0, 900, 1.0, 0.0), (2.0, 40, 0.95, 0.0))
    return batch_of(batch_info(is_noted=True), asked, device, (3, -4, 2**62, 8))


def batch_on(device: str, info: Any, lengths: Tensor | None, step: int) -> Any:
    known = None if lengths is None else lengths + step
    return SimpleNamespace(sampling_info=info, seq_lens=(LENGTHS + step).to(device), seq_lens_cpu=known)


def logits_of(step: int) -> Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(step)) * 2


def test_the_host_makes_the_noise_of_a_step(runner: Any, accelerator: str) -> None:
    info, on_cpu = info_on(accelerator), info_on("cpu")
    for step in range(20):
        expected = runner.sample(logits_of(step), batch_on("cpu", on_cpu, None, step))
        logits, batch = logits_of(step).to(accelerator), batch_on(accelerator, info, LENGTHS, step)
        with nobody_waits(accelerator) as counted:
            found = runner.sample(logits, batch)
        assert torch.equal(found.cpu(), expected)
        assert counted is None or counted.totals.launches <= MOST_LAUNCHES


@pytest.mark.parametrize("lengths", [None, LENGTHS[:3], torch.cat((LENGTHS, LENGTHS))])
def test_lengths_that_are_not_those_of_the_rows(runner: Any, accelerator: str, lengths: Tensor | None) -> None:
    """SGLang pads a batch for its other ranks, or knows no lengths on the host."""
    expected = runner.sample(logits_of(0), batch_on("cpu", info_on("cpu"), None, 0))
    found = runner.sample(logits_of(0).to(accelerator), batch_on(accelerator, info_on(accelerator), lengths, 0))
    assert torch.equal(found.cpu(), expected)


def test_positions_are_those_of_the_runners_batch_while_it_samples() -> None:
    """What is sampled behind the runner, or by something within it, has positions of its own."""
    info, positions = info_on("cpu"), torch.arange(ROWS)
    taken: list[list[int]] = []

    class Within(Runner):
        def sample(self, logits_output: Tensor, forward_batch: Any) -> Any:
            assert sglang_positions.of_rows(info, positions) is positions
            taken.append(sglang_positions.of_rows(forward_batch.sampling_info, positions).tolist())

    sglang_positions.take_runner(Within)
    assert sglang_positions.of_rows(info, positions) is positions
    batch = batch_on("cpu", info_on("cpu"), LENGTHS, 1)
    Within().sample(logits_of(0), batch)
    assert sglang_positions.of_rows(batch.sampling_info, positions) is positions
    batch.seq_lens_cpu = torch.tensor([0, 1, 2, 3], dtype=torch.int32)  # SGLang's decode steps clamp positions
    Within().sample(logits_of(0), batch)
    assert taken == [LENGTHS.tolist(), [0, 0, 1, 2]]


def test_chains_of_drafts_follow_the_lengths() -> None:
    nodes = {"positions": torch.tensor([5, 6, 7, 1, 2, 3]), "draft_token_num": 3}
    chain = SimpleNamespace(**nodes, tree_topk=1, seq_lens_cpu=torch.tensor([5, 1]))
    assert torch.equal(sglang_positions.of_nodes(chain), chain.positions)
    assert sglang_positions.of_nodes(chain) is not chain.positions
    tree = SimpleNamespace(**nodes, tree_topk=2, seq_lens_cpu=torch.tensor([5, 1]))
    assert sglang_positions.of_nodes(tree) is tree.positions
    for unknown in (SimpleNamespace(**nodes, tree_topk=1, seq_lens_cpu=None), SimpleNamespace(**nodes, tree_topk=-1)):
        assert sglang_positions.of_nodes(unknown) is unknown.positions
