"""For tests of what a device makes, and of who waits for it: an emulated NPU, or another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import hostcann


def assert_same_numbers(found: Tensor, expected: Tensor, device: str) -> None:
    """Bit for bit; within 1e-6 on a GPU, where torch adds up a row in an order that depends on how many there are."""
    if found.dtype != torch.float32:
        assert torch.equal(found, expected)
    elif device == "cuda":
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, equal_nan=True)
    else:
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


SLEEPING_CYCLES = 200_000_000
"""Of a GPU's clock: some 0.1 s, in which a host queues many steps."""


def keep_busy(accelerator: str) -> None:
    """Lets a GPU sleep, so that what it is given next comes late; the emulated device has modes for that."""
    if accelerator == "cuda":
        torch.cuda._sleep(SLEEPING_CYCLES)  # type: ignore[no-untyped-call]


@contextmanager
def nobody_waits(accelerator: str, copies_back: bool = False) -> Iterator[hostcann.Profile | None]:
    """Notices who waits for the device inside: the emulated one counts, and torch raises for CUDA's.

    Args:
        accelerator: the device.
        copies_back: something may be copied to the host, as long as nobody waits for that.

    Returns:
        What the emulated device counts; None for another.
    """
    if accelerator == "cuda":
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield None
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return
    if not hostcann.is_active():
        pytest.skip("a real NPU does not count who waits for it")
    with hostcann.profile() as counted:
        yield counted
    assert sum(counted.synchronizations.values()) == 0, counted
    assert copies_back or counted.copies.get("d2h", 0) == 0
