"""Launches on streams: their order in each mode, on the default stream, from many threads."""

import threading

import numpy as np
import pytest

from tests.support.isolation import own_process

from . import control
from .cann import Device, acl, check, ffi
from .hand_worked import MIXED, NO_P, SCENARIOS


@pytest.mark.hostcann_only
@own_process(HOSTCANN_STREAM_MODE="lazy")
def test_modes_give_the_same_results() -> None:
    """The scenarios that draw, launched one by one without a synchronisation between them."""
    rows = [row for row in SCENARIOS if row.q is not None]
    with Device() as device:
        for mode in (None, "normal", "delayed", "delayed:20", "lazy"):
            if mode is not None:  # the environment's comes first
                control.set_stream_mode(mode)
            batches = [device.arguments([row.logits], [row.k], [row.p], [row.q]) for row in rows]
            for arguments in batches:
                arguments.ids.buffer.write(np.array([-5]))
                check(device.launch(device.plan(arguments)), "aclnnTopKTopPSample")
            if mode is None or mode == "lazy":
                assert [arguments.ids.numpy().tolist() for arguments in batches] == [[-5]] * len(rows)
            check(device.synchronize(), "aclrtSynchronizeStream")
            tokens = [int(arguments.ids.numpy()[0]) for arguments in batches]
            assert tokens == [row.token for row in rows]
    control.check_violations()


def test_tasks_of_a_stream_run_in_order(device: Device) -> None:
    batches = [device.arguments([row], [1], [NO_P]) for row in ([9.0, 0.0], [0.0, 9.0])]
    ids = batches[0].ids
    batches[1].ids = ids
    for order in ((0, 1), (1, 0), (0, 1, 0, 1)):
        for index in order:
            check(device.launch(device.plan(batches[index])), "aclnnTopKTopPSample")
        check(device.synchronize(), "aclrtSynchronizeStream")
        assert ids.numpy().tolist() == [order[-1]]


def test_device_synchronisation_waits_for_every_stream(device: Device) -> None:
    streams = [ffi.NULL, *(device.create_stream() for _ in range(3))]
    batches = [device.arguments([MIXED], [4], [NO_P]) for _ in streams]
    for stream, arguments in zip(streams, batches, strict=True):
        check(device.launch(device.plan(arguments), stream=stream), "aclnnTopKTopPSample")
    check(acl.aclrtSynchronizeDevice(), "aclrtSynchronizeDevice")
    assert [arguments.ids.numpy().tolist() for arguments in batches] == [[1]] * 4
    for stream in streams[1:]:
        check(acl.aclrtDestroyStream(stream), "aclrtDestroyStream")


def test_threads_share_a_stream(device: Device) -> None:
    results: list[list[int]] = []

    def work() -> None:
        check(acl.aclrtSetDevice(0), "aclrtSetDevice")
        for _ in range(5):
            ids, _ = device.run(device.arguments([MIXED], [4], [NO_P]))
            results.append(ids.tolist())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[1]] * 20
