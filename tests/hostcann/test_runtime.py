"""libascendcl.so of hostcann at the C level: each test is a small program of its own, with ctypes and without torch.

A program's text may use `acl` (the library, statuses unchecked), `ok` (calls it and checks the status), `fails`
(checks the status and that the message names what it must) and whatever else PRELUDE defines.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ascend_sample
from ascend_sample.hostcann._home import PACKAGE_HOME

LIBRARY = PACKAGE_HOME / "lib64" / "libascendcl.so"
SOURCES = Path(ascend_sample.__file__).parent.parent / "csrc"
pytestmark = pytest.mark.skipif(not LIBRARY.is_file(), reason="hostcann was not built")

PRELUDE = """
import ctypes, json, sys, threading, time
acl = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
for name in ("violations", "live", "counters", "inject", "settings_error"):
    getattr(acl, "hostcann_" + name).restype = ctypes.c_char_p
H2D, D2H, D2D, H2H = 1, 2, 3, 0
size_t, handle = ctypes.c_size_t, ctypes.c_void_p

def ok(name, *arguments):
    status = getattr(acl, name)(*arguments)
    assert status == 0, (name, status, acl.aclGetRecentErrMsg())

def fails(status, text, name, *arguments):
    got = getattr(acl, name)(*arguments)
    message = acl.aclGetRecentErrMsg().decode()
    assert got == status, (name, got, message)
    assert text in message, message

def violations():
    return [entry["kind"] for entry in json.loads(acl.hostcann_violations())]

def live():
    return json.loads(acl.hostcann_live())

def counters():
    return json.loads(acl.hostcann_counters())

def made(name, *arguments):
    result = handle()
    ok(name, ctypes.byref(result), *arguments)
    return result

def malloc(size):
    return made("aclrtMalloc", size_t(size), 0)

def pinned(data):
    block = made("aclrtMallocHost", size_t(len(data)))
    ctypes.memmove(block, data, len(data))
    return block

def stream():
    return made("aclrtCreateStream")

def event(flags=8):
    return made("aclrtCreateEventWithFlag", flags)

def plus(address, offset):
    return handle(address.value + offset)

def copy(destination, source, size, kind, on):
    ok("aclrtMemcpyAsync", destination, size_t(size), source, size_t(size), kind, on)

def read(address, size):
    buffer = ctypes.create_string_buffer(size)
    ok("aclrtMemcpy", buffer, size_t(size), address, size_t(size), D2H)
    return buffer.raw

def mode(name, delay=0):
    assert acl.hostcann_set_stream_mode(name.encode(), delay) == 0

def inject(site, name="", nth=1, code=0, count=1):
    assert acl.hostcann_inject(site.encode(), name.encode(), nth, code, b"", count) == b""

def start():
    ok("aclInit", None)
    ok("aclrtSetDevice", 0)
"""


def clean_environment(**variables: str) -> dict[str, str]:
    """The environment without what an active hostcann has put into it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOSTCANN_", "ASCEND_")) and name != "LD_LIBRARY_PATH"
    }
    return kept | variables


