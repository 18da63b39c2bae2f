"""What the tests of the sampling layer share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ascend_sample import hostcann

SLEEPING_CYCLES = 200_000_000
"""Of a GPU's clock: some 0.1 s, in which a host queues many steps."""


@pytest.fixture(params=["delayed", "lazy"])
def late(accelerator: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A device whose copies are made long after they were asked for; a GPU begins with a long sleep."""
    if accelerator == "npu" and not hostcann.is_active():
        pytest.skip("a real NPU cannot be made late")
    device = torch.get_device_module(accelerator)
    device.synchronize()
    if accelerator == "npu":
        hostcann.set_stream_mode(request.param)
    elif request.param != "normal":
        device._sleep(SLEEPING_CYCLES)
    yield accelerator
    device.synchronize()
    if accelerator == "npu":
        hostcann.set_stream_mode("normal")
