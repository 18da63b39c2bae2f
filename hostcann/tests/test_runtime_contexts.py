"""Contexts, errors and graphs at the C level, each test in a process of its own."""

from collections.abc import Callable
from threading import Thread

from tests.support import cann
from tests.support.isolation import own_process


def in_a_thread(function: Callable[[], object]) -> object:
    found: list[object] = []
    thread = Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@own_process()
def test_calls_before_aclinit_and_without_a_context_are_refused() -> None:
    cann.fails(100001, "aclInit", "aclrtSetDevice", 0)
    cann.fails(107002, "aclrtSetDevice", "aclrtMalloc", cann.new(), 8, 0)
    cann.ok("aclInit", None)
    cann.fails(100002, "aclInit was called before", "aclInit", None)
    cann.fails(107001, "deviceId must be in [0, 1), got 1", "aclrtSetDevice", 1)
    cann.ok("aclrtSetDevice", 0)
    assert in_a_thread(lambda: cann.call("aclrtMalloc", cann.new(), 8, 0)) == 107002
    cann.ok("aclrtSetDevice", 0)
    cann.ok("aclrtResetDevice", 0)
    cann.malloc(8)
    cann.ok("aclrtResetDevice", 0)
    cann.fails(107002, "aclrtSetDevice", "aclrtMalloc", cann.new(), 8, 0)
    cann.ok("aclFinalize")
    cann.fails(100037, "aclInit was not called", "aclFinalize")


@own_process()
def test_a_message_belongs_to_its_thread_and_is_gone_once_read() -> None:
    cann.start()
    assert cann.recent_message() == ""
    cann.call("aclrtFree", cann.pointer(1))
    assert in_a_thread(cann.recent_message) == ""
    assert cann.acl.aclrtPeekAtLastError(0) == 107017
    assert "aclrtFree" in cann.recent_message()
    assert cann.recent_message() == ""
    assert cann.acl.aclrtGetLastError(0) == 107017
    assert cann.acl.aclrtPeekAtLastError(0) == 0


@own_process(HOSTCANN_STREAM_MODE="lazy")
def test_a_failed_task_fails_its_context_until_the_device_is_reset() -> None:
    cann.start()
    queue, other, done = cann.stream(), cann.stream(), cann.event()
    block, gone, data = cann.malloc(8), cann.malloc(8), cann.pinned(b"12345678")
    cann.copy(gone, data, 8, cann.H2D, queue)
    cann.ok("aclrtFree", gone)
    cann.copy(block, data, 8, cann.H2D, queue)
    cann.ok("aclrtRecordEvent", done, queue)
    for on in (queue, other):
        cann.fails(cann.TASK_FAILED, "aclrtMemcpyAsync", "aclrtSynchronizeStream", on)
    cann.fails(cann.TASK_FAILED, "takes no more work", "aclrtMemcpyAsync", block, 8, data, 8, cann.H2D, other)
    cann.fails(cann.TASK_FAILED, "aclrtMemcpyAsync", "aclrtSynchronizeEvent", done)
    assert cann.read(block, 8) == b"\xdb" * 8
    cann.check_violations("freed_operand")
    cann.ok("aclrtResetDeviceForce", 0)
    assert cann.live("stream") == cann.live("block") == 0
    cann.ok("aclrtSetDevice", 0)
    queue, block = cann.stream(), cann.malloc(8)
    cann.copy(block, data, 8, cann.H2D, queue)
    cann.ok("aclrtSynchronizeStream", queue)
    assert cann.read(block, 8) == b"12345678"


@own_process()
def test_what_is_not_emulated_says_so_by_name() -> None:
    cann.start()
    cann.fails(207000, "aclrtMallocPhysical: hostcann does not emulate", "aclrtMallocPhysical", None, 8, None, 0)
    cann.fails(207000, "ACL_STOP_ON_FAILURE", "aclrtSetStreamFailureMode", None, 0)


@own_process()
def test_a_captured_graph_runs_at_every_replay_and_not_before() -> None:
    cann.start()
    queue, side, elsewhere, fork, join = cann.stream(), cann.stream(), cann.stream(), cann.event(), cann.event()
    a, b, data = cann.malloc(8), cann.malloc(8), cann.pinned(b"first...")
    cann.ok("aclmdlRICaptureBegin", queue, 0)
    cann.copy(a, data, 8, cann.H2D, queue)
    cann.ok("aclrtRecordEvent", fork, queue)
    cann.ok("aclrtStreamWaitEvent", side, fork)
    cann.copy(b, a, 8, cann.D2D, side)
    cann.ok("aclrtRecordEvent", join, side)
    cann.ok("aclrtStreamWaitEvent", queue, join)
    graph = cann.new()
    cann.ok("aclmdlRICaptureEnd", queue, graph)
    cann.ok("aclrtSynchronizeDevice")
    assert cann.read(b, 8) == b"\xdb" * 8
    for text in (b"replay 1", b"replay 2"):
        cann.ffi.memmove(data, text, 8)
        cann.ok("aclmdlRIExecuteAsync", graph[0], elsewhere)
        cann.ok("aclrtSynchronizeStream", elsewhere)
        assert cann.read(b, 8) == text
    assert cann.counted("replay") == {"aclmdlRIExecuteAsync": 2}
    cann.ok("aclmdlRIDestroy", graph[0])
    cann.fails(107017, "the model is gone", "aclmdlRIExecuteAsync", graph[0], elsewhere)


