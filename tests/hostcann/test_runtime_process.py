"""Faults, counters, and the end of a process."""

import json
import re

from activation_programs import needs_hostcann
from runtime_programs import check, run

from ascend_sample.npu.operators import SAMPLE_V2

pytestmark = needs_hostcann


def test_an_injected_fault_hits_the_occurrences_it_names():
    check("""
        start()
        block = malloc(8)
        for site, status, *call in (
            ("malloc", 207001, "aclrtMalloc", ctypes.byref(handle()), size_t(8), 0),
            ("memcpy", 507052, "aclrtMemcpy", block, size_t(8), b"12345678", size_t(8), H2D),
            ("memcpy", 507052, "aclrtMemcpyAsync", block, size_t(8), b"12345678", size_t(8), H2D, None),
            ("synchronize", 507001, "aclrtSynchronizeStream", None),
            ("synchronize", 507001, "aclrtSynchronizeDevice"),
        ):
            inject(site, call[0], nth=2, count=2)
            ok(*call)
            for occurrence in (2, 3):
                fails(status, f"injected fault: {site} of {call[0]}, occurrence {occurrence}", *call)
            ok(*call)
            inject(site, "anything else")
            ok(*call)
            inject(site, code=4711)
            fails(4711, "injected fault", *call)
            acl.hostcann_inject(site.encode(), b"", 1, 0, b"the message", 9)
            fails(status, "the message", *call)
            acl.hostcann_clear_faults()
            ok(*call)
        inject("synchronize", nth=2, count=2**31 - 1)
        ok("aclrtSynchronizeDevice")
        for _ in range(3):
            fails(507001, "injected fault", "aclrtSynchronizeDevice")
    """)


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
]


def test_a_wrong_variable_is_an_error_of_aclinit(subtests):
    for variable, value, message in WRONG:
        with subtests.test(variable=variable, value=value):
            check(f'fails(100000, {message!r}, "aclInit", None)', **{variable: value})


def test_the_version_and_the_soc_are_those_of_the_environment():
    """By default the version is one that has both operators."""
    (version,) = re.findall(r"CANN (\d+\.\d+)", SAMPLE_V2.found_in)
    program = """
        acl.aclrtGetSocName.restype = ctypes.c_char_p
        version = ctypes.create_string_buffer(128)
        ok("aclsysGetVersionStr", None, version)
        found = version.value.decode(), acl.aclrtGetSocName().decode()
    """
    check(f"{program}\n        assert found == ('{version}.0', 'Ascend910B3'), found")
    check(
        f"{program}\n        assert found == ('9.0.1', 'Ascend910_9391'), found",
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


def test_a_report_is_whole_or_is_not_there(tmp_path):
    report = tmp_path / "report.json"
    report.write_text("an older one")
    (tmp_path / "link.json").symlink_to(report)
    for name in ("report.json", "link.json"):
        check("start()", HOSTCANN_REPORT=str(tmp_path / name))
        assert json.loads(report.read_text())["exit_status"] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "report.json"]
    (tmp_path / "whole.json.part").mkdir()  # where the parts would be written
    done = run("start()", HOSTCANN_REPORT=str(tmp_path / "whole.json"))
    assert "HOSTCANN_REPORT must name a file that can be written, got" in done.stderr
    assert not (tmp_path / "whole.json").exists()


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
