"""Collectives between processes at the C level, without torch: their arithmetic, their errors, ranks that die."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hccl_ranks import HCCL, STARTED, run
from runtime_programs import check

pytestmark = pytest.mark.skipif(not HCCL.is_file(), reason="hostcann was not built")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where ranks find the root info; nobody is left running in the end."""
    STARTED.clear()
    yield tmp_path
    for process in STARTED:
        process.kill()
        process.wait()


@pytest.fixture
def pair(folder: Path) -> Callable[[str], None]:
    """Runs a program on two ranks."""
    return functools.partial(run, folder, 2)


@pytest.mark.parametrize("ranks", [1, 3, pytest.param(5, marks=pytest.mark.long)])
def test_reductions_are_those_of_numpy_in_the_order_of_the_ranks(folder: Path, ranks: int) -> None:
    run(
        folder,
        ranks,
        """
        group, on = joined()
        combine = {SUM: np.add, PRODUCT: np.multiply, LARGEST: np.maximum, SMALLEST: np.minimum}
        for size in (0, 1, 2, 7, 1001):
            for name in TYPES:
                for reduction in combine:
                    parts = []
                    for owner in range(ranks):
                        random = np.random.default_rng((owner, size))
                        values = random.standard_normal(size) * 3 if "float" in name else random.integers(0, 200, size)
                        parts.append(values.astype(name))
                    wide = np.float32 if name == "float16" else name
                    expected = parts[0].astype(wide)
                    for part in parts[1:]:
                        expected = combine[reduction](expected, part.astype(wide))
                    address = all_reduce(group, parts[rank], on, reduction)
                    ok("aclrtSynchronizeStream", on)
                    with np.errstate(over="ignore"):
                        expected = expected.astype(name).tobytes()
                    assert read(address, parts[0].nbytes) == expected, (size, name, reduction)
        assert hccl.HcclCommDestroy(group) == 0 and violations() == []
        """,
    )


def test_half_precision_is_rounded_once_and_keeps_its_odd_values(pair: Callable[[str], None]) -> None:
    """Sums of float16 that are subnormal, that round to infinity, that tie; of NaN and infinities."""
    pair("""
        group, on = joined()
        halves = np.arange(65536, dtype=np.uint16).view(np.float16)
        random = np.random.default_rng(7)
        left, right = random.permutation(halves), random.permutation(halves)
        with np.errstate(all="ignore"):
            expected = (left.astype(np.float32) + right.astype(np.float32)).astype(np.float16)
        address = all_reduce(group, (left, right)[rank], on)
        ok("aclrtSynchronizeStream", on)
        got = np.frombuffer(read(address, left.nbytes), np.float16)
        assert np.array_equal(np.isnan(got), np.isnan(expected))
        kept = ~np.isnan(expected)
        assert np.array_equal(got[kept].view(np.uint16), expected[kept].view(np.uint16))
    """)


def test_ranks_that_differ_are_told_so(folder: Path) -> None:
    run(
        folder,
        3,
        """
        device()
        ones = np.ones(4, np.int8)
        for turn, (call, other, texts) in enumerate((
            (lambda: all_reduce(group, np.ones(4, np.float32), on),
             lambda: all_reduce(group, np.ones(4, np.int32), on), ("float32", "int32")),
            (lambda: all_reduce(group, ones, on), lambda: all_reduce(group, np.ones(5, np.int8), on), ("of 4", "of 5")),
            (lambda: all_reduce(group, ones, on, SUM), lambda: all_reduce(group, ones, on, LARGEST), ()),
            (lambda: all_reduce(group, ones, on), lambda: hccl.HcclBarrier(group, on), ("HcclAllReduce", "Barrier")),
        )):
            group, on = join(f"group {turn}"), stream()
            call() if rank != 1 else other()
            message = failure(on)
            assert "ranks must call the same collective" in message or "has given the group up" in message, message
            if rank == 1:
                assert all(text in message for text in texts), message
                assert violations() == ["collective_mismatch"]
                acl.hostcann_reset_violations()
            assert async_error(group) in (1, 21) and hccl.HcclCommDestroy(group) == 0
            ok("aclrtResetDeviceForce", rank)
            ok("aclrtSetDevice", rank)
        """,
    )


def test_a_receiver_with_too_little_room_is_told_so(pair: Callable[[str], None]) -> None:
    pair("""
        group, on = joined()
        buffer = malloc(64)
        if rank == 0:
            assert hccl.HcclSend(buffer, count_t(16), 2, 1, group, on) == 0
            acl.aclrtSynchronizeStream(on)
        else:
            assert hccl.HcclRecv(buffer, count_t(15), 2, 0, group, on) == 0
            assert "room for 60 bytes and 64 sent" in failure(on)
            assert violations() == ["collective_mismatch"]
    """)


