"""What the tests of the NPU path share: the two bindings in turn, and a hostcann that is left as it was found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import ascend_sample
from ascend_sample import hostcann

ROUTES = ("aclnn", "cffi")


@pytest.fixture(params=ROUTES)
def route(npu: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Each binding in turn, forced."""
    with ascend_sample.use_backend(request.param):
        yield str(request.param)


@pytest.fixture
def emulated(npu: str) -> Iterator[None]:
    """For tests that need hostcann's faults, modes or counters."""
    if not hostcann.is_active():
        pytest.skip("the NPU is a real one: nothing can be injected or counted")
    yield
    hostcann.clear_faults()
    hostcann.set_stream_mode("normal")
    torch.npu.synchronize()
