"""Faults, settings, and the end of a process, at the C level."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support import cann
from tests.support.isolation import must_succeed, own_process, run_in_process


@own_process()
def test_an_injected_fault_hits_the_occurrences_it_names() -> None:
    cann.start()
    block = cann.malloc(8)
    for site, status, *each in (
        ("malloc", 207001, "aclrtMalloc", cann.new(), 8, 0),
        ("memcpy", 507052, "aclrtMemcpy", block, 8, b"12345678", 8, cann.H2D),
        ("memcpy", 507052, "aclrtMemcpyAsync", block, 8, b"12345678", 8, cann.H2D, None),
        ("synchronize", 507001, "aclrtSynchronizeStream", None),
        ("synchronize", 507001, "aclrtSynchronizeDevice"),
    ):
        cann.inject(site, each[0], nth=2, count=2)
        cann.ok(*each)
        for occurrence in (2, 3):
            cann.fails(status, f"injected fault: {site} of {each[0]}, occurrence {occurrence}", *each)
        cann.ok(*each)
        cann.inject(site, "anything else")
        cann.ok(*each)
        cann.inject(site, code=4711)
        cann.fails(4711, "injected fault", *each)
        cann.inject(site, message="the message", count=9)
        cann.fails(status, "the message", *each)
        cann.acl.hostcann_clear_faults()
        cann.ok(*each)
    cann.inject("synchronize", nth=2, count=2**31 - 1)
    cann.ok("aclrtSynchronizeDevice")
    for _ in range(3):
        cann.fails(507001, "injected fault", "aclrtSynchronizeDevice")


@own_process(HOSTCANN_FAULTS="malloc::2,synchronize:aclrtSynchronizeStream:1:99")
def test_faults_of_the_environment() -> None:
    cann.start()
    cann.malloc(8)
    cann.fails(207001, "Failed to allocate", "aclrtMalloc", cann.new(), 8, 0)
    cann.fails(99, "injected", "aclrtSynchronizeStream", None)


WRONG = [
    ("HOSTCANN_FAULTS", "mallok::1", "site must be one of malloc"),
    ("HOSTCANN_FAULTS", "malloc::x", "of numbers of 32 bits, got 'malloc::x'"),
    ("HOSTCANN_FAULTS", "malloc::0", "nth must be at least 1, got 0"),
    ("HOSTCANN_FAULTS", "malloc::4294967297", "a fault must be site:name:nth[:code], of numbers of 32 bits, got"),
    ("HOSTCANN_MEMORY", "much", "HOSTCANN_MEMORY must be a number of bytes"),
    ("HOSTCANN_MEMORY", "18446744073709551621", "HOSTCANN_MEMORY must be a number of bytes"),
    ("HOSTCANN_MEMORY", "17179869185G", "HOSTCANN_MEMORY must be a number of bytes"),
    ("HOSTCANN_STREAM_MODE", "hasty", "HOSTCANN_STREAM_MODE must be normal, lazy"),
    ("HOSTCANN_STREAM_MODE", "lazy:3", "HOSTCANN_STREAM_MODE must be normal, lazy"),
    ("HOSTCANN_LOG", "loud", "HOSTCANN_LOG must be a level, 0 to 3, or 4 for silence, got 'loud'"),
    ("HOSTCANN_STRICT", "yes", "HOSTCANN_STRICT must be 0 or 1"),
    ("HOSTCANN_NULL_KERNELS", "2", "HOSTCANN_NULL_KERNELS must be 0 or 1"),
    ("HOSTCANN_DEVICES", "0", "HOSTCANN_DEVICES must be a number of devices, 1 to 64"),
]


def fail_to_start(message: str) -> None:
    cann.fails(100000, message, "aclInit", None)


def test_a_wrong_variable_is_an_error_of_aclinit(subtests: pytest.Subtests) -> None:
    for variable, value, message in WRONG:
        with subtests.test(variable=variable, value=value):
            must_succeed(run_in_process(fail_to_start, [message], {variable: value}))


@own_process(HOSTCANN_SOC="Ascend910_9391", HOSTCANN_CANN_VERSION="9.0.1")
def test_the_version_and_the_soc_are_those_of_the_environment() -> None:
    version = cann.ffi.new("char[]", 128)
    cann.ok("aclsysGetVersionStr", None, version)
    assert (cann.ffi.string(version), cann.ffi.string(cann.acl.aclrtGetSocName())) == (b"9.0.1", b"Ascend910_9391")


@own_process(LOCAL_WORLD_SIZE="3")
def test_a_process_has_one_device_of_those_that_it_is_told_of() -> None:
    count = cann.ffi.new("uint32_t *")
    cann.ok("aclInit", None)
    cann.ok("aclrtGetDeviceCount", count)
    assert count[0] == 3
    cann.fails(107001, "deviceId must be in [0, 3), got 3", "aclrtSetDevice", 3)
    cann.ok("aclrtSetDevice", 2)
    cann.fails(107001, "deviceId must be 2, which this process uses already, got 1", "aclrtSetDevice", 1)


def misuse(status: int) -> None:
    """Uses a stream that is gone, and leaves an event behind."""
    cann.start()
    cann.event()
    queue = cann.stream()
    cann.ok("aclrtDestroyStream", queue)
    cann.call("aclrtSynchronizeStream", queue)
    sys.exit(status)


def test_the_report_and_the_strict_exit_status(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run_in_process(misuse, [0], {"HOSTCANN_REPORT": str(report), "HOSTCANN_STRICT": "1"})
    assert done.returncode == 97
    assert "1 violations" in done.stderr
    content = json.loads(report.read_text())
    assert [entry["kind"] for entry in content["violations"]] == ["dead_stream"]
    assert content["live"]["event"] == 1
    assert run_in_process(misuse, [0]).returncode == 0
    assert run_in_process(cann.start, [], {"HOSTCANN_STRICT": "1"}).returncode == 0
    assert run_in_process(misuse, [3], {"HOSTCANN_STRICT": "1"}).returncode == 3


def test_a_report_is_whole_or_is_not_there(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text("an older one")
    (tmp_path / "link.json").symlink_to(report)
    for name in ("report.json", "link.json"):
        must_succeed(run_in_process(cann.start, [], {"HOSTCANN_REPORT": str(tmp_path / name)}))
        assert json.loads(report.read_text())["exit_status"] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "report.json"]
    (tmp_path / "whole.json.part").mkdir()  # where the parts would be written
    done = run_in_process(cann.start, [], {"HOSTCANN_REPORT": str(tmp_path / "whole.json")})
    assert "HOSTCANN_REPORT must name a file that can be written, got" in done.stderr
    assert not (tmp_path / "whole.json").exists()


@own_process(HOSTCANN_STREAM_MODE="lazy")
def test_a_process_ends_while_tasks_wait() -> None:
    cann.start()
    first, second, done = cann.stream(), cann.stream(), cann.event()
    cann.ok("aclrtRecordEvent", done, first)
    cann.ok("aclrtStreamWaitEvent", second, done)
    cann.ok("aclrtRecordEvent", cann.event(), None)
    cann.set_stream_mode("delayed:60000")


def fork() -> None:
    cann.start()
    child = os.fork()
    if child == 0:
        cann.fails(500000, "forked", "aclrtMalloc", cann.new(), 8, 0)
        cann.fails(500000, "spawn", "aclrtSynchronizeStream", None)
        sys.exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    cann.malloc(8)


def test_a_fork_is_told_that_it_has_no_runtime(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    must_succeed(run_in_process(fork, [], {"HOSTCANN_REPORT": str(report)}))
    assert json.loads(report.read_text())["exit_status"] == 0
