"""Which ranks are gone: processes that run, that have ended, and whose numbers are somebody else's now."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.sampling.vocabulary_parallel import ProcessGroupExchange, exchange, presence
from ascend_sample.sampling.vocabulary_parallel.presence import Presence, Process, own_numbers, this_process


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "WAIT_SECONDS", 0.1)


def process_of(other: subprocess.Popen[bytes]) -> Process:
    found = presence._state_and_start(other.pid)
    assert found is not None
    return Process(this_process().place, other.pid, found[1])


def said_of(*processes: Process) -> str:
    return Presence(torch.tensor([this_process(), *processes])).after_failure()


def test_a_process_that_has_ended_is_gone(other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    process = process_of(other)
    assert said_of(process) == ", though the processes of all ranks are there"
    monkeypatch.setattr(presence, "WAIT_SECONDS", 2.0)  # it takes a moment
    other.kill()
    assert said_of(process) == ", and rank 1 is gone"  # nobody has asked how it has ended
    other.wait()
    assert said_of(process, process) == ", and ranks 1, 2 are gone"


def test_a_number_that_is_used_again_is_another_process(other: subprocess.Popen[bytes]) -> None:
    process = process_of(other)
    assert said_of(process._replace(started=process.started - 1)) == ", and rank 1 is gone"


def test_processes_of_other_places_are_not_looked_for(other: subprocess.Popen[bytes]) -> None:
    process = process_of(other)
    elsewhere = process._replace(place=process.place ^ 1, number=2**22 + 1)
    says = ", and rank 2 is where nobody here can look, while all others are there"
    assert said_of(process, elsewhere) == says
    other.kill()
    other.wait()
    assert said_of(process, elsewhere) == ", and rank 1 is gone"


@pytest.mark.parametrize("tells_of_processes", [False, True])
def test_without_a_system_that_tells_nobody_is_gone(
    tells_of_processes: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    if tells_of_processes:  # and of no host
        (tmp_path / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
    monkeypatch.setattr(presence, "PROCESSES", tmp_path)
    assert own_numbers()[0] == presence.UNKNOWN
    assert said_of(this_process()) == ", and ranks 0, 1 are where nobody here can look, while all others are there"


def test_a_failed_collective_says_who_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of two, the second of which is this process again; of the first collective nobody is known yet."""
    sent: list[int] = []
    fails = False

    def gather(into: Tensor, message: Tensor, group: object) -> None:
        if fails:
            raise RuntimeError("Connection closed by peer")
        sent.append(len(message))
        into.copy_(message.repeat(2))

    monkeypatch.setattr(exchange.dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(exchange.dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(exchange, "gather_into", gather)
    ranks = ProcessGroupExchange(None)
    for length in (3, 8):
        message = torch.arange(length, dtype=torch.uint8)
        assert torch.equal(ranks.all_gather(message), message.repeat(2, 1))
    assert sent == [3 + 24, 8], "the first message has the process, too"
    fails = True
    for known, says in ((ranks, ", though the processes of all ranks are there"), (ProcessGroupExchange(None), "")):
        with pytest.raises(RuntimeError, match=f"got a failed collective on rank 0 of 2{says}: Connection closed"):
            known.all_gather(message)
