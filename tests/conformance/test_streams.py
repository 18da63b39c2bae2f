"""Streams: order, modes, errors that come late, messages that belong to a thread."""

import threading

import numpy as np
import pytest

from . import control
from .cann import Arguments, Device, abi, acl, check, ffi, phase_1, recent_message
from .hand_worked import MIXED, NO_P, SCENARIOS
from .isolation import own_process

MODES = ("normal", "delayed", "delayed:20", "lazy")


def run_all(device: Device) -> tuple[list[int], np.ndarray]:
    """The scenarios that draw, launched one by one without a synchronisation between them."""
    rows = [row for row in SCENARIOS if row.q is not None]
    batches = [device.arguments([row.logits], [row.k], [row.p], [row.q]) for row in rows]
    for arguments in batches:
        check(device.launch(device.plan(arguments)), "aclnnTopKTopPSample")
    check(device.synchronize(), "aclrtSynchronizeStream")
    tokens = [int(arguments.ids.numpy()[0]) for arguments in batches if arguments.ids is not None]
    kept = np.concatenate([arguments.kept.numpy() for arguments in batches if arguments.kept is not None])
    assert tokens == [row.token for row in rows]
    return tokens, kept


def run_all_in_a_process() -> None:
    """For a mode set by the environment."""
    with Device() as device:
        run_all(device)
    control.check_violations()


@pytest.mark.hostcann_only
@pytest.mark.parametrize("mode", MODES)
@own_process()
def test_modes_give_the_same_results(mode: str) -> None:
    control.set_stream_mode(mode)
    run_all_in_a_process()


test_delayed_by_environment = pytest.mark.hostcann_only(
    own_process(HOSTCANN_STREAM_MODE="delayed:20")(run_all_in_a_process)
)
test_lazy_by_environment = pytest.mark.hostcann_only(own_process(HOSTCANN_STREAM_MODE="lazy")(run_all_in_a_process))


@pytest.mark.hostcann_only
@own_process(HOSTCANN_STREAM_MODE="lazy")
def test_lazy_runs_nothing_before_a_synchronisation() -> None:
    with Device() as device:
        arguments = device.arguments([MIXED], [4], [NO_P])
        assert arguments.ids is not None
        unwritten = -5
        arguments.ids.buffer.write(np.array([unwritten]))
        check(device.launch(device.plan(arguments)), "aclnnTopKTopPSample")
        assert arguments.ids.numpy().tolist() == [unwritten]
        check(device.synchronize(), "aclrtSynchronizeStream")
        assert arguments.ids.numpy().tolist() == [1]


def test_tasks_of_a_stream_run_in_order(device: Device) -> None:
    batches = [device.arguments([row], [1], [NO_P]) for row in ([9.0, 0.0], [0.0, 9.0])]
    ids = batches[0].ids
    assert ids is not None
    batches[1].ids = ids
    for order in ((0, 1), (1, 0), (0, 1, 0, 1)):
        for index in order:
            check(device.launch(device.plan(batches[index])), "aclnnTopKTopPSample")
        check(device.synchronize(), "aclrtSynchronizeStream")
        assert ids.numpy().tolist() == [order[-1]]


def test_default_stream(device: Device) -> None:
    arguments = device.arguments([MIXED], [4], [NO_P])
    check(device.launch(device.plan(arguments), stream=ffi.NULL), "aclnnTopKTopPSample")
    check(acl.aclrtSynchronizeStream(ffi.NULL), "aclrtSynchronizeStream")
    assert arguments.ids is not None
    assert arguments.ids.numpy().tolist() == [1]


def test_device_synchronisation_waits_for_every_stream(device: Device) -> None:
    streams = [device.create_stream() for _ in range(3)]
    batches = [device.arguments([MIXED], [4], [NO_P]) for _ in streams]
    for stream, arguments in zip(streams, batches, strict=True):
        check(device.launch(device.plan(arguments), stream=stream), "aclnnTopKTopPSample")
    check(acl.aclrtSynchronizeDevice(), "aclrtSynchronizeDevice")
    for stream, arguments in zip(streams, batches, strict=True):
        assert arguments.ids is not None
        assert arguments.ids.numpy().tolist() == [1]
        check(acl.aclrtDestroyStream(stream), "aclrtDestroyStream")


def test_message_belongs_to_its_thread_and_is_read_once(device: Device) -> None:
    nothing = Arguments(None, None, None, None, None, None)
    assert phase_1(nothing).status != abi.SUCCESS
    seen: list[str] = []

    def other_thread() -> None:
        check(acl.aclrtSetDevice(0), "aclrtSetDevice")
        seen.append(recent_message())
        assert phase_1(nothing).status != abi.SUCCESS
        seen.append(recent_message())
        seen.append(recent_message())

    thread = threading.Thread(target=other_thread)
    thread.start()
    thread.join()
    assert [bool(message) for message in seen] == [False, True, False]
    assert recent_message() != ""
    assert recent_message() == ""
    del device


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
