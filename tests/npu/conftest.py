"""What the tests of the NPU path share: the two bindings in turn."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator

import pytest

import ascend_sample

from .batches import SAMPLE, SAMPLE_RESULT, SAMPLE_V2, VARIANTS, use_variant

ROUTES = ("aclnn", "cffi")
LABELS = {SAMPLE: "", SAMPLE_V2: " V2", SAMPLE_RESULT: " V2 sample result"}


def each_route(*variants: str) -> list[object]:
    """The parameters of `route`: each binding for each variant."""
    return [
        pytest.param((route, variant), id=route + LABELS[variant])
        for variant, route in itertools.product(variants, ROUTES)
    ]


@pytest.fixture(params=each_route(*VARIANTS))
def route(npu: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Each binding in turn, forced, for each variant of a call."""
    binding, variant = request.param
    with ascend_sample.use_backend(binding), use_variant(variant):
        yield str(binding)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What earlier tests left to the garbage collector is gone, and it does not run: cycles of this test's calls are
    seen."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
