"""What the tests of the NPU path share: the two bindings in turn, and a hostcann that is left as it was found."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

import ascend_sample
from ascend_sample import hostcann
from ascend_sample.npu.operators import OPERATORS

from .batches import SAMPLE, use_operator

ROUTES = ("aclnn", "cffi")
EACH_ROUTE = [
    pytest.param((route, operator), id=route if operator == SAMPLE else f"{route} V2")
    for operator, route in itertools.product(OPERATORS, ROUTES)
]


@pytest.fixture(params=EACH_ROUTE)
def route(npu: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Each binding in turn, forced, for each of the operators."""
    binding, operator = request.param
    with ascend_sample.use_backend(binding), use_operator(operator):
        yield str(binding)


@pytest.fixture
def emulated(npu: str) -> Iterator[None]:
    """For tests that need hostcann's faults, modes or counters."""
    if not hostcann.is_active():
        pytest.skip("the NPU is a real one: nothing can be injected or counted")
    yield
    hostcann.clear_faults()
    hostcann.set_stream_mode("normal")
    torch.npu.synchronize()