def run(program: str, *, library: Path = LIBRARY, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs PRELUDE, `start()` and the program."""
    text = PRELUDE + "\n" + textwrap.dedent(program)
    return subprocess.run(
        [sys.executable, "-c", text, str(library)],
        env=clean_environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
    )


def check(program: str, **variables: str) -> None:
    done = run(program, **variables)
    assert done.returncode == 0, done.stderr


# ---- memory ----


def test_what_was_written_is_read_back():
    check("""
        start()
        block = malloc(100)
        ok("aclrtMemcpy", block, size_t(100), b"ab" * 20, size_t(40), H2D)
        assert read(block, 40) == b"ab" * 20
        ok("aclrtMemset", plus(block, 1), size_t(99), 7, size_t(2))
        assert read(block, 4) == b"a\\7\\7b"
        assert violations() == []
    """)


def test_new_memory_is_poisoned_and_aligned_to_512_and_to_no_more():
    check("""
        start()
        block = malloc(1000)
        assert block.value % 512 == 0 and block.value % 1024 != 0
        assert set(read(block, 1000)) == {0xDB}
    """)


def test_an_address_is_never_given_again():
    check("""
        start()
        seen = []
        for _ in range(50):
            block = malloc(4096)
            assert not any(begin - 4096 < block.value < begin + 4096 for begin in seen)
            seen.append(block.value)
            ok("aclrtFree", block)
        assert live()["block"] == 0
    """)


def test_the_host_faults_on_a_device_address():
    done = run("start(); ctypes.string_at(malloc(8), 1)")
    assert done.returncode == -signal.SIGSEGV


def test_wrong_arguments_of_memory_calls_are_named():
    check("""
        start()
        block, buffer = malloc(8), ctypes.create_string_buffer(8)
        fails(100000, "size must be greater than 0", "aclrtMalloc", ctypes.byref(handle()), size_t(0), 0)
        fails(100000, "destMax (8)", "aclrtMemcpy", block, size_t(8), buffer, size_t(9), H2D)
        fails(100000, "kind says d2h, but the", "aclrtMemcpy", block, size_t(8), buffer, size_t(8), D2H)
        fails(107017, "is of no block", "aclrtFree", plus(block, 1))
        ok("aclrtFree", block)
        fails(107017, "was freed before", "aclrtFree", block)
        fails(100000, "not from aclrtMallocHost", "aclrtFreeHost", buffer)
        assert violations() == []
    """)


def test_using_freed_memory_is_a_violation_when_the_copy_runs():
    check("""
        start()
        block, queue, data = malloc(8), stream(), pinned(b"12345678")
        mode("lazy")
        copy(block, data, 8, H2D, queue)
        ok("aclrtFree", block)
        assert violations() == []
        fails(507035, "lies in memory that was freed", "aclrtSynchronizeStream", queue)
        assert violations() == ["freed_operand"]
    """)


def test_freeing_pinned_memory_before_its_copy_is_a_violation():
    check("""
        start()
        block, queue, data = malloc(8), stream(), pinned(b"12345678")
        mode("lazy")
        copy(block, data, 8, H2D, queue)
        ok("aclrtFreeHost", data)
        fails(507035, "pinned host memory was freed", "aclrtSynchronizeStream", queue)
        assert violations() == ["freed_operand"]
    """)


def test_running_past_the_end_of_a_block_is_a_violation():
    check("""
        start()
        block = malloc(8)
        fails(107000, "run past the end", "aclrtMemset", plus(block, 4), size_t(5), 0, size_t(5))
        fails(107000, "no block", "aclrtMemset", plus(block, 8), size_t(1), 0, size_t(1))
        assert violations() == ["out_of_range_operand", "freed_operand"]
    """)


def test_the_capacity_is_limited():
    check(
        """
        start()
        free, total = size_t(), size_t()
        block = malloc(600 << 10)
        ok("aclrtGetMemInfo", 1, ctypes.byref(free), ctypes.byref(total))
        assert (free.value, total.value) == (424 << 10, 1 << 20)
        fails(207001, "EL0004: Failed to allocate 524288", "aclrtMalloc", ctypes.byref(handle()), size_t(512 << 10), 0)
        ok("aclrtFree", block)
        malloc(1 << 20)
        """,
        HOSTCANN_MEMORY="1M",
    )


# ---- streams and events ----


@pytest.mark.parametrize("mode", ["normal", "delayed", "lazy"])
def test_a_stream_keeps_its_order_and_events_order_streams(mode):
    check(
        """
        start()
        first, second, done = stream(), stream(), event()
        a, b, data, back = malloc(8), malloc(8), pinned(b"12345678"), pinned(b"........")
        copy(a, data, 8, H2D, first)
        ok("aclrtRecordEvent", done, first)
        ok("aclrtStreamWaitEvent", second, done)
        copy(b, a, 8, D2D, second)
        copy(back, b, 8, D2H, second)
        ok("aclrtSynchronizeStream", second)
        assert ctypes.string_at(back, 8) == b"12345678"
        assert violations() == []
        """,
        HOSTCANN_STREAM_MODE="delayed:5" if mode == "delayed" else mode,
    )


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
    """)


