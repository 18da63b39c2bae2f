"""Which ranks are gone: each tells the others once which process it is, and after a failure they look whether it lives.

Only processes of the same host, and there of the same container, can be looked for; nothing is sent for it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

WAIT_SECONDS: Final = 1.0
"""A process closes its connections before it is gone."""
PAUSE_SECONDS: Final = 0.02
PROCESSES: Final = Path("/proc")
ENDED: Final = ("Z", "X")
"""States of a process that has ended, though its parent has not asked how."""
UNKNOWN: Final = 0


class Process(NamedTuple):
    """A process of a rank.

    Attributes:
        place: a digest of the host and the container in which its number means something; 0 where that is unknown.
        number: of the process there.
        started: when it was, in ticks of its host: a number may be used again.
    """

    place: int
    number: int
    started: int

    @property
    def is_alive(self) -> bool:
        """Tells whether it runs; it has to be of the same place as the caller."""
        found = _state_and_start(self.number)
        return found is not None and found[0] not in ENDED and found[1] == self.started


def this_process() -> Process:
    """Returns the caller's process; its place is 0 where the system does not tell of processes.

    Example:
        >>> this_process().number == os.getpid()
        True
    """
    number = os.getpid()
    found = _state_and_start(number)
    try:
        boot = (PROCESSES / "sys/kernel/random/boot_id").read_bytes()
        place = boot + os.readlink(PROCESSES / "self/ns/pid").encode()
    except OSError:  # a container may hide them
        found = None
    if found is None:
        return Process(UNKNOWN, number, UNKNOWN)
    digest = hashlib.blake2b(place, digest_size=8).digest()
    return Process(int.from_bytes(digest, "little", signed=True), number, found[1])


def _state_and_start(number: int) -> tuple[str, int] | None:
    """Returns the state of a process, and when it started; None where there is none."""
    try:
        line = (PROCESSES / str(number) / "stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = line.rpartition(")")[2].split()  # its name may have anything in it
    return fields[0], int(fields[19])


class Presence:
    """The processes of all ranks.

    Args:
        told: int64 [ranks, 3] on the CPU, of each rank what `own_numbers` returns there.

    Example:
        >>> Presence(own_numbers().view(1, 3)).after_failure()
        ', though the processes of all ranks are there'
    """

    def __init__(self, told: Tensor) -> None:
        self._processes = [Process(*numbers) for numbers in told.tolist()]
        self._own_place = this_process().place

    def after_failure(self) -> str:
        """Returns what is known of the ranks, as the end of a sentence; waits a moment for one that is about to end."""
        is_near = [process.place == self._own_place != UNKNOWN for process in self._processes]
        near = [rank for rank, is_here in enumerate(is_near) if is_here]
        end = time.monotonic() + WAIT_SECONDS
        while not (gone := [rank for rank in near if not self._processes[rank].is_alive]):
            if time.monotonic() >= end:
                break
            time.sleep(PAUSE_SECONDS)
        far = [rank for rank, is_here in enumerate(is_near) if not is_here]
        if gone:
            return f", and {_named(gone)} gone"
        if far:
            return f", and {_named(far)} where nobody here can look, while all others are there"
        return ", though the processes of all ranks are there"


def own_numbers() -> Tensor:
    """Returns what a rank tells the others of its process: int64 [3]."""
    return torch.tensor(this_process(), device="cpu")


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} are"
