"""The tests of `sglang_backend.py` and `sglang_drafts_parity.py` on the emulated NPU, one of SGLang's platforms.

`nox -s integrations` runs this in an environment that has SGLang and torch_npu; there is no NPU in it.
"""

from __future__ import annotations

from tests.integrations import emulated_npu  # isort: skip  before torch
import torchvision_without_cuda  # noqa: F401  # isort: skip  before SGLang

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.utils import is_npu
from torch import Tensor

import hostcann
from tests.integrations import drafting_trees, sglang_backend
from tests.integrations.sglang_backend import *  # noqa: F403  the tests, and their fixture
from tests.integrations.sglang_drafts_parity import *  # noqa: F403  as well

sglang_backend.DEVICE = drafting_trees.DEVICE = emulated_npu.NPU
ROWS, COLUMNS, MOST_LAUNCHES = 16, 32000, 14
ASKED = ({"top_k": 20, "temperature": 0.7}, {"top_k": 50, "top_p": 0.9}, {"temperature": 0.0}, {"top_k": 7, "n": 2})


def test_sglang_runs_on_it() -> None:
    assert is_npu()
    assert sglang_backend.logits().device.type == "npu"


class Batch(SimpleNamespace):
    """SGLang refers to it weakly."""


def requests() -> SamplingBatchInfo:
    """A batch as SGLang's scheduler makes it, of requests of which most have a seed."""
    reqs = []
    for row in range(ROWS):
        params = SamplingParams(**ASKED[row % 4], sampling_seed=row)
        params.normalize(None)
        reqs.append(SimpleNamespace(sampling_params=params, custom_logit_processor=None, return_sampling_mask=False))
    batch = Batch(reqs=reqs, device=emulated_npu.NPU)
    return SamplingBatchInfo.from_schedule_batch(batch, COLUMNS)


@pytest.fixture
def step_of(sampler: Any) -> Callable[[SamplingBatchInfo, int, bool], Callable[[], Tensor]]:
    """Returns what samples a decode step with SGLang's runner, of a batch at a position that the host knows or not."""
    from sglang.srt.model_executor.model_runner import ModelRunner

    runner = SimpleNamespace(
        sampling_observer=None,
        watermark_state=None,
        sampler=sampler,
        _preprocess_logits=lambda *arguments: None,
        ngram_embedding_manager=SimpleNamespace(update_after_decode=lambda **named: None),
    )

    def prepared(info: SamplingBatchInfo, position: int, is_known: bool) -> Callable[[], Tensor]:
        logits = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(position)) * 2
        lengths = torch.arange(ROWS) + position + 1
        batch = SimpleNamespace(
            sampling_info=info,
            seq_lens_cpu=lengths if is_known else None,
            positions=(lengths - 1).to(emulated_npu.NPU),
            forward_mode=SimpleNamespace(is_decode=lambda: True),
            return_logprob=False,
            top_logprobs_nums=[0] * ROWS,
            token_ids_logprobs=[None] * ROWS,
        )
        output = LogitsProcessorOutput(next_token_logits=logits.to(emulated_npu.NPU))
        return partial(ModelRunner.sample, runner, output, batch)

    return prepared


def test_a_step_of_the_runner(step_of: Any) -> None:
    """The host makes its noise, and nothing is waited for."""
    info = requests()
    for position in range(5):
        assert step_of(info, position, True)().tolist() == step_of(info, position, False)().tolist()
    step = step_of(info, 9, True)
    with hostcann.profile() as counted:
        step()
    assert not counted.synchronizations
    assert counted.totals.launches <= MOST_LAUNCHES
