"""For tests that need the emulated NPU: they inject faults, set modes or read counters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ascend_sample import hostcann


def emulation() -> Iterator[None]:
    """The body of a fixture: skips on a real NPU, and leaves hostcann as it was found."""
    if not hostcann.is_active():
        pytest.skip("the NPU is a real one: nothing can be injected or counted")
    yield
    hostcann.clear_faults()
    hostcann.set_stream_mode("normal")
