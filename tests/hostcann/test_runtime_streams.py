"""Streams and events at the C level."""

from activation_programs import needs_hostcann
from runtime_programs import check

pytestmark = needs_hostcann


def test_a_stream_keeps_its_order_and_events_order_streams():
    check("""
        start()
        for name in ("normal", "delayed", "lazy"):
            mode(name, 5)
            first, second, done = stream(), stream(), event()
            a, b, data, back = malloc(8), malloc(8), pinned(b"12345678"), pinned(b"........")
            copy(a, data, 8, H2D, first)
            ok("aclrtRecordEvent", done, first)
            ok("aclrtStreamWaitEvent", second, done)
            copy(b, a, 8, D2D, second)
            copy(back, b, 8, D2H, second)
            ok("aclrtSynchronizeStream", second)
            assert ctypes.string_at(back, 8) == b"12345678", name
        assert violations() == []
    """)


def test_a_lazy_stream_runs_nothing_until_something_synchronises():
    check("""
        start()
        mode("lazy")
        queue, other, done = stream(), stream(), event()
        block, data, back = malloc(8), pinned(b"12345678"), pinned(b"........")
        status = ctypes.c_int()
        copy(block, data, 8, H2D, queue)
        ok("aclrtRecordEvent", done, queue)
        copy(back, block, 8, D2H, queue)
        ok("aclrtSynchronizeStream", other)
        time.sleep(0.05)
        ok("aclrtStreamQuery", queue, ctypes.byref(status)); assert status.value == 1
        ok("aclrtQueryEventStatus", done, ctypes.byref(status)); assert status.value == 0
        assert read(block, 8) == b"\\xdb" * 8
        ok("aclrtSynchronizeEvent", done)
        ok("aclrtQueryEventStatus", done, ctypes.byref(status)); assert status.value == 1
        assert read(block, 8) == b"12345678" and ctypes.string_at(back, 8) == b"........"
        ok("aclrtSynchronizeDevice")
        assert ctypes.string_at(back, 8) == b"12345678"
        ok("aclrtStreamQuery", queue, ctypes.byref(status)); assert status.value == 0
        third = stream()
        ok("aclrtRecordEvent", done, queue)
        ok("aclrtStreamWaitEvent", other, done)
        ok("aclrtRecordEvent", done, third)
        ok("aclrtSynchronizeStream", other)
        ok("aclrtStreamQuery", queue, ctypes.byref(status)); assert status.value == 0
        ok("aclrtStreamQuery", third, ctypes.byref(status)); assert status.value == 1, "recorded after the wait"
        ok("aclrtDestroyEvent", done)
        assert live()["event"] == 0
    """)


def test_a_missing_wait_between_streams_shows_in_delayed_mode():
    check("""
        start()
        first, second = stream(), stream()
        a, data, back = malloc(8), pinned(b"12345678"), pinned(b"........")
        ok("aclrtMemsetAsync", a, size_t(8), 0, size_t(8), second)
        ok("aclrtSynchronizeStream", second)
        mode("delayed", 2000)
        copy(a, data, 8, H2D, first)
        fails(507046, "not done within 0 ms", "aclrtSynchronizeStreamWithTimeout", first, 0)
        assert read(a, 8) == bytes(8)
        ok("aclrtSynchronizeStreamWithTimeout", first, 50000)
        assert read(a, 8) == b"12345678"
    """)


def test_pinned_memory_is_read_when_the_copy_runs_and_other_memory_at_once():
    check("""
        start()
        mode("lazy")
        queue, block = stream(), malloc(8)
        data = pinned(b"12345678")
        copy(block, data, 8, H2D, queue)
        ctypes.memmove(data, b"changed!", 8)
        ok("aclrtSynchronizeStream", queue)
        assert read(block, 8) == b"changed!"
        buffer = ctypes.create_string_buffer(b"pageable", 8)
        profile = acl.hostcann_open_profile()
        copy(block, buffer, 8, H2D, queue)
        assert counted("wait", profile) == {"pageable_memcpy": 1}
        assert read(block, 8) == b"pageable"
    """)


def test_a_stream_that_is_gone_is_a_violation():
    check("""
        start()
        queue = stream()
        ok("aclrtDestroyStream", queue)
        fails(107003, "the stream is gone", "aclrtSynchronizeStream", queue)
        fails(107003, "the stream is gone", "aclrtDestroyStream", queue)
        assert violations() == ["dead_stream", "dead_stream"]
        assert live()["stream"] == 0
    """)


def test_destroying_a_stream_finishes_its_work_and_forcing_drops_it():
    check("""
        start()
        mode("lazy")
        for call, expected in (("aclrtDestroyStream", b"12345678"), ("aclrtDestroyStreamForce", b"\\xdb" * 8)):
            queue, block, data = stream(), malloc(8), pinned(b"12345678")
            copy(block, data, 8, H2D, queue)
            ok(call, queue)
            assert read(block, 8) == expected, call
    """)


def test_elapsed_time_needs_complete_events_with_a_timeline():
    check("""
        start()
        queue, begin, end, plain, milliseconds = stream(), event(), event(), event(1), ctypes.c_float()
        mode("delayed", 20)
        ok("aclrtRecordEvent", begin, queue)
        ok("aclrtRecordEvent", end, queue)
        ok("aclrtRecordEvent", plain, queue)
        fails(107006, "or not complete", "aclrtEventElapsedTime", ctypes.byref(milliseconds), begin, event())
        ok("aclrtSynchronizeDevice")
        ok("aclrtEventElapsedTime", ctypes.byref(milliseconds), begin, end)
        assert 10 < milliseconds.value < 50000
        fails(107006, "ACL_EVENT_TIME_LINE", "aclrtEventElapsedTime", ctypes.byref(milliseconds), begin, plain)
    """)


def test_host_functions_run_on_the_stream_in_order():
    check("""
        start()
        queue, seen = stream(), []
        callback = ctypes.CFUNCTYPE(None, handle)(lambda argument: seen.append(argument))
        for number in (1, 2, 3):
            ok("aclrtLaunchHostFunc", queue, callback, handle(number))
        ok("aclrtSynchronizeStream", queue)
        assert seen == [1, 2, 3]
    """)
