"""Order: after what was submitted before, on the current stream, from any thread, in each mode of torch_npu's queue."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import ascend_sample
import hostcann
from tests.support.isolation import run_isolated

from .batches import VARIANTS, Batch, check_equal, make_batch, sample, use_variant
from .conftest import ROUTES

STREAM_MODES = ("delayed", "lazy")

pytestmark = pytest.mark.usefixtures("emulated")


def produce(batch: Batch) -> Batch:
    """The same batch, whose tensors are results of operators that are still queued."""
    return batch.to("npu").each(lambda tensor: tensor.neg().neg())


def check_after_queued_operators() -> None:
    """The call follows operators that were submitted just before it, and those behind it follow the call."""
    host = make_batch(seed=1)
    batch = produce(host)
    result = batch.sample()
    batch.logits.zero_()  # after the call: it must not see this
    batch.q.zero_()
    following = result.logits_select_idx * 2
    check_equal(result, host.expected())
    assert following.tolist() == [2 * token for token in host.expected().logits_select_idx.tolist()]


def check_released_inputs() -> None:
    """Inputs may be dropped at once: nothing holds them, and their memory is handed on in the stream's order."""
    host = make_batch(seed=2)
    host.to("npu").sample(is_need_logits=False)  # what is kept from call to call is there
    torch.npu.synchronize()
    before = torch.npu.memory_allocated()
    batch = produce(host)
    shapes = batch.logits.shape
    result = batch.sample(is_need_logits=False)
    del batch
    held = torch.npu.memory_allocated() - before
    sizes = host.result_sizes(is_need_logits=False)
    assert held <= sum(sizes) + 512 * len(sizes), f"{held} bytes are held for results of {sizes} bytes"
    for value in (1, 2, 3):
        torch.full(shapes, value, dtype=torch.bfloat16, device="npu")
    check_equal(result, host.expected())


def check_side_stream() -> None:
    """The launch is on the current stream: another stream that waits for nothing does not carry it, one that waits
    follows it."""
    host = make_batch(seed=3)
    expected = host.expected().logits_select_idx.tolist()
    side = torch.npu.Stream()
    with torch.npu.stream(side):
        batch = produce(host)
        result = batch.sample()
        ids = torch.empty(len(host.k), dtype=torch.int64).pin_memory()
        ids.copy_(result.logits_select_idx, non_blocking=True)
    side.synchronize()  # the default stream has not run anything in lazy mode
    assert ids.tolist() == expected
    with torch.npu.stream(side):
        result = batch.sample()
    torch.npu.current_stream().wait_stream(side)
    assert (result.logits_select_idx * 2).tolist() == [2 * token for token in expected]


def check_workspaces_are_kept_apart() -> None:
    """Many calls in flight on two streams, with other tensors taken and dropped between them."""
    streams = [torch.npu.Stream(), torch.npu.Stream()]
    hosts = [make_batch(seed=seed, batch_size=3, vocab_size=900 + 100 * (seed % 3)) for seed in range(8)]
    results: list[Any] = []
    batches = []
    for number, host in enumerate(hosts):
        with torch.npu.stream(streams[number % 2]):
            batches.append(produce(host))
            results.append(batches[-1].sample())
            torch.full((3, 900, 6), number, dtype=torch.float32, device="npu")  # as large as a workspace
        torch.full((3, 900, 6), number, dtype=torch.float32, device="npu")
    for stream in streams:
        stream.synchronize()
    for result, host in zip(results, hosts, strict=True):
        check_equal(result, host.expected())


def check_threads() -> None:
    """Threads that have never seen the device: each with a stream of its own, then all on one.

    On one they share its scratch: the k that one call has made valid must not be read by another.
    """
    hosts = [make_batch(seed=seed, batch_size=4 + seed, vocab_size=600 + 100 * seed) for seed in range(4)]
    expected = [host.expected() for host in hosts]
    start = threading.Barrier(len(hosts))

    def work(number: int, is_apart: bool) -> None:
        start.wait()
        stream = torch.npu.Stream() if is_apart and number else torch.npu.default_stream()
        with torch.npu.stream(stream):
            batch = produce(hosts[number])
            results = [batch.sample(is_need_logits=is_apart) for _ in range(8)]
            stream.synchronize()
        for result in results:
            check_equal(result, expected[number])

    for is_apart in (True, False):
        with ThreadPoolExecutor(len(hosts)) as pool:
            list(pool.map(work, range(len(hosts)), [is_apart] * len(hosts)))


CHECKS = (
    check_after_queued_operators,
    check_released_inputs,
    check_side_stream,
    check_workspaces_are_kept_apart,
    check_threads,
)


def test_order(route: str, subtests: pytest.Subtests) -> None:
    """With torch_npu's usual queue, in this process."""
    for mode, check in itertools.product(STREAM_MODES, CHECKS):
        with subtests.test(mode=mode, check=check.__name__):
            hostcann.set_stream_mode(mode)
            check()
            torch.npu.synchronize()
            assert hostcann.violations() == []


def check_everything() -> int:
    checked = 0
    for variant, route in itertools.product(VARIANTS, ROUTES):
        with ascend_sample.use_backend(route), use_variant(variant):
            for mode, check in itertools.product(STREAM_MODES, CHECKS):
                hostcann.set_stream_mode(mode)
                check()
                torch.npu.synchronize()
                checked += 1
    return checked


@pytest.mark.long
@pytest.mark.parametrize("variables", [{"TASK_QUEUE_ENABLE": "2"}, {"ASCEND_LAUNCH_BLOCKING": "1"}])
def test_order_in_other_queue_modes(variables: dict[str, str]) -> None:
    finished = run_isolated(check_everything, **variables)
    finished.check_clean()
    assert finished.result == len(VARIANTS) * len(ROUTES) * len(STREAM_MODES) * len(CHECKS)


K_AND_P = {
    "scalars": (5, 0.9),
    "none": (None, None),
    "good tensors": (torch.int32, torch.bfloat16),
    "wider tensors": (torch.int64, torch.float32),
    "narrower tensors": (torch.uint8, torch.float16),
}


def test_nothing_synchronises(route: str) -> None:
    """No call makes the host wait, whatever k and p are given as, and nothing is copied."""
    host = make_batch()
    batch = host.to("npu")
    batch.sample(is_need_logits=False)  # what is kept from call to call is there
    for form, is_need_logits in itertools.product(K_AND_P, (False, True)):
        k, p = K_AND_P[form]
        if isinstance(k, torch.dtype) and isinstance(p, torch.dtype):
            k, p = (host.k % 100).to(k).to("npu"), host.p.to(p).to("npu")
        with hostcann.profile() as counted:
            sample(batch.logits, k, p, batch.noise, is_need_logits=is_need_logits)
        assert (counted.synchronizations, counted.copies) == ({}, {}), form
