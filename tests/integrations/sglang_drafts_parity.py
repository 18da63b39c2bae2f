"""Drafts inside SGLang: its own `eagle_sample` with the plugin installed, beside plain decoding by its own `Sampler`.

`nox -s integrations` runs this in an environment that has SGLang; there is no device in it, so SGLang has no kernel
that follows a tree: one in Python does it here. `sglang_npu.py` does the same on the emulated NPU.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
import torchvision_without_cuda  # noqa: F401  before SGLang
from sglang.srt.layers import sampler as sglang_sampler
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.speculative import eagle_utils
from torch import Tensor

from ascend_sample.integrations import sglang as adapter
from tests.integrations.drafting_trees import REQUESTS, TreeChecks, Trees, follow

eagle_utils.verify_tree_greedy_func = follow  # before the adapter puts its own around it


@pytest.fixture(scope="module")
def sglang() -> Iterator[Any]:
    adapter.register()
    group = types.SimpleNamespace(device_group=None, world_size=1)
    context = get_context().override_server_args(sampling_backend=adapter.BACKEND)
    with context, get_parallel().override(tp_group=group):
        sampler = sglang_sampler.create_sampler()

        def sample(logits: Tensor, info: Any, positions: Tensor) -> Tensor:
            output = LogitsProcessorOutput(next_token_logits=logits)
            return sampler(output, info, False, [0] * len(logits), [None] * len(logits), positions)

        def verify(*arguments: Any) -> Any:
            return eagle_utils.eagle_sample(*arguments)

        yield sample, verify, SamplingBatchInfo


class TestInSglang(TreeChecks):
    """All that must hold, of SGLang's own functions."""


def test_greedy_batches_and_other_backends_stay_sglangs(sglang: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "drawn_with", lambda *arguments, **named: pytest.fail("it draws"))
    trees = Trees(*sglang)
    trees.info.is_all_greedy = True
    trees.decode(False, [[]] * len(REQUESTS))
    assert trees.info.top_ks[1:2].tolist() == [1]
