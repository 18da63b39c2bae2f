"""Collectives between processes at the C level: their arithmetic, their errors, ranks that die."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from ranks import (
    LARGEST,
    PRODUCT,
    SMALLEST,
    SUM,
    TYPES,
    all_reduce,
    appears,
    async_error,
    begin_anew,
    failure,
    in_ranks,
    join,
    joined,
    root_info,
    shared,
    this_rank,
)

from tests.support import cann
from tests.support.isolation import program_of

FLOAT = TYPES["float32"]
ONES = np.ones(4, np.float32)


@pytest.mark.parametrize("ranks", [1, 3, pytest.param(5, marks=pytest.mark.long)])
@in_ranks(0)
def test_reductions_are_those_of_numpy_in_the_order_of_the_ranks(ranks: int) -> None:
    group, on = joined()
    combine = {SUM: np.add, PRODUCT: np.multiply, LARGEST: np.maximum, SMALLEST: np.minimum}
    for size in (0, 1, 2, 7, 1001):
        for name in TYPES:
            parts = []
            for owner in range(ranks):
                random = np.random.default_rng((owner, size))
                values = random.standard_normal(size) * 3 if "float" in name else random.integers(0, 200, size)
                parts.append(values.astype(name))
            wide = np.float32 if name == "float16" else name
            for reduction, function in combine.items():
                expected = parts[0].astype(wide)
                for part in parts[1:]:
                    expected = function(expected, part.astype(wide))
                block = all_reduce(group, parts[this_rank()], on, reduction)
                cann.ok("aclrtSynchronizeStream", on)
                with np.errstate(over="ignore"):
                    assert cann.read(block, parts[0].nbytes) == expected.astype(name).tobytes(), (size, name, reduction)
    cann.ok("HcclCommDestroy", group)


@in_ranks(2)
def test_half_precision_is_rounded_once_and_keeps_its_odd_values() -> None:
    """Sums of float16 that are subnormal, that round to infinity, that tie; of NaN and infinities."""
    group, on = joined()
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    random = np.random.default_rng(7)
    left, right = random.permutation(halves), random.permutation(halves)
    with np.errstate(all="ignore"):
        expected = (left.astype(np.float32) + right.astype(np.float32)).astype(np.float16)
    block = all_reduce(group, (left, right)[this_rank()], on)
    cann.ok("aclrtSynchronizeStream", on)
    found = np.frombuffer(cann.read(block, left.nbytes), np.float16)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    kept = ~np.isnan(expected)
    assert np.array_equal(found[kept].view(np.uint16), expected[kept].view(np.uint16))


@in_ranks(3)
def test_ranks_that_differ_are_told_so() -> None:
    """What rank 1 calls is another type, another count, another reduction, another collective."""
    cann.start(this_rank())
    ones = np.ones(4, np.int8)
    for turn, (of_all, of_one, texts) in enumerate(
        (
            ((ONES, SUM), (ONES.astype("int32"), SUM), ("float32", "int32")),
            ((ones, SUM), (np.ones(5, np.int8), SUM), ("of 4", "of 5")),
            ((ones, SUM), (ones, LARGEST), ()),
            ((ones, SUM), None, ("HcclAllReduce", "Barrier")),
        )
    ):
        group, on = join(f"group {turn}"), cann.stream()
        mine = of_one if this_rank() == 1 else of_all
        all_reduce(group, mine[0], on, mine[1]) if mine else cann.ok("HcclBarrier", group, on)
        message = failure(on)
        assert "ranks must call the same collective" in message or "has given the group up" in message, message
        if this_rank() == 1:
            assert all(text in message for text in texts), message
            cann.check_violations("collective_mismatch")
        assert async_error(group) in (1, 21)
        cann.ok("HcclCommDestroy", group)
        begin_anew()


@in_ranks(2)
def test_a_receiver_with_too_little_room_is_told_so() -> None:
    group, on = joined()
    if this_rank() == 0:
        cann.ok("HcclSend", cann.malloc(64), 16, TYPES["int32"], 1, group, on)
        cann.call("aclrtSynchronizeStream", on)
    else:
        cann.ok("HcclRecv", cann.malloc(64), 15, TYPES["int32"], 0, group, on)
        assert "room for 60 bytes and 64 sent" in failure(on)
        cann.check_violations("collective_mismatch")


@in_ranks(2)
def test_a_buffer_that_is_freed_before_the_collective_runs_is_a_violation() -> None:
    group, on = joined()
    cann.set_stream_mode("lazy")
    block = all_reduce(group, ONES, on)
    if this_rank() == 0:
        cann.ok("aclrtFree", block)
        assert "HcclAllReduce" in failure(on)
        cann.check_violations("freed_operand")
        os._exit(0)
    assert "rank 0" in failure(on)


def die_in_a_group(name: str) -> None:
    cann.start(this_rank())
    join(name)
    os.kill(os.getpid(), 9)


@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.long)])
@in_ranks(3, seconds=120)
def test_a_rank_that_dies_is_named_and_a_new_group_works(kills: int) -> None:
    """Each time the others fail at once, reset their device, and go on without it."""
    if this_rank() == 2:  # in processes that have not loaded CANN yet
        for turn in range(kills):
            os.spawnv(os.P_WAIT, sys.executable, [sys.executable, *program_of(die_in_a_group, [f"three {turn}"])])
        return
    cann.start(this_rank())
    for turn in range(kills):
        group, on = join(f"three {turn}"), cann.stream()
        all_reduce(group, np.ones(1000, np.float32), on)
        begin = time.monotonic()
        assert "rank" in failure(on)
        assert time.monotonic() - begin < 5
        assert async_error(group) == 21
        cann.ok("HcclCommDestroy", group)
        begin_anew()
        group, on = join(f"two {turn}", ranks=2), cann.stream()
        block = all_reduce(group, np.full(4, this_rank() + 1, np.float32), on)
        cann.ok("aclrtSynchronizeStream", on)
        assert np.frombuffer(cann.read(block, 16), np.float32).tolist() == [3.0] * 4
        cann.ok("HcclCommDestroy", group)


@in_ranks(2, HCCL_EXEC_TIMEOUT="1")
def test_a_rank_that_stays_away_is_named_in_time() -> None:
    group, on = joined()
    if this_rank() == 1:
        time.sleep(3)
        return
    all_reduce(group, ONES, on)
    begin = time.monotonic()
    assert "rank 1 did not take part within 1 s (HCCL_EXEC_TIMEOUT)" in failure(on)
    assert time.monotonic() - begin < 10
    assert async_error(group) == 9


@pytest.mark.long
@pytest.mark.parametrize("seconds", ["0", "2147483647"])
@in_ranks(2)
def test_a_limit_may_be_none_or_long(seconds: str) -> None:
    os.environ["HCCL_EXEC_TIMEOUT"] = seconds
    group, on = joined()
    time.sleep(this_rank())
    all_reduce(group, ONES, on)
    cann.ok("aclrtSynchronizeStream", on)


@in_ranks(2)
def test_a_group_needs_all_of_its_ranks_once() -> None:
    cann.start(this_rank())
    status, message = join("sizes", ranks=2 + this_rank())
    assert status == 1
    assert "nRanks must be the same on every rank" in message
    if this_rank() == 1:
        return
    os.environ["HCCL_CONNECT_TIMEOUT"] = "1"
    late: list[Any] = []
    thread = threading.Thread(target=lambda: late.append(join("alone")))
    thread.start()
    time.sleep(0.3)
    status, message = join("alone")
    assert status == 1
    assert "rank 0 of this group exists already" in message
    thread.join()
    ((status, message),) = late
    assert status == 9
    assert "rank 1 did not come within 1 s (HCCL_CONNECT_TIMEOUT)" in message


@in_ranks(2)
def test_a_collective_that_waits_ends_with_its_communicator_or_its_process() -> None:
    group, on = joined()
    if this_rank() == 0:
        all_reduce(group, ONES, on)
        time.sleep(0.2)
        cann.ok("HcclCommDestroy", group)
        assert "the communicator was destroyed before" in failure(on)
        cann.fails(1, "was destroyed, or never was one", "HcclBarrier", group, on)
        begin_anew()
    again = join("again")
    if this_rank() == 0:
        all_reduce(again, ONES, cann.stream())
        time.sleep(0.2)
        sys.exit()  # with the collective running
    time.sleep(1)


@in_ranks(2)
def test_a_fork_ends_without_its_parents_groups_and_keeps_none_of_them() -> None:
    """As the workers of a DataLoader: one ends as a program does, another outlives the rank."""
    group, on = joined()
    if this_rank() == 1:
        child = os.fork()
        if child == 0:
            sys.exit()
        assert os.waitpid(child, 0)[1] == 0
    else:
        time.sleep(0.5)
    all_reduce(group, ONES, on)
    cann.ok("aclrtSynchronizeStream", on)
    if this_rank() == 1:
        if os.fork() == 0:
            os.close(2)  # which the test reads to its end
            time.sleep(10)
        os._exit(0)
    all_reduce(group, ONES, on)
    begin = time.monotonic()
    assert "rank 1 has ended" in failure(on)
    assert time.monotonic() - begin < 5


@in_ranks(1)
def test_wrong_arguments_are_refused_at_the_call() -> None:
    group, on = joined()
    buffer = cann.malloc(64)
    cann.fails(1, "sendBuf must not be null", "HcclAllReduce", None, buffer, 4, FLOAT, SUM, group, on)
    cann.fails(1, "does not emulate HcclDataType(99)", "HcclAllReduce", buffer, buffer, 4, 99, SUM, group, on)
    cann.fails(1, "op must be an HcclReduceOp, got 4", "HcclAllReduce", buffer, buffer, 4, FLOAT, 4, group, on)
    cann.fails(1, "root must be a rank of the group, got 1", "HcclBroadcast", buffer, 4, FLOAT, 1, group, on)
    cann.fails(1, "destRank must be a rank of the group", "HcclSend", buffer, 4, FLOAT, 7, group, on)
    cann.fails(1, "never was one", "HcclBarrier", cann.pointer(5), on)
    cann.fails(1, "one that HcclGetRootInfo has written", "HcclCommInitRootInfo", 1, b"x" * 4108, 0, cann.new())
    cann.fails(1, "rank must be below nRanks, got 3 of 2", "HcclCommInitRootInfo", 2, root_info("other"), 3, cann.new())
    cann.fails(5, "does not emulate it", "HcclCommResume", group)
    cann.fails(1, "must follow a call of HcclGroupStart", "HcclGroupEnd")


@in_ranks(2, seconds=30)
def test_a_lazy_stream_does_not_keep_other_ranks_waiting() -> None:
    """What other processes wait for runs by itself, with what comes before it; nothing after it does."""
    group, on = joined()
    block = cann.malloc(16)
    if this_rank() == 0:
        cann.set_stream_mode("lazy")
        cann.ok("aclrtMemsetAsync", block, 16, 0, 16, on)
        cann.ok("HcclSend", block, 4, FLOAT, 1, group, on)
        cann.ok("aclrtMemsetAsync", block, 16, 1, 16, on)
        appears(shared("received"))
    else:
        cann.ok("HcclRecv", block, 4, FLOAT, 0, group, on)
        cann.ok("aclrtSynchronizeStream", on)
        shared("received").touch()
    assert cann.read(block, 16) == bytes(16)
