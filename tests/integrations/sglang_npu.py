"""The tests of `sglang_backend.py` on the emulated NPU, where SGLang takes it for one of its platforms.

`make test-integrations` runs this in an environment that has SGLang and torch_npu; there is no NPU in it.
"""

from __future__ import annotations

from tests.integrations import emulated_npu  # isort: skip  before torch
import torchvision_without_cuda  # noqa: F401  # isort: skip  before SGLang

from sglang.srt.utils import is_npu

from tests.integrations import sglang_backend
from tests.integrations.sglang_backend import *  # noqa: F403  the tests, and their fixture

sglang_backend.DEVICE = emulated_npu.NPU


def test_sglang_runs_on_it() -> None:
    assert is_npu()
    assert sglang_backend.logits().device.type == "npu"
