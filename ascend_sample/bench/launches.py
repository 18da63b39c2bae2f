"""Times what a launch costs: an operator that torch calls, and the same one in a graph that is replayed.

A host hands work over and goes on, so there are two times of each: until the host had handed all over, and until the
device had done it. A step whose launches take a host longer to hand over than a device to do waits for its host.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import torch

GRAPHS: Final = {"npu": "NPUGraph", "cuda": "CUDAGraph"}
"""What holds work of a device, by the device: a class of the module that torch has for it."""
ELEMENTS: Final = 1024
IN_A_ROW: Final = 1000
"""Additions before the device is waited for, so that the wait is no part of what one takes."""
NODES: Final = (1, 100)
"""Additions of the graphs: the first is a replay's own cost, in the second they share it."""


def has_graphs(device: torch.device) -> bool:
    """Tells whether torch can capture work of a device: an older torch_npu has no NPUGraph, and a CPU has none."""
    return device.type in GRAPHS and hasattr(torch.get_device_module(device), GRAPHS[device.type])


def capture(call: Callable[[], object], device: torch.device) -> Any:
    """Returns a graph of what a call launches on a device that `has_graphs`."""
    module = torch.get_device_module(device)
    call()  # what is looked up or allocated once is no part of the graph
    module.synchronize()
    graph = getattr(module, GRAPHS[device.type])()
    with module.graph(graph):
        call()
    return graph


def print_launches(device: str, rounds: int) -> None:
    """Prints what an addition costs that torch calls, and one in a graph.

    Args:
        device: "cpu", "npu", or another that torch can use.
        rounds: how often each is timed.
    """
    place = torch.device(device)
    wait: Callable[[], None] = torch.get_device_module(place).synchronize
    calls = _calls(place)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, (call, additions) in calls.items():
            samples[name].append(_time(call, IN_A_ROW // additions, wait))
    print(f"an addition of {ELEMENTS} numbers, {IN_A_ROW} in a row; medians in us of one addition")
    print(f"{'':36}{'handed over':>12}{'done':>12}")
    for name, (_, additions) in calls.items():
        times = (statistics.median(column) / additions * 1e6 for column in zip(*samples[name][1:], strict=True))
        print(f"{name:36}" + "".join(f"{each:>12.3f}" for each in times))
    if not has_graphs(place):
        print(f"no graph is replayed: torch.{place.type} has no {GRAPHS.get(place.type, 'graph')}")


def _calls(device: torch.device) -> dict[str, tuple[Callable[[], object], int]]:
    """Returns what is timed, by name: a call, and how many additions it is."""
    numbers = torch.zeros(ELEMENTS, device=device)

    def add(times: int = 1) -> None:
        for _ in range(times):
            torch.add(numbers, numbers)

    calls: dict[str, tuple[Callable[[], object], int]] = {"torch calls it": (add, 1)}
    if has_graphs(device):
        for nodes in NODES:
            graph = capture(functools.partial(add, nodes), device)
            calls[f"a graph of {nodes} is replayed"] = (graph.replay, nodes)
    return calls


def _time(call: Callable[[], object], times: int, wait: Callable[[], None]) -> tuple[float, float]:
    """Returns seconds of one of so many calls in a row: until the last one returned, and until the device was done."""
    wait()
    began = time.perf_counter()
    for _ in range(times):
        call()
    returned = time.perf_counter()
    wait()
    return (returned - began) / times, (time.perf_counter() - began) / times
