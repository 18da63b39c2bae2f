"""Device memory at the C level, each test in a process of its own."""

import signal

from tests.support import cann
from tests.support.isolation import own_process, run_in_process


@own_process()
def test_what_was_written_is_read_back() -> None:
    cann.start()
    block = cann.malloc(100)
    cann.ok("aclrtMemcpy", block, 100, b"ab" * 20, 40, cann.H2D)
    assert cann.read(block, 40) == b"ab" * 20
    cann.ok("aclrtMemset", cann.plus(block, 1), 99, 7, 2)
    assert cann.read(block, 4) == b"a\7\7b"


@own_process()
def test_new_memory_is_poisoned_and_aligned_to_512_and_to_no_more() -> None:
    cann.start()
    block = cann.malloc(1000)
    assert cann.address_of(block) % 512 == 0
    assert cann.address_of(block) % 1024 != 0
    assert set(cann.read(block, 1000)) == {0xDB}


@own_process()
def test_an_address_is_never_given_again() -> None:
    cann.start()
    seen: list[int] = []
    for _ in range(50):
        block = cann.malloc(4096)
        assert not any(begin - 4096 < cann.address_of(block) < begin + 4096 for begin in seen)
        seen.append(cann.address_of(block))
        cann.ok("aclrtFree", block)
    assert cann.live("block") == 0


def read_on_the_host() -> None:
    cann.start()
    cann.ffi.string(cann.ffi.cast("char *", cann.malloc(8)), 1)


def test_the_host_faults_on_a_device_address() -> None:
    assert run_in_process(read_on_the_host).returncode == -signal.SIGSEGV


@own_process()
def test_wrong_arguments_of_memory_calls_are_named() -> None:
    cann.start()
    block, buffer = cann.malloc(8), cann.ffi.new("char[]", 8)
    cann.fails(100000, "size must be greater than 0", "aclrtMalloc", cann.new(), 0, 0)
    cann.fails(100000, "destMax (8)", "aclrtMemcpy", block, 8, buffer, 9, cann.H2D)
    cann.fails(100000, "kind says d2h, but the", "aclrtMemcpy", block, 8, buffer, 8, cann.D2H)
    cann.fails(107017, "is of no block", "aclrtFree", cann.plus(block, 1))
    cann.ok("aclrtFree", block)
    cann.fails(107017, "was freed before", "aclrtFree", block)
    cann.fails(100000, "not from aclrtMallocHost", "aclrtFreeHost", buffer)
    cann.check_violations()


@own_process()
def test_using_freed_memory_is_a_violation_when_the_copy_runs() -> None:
    cann.start()
    texts = {"aclrtFree": "lies in memory that was freed", "aclrtFreeHost": "pinned host memory was freed"}
    for free, text in texts.items():
        block, queue, data = cann.malloc(8), cann.stream(), cann.pinned(b"12345678")
        cann.set_stream_mode("lazy")
        cann.copy(block, data, 8, cann.H2D, queue)
        cann.ok(free, block if free == "aclrtFree" else data)
        cann.check_violations()
        cann.fails(cann.TASK_FAILED, text, "aclrtSynchronizeStream", queue)
        cann.check_violations("freed_operand")
        cann.ok("aclrtResetDeviceForce", 0)
        cann.ok("aclrtSetDevice", 0)


@own_process()
def test_running_past_the_end_of_a_block_is_a_violation() -> None:
    cann.start()
    block = cann.malloc(8)
    cann.fails(107000, "run past the end", "aclrtMemset", cann.plus(block, 4), 5, 0, 5)
    cann.fails(107000, "no block", "aclrtMemset", cann.plus(block, 8), 1, 0, 1)
    cann.check_violations("out_of_range_operand", "freed_operand")


@own_process(HOSTCANN_MEMORY="1M")
def test_the_capacity_is_limited() -> None:
    cann.start()
    free, total = cann.ffi.new("size_t *"), cann.ffi.new("size_t *")
    block = cann.malloc(600 << 10)
    cann.ok("aclrtGetMemInfo", 1, free, total)
    assert (free[0], total[0]) == (424 << 10, 1 << 20)
    cann.fails(207001, "EL0004: Failed to allocate 524288", "aclrtMalloc", cann.new(), 512 << 10, 0)
    cann.ok("aclrtFree", block)
    cann.malloc(1 << 20)


@own_process(HOSTCANN_STREAM_MODE="lazy")
def test_registered_host_memory_is_pinned_and_may_have_an_address_of_the_device() -> None:
    cann.start()
    queue, mapped, page = cann.stream(), cann.new(), cann.pinned(bytes(4096))
    buffer = cann.ffi.new("char[]", b"ordinary")
    cann.ok("aclrtHostRegisterV2", buffer, 8, 0x10000000)
    block = cann.malloc(8)
    cann.copy(block, buffer, 8, cann.H2D, queue)
    cann.ffi.memmove(buffer, b"changed.", 8)
    cann.ok("aclrtSynchronizeStream", queue)
    assert cann.read(block, 8) == b"changed."
    cann.fails(100000, "is registered already", "aclrtHostRegisterV2", buffer, 8, 0x10000000)
    cann.fails(100000, "flag must be", "aclrtHostRegisterV2", page, 4096, 1)
    cann.fails(100000, "size must be greater than 0", "aclrtHostRegisterV2", page, 0, 2)
    cann.fails(100000, "must begin a page", "aclrtHostRegister", cann.plus(page, 8), 8, 0, mapped)
    cann.ok("aclrtHostRegister", page, 4096, 0, mapped)
    cann.ok("aclrtMemset", mapped[0], 4096, 7, 4096)
    assert cann.on_host(page, 4096) == b"\7" * 4096
    cann.fails(100000, "still registered", "aclrtFreeHost", page)
    cann.ok("aclrtHostUnregister", page)
    cann.fails(100000, "is not registered", "aclrtHostUnregister", page)
    cann.fails(107000, "memory that was freed", "aclrtMemset", mapped[0], 8, 0, 8)
    cann.check_violations("freed_operand")
    cann.ok("aclrtHostUnregister", buffer)
    cann.ok("aclrtFreeHost", page)
