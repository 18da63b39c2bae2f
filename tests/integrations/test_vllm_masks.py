"""vLLM's sampling masks, on a stand-in for the class that has them: what the scheduler reads, row by row."""

from __future__ import annotations

import types
from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import hostcann
from ascend_sample.integrations import vllm_masks

INF = torch.inf


class SamplingMaskTensors(NamedTuple):
    """Has the fields of vLLM's."""

    token_ids: Tensor
    packed_mask: Tensor
    counts: Tensor
    vocab_size: int
    rows_per_request: int = 1

    @classmethod
    def from_logits(cls, *arguments: Any) -> Any:
        raise AssertionError("this needs a kernel")

    def sets(self) -> list[list[int]]:
        """What vLLM's scheduler reads: of sets that are larger than a row, the bits."""
        found, width = [], self.token_ids.shape[1]
        for ids, bits, count in zip(self.token_ids.cpu(), self.packed_mask.cpu(), self.counts.tolist(), strict=True):
            larger = np.flatnonzero(np.unpackbits(bits.numpy(), count=self.vocab_size, bitorder="little"))
            found.append(ids[:count].tolist() if count <= width else larger.tolist())
        return found


@pytest.fixture
def module() -> Any:
    """That of vLLM, with masks that are made here; its class is made anew, and its lists hold four ids."""
    made = types.SimpleNamespace(MAX_COMPACT_SUPPORT=4)
    made.SamplingMaskTensors = type("SamplingMaskTensors", (SamplingMaskTensors,), {})
    made.SamplingMaskTensors.from_logits = SamplingMaskTensors.__dict__["from_logits"]
    for _ in range(2):
        vllm_masks.install(made)
    return made


def rows(device: str, kept: list[list[int]], vocab_size: int = 20) -> Tensor:
    """Logits of which these are above -inf."""
    logits = torch.full((len(kept), vocab_size), -INF)
    for row, ids in enumerate(kept):
        logits[row, ids] = torch.arange(len(ids), 0, -1).float() % 5
    return logits.to(device)


def masks(module: Any, logits: Tensor, starts: list[int], sampled: list[int], *more: int) -> Any:
    there = (torch.tensor(each, dtype=torch.int32, device=logits.device) for each in (starts, sampled))
    return module.SamplingMaskTensors.from_logits(logits, *there, *more)


@pytest.mark.parametrize("has_ties", [False, True])
def test_a_step(module: Any, device: str, has_ties: bool) -> None:
    """The second request is in its prompt, and has no token."""
    kept = [[3, 9, 17], [0, 1], [19, 2], []]
    logits = rows(device, kept)
    found = masks(module, logits if has_ties else vllm_masks.without_ties(logits), [0, 1, 2, 3, 4], [1, 0, 1, 1], 3)
    assert found.sets() == [[3, 9, 17], [], [2, 19], []]
    assert found.token_ids.shape == (4, 3)
    assert found.packed_mask.shape == (4, 3 if has_ties else 0)
    assert {each.dtype for each in (found.token_ids, found.counts)} == {torch.int32}


def test_sets_that_are_larger_than_a_list_are_bits(module: Any, device: str) -> None:
    """Those that ties have made larger than top-k; those of a larger top-k; NaN and +inf are none."""
    kept = [[3, 9, 17], [0, 7, 8, 15, 16, 19]]
    assert masks(module, rows(device, kept), [0, 1, 2], [1, 1], 2).sets() == kept
    logits = vllm_masks.without_ties(rows(device, kept))
    logits[0, 4], logits[0, 5] = torch.nan, INF
    found = masks(module, logits, [0, 1, 2], [1, 1], 20)
    assert found.sets() == kept
    assert found.token_ids.shape == (2, 4)


def test_drafts(module: Any, device: str) -> None:
    """A request has as many rows as drafts and one more; those that gave a token come first, in three places each."""
    kept = [[1], [2, 3], [4], [5], [6], [7, 8]]
    logits = vllm_masks.without_ties(rows(device, kept))
    found = masks(module, logits, [0, 3, 4, 6], [2, 1, 2], 2, 3)
    assert found.sets() == [[1], [2, 3], [], [5], [], [], [6], [7, 8], []]
    assert found.rows_per_request == 3


def test_masks_of_vllm_before_it_had_them_with_drafts(device: str) -> None:
    """A row is a request there."""
    before = types.SimpleNamespace(MAX_COMPACT_SUPPORT=4)
    fields = ("token_ids", "packed_mask", "counts", "vocab_size")
    before.SamplingMaskTensors = type("SamplingMaskTensors", (namedtuple("SamplingMaskTensors", fields),), {})
    before.SamplingMaskTensors.from_logits = classmethod(lambda *_: pytest.fail("it is replaced"))
    vllm_masks.install(before)
    logits = vllm_masks.without_ties(rows(device, [[3, 9, 17], [0, 1], [19, 2]]))
    found = before.SamplingMaskTensors.from_logits(logits, torch.tensor([1, 0, 1], device=device), 3)
    assert found.counts.tolist() == [3, 0, 2]
    assert [ids[:count].tolist() for ids, count in zip(found[0], found[2], strict=True)] == [[3, 9, 17], [], [2, 19]]


def test_a_vllm_without_masks() -> None:
    module = types.SimpleNamespace()
    vllm_masks.install(module)
    assert vars(module) == {}


def test_a_device_lists_without_a_wait(counting: None, module: Any, npu: str) -> None:
    """Nor is anything sent; what goes to the host later is as long as top-k, and no bitmask."""
    logits = vllm_masks.without_ties(torch.zeros(64, 32_000, device=npu))
    module.MAX_COMPACT_SUPPORT = 2048
    given = [torch.zeros(65, dtype=torch.int32, device=npu), torch.zeros(64, dtype=torch.int32, device=npu)]
    with hostcann.null_kernels():
        module.SamplingMaskTensors.from_logits(logits, *given, 50)
        with hostcann.profile() as counted:
            found = module.SamplingMaskTensors.from_logits(logits, *given, 50)
    assert (counted.totals.waits, dict(counted.copies)) == (0, {})
    assert counted.totals.launches <= 21
    assert sum(each.nbytes for each in found[:3]) == 64 * (4 * 50 + 4)