def test_a_buffer_that_is_freed_before_the_collective_runs_is_a_violation(pair: Callable[[str], None]) -> None:
    pair("""
        group, on = joined()
        mode("lazy")
        address = all_reduce(group, np.ones(4, np.float32), on)
        if rank == 0:
            ok("aclrtFree", address)
            assert "HcclAllReduce" in failure(on) and violations() == ["freed_operand"]
            os._exit(0)
        assert "rank 0" in failure(on)
    """)


@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.long)])
def test_a_rank_that_dies_is_named_and_a_new_group_works(folder: Path, kills: int) -> None:
    """Each time the others fail at once, reset their device, and go on without it."""
    run(
        folder,
        3,
        """
        device()
        for turn in range(int(os.environ["KILLS"])):
            child = os.fork() if rank == 2 else 0
            if rank == 2 and child:
                os.waitpid(child, 0)
                continue
            if rank == 2:  # a process that has not loaded CANN yet: its own start of one
                text = open("/proc/self/cmdline", "rb").read().split(b"\\0")[2].decode()
                text = text[: text.index("device()\\nfor turn")]
                text += f"device()\\ngroup, on = join('three {turn}'), stream()\\nos.kill(os.getpid(), 9)"
                os.execv(sys.executable, [sys.executable, "-c", text, *sys.argv[1:]])
            group, on = join(f"three {turn}"), stream()
            all_reduce(group, np.ones(1000, np.float32), on)
            begin = time.monotonic()
            assert "rank 2 has ended" in (message := failure(on)) or "rank" in message, message
            assert time.monotonic() - begin < 5
            assert async_error(group) == 21 and hccl.HcclCommDestroy(group) == 0
            ok("aclrtResetDeviceForce", rank)
            ok("aclrtSetDevice", rank)
            group, on = join(f"two {turn}", ranks=2), stream()
            address = all_reduce(group, np.full(4, rank + 1, np.float32), on)
            ok("aclrtSynchronizeStream", on)
            assert np.frombuffer(read(address, 16), np.float32).tolist() == [3.0] * 4
            assert hccl.HcclCommDestroy(group) == 0
        """,
        seconds=60 + kills,
        KILLS=str(kills),
    )


def test_a_rank_that_stays_away_is_named_in_time(pair: Callable[[str], None]) -> None:
    pair(
        """
        group, on = joined()
        if rank == 0:
            all_reduce(group, np.ones(4, np.float32), on)
            begin = time.monotonic()
            assert "rank 1 did not take part within 1 s (HCCL_EXEC_TIMEOUT)" in failure(on)
            assert time.monotonic() - begin < 10 and async_error(group) == 9
        else:
            time.sleep(3)
        """,
        HCCL_EXEC_TIMEOUT="1",
    )


@pytest.mark.long
@pytest.mark.parametrize("seconds", ["0", "2147483647"])
def test_a_limit_may_be_none_or_long(folder: Path, seconds: str) -> None:
    run(
        folder,
        2,
        """
        group, on = joined()
        time.sleep(rank)
        all_reduce(group, np.ones(4, np.float32), on)
        ok("aclrtSynchronizeStream", on)
        """,
        HCCL_EXEC_TIMEOUT=seconds,
    )


def test_a_group_needs_all_of_its_ranks_once(folder: Path) -> None:
    run(
        folder,
        2,
        """
        device()
        status, message = join("sizes", ranks=2 + rank)
        assert status == 1 and "nRanks must be the same on every rank" in message, message
        if rank == 0:
            os.environ["HCCL_CONNECT_TIMEOUT"] = "1"
            late = []
            thread = threading.Thread(target=lambda: late.append(join("alone")))
            thread.start()
            time.sleep(0.3)
            status, message = join("alone")
            assert status == 1 and "rank 0 of this group exists already" in message, message
            thread.join()
            ((status, message),) = late
            assert status == 9 and "rank 1 did not come within 1 s (HCCL_CONNECT_TIMEOUT)" in message, message
    """,
    )


def test_a_collective_that_waits_ends_with_its_communicator_or_its_process(pair: Callable[[str], None]) -> None:
    pair("""
        group, on = joined()
        if rank == 0:
            all_reduce(group, np.ones(4, np.float32), on)
            time.sleep(0.2)
            assert hccl.HcclCommDestroy(group) == 0
            assert "the communicator was destroyed before" in failure(on)
            refused(1, "was destroyed, or never was one", "HcclBarrier", group, on)
            ok("aclrtResetDeviceForce", rank)
            ok("aclrtSetDevice", rank)
        again = join("again")
        if rank == 0:
            all_reduce(again, np.ones(4, np.float32), stream())
            time.sleep(0.2)
            sys.exit()  # with the collective running
        time.sleep(1)
    """)


