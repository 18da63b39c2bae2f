"""What the tests of the sampling layer share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import hostcann
from tests.support.emulation import keep_busy


@pytest.fixture(params=["delayed", "lazy"])
def late(accelerator: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A device whose copies are made long after they were asked for; a GPU begins with a long sleep."""
    if accelerator == "npu" and not hostcann.is_active():
        pytest.skip("a real NPU cannot be made late")
    device = torch.get_device_module(accelerator)
    device.synchronize()
    if accelerator == "npu":
        hostcann.set_stream_mode(request.param)
    else:
        keep_busy(accelerator)
    yield accelerator
    device.synchronize()
    if accelerator == "npu":
        hostcann.set_stream_mode("normal")
