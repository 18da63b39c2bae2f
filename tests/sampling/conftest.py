"""What the tests of the sampling layer share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ascend_sample import hostcann


@pytest.fixture(params=["delayed", "lazy"])
def late(npu: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A device whose copies are made long after they were asked for."""
    if not hostcann.is_active():
        pytest.skip("only the emulated device can be made late")
    torch.npu.synchronize()
    hostcann.set_stream_mode(request.param)
    yield npu
    torch.npu.synchronize()
    hostcann.set_stream_mode("normal")