def test_a_fork_ends_without_its_parents_groups_and_keeps_none_of_them(pair: Callable[[str], None]) -> None:
    """As the workers of a DataLoader: one ends as a program does, another outlives the rank."""
    pair("""
        group, on = joined()
        if rank == 1:
            child = os.fork()
            if child == 0:
                sys.exit()
            assert os.waitpid(child, 0)[1] == 0
        else:
            time.sleep(0.5)
        all_reduce(group, np.ones(4, np.float32), on)
        ok("aclrtSynchronizeStream", on)
        if rank == 1:
            if os.fork() == 0:
                os.close(2)  # which the test reads to its end
                time.sleep(10)
            os._exit(0)
        all_reduce(group, np.ones(4, np.float32), on)
        begin = time.monotonic()
        assert "rank 1 has ended" in failure(on)
        assert time.monotonic() - begin < 5
    """)


def test_wrong_arguments_are_refused_at_the_call(folder: Path) -> None:
    run(
        folder,
        1,
        """
        device()
        group, on, buffer = join(), stream(), malloc(64)
        refused(1, "sendBuf must not be null", "HcclAllReduce", None, buffer, count_t(4), 4, 0, group, on)
        refused(1, "does not emulate HcclDataType(99)", "HcclAllReduce", buffer, buffer, count_t(4), 99, 0, group, on)
        refused(1, "op must be an HcclReduceOp, got 4", "HcclAllReduce", buffer, buffer, count_t(4), 4, 4, group, on)
        refused(1, "root must be a rank of the group, got 1", "HcclBroadcast", buffer, count_t(4), 4, 1, group, on)
        refused(1, "destRank must be a rank of the group", "HcclSend", buffer, count_t(4), 4, 7, group, on)
        refused(1, "never was one", "HcclBarrier", handle(5), on)
        refused(1, "one that HcclGetRootInfo has written", "HcclCommInitRootInfo", 1, b"x" * 4108, 0, buffer)
        refused(1, "rank must be below nRanks, got 3 of 2", "HcclCommInitRootInfo", 2, root_info("other"), 3, buffer)
        refused(5, "does not emulate it", "HcclCommResume", group)
        refused(1, "must follow a call of HcclGroupStart", "HcclGroupEnd")
        assert violations() == []
        """,
    )


def test_a_process_has_one_device_of_those_that_it_is_told_of() -> None:
    check(
        """
        count = ctypes.c_uint32()
        ok("aclInit", None)
        ok("aclrtGetDeviceCount", ctypes.byref(count))
        assert count.value == 3
        fails(107001, "deviceId must be in [0, 3), got 3", "aclrtSetDevice", 3)
        ok("aclrtSetDevice", 2)
        fails(107001, "deviceId must be 2, which this process uses already, got 1", "aclrtSetDevice", 1)
        """,
        LOCAL_WORLD_SIZE="3",
    )
    check('fails(0, "", "aclInit", None)', HOSTCANN_DEVICES="2")
    check(
        'fails(100000, "HOSTCANN_DEVICES must be a number of devices, 1 to 64", "aclInit", None)', HOSTCANN_DEVICES="0"
    )


def test_a_lazy_stream_does_not_keep_other_ranks_waiting(folder: Path) -> None:
    """What other processes wait for runs by itself, with what comes before it; nothing after it does."""
    begin = time.monotonic()
    run(
        folder,
        2,
        """
        group, on = joined()
        if rank == 0:
            mode("lazy")
            address = malloc(16)
            ok("aclrtMemsetAsync", address, size_t(16), 0, size_t(16), on)
            assert hccl.HcclSend(address, count_t(4), 4, 1, group, on) == 0
            ok("aclrtMemsetAsync", address, size_t(16), 1, size_t(16), on)
            open(os.path.join(folder, "sent"), "w").close()
            while not os.path.exists(os.path.join(folder, "received")):
                time.sleep(0.01)
            assert read(address, 16) == bytes(16)
        else:
            address = malloc(16)
            assert hccl.HcclRecv(address, count_t(4), 4, 0, group, on) == 0
            ok("aclrtSynchronizeStream", on)
            assert read(address, 16) == bytes(16)
            open(os.path.join(folder, "received"), "w").close()
        """,
    )
    assert time.monotonic() - begin < 30
