"""Notices when other processes, or other guests of the machine, took processor time from a measurement."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STATISTICS = Path("/proc/stat")
_IDLE_FIELDS = (3, 4)  # idle, and idle while waiting for a disk
_GUEST_FIELDS = (8, 9)  # counted in user and nice already
MOST_DISTURBED = 0.05
"""A measurement during which others had a larger share of the processors than this is worth repeating."""


class Watch:
    """Runs from its creation on."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._own = time.process_time()
        self._busy = _busy_seconds()

    def share_of_others(self) -> float | None:
        """The share of all processors' time that this process neither used nor left idle; None where nobody counts it.

        The counters tick every 10 ms: it means nothing after less than some tenths of a second.
        """
        now = _busy_seconds()
        if now is None or self._busy is None:
            return None
        capacity = (time.perf_counter() - self._began) * (os.cpu_count() or 1)
        others = (now - self._busy) - (time.process_time() - self._own)
        return min(1.0, max(0.0, others / capacity))


def _busy_seconds() -> float | None:
    """Of all processors since the machine started, with what other guests of its host took; None but on Linux."""
    if not _STATISTICS.exists():
        return None
    with _STATISTICS.open() as lines:
        ticks = [int(field) for field in next(lines).split()[1:]]
    busy = sum(value for place, value in enumerate(ticks) if place not in (*_IDLE_FIELDS, *_GUEST_FIELDS))
    return busy / os.sysconf("SC_CLK_TCK")