def test_a_missing_wait_between_streams_shows_in_delayed_mode():
    check("""
        start()
        mode("delayed", 30)
        first, second = stream(), stream()
        a, data, back = malloc(8), pinned(b"12345678"), pinned(b"........")
        ok("aclrtMemsetAsync", a, size_t(8), 0, size_t(8), second)
        ok("aclrtSynchronizeStream", second)
        copy(a, data, 8, H2D, first)
        fails(507046, "not done within 0 ms", "aclrtSynchronizeStreamWithTimeout", first, 0)
        assert read(a, 8) == bytes(8)
        ok("aclrtSynchronizeStreamWithTimeout", first, 10000)
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
        acl.hostcann_reset_counters()
        copy(block, buffer, 8, H2D, queue)
        assert counters()["synchronizations"] == {"pageable_memcpy": 1}
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
        assert 10 < milliseconds.value < 5000
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


# ---- contexts and errors ----


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


# ---- graphs ----


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
        assert counters()["replays"] == 2
        ok("aclmdlRIDestroy", graph)
        fails(107017, "the model is gone", "aclmdlRIExecuteAsync", graph, elsewhere)
    """)


@pytest.mark.parametrize(
    ("action", "status"),
    [
        ('fails(107027, "captured", "aclrtSynchronizeStream", queue)', 507903),
        ('fails(107030, "capture", "aclrtSynchronizeDevice")', 507903),
        ('fails(107030, "capture", "aclrtMemset", block, size_t(8), 0, size_t(8))', 507903),
        ('fails(107027, "pin it", "aclrtMemcpyAsync", block, size_t(8), b"pageable", size_t(8), H2D, queue)', 507903),
        ('ok("aclrtRecordEvent", done, queue); fails(107028, "captured", "aclrtSynchronizeEvent", done)', 507903),
        (
            'ok("aclrtRecordEvent", done, queue); ok("aclrtStreamWaitEvent", side, done); '
            "copy(block, data, 8, H2D, side)",
            107025,
        ),
    ],
)
def test_what_a_capture_cannot_hold_makes_it_invalid(action, status):
    check(f"""
        start()
        queue, side, done, block, data, graph = stream(), stream(), event(), malloc(8), pinned(b"12345678"), handle()
        ok("aclmdlRICaptureBegin", queue, 0)
        copy(block, data, 8, H2D, queue)
        {action}
        fails({status}, "the capture is invalid", "aclmdlRICaptureEnd", queue, ctypes.byref(graph))
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


# ---- faults, counters, the end of the process ----


@pytest.mark.parametrize(
    ("site", "call", "status"),
    [
        ("malloc", '"aclrtMalloc", ctypes.byref(handle()), size_t(8), 0', 207001),
        ("memcpy", '"aclrtMemcpy", block, size_t(8), b"12345678", size_t(8), H2D', 507052),
        ("memcpy", '"aclrtMemcpyAsync", block, size_t(8), b"12345678", size_t(8), H2D, None', 507052),
        ("synchronize", '"aclrtSynchronizeStream", None', 507001),
        ("synchronize", '"aclrtSynchronizeDevice"', 507001),
    ],
)
def test_an_injected_fault_hits_the_occurrences_it_names(site, call, status):
    name = call.split('"')[1]
    program = f"""
        start()
        block = malloc(8)
        inject("{site}", "{name}", nth=2, count=2)
        ok({call})
        for occurrence in (2, 3):
            fails({status}, "injected fault: {site} of {name}, occurrence %d" % occurrence, {call})
        ok({call})
        inject("{site}", "anything else")
        inject("{site}", code=4711)
        fails(4711, "injected fault", {call})
        acl.hostcann_inject(b"{site}", b"", 1, 0, b"the message", 9)
        fails({status}, "the message", {call})
        acl.hostcann_clear_faults()
        ok({call})
    """
    check(program)


def test_faults_of_the_environment():
    check(
        """
        start()
        malloc(8)
        fails(207001, "Failed to allocate", "aclrtMalloc", ctypes.byref(handle()), size_t(8), 0)
        fails(99, "injected", "aclrtSynchronizeStream", None)
        """,
        HOSTCANN_FAULTS="malloc::2,synchronize:aclrtSynchronizeStream:1:99",
    )


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("HOSTCANN_FAULTS", "mallok::1", "site must be one of malloc"),
        ("HOSTCANN_FAULTS", "malloc::x", "a fault must be site:name:nth[:code], got 'malloc::x'"),
        ("HOSTCANN_FAULTS", "malloc::0", "nth must be at least 1, got 0"),
        ("HOSTCANN_MEMORY", "much", "HOSTCANN_MEMORY must be a number of bytes"),
        ("HOSTCANN_STREAM_MODE", "hasty", "HOSTCANN_STREAM_MODE must be normal, lazy"),
        ("HOSTCANN_STREAM_MODE", "lazy:3", "HOSTCANN_STREAM_MODE must be normal, lazy"),
        ("HOSTCANN_STRICT", "yes", "HOSTCANN_STRICT must be 0 or 1"),
        ("HOSTCANN_NULL_KERNELS", "2", "HOSTCANN_NULL_KERNELS must be 0 or 1"),
    ],
)
def test_a_wrong_variable_is_an_error_of_aclinit(variable, value, message):
    check(f'fails(100000, {message!r}, "aclInit", None)', **{variable: value})


def test_what_the_environment_sets_is_reported():
    check(
        """
        acl.aclrtGetSocName.restype = ctypes.c_char_p
        assert acl.aclrtGetSocName() == b"Ascend910_9391"
        version = ctypes.create_string_buffer(128)
        ok("aclsysGetVersionStr", None, version)
        assert version.value == b"9.0.1"
        """,
        HOSTCANN_SOC="Ascend910_9391",
        HOSTCANN_CANN_VERSION="9.0.1",
    )


def test_the_report_and_the_strict_exit_status(tmp_path):
    report = tmp_path / "report.json"
    misuse = "start(); queue = stream(); ok('aclrtDestroyStream', queue); acl.aclrtSynchronizeStream(queue)"
    done = run(misuse + "; event()", HOSTCANN_REPORT=str(report), HOSTCANN_STRICT="1")
    assert done.returncode == 97
    assert "1 violations" in done.stderr
    content = json.loads(report.read_text())
    assert [entry["kind"] for entry in content["violations"]] == ["dead_stream"]
    assert content["live"]["event"] == 1
    assert run(misuse).returncode == 0
    assert run("start()", HOSTCANN_STRICT="1").returncode == 0
    assert run(misuse + "; sys.exit(3)", HOSTCANN_STRICT="1").returncode == 3


def test_a_process_ends_while_tasks_wait():
    check("""
        start()
        mode("lazy")
        first, second, done = stream(), stream(), event()
        ok("aclrtRecordEvent", done, first)
        ok("aclrtStreamWaitEvent", second, done)
        ok("aclrtRecordEvent", event(), None)
        mode("delayed", 60000)
    """)


def test_a_fork_is_told_that_it_has_no_runtime(tmp_path):
    report = tmp_path / "report.json"
    check(
        """
        import os
        start()
        child = os.fork()
        if child == 0:
            fails(500000, "forked", "aclrtMalloc", ctypes.byref(handle()), size_t(8), 0)
            fails(500000, "spawn", "aclrtSynchronizeStream", None)
            sys.exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        malloc(8)
        """,
        HOSTCANN_REPORT=str(report),
    )
    assert json.loads(report.read_text())["exit_status"] == 0


# ---- the C++ side that operators use ----

OPERATOR_PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "hostcann/hostcann.h"

extern "C" {
int aclInit(const char*);
int aclrtSetDevice(int);
int aclrtMalloc(void**, size_t, int);
int aclrtFree(void*);
int aclrtCreateStream(void**);
int aclrtSynchronizeStream(void*);
int aclrtResetDeviceForce(int);
const char* aclGetRecentErrMsg();
const char* hostcann_violations();
void hostcann_reset_violations();
void hostcann_set_null_kernels(int);
const char* hostcann_inject(const char*, const char*, int, int, const char*, int);
}

#define EXPECT(condition)                                                            \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::printf("line %d: %s; %s\n", __LINE__, #condition, aclGetRecentErrMsg()); \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (0)
#define EXPECT_TEXT(text, part) EXPECT(std::strstr(text, part) != nullptr)

int main() {
  using hostcann::launch;
  using hostcann::resolve;
  void* block = nullptr;
  void* stream = nullptr;
  EXPECT(aclInit(nullptr) == 0 && aclrtSetDevice(0) == 0);
  EXPECT(aclrtMalloc(&block, 100, 0) == 0 && aclrtCreateStream(&stream) == 0);
  auto* begin = static_cast<char*>(block);
  EXPECT(hostcann::bytes_available(begin + 40) == 60);
  EXPECT(hostcann::bytes_available(begin + 100) == 0 && hostcann::bytes_available(&block) == 0);

  // A kernel that writes behind its block is noticed at the next synchronisation, once.
  EXPECT(launch(stream, "aclnnBehind", [block] { resolve(block, 100, "out")[100] = std::byte{1}; }) == 0);
  EXPECT(aclrtSynchronizeStream(stream) == 0 && aclrtSynchronizeStream(stream) == 0);
  EXPECT_TEXT(hostcann_violations(), "1 bytes behind a block of 100 bytes were written");
  hostcann_reset_violations();
  EXPECT(launch(stream, "aclnnBefore", [block] { resolve(block, 100, "out")[-3] = std::byte{1}; }) == 0);
  EXPECT(aclrtSynchronizeStream(stream) == 0);
  EXPECT_TEXT(hostcann_violations(), "in front of");
  hostcann_reset_violations();

  // A block that is freed under a running kernel stays mapped until the kernel is over.
  EXPECT(launch(stream, "aclnnFrees", [block] {
           std::byte* bytes = resolve(block, 100, "out");
           EXPECT(aclrtFree(block) == 0);
           bytes[99] = std::byte{1};
         }) == 0);
  EXPECT(aclrtSynchronizeStream(stream) == 0);
  EXPECT_TEXT(hostcann_violations(), "aclnnFrees: a block was freed while the task was using it");
  hostcann_reset_violations();

  // Kernels that are switched off are accepted and never run; copies still do.
  int ran = 0;
  hostcann_set_null_kernels(1);
  EXPECT(launch(stream, "aclnnOff", [&ran] { ran += 1; }) == 0);
  EXPECT(launch(stream, "copy", [&ran] { ran += 10; }, /*is_kernel=*/false) == 0);
  EXPECT(aclrtSynchronizeStream(stream) == 0 && ran == 10);
  hostcann_set_null_kernels(0);

  // An injected fault of a task, and what a kernel throws, surface at the synchronisation.
  hostcann_inject("task", "aclnnHit", 2, 507015, "", 1);
  EXPECT(launch(stream, "aclnnMissed", [&ran] { ran += 1; }) == 0);
  EXPECT(launch(stream, "aclnnHit", [&ran] { ran += 1; }) == 0);
  EXPECT(launch(stream, "aclnnHit", [&ran] { ran += 100; }) == 0);
  EXPECT(launch(stream, "aclnnLater", [&ran] { ran += 100; }) == 0);
  EXPECT(aclrtSynchronizeStream(stream) == 507015 && ran == 12);
  EXPECT_TEXT(aclGetRecentErrMsg(), "aclnnHit: injected fault");
  EXPECT(aclrtResetDeviceForce(0) == 0 && aclrtSetDevice(0) == 0 && aclrtCreateStream(&stream) == 0);
  EXPECT(launch(stream, "aclnnThrows", [] { throw std::runtime_error("no such luck"); }) == 0);
  EXPECT(aclrtSynchronizeStream(stream) == 507035);
  EXPECT_TEXT(aclGetRecentErrMsg(), "aclnnThrows: no such luck");
  EXPECT_TEXT(hostcann_violations(), "[]");
  std::printf("passed\n");
}
"""


def test_the_interface_of_operators(tmp_path):
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None or not SOURCES.is_dir():
        pytest.skip("needs a C++ compiler and the sources")
    source, program = tmp_path / "program.cpp", tmp_path / "a.out"
    source.write_text(OPERATOR_PROGRAM)
    folder = LIBRARY.parent
    subprocess.run(
        [compiler, "-std=c++17", f"-I{SOURCES}", source, f"-L{folder}", "-l:libascendcl.so", f"-Wl,-rpath,{folder}"],
        cwd=tmp_path,
        check=True,
    )
    done = subprocess.run([str(program)], env=clean_environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "passed\n"), done.stdout + done.stderr
