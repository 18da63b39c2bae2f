"""aclnnApplyTopKTopP at CANN's C interface: what it keeps, and what phase 1 and the kernel refuse."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.support.cann import TASK_FAILED, abi
from tests.support.isolation import own_process

from .sampler import Device, Tensor, check_refused

NULL_ARGUMENT, INVALID, NO_KERNEL = 161001, 161002, 561003
ROWS = [[3.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
INF = np.inf


@dataclass
class Arguments:
    """The arguments of phase 1: tensors, of which each may be None for a null pointer."""

    logits: Any
    p: Any
    k: Any
    out: Any

    operator = "aclnnApplyTopKTopP"

    def in_order(self) -> list[object]:
        """As phase 1 takes them."""
        return [self.logits, self.p, self.k, self.out]


def arguments_of(device: Device, p: list[float] | None, k: list[int] | None, dtype: str = "float32") -> Arguments:
    return Arguments(
        logits=device.tensor(ROWS, dtype),
        p=None if p is None else device.tensor(p, dtype),
        k=None if k is None else device.tensor(k, "int32"),
        out=device.output(dtype, (2, 4)),
    )


def run(device: Device, arguments: Arguments) -> np.ndarray:
    assert device.launch(device.plan(arguments)) == abi.SUCCESS
    assert device.synchronize() == abi.SUCCESS
    out: np.ndarray = arguments.out.numpy()
    return out


def test_each_filter_alone_and_both(device: Device) -> None:
    for p, k, kept in (
        (None, [2, 4], [[3, 1, 1, -INF], [0, 0, 0, 0]]),
        ([0.75, 0.5], None, [[3, -INF, -INF, -INF], [-INF, -INF, 0, 0]]),
        ([0.85, 0.0], [3, 1], [[3, -INF, 1, -INF], [-INF, -INF, -INF, 0]]),
    ):
        for dtype in ("float32", "float16"):
            assert run(device, arguments_of(device, p, k, dtype)).tolist() == kept


def test_views(device: Device) -> None:
    """Of logits that are transposed, and of an output with gaps."""
    transposed = device.tensor(np.array(ROWS).T, "float32", shape=(2, 4), strides=(1, 2))
    out = device.view(device.buffer(2 * 9 * 4), "float32", (2, 4), strides=(9, 2))
    arguments = replace(arguments_of(device, [0.5, 0.25], None), logits=transposed, out=out)
    assert run(device, arguments).tolist() == [[3, -INF, -INF, -INF], [-INF, -INF, -INF, 0]]


def test_phase_1_refuses(device: Device) -> None:
    good = arguments_of(device, [0.5, 0.5], [2, 2])
    wide: Tensor = device.output("float32", (2, 5))
    for status, words, changes in (
        (NULL_ARGUMENT, "p and k", {"p": None, "k": None}),
        (NULL_ARGUMENT, "logits", {"logits": None}),
        (NULL_ARGUMENT, "out", {"out": None}),
        (INVALID, "logits", {"logits": device.tensor(ROWS, "int32")}),
        (INVALID, "k must be int32", {"k": device.tensor([2.0, 2.0], "float32")}),
        (INVALID, "p must have the data type", {"p": device.tensor([0.5, 0.5], "float16")}),
        (INVALID, "out must have the data type", {"out": device.output("float16", (2, 4))}),
        (INVALID, "out must have shape", {"out": wide}),
        (INVALID, "p must have shape", {"p": device.tensor([0.5], "float32")}),
        (INVALID, "k must have shape", {"k": device.tensor([2, 2, 2], "int32")}),
    ):
        message = check_refused(replace(good, **changes), status, words)  # type: ignore[arg-type]
        assert message.startswith("aclnnApplyTopKTopP: ")


@own_process(HOSTCANN_SOC="Ascend310P3")
def test_phase_1_on_another_soc() -> None:
    with Device() as device:
        check_refused(arguments_of(device, [0.5, 0.5], None), NO_KERNEL, "Ascend310P3")  # type: ignore[arg-type]


@pytest.mark.hostcann_only
@own_process()
def test_a_k_beside_the_row_fails() -> None:
    """A device reads memory of others there, up to CANN 9.2."""
    with Device() as device:
        for k in (0, -1, 5):
            assert device.launch(device.plan(arguments_of(device, None, [2, k]))) == abi.SUCCESS  # type: ignore[arg-type]
            assert device.synchronize() == TASK_FAILED
            device.reset()
