"""Device memory at the C level."""

import signal

from activation_programs import needs_hostcann
from runtime_programs import check, run

pytestmark = needs_hostcann


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
        for free, text in (("aclrtFree", "lies in memory that was freed"),
                           ("aclrtFreeHost", "pinned host memory was freed")):
            block, queue, data = malloc(8), stream(), pinned(b"12345678")
            mode("lazy")
            copy(block, data, 8, H2D, queue)
            ok(free, block if free == "aclrtFree" else data)
            assert violations() == []
            fails(507035, text, "aclrtSynchronizeStream", queue)
            assert violations() == ["freed_operand"]
            acl.hostcann_reset_violations()
            ok("aclrtResetDeviceForce", 0)
            ok("aclrtSetDevice", 0)
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
