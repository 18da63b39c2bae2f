"""The real torch_npu on top of hostcann: copies, streams, graphs and errors, each in a process of its own."""

from __future__ import annotations

import pytest
import torch

import hostcann
from tests.support.isolation import run_isolated

pytestmark = pytest.mark.usefixtures("npu")


def check_copies_streams_and_events() -> list[int]:
    """Returns what is left on the device."""
    side, done = torch.npu.Stream(), torch.npu.Event()
    pinned = torch.arange(8.0).pin_memory()
    a, b = torch.empty(8, device="npu"), torch.empty(8, device="npu")
    a.copy_(pinned, non_blocking=True)
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        b.copy_(a)
        done.record()
    done.synchronize()
    assert done.query()
    assert b.cpu().tolist() == list(range(8))
    begin, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    begin.record()
    a.copy_(b)
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) >= 0
    del a, b
    torch.npu.empty_cache()
    return [hostcann.live()["block"], torch.npu.memory_allocated()]


@pytest.mark.parametrize(
    ("mode", "queue"),
    [
        ("lazy", "1"),
        pytest.param("delayed:3", "0", marks=pytest.mark.long),
        pytest.param("normal", "2", marks=pytest.mark.long),
    ],
)
def test_copies_streams_and_events(mode: str, queue: str) -> None:
    finished = run_isolated(check_copies_streams_and_events, HOSTCANN_STREAM_MODE=mode, TASK_QUEUE_ENABLE=queue)
    finished.check_clean()
    assert finished.result == [0, 0]


def check_a_graph_replays() -> None:
    for mode in ("normal", "lazy"):
        hostcann.set_stream_mode(mode)
        pinned, a, b = torch.ones(4).pin_memory(), torch.empty(4, device="npu"), torch.empty(4, device="npu")
        graph, side = torch.npu.NPUGraph(), torch.npu.Stream()
        with torch.npu.graph(graph):
            a.copy_(pinned, non_blocking=True)
            side.wait_stream(torch.npu.current_stream())
            with torch.npu.stream(side):
                b.copy_(a)
            torch.npu.current_stream().wait_stream(side)
        for value in (2.0, 3.0):
            pinned.fill_(value)
            graph.replay()
            torch.npu.synchronize()
            assert b.cpu().tolist() == [value] * 4
        with hostcann.profile() as counted:
            graph.replay()
        assert (counted.replays, counted.synchronizations) == (1, {})
        torch.npu.synchronize()


def test_a_graph_replays() -> None:
    run_isolated(check_a_graph_replays).check_clean()


def check_out_of_memory() -> None:
    """It becomes torch's own error, which can be survived; so does what is injected into torch_npu's own call."""
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(100 << 20, dtype=torch.uint8, device="npu")
    assert torch.ones(3).npu().cpu().sum().item() == 3
    hostcann.set_memory_capacity(1 << 30)
    assert torch.empty(100 << 20, dtype=torch.uint8, device="npu").numel() == 100 << 20
    for name in ("", "aclrtMallocAlign32"):
        hostcann.inject("malloc", name, count=10)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(200 << 20, dtype=torch.uint8, device="npu")
        hostcann.clear_faults()


def test_out_of_memory() -> None:
    run_isolated(check_out_of_memory, HOSTCANN_MEMORY="64M").check_clean()
