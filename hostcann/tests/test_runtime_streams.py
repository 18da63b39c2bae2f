"""Streams and events at the C level, each test in a process of its own."""

from tests.support import cann
from tests.support.isolation import own_process


@own_process()
def test_a_stream_keeps_its_order_and_events_order_streams() -> None:
    cann.start()
    for mode in ("normal", "delayed:5", "lazy"):
        cann.set_stream_mode(mode)
        first, second, done = cann.stream(), cann.stream(), cann.event()
        a, b, data, back = cann.malloc(8), cann.malloc(8), cann.pinned(b"12345678"), cann.pinned(b"........")
        cann.copy(a, data, 8, cann.H2D, first)
        cann.ok("aclrtRecordEvent", done, first)
        cann.ok("aclrtStreamWaitEvent", second, done)
        cann.copy(b, a, 8, cann.D2D, second)
        cann.copy(back, b, 8, cann.D2H, second)
        cann.ok("aclrtSynchronizeStream", second)
        assert cann.on_host(back, 8) == b"12345678", mode


def status_of(query: str, handle: object) -> int:
    status = cann.ffi.new("int *")
    cann.ok(query, handle, status)
    return int(status[0])


@own_process(HOSTCANN_STREAM_MODE="lazy")
def test_a_lazy_stream_runs_nothing_until_something_synchronises() -> None:
    cann.start()
    queue, other, done = cann.stream(), cann.stream(), cann.event()
    block, data, back = cann.malloc(8), cann.pinned(b"12345678"), cann.pinned(b"........")
    cann.copy(block, data, 8, cann.H2D, queue)
    cann.ok("aclrtRecordEvent", done, queue)
    cann.copy(back, block, 8, cann.D2H, queue)
    cann.ok("aclrtSynchronizeStream", other)
    assert status_of("aclrtStreamQuery", queue) == 1
    assert status_of("aclrtQueryEventStatus", done) == 0
    assert cann.read(block, 8) == b"\xdb" * 8
    cann.ok("aclrtSynchronizeEvent", done)
    assert status_of("aclrtQueryEventStatus", done) == 1
    assert cann.read(block, 8) == b"12345678"
    assert cann.on_host(back, 8) == b"........"
    cann.ok("aclrtSynchronizeDevice")
    assert cann.on_host(back, 8) == b"12345678"
    assert status_of("aclrtStreamQuery", queue) == 0
    third = cann.stream()
    cann.ok("aclrtRecordEvent", done, queue)
    cann.ok("aclrtStreamWaitEvent", other, done)
    cann.ok("aclrtRecordEvent", done, third)
    cann.ok("aclrtSynchronizeStream", other)
    assert status_of("aclrtStreamQuery", queue) == 0
    assert status_of("aclrtStreamQuery", third) == 1, "recorded after the wait"
    cann.ok("aclrtDestroyEvent", done)
    assert cann.live("event") == 0


@own_process()
def test_a_missing_wait_between_streams_shows_in_delayed_mode() -> None:
    cann.start()
    first, second = cann.stream(), cann.stream()
    a, data = cann.malloc(8), cann.pinned(b"12345678")
    cann.ok("aclrtMemsetAsync", a, 8, 0, 8, second)
    cann.ok("aclrtSynchronizeStream", second)
    cann.set_stream_mode("delayed:2000")
    cann.copy(a, data, 8, cann.H2D, first)
    cann.fails(507046, "not done within 0 ms", "aclrtSynchronizeStreamWithTimeout", first, 0)
    assert cann.read(a, 8) == bytes(8)
    cann.ok("aclrtSynchronizeStreamWithTimeout", first, 50000)
    assert cann.read(a, 8) == b"12345678"


@own_process(HOSTCANN_STREAM_MODE="lazy")
def test_pinned_memory_is_read_when_the_copy_runs_and_other_memory_at_once() -> None:
    cann.start()
    queue, block = cann.stream(), cann.malloc(8)
    data = cann.pinned(b"12345678")
    cann.copy(block, data, 8, cann.H2D, queue)
    cann.ffi.memmove(data, b"changed!", 8)
    cann.ok("aclrtSynchronizeStream", queue)
    assert cann.read(block, 8) == b"changed!"
    buffer = cann.ffi.new("char[]", b"pageable")
    profile = cann.acl.hostcann_open_profile()
    cann.copy(block, buffer, 8, cann.H2D, queue)
    assert cann.counted("wait", profile) == {"pageable_memcpy": 1}
    assert cann.read(block, 8) == b"pageable"


@own_process()
def test_a_stream_that_is_gone_is_a_violation() -> None:
    cann.start()
    queue = cann.stream()
    cann.ok("aclrtDestroyStream", queue)
    cann.fails(107003, "the stream is gone", "aclrtSynchronizeStream", queue)
    cann.fails(107003, "the stream is gone", "aclrtDestroyStream", queue)
    cann.check_violations("dead_stream", "dead_stream")
    assert cann.live("stream") == 0


@own_process(HOSTCANN_STREAM_MODE="lazy")
def test_destroying_a_stream_finishes_its_work_and_forcing_drops_it() -> None:
    cann.start()
    for call, expected in (("aclrtDestroyStream", b"12345678"), ("aclrtDestroyStreamForce", b"\xdb" * 8)):
        queue, block, data = cann.stream(), cann.malloc(8), cann.pinned(b"12345678")
        cann.copy(block, data, 8, cann.H2D, queue)
        cann.ok(call, queue)
        assert cann.read(block, 8) == expected, call


@own_process(HOSTCANN_STREAM_MODE="delayed:20")
def test_elapsed_time_needs_complete_events_with_a_timeline() -> None:
    cann.start()
    queue, begin, end, plain, milliseconds = (
        cann.stream(),
        cann.event(),
        cann.event(),
        cann.event(1),
        cann.ffi.new("float *"),
    )
    for each in (begin, end, plain):
        cann.ok("aclrtRecordEvent", each, queue)
    cann.fails(107006, "or not complete", "aclrtEventElapsedTime", milliseconds, begin, cann.event())
    cann.ok("aclrtSynchronizeDevice")
    cann.ok("aclrtEventElapsedTime", milliseconds, begin, end)
    assert 10 < milliseconds[0] < 50000
    cann.fails(107006, "ACL_EVENT_TIME_LINE", "aclrtEventElapsedTime", milliseconds, begin, plain)


@own_process()
def test_host_functions_run_on_the_stream_in_order() -> None:
    cann.start()
    queue, seen = cann.stream(), []
    callback = cann.ffi.callback("void(void *)", lambda argument: seen.append(cann.address_of(argument)))
    for number in (1, 2, 3):
        cann.ok("aclrtLaunchHostFunc", queue, callback, cann.pointer(number))
    cann.ok("aclrtSynchronizeStream", queue)
    assert seen == [1, 2, 3]
