"""The tests of `sglang_backend.py` and `sglang_drafts_parity.py` on the emulated NPU, one of SGLang's platforms.

`make test-integrations` runs this in an environment that has SGLang and torch_npu; there is no NPU in it.
"""

from __future__ import annotations

from tests.integrations import emulated_npu  # isort: skip  before torch
import torchvision_without_cuda  # noqa: F401  # isort: skip  before SGLang

from sglang.srt.utils import is_npu

from tests.integrations import drafting_trees, sglang_backend
from tests.integrations.sglang_backend import *  # noqa: F403  the tests, and their fixture
from tests.integrations.sglang_drafts_parity import *  # noqa: F403  as well

sglang_backend.DEVICE = drafting_trees.DEVICE = emulated_npu.NPU


def test_sglang_runs_on_it() -> None:
    assert is_npu()
    assert sglang_backend.logits().device.type == "npu"