@own_process()
def test_what_a_capture_cannot_hold_makes_it_invalid() -> None:
    cann.start()
    queue, side, done, block, data, graph = (
        cann.stream(),
        cann.stream(),
        cann.event(),
        cann.malloc(8),
        cann.pinned(b"12345678"),
        cann.new(),
    )

    def of_a_captured_event() -> None:
        cann.ok("aclrtRecordEvent", done, queue)
        cann.fails(107028, "captured", "aclrtSynchronizeEvent", done)

    def not_joined_back() -> None:
        cann.ok("aclrtRecordEvent", done, queue)
        cann.ok("aclrtStreamWaitEvent", side, done)
        cann.copy(block, data, 8, cann.H2D, side)

    for action, status in (
        (lambda: cann.fails(107027, "captured", "aclrtSynchronizeStream", queue), 507903),
        (lambda: cann.fails(107030, "capture", "aclrtSynchronizeDevice"), 507903),
        (lambda: cann.fails(107030, "capture", "aclrtMemset", block, 8, 0, 8), 507903),
        (lambda: cann.fails(107027, "pin it", "aclrtMemcpyAsync", block, 8, b"pageable", 8, cann.H2D, queue), 507903),
        (of_a_captured_event, 507903),
        (not_joined_back, 107025),
    ):
        cann.ok("aclmdlRICaptureBegin", queue, 0)
        cann.copy(block, data, 8, cann.H2D, queue)
        action()
        cann.fails(status, "the capture is invalid", "aclmdlRICaptureEnd", queue, graph)
        assert graph[0] == cann.ffi.NULL
        cann.copy(block, data, 8, cann.H2D, queue)
        cann.ok("aclrtSynchronizeDevice")
    cann.check_violations()


@own_process()
def test_a_relaxed_capture_or_thread_may_block() -> None:
    cann.start()
    queue, block, graph, relaxed = cann.stream(), cann.malloc(8), cann.new(), cann.ffi.new("int *", 2)
    cann.ok("aclmdlRICaptureBegin", queue, 2)
    cann.ok("aclrtMemset", block, 8, 0, 8)
    cann.ok("aclmdlRICaptureEnd", queue, graph)
    cann.ok("aclmdlRICaptureBegin", queue, 0)
    cann.ok("aclmdlRICaptureThreadExchangeMode", relaxed)
    assert relaxed[0] == 0
    cann.ok("aclrtMemset", block, 8, 0, 8)
    cann.ok("aclmdlRICaptureThreadExchangeMode", relaxed)
    assert relaxed[0] == 2
    cann.ok("aclmdlRICaptureEnd", queue, graph)
    cann.fails(107029, "not being captured", "aclmdlRICaptureEnd", queue, graph)


@own_process()
def test_tasks_of_a_group_are_replaced_between_replays() -> None:
    cann.start()
    queue, updates, block, graph, group = cann.stream(), cann.stream(), cann.malloc(8), cann.new(), cann.new()
    before, after = cann.pinned(b"captured"), cann.pinned(b"replaced")
    cann.ok("aclmdlRICaptureBegin", queue, 0)
    cann.fails(107031, "no task group", "aclmdlRICaptureTaskGrpEnd", queue, group)
    cann.ok("aclmdlRICaptureTaskGrpBegin", queue)
    cann.copy(block, before, 8, cann.H2D, queue)
    cann.ok("aclmdlRICaptureTaskGrpEnd", queue, group)
    cann.ok("aclmdlRICaptureEnd", queue, graph)

    def replayed() -> bytes:
        cann.ok("aclmdlRIExecuteAsync", graph[0], queue)
        cann.ok("aclrtSynchronizeStream", queue)
        return cann.read(block, 8)

    assert replayed() == b"captured"
    cann.ok("aclrtMemset", block, 8, 0, 8)
    cann.ok("aclmdlRICaptureTaskUpdateBegin", updates, group[0])
    cann.copy(block, after, 8, cann.H2D, updates)
    cann.ok("aclmdlRICaptureTaskUpdateEnd", updates)
    cann.ok("aclrtSynchronizeStream", updates)
    assert cann.read(block, 8) == bytes(8)
    assert replayed() == b"replaced"

    cann.ok("aclmdlRICaptureTaskUpdateBegin", updates, group[0])
    cann.fails(100000, "again, in their order", "aclmdlRICaptureTaskUpdateEnd", updates)
    assert replayed() == b"replaced"
    cann.fails(107031, "no update", "aclmdlRICaptureTaskUpdateEnd", updates)
    cann.ok("aclmdlRIDestroy", graph[0])
    cann.fails(107017, "task group is gone", "aclmdlRICaptureTaskUpdateBegin", updates, group[0])
    cann.check_violations()
