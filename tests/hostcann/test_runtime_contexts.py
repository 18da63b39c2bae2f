"""Contexts, errors and graphs at the C level."""

from activation_programs import needs_hostcann
from runtime_programs import check

pytestmark = needs_hostcann


def test_calls_before_aclinit_and_without_a_context_are_refused():
    check("""
        fails(100001, "aclInit", "aclrtSetDevice", 0)
        fails(107002, "aclrtSetDevice", "aclrtMalloc", ctypes.byref(handle()), size_t(8), 0)
        ok("aclInit", None)
        fails(100002, "aclInit was called before", "aclInit", None)
        fails(107001, "deviceId must be in [0, 1), got 1", "aclrtSetDevice", 1)
        ok("aclrtSetDevice", 0)
        other = []
        thread = threading.Thread(target=lambda: other.append(acl.aclrtMalloc(ctypes.byref(handle()), size_t(8), 0)))
        thread.start(); thread.join()
        assert other == [107002]
        ok("aclrtSetDevice", 0)
        ok("aclrtResetDevice", 0)
        malloc(8)
        ok("aclrtResetDevice", 0)
        fails(107002, "aclrtSetDevice", "aclrtMalloc", ctypes.byref(handle()), size_t(8), 0)
        ok("aclFinalize")
        fails(100037, "aclInit was not called", "aclFinalize")
    """)


def test_a_message_belongs_to_its_thread_and_is_gone_once_read():
    check("""
        start()
        assert acl.aclGetRecentErrMsg() == b""
        acl.aclrtFree(handle(1))
        other = []
        thread = threading.Thread(target=lambda: other.append(acl.aclGetRecentErrMsg()))
        thread.start(); thread.join()
        assert other == [b""]
        assert acl.aclrtPeekAtLastError(0) == 107017
        assert b"aclrtFree" in acl.aclGetRecentErrMsg()
        assert acl.aclGetRecentErrMsg() == b""
        assert acl.aclrtGetLastError(0) == 107017 and acl.aclrtPeekAtLastError(0) == 0
    """)


def test_a_failed_task_fails_its_context_until_the_device_is_reset():
    check("""
        start()
        mode("lazy")
        queue, other, done = stream(), stream(), event()
        block, gone, data = malloc(8), malloc(8), pinned(b"12345678")
        copy(gone, data, 8, H2D, queue)
        ok("aclrtFree", gone)
        copy(block, data, 8, H2D, queue)
        ok("aclrtRecordEvent", done, queue)
        fails(507035, "aclrtMemcpyAsync", "aclrtSynchronizeStream", queue)
        fails(507035, "aclrtMemcpyAsync", "aclrtSynchronizeStream", other)
        fails(507035, "takes no more work", "aclrtMemcpyAsync", block, size_t(8), data, size_t(8), H2D, other)
        fails(507035, "aclrtMemcpyAsync", "aclrtSynchronizeEvent", done)
        assert read(block, 8) == b"\\xdb" * 8
        ok("aclrtResetDeviceForce", 0)
        assert live()["stream"] == live()["block"] == 0
        ok("aclrtSetDevice", 0)
        queue, block = stream(), malloc(8)
        copy(block, data, 8, H2D, queue)
        ok("aclrtSynchronizeStream", queue)
        assert read(block, 8) == b"12345678"
    """)


def test_what_is_not_emulated_says_so_by_name():
    check("""
        start()
        fails(207000, "aclrtMallocPhysical: hostcann does not emulate", "aclrtMallocPhysical", None, size_t(8), None, 0)
        fails(207000, "ACL_STOP_ON_FAILURE", "aclrtSetStreamFailureMode", None, ctypes.c_uint64(0))
    """)


def test_a_captured_graph_runs_at_every_replay_and_not_before():
    check("""
        start()
        queue, side, elsewhere, fork, join = stream(), stream(), stream(), event(), event()
        a, b, data = malloc(8), malloc(8), pinned(b"first...")
        ok("aclmdlRICaptureBegin", queue, 0)
        copy(a, data, 8, H2D, queue)
        ok("aclrtRecordEvent", fork, queue); ok("aclrtStreamWaitEvent", side, fork)
        copy(b, a, 8, D2D, side)
        ok("aclrtRecordEvent", join, side); ok("aclrtStreamWaitEvent", queue, join)
        graph = handle()
        ok("aclmdlRICaptureEnd", queue, ctypes.byref(graph))
        ok("aclrtSynchronizeDevice")
        assert read(b, 8) == b"\\xdb" * 8
        for text in (b"replay 1", b"replay 2"):
            ctypes.memmove(data, text, 8)
            ok("aclmdlRIExecuteAsync", graph, elsewhere)
            ok("aclrtSynchronizeStream", elsewhere)
            assert read(b, 8) == text
        assert counted("replay") == {"aclmdlRIExecuteAsync": 2}
        ok("aclmdlRIDestroy", graph)
        fails(107017, "the model is gone", "aclmdlRIExecuteAsync", graph, elsewhere)
    """)


def test_what_a_capture_cannot_hold_makes_it_invalid():
    check("""
        start()
        queue, side, done, block, data, graph = stream(), stream(), event(), malloc(8), pinned(b"12345678"), handle()

        def eight_bytes(source, on):
            return size_t(8), source, size_t(8), H2D, on

        def of_a_captured_event():
            ok("aclrtRecordEvent", done, queue)
            fails(107028, "captured", "aclrtSynchronizeEvent", done)

        def not_joined_back():
            ok("aclrtRecordEvent", done, queue)
            ok("aclrtStreamWaitEvent", side, done)
            copy(block, data, 8, H2D, side)

        for action, status in (
            (lambda: fails(107027, "captured", "aclrtSynchronizeStream", queue), 507903),
            (lambda: fails(107030, "capture", "aclrtSynchronizeDevice"), 507903),
            (lambda: fails(107030, "capture", "aclrtMemset", block, size_t(8), 0, size_t(8)), 507903),
            (lambda: fails(107027, "pin it", "aclrtMemcpyAsync", block, *eight_bytes(b"pageable", queue)), 507903),
            (of_a_captured_event, 507903),
            (not_joined_back, 107025),
        ):
            ok("aclmdlRICaptureBegin", queue, 0)
            copy(block, data, 8, H2D, queue)
            action()
            fails(status, "the capture is invalid", "aclmdlRICaptureEnd", queue, ctypes.byref(graph))
            assert graph.value is None
            copy(block, data, 8, H2D, queue)
            ok("aclrtSynchronizeDevice")
        assert violations() == []
    """)


def test_a_relaxed_capture_or_thread_may_block():
    check("""
        start()
        queue, block, graph = stream(), malloc(8), handle()
        ok("aclmdlRICaptureBegin", queue, 2)
        ok("aclrtMemset", block, size_t(8), 0, size_t(8))
        ok("aclmdlRICaptureEnd", queue, ctypes.byref(graph))
        ok("aclmdlRICaptureBegin", queue, 0)
        relaxed = ctypes.c_int(2)
        ok("aclmdlRICaptureThreadExchangeMode", ctypes.byref(relaxed)); assert relaxed.value == 0
        ok("aclrtMemset", block, size_t(8), 0, size_t(8))
        ok("aclmdlRICaptureThreadExchangeMode", ctypes.byref(relaxed)); assert relaxed.value == 2
        ok("aclmdlRICaptureEnd", queue, ctypes.byref(graph))
        fails(107029, "not being captured", "aclmdlRICaptureEnd", queue, ctypes.byref(graph))
    """)
