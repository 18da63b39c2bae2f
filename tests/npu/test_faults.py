"""Every fault that CANN can report, in every queue mode, through both bindings: its error, its time, no leak.

=========== ================================================ ==================================================
fault       error                                            when
=========== ================================================ ==================================================
malloc      torch.OutOfMemoryError                           the call
workspace   torch.OutOfMemoryError, naming the operator      the call
phase 1     RuntimeError of the operator, CANN's message     the call
phase 2     RuntimeError of the operator, CANN's message     the call: queue mode 0, and cffi in every mode
phase 2     torch_npu's, naming the operator; ours is logged the next synchronisation: queue modes 1 and 2
kernel      torch_npu's RuntimeError, CANN's message         the next synchronisation; the call where launches block
synchronise torch_npu's RuntimeError, CANN's message         that synchronisation
=========== ================================================ ==================================================

After a phase 2 that failed in the queue torch_npu's queue is dead, and after a kernel that failed the device's context:
those run in processes of their own. After every other one the next call works.
"""

from __future__ import annotations

import functools
import gc
import itertools
import re
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

import ascend_sample
import hostcann
from ascend_sample.npu import aclnn_call, scratch
from ascend_sample.npu.operators import OPERATORS
from tests.support.isolation import OWN_HANDLES, run_isolated

from .batches import (
    SAMPLE,
    SAMPLE_RESULT,
    SAMPLE_V2,
    SAMPLERS,
    Batch,
    aclnn_name,
    check_equal,
    launches,
    make_batch,
    operator_name,
    use_variant,
)
from .conftest import ROUTES

MESSAGE = "EZ9999: what CANN says about it"
LOGITS = r"; logits=\[8, 1500\] (BFloat16|bf16)"
RUNTIME_ERROR = rf"361001 ACLNN_ERR_RUNTIME_ERROR: .*{MESSAGE}{LOGITS}"

OTHER_QUEUES = [("0", SAMPLE_V2), ("1", SAMPLE_RESULT), ("2", SAMPLE_V2)]
"""Modes of the queue and variants of the call that are tried in `make test-all` alone."""

pytestmark = pytest.mark.usefixtures("emulated")


def error_of(action: Callable[[], object], kind: type[Exception] = RuntimeError) -> str:
    """The text of the error that an action must end in."""
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


def allocated() -> int:
    """Bytes of device memory in tensors, without those that an error's traceback still names."""
    gc.collect()
    torch.npu.synchronize()
    return int(torch.npu.memory_allocated())


def own_handles() -> dict[str, int]:
    """How many of the objects that bindings must destroy are alive, once the queue has run empty."""
    torch.npu.synchronize()
    live = hostcann.live()
    return {kind: live[kind] for kind in OWN_HANDLES}


def check_works(batch: Batch) -> None:
    """The next call is right, nothing is left from the one that failed, and nothing was misused."""
    check_equal(batch.sample(), batch.expected())
    assert own_handles() == dict.fromkeys(OWN_HANDLES, 0)
    assert hostcann.violations() == []


# ---- faults that the process survives: all of them, one after the other, in one process per queue mode ----


@functools.cache
def large_batch() -> Batch:
    """So large that the allocator asks the device for the kept logits and for the workspace, each time anew.

    One for all faults of a process, which has one variant.
    """
    return make_batch(batch_size=4, vocab_size=1 << 20).to("npu")


def fail_in_malloc(batch: Batch) -> None:
    """No memory for one of the large results, then none for the workspace."""
    large = large_batch()
    with hostcann.null_kernels():
        large.sample()  # what is kept from call to call is there
    workspace = len(large.result_sizes())  # the place of its allocation: the ids are not large
    for nth in range(1, workspace + 2):
        before = allocated()
        torch.npu.empty_cache()
        hostcann.inject("malloc", nth=nth, count=1000)
        with hostcann.null_kernels():
            if nth > workspace:
                large.sample()  # those were all that it needs
            else:
                text = error_of(large.sample, torch.OutOfMemoryError)
                assert "out of memory" in text
                assert ("asks for a workspace of" in text) == (nth == workspace)
        hostcann.clear_faults()
        assert allocated() == before, "an allocation of the failed call is still held"


def fail_in_malloc_of_scratch(batch: Batch) -> None:
    """No memory for what is kept from call to call; then an error that is no shortage, which keeps CANN's message."""
    large = large_batch()
    scratch.release()
    before = allocated()
    torch.npu.empty_cache()
    hostcann.inject("malloc", nth=1, count=1000)
    with hostcann.null_kernels():
        assert "out of memory" in error_of(lambda: large.sample(is_need_logits=False), torch.OutOfMemoryError)
    hostcann.clear_faults()
    scratch.release()
    assert allocated() == before
    torch.npu.empty_cache()
    hostcann.inject("malloc", code=507899, message=MESSAGE, count=1000)
    assert MESSAGE in error_of(large.sample)
    hostcann.clear_faults()


def fail_in_workspace(batch: Batch) -> None:
    before = allocated()
    hostcann.inject("workspace", aclnn_name())
    text = error_of(batch.sample, torch.OutOfMemoryError)
    assert re.search(rf"{aclnn_name()}GetWorkspaceSize asks for a workspace of {1 << 60} bytes.*{LOGITS}", text)
    assert allocated() == before


def fail_in_synchronize(batch: Batch) -> None:
    hostcann.inject("synchronize", message=MESSAGE)
    batch.sample()
    assert MESSAGE in error_of(torch.npu.synchronize)


def in_launch() -> str:
    """A failure of phase 2, as a regular expression."""
    return f"{operator_name()}: {aclnn_name()} failed in launch: {RUNTIME_ERROR}"


def fail_in_the_operator(batch: Batch, synchronous_launch: bool) -> None:
    """Each of its launches, in phase 1, with a status that has no name, and in phase 2 where the call is told of it."""
    unknown = rf"123456 \(a status without a name here; see CANN's documents\): .*{MESSAGE}{LOGITS}"
    phase_1 = f"^{operator_name()}: {aclnn_name()}GetWorkspaceSize failed in workspace: "
    faults = [("phase1", 0, phase_1 + RUNTIME_ERROR), ("phase1", 123456, phase_1 + unknown)]
    faults += [("phase2", 0, "^" + in_launch())] * synchronous_launch
    for (site, code, text), nth in itertools.product(faults, range(1, launches() + 1)):
        hostcann.inject(site, aclnn_name(), nth=nth, code=code or None, message=f"{MESSAGE}\n")  # as CANN's end
        assert re.search(text, error_of(batch.sample))
        check_works(batch)


def survive(queue: str, variant: str) -> None:
    """All faults that leave the process usable."""
    for route in ROUTES:
        with ascend_sample.use_backend(route), use_variant(variant):
            batch = make_batch().to("npu")
            check_works(batch)
            fail_in_the_operator(batch, synchronous_launch=route == "cffi" or queue == "0")
            for fail in (fail_in_malloc, fail_in_malloc_of_scratch, fail_in_workspace, fail_in_synchronize):
                fail(batch)
                check_works(batch)


@pytest.mark.parametrize(
    ("queue", "variant"), [("1", SAMPLE), *(pytest.param(*row, marks=pytest.mark.long) for row in OTHER_QUEUES)]
)
def test_fault_is_reported_and_the_next_call_works(queue: str, variant: str) -> None:
    run_isolated(survive, queue, variant, TASK_QUEUE_ENABLE=queue).check_clean()


# ---- faults after which the device's context or torch_npu's queue is dead: a process each ----


def synchronise_until_told() -> None:
    """Waits for the device until torch_npu tells of what has failed in its queue, for 10 seconds at most.

    Its thread empties the queue first and notes the failure then: who waits between the two sees an empty queue, and
    only the next one is told.
    """
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        torch.npu.synchronize()


def fail_in_queued_phase_2(variant: str) -> str:
    with use_variant(variant):
        batch = make_batch().to("npu")
        batch.sample()
        torch.npu.synchronize()
        hostcann.inject("phase2", aclnn_name(), nth=launches(), message=MESSAGE)
        batch.sample()
    text = error_of(synchronise_until_told)
    # The queue's thread tells of a failure before it has unwound.
    deadline = time.monotonic() + 10
    while any(own_handles().values()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert own_handles() == dict.fromkeys(OWN_HANDLES, 0)
    return text


@pytest.mark.parametrize(
    ("queue", "variant"),
    [("1", SAMPLE), pytest.param("2", SAMPLE_RESULT, marks=pytest.mark.long)],
)
def test_queued_launch_fails_at_a_synchronisation(queue: str, variant: str) -> None:
    finished = run_isolated(fail_in_queued_phase_2, variant, TASK_QUEUE_ENABLE=queue)
    finished.check_clean()
    with use_variant(variant):
        assert f"the current working operator name is {aclnn_name()}" in finished.result
        assert re.search(in_launch(), finished.stderr), finished.stderr


def fail_in_kernel(route: str, blocking: bool, variant: str) -> list[str]:
    """The texts of the failing call or synchronisation, and of the call after it."""
    with ascend_sample.use_backend(route), use_variant(variant):
        batch = make_batch().to("npu")
        batch.sample()
        torch.npu.synchronize()
        hostcann.inject("task", aclnn_name(), nth=launches(), message=MESSAGE)
        if not blocking:
            batch.sample()
        first = error_of(batch.sample if blocking else torch.npu.synchronize)
        live = hostcann.live()
        assert {kind: live[kind] for kind in OWN_HANDLES} == dict.fromkeys(OWN_HANDLES, 0)

        def once_more() -> None:
            batch.sample()
            torch.npu.synchronize()

        return [first, error_of(once_more)]


@pytest.mark.parametrize(
    ("name", "variant", "variable"),
    [
        ("aclnn", SAMPLE_V2, "ASCEND_LAUNCH_BLOCKING=1"),
        ("cffi", SAMPLE_RESULT, "ASCEND_LAUNCH_BLOCKING=1"),
        pytest.param("aclnn", SAMPLE_RESULT, "TASK_QUEUE_ENABLE=2", marks=pytest.mark.long),
        pytest.param("cffi", SAMPLE, "TASK_QUEUE_ENABLE=1", marks=pytest.mark.long),
    ],
)
def test_kernel_fails_at_the_next_synchronisation(name: str, variant: str, variable: str) -> None:
    """Which is the call where launches block."""
    setting, _, value = variable.partition("=")
    finished = run_isolated(fail_in_kernel, name, "BLOCKING" in setting, variant, **{setting: value})
    first, second = finished.result
    assert "507035" in first
    assert MESSAGE in first
    assert "507035" in second or MESSAGE in finished.stderr, "a failed context must not look as if it worked"
    # torch_npu's own operators leave handles behind when they meet the failed context; nothing else may go wrong.
    assert {violation["kind"] for violation in finished.report["violations"]} <= {"leak", "executor_leaked"}


# ---- what the cffi binding alone can meet ----


def fail_in_the_queue_before() -> list[int]:
    """An operator that was queued before fails: its error is raised while the stream is taken, and nothing leaks."""
    batch = make_batch().to("npu")
    torch.npu.synchronize()
    hostcann.inject("phase2", "aclnnThreshold")
    with hostcann.profile() as counted:
        with ascend_sample.use_backend("cffi"), pytest.raises(RuntimeError, match="aclnnThreshold"):
            batch.sample()
        return [hostcann.live()["executor"], counted.launches.get(aclnn_name(), 0)]


def test_failing_queue() -> None:
    assert run_isolated(fail_in_the_queue_before, TASK_QUEUE_ENABLE="1").result == [0, 0]


def test_no_stream_after_a_failed_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions of torch_npu return a null stream, CANN's default one, instead of raising."""
    names = ("stream_id", "device_index", "device_type", "device")
    real = torch.npu.current_stream()
    stream = SimpleNamespace(npu_stream=0, **{name: getattr(real, name) for name in names})
    monkeypatch.setattr(torch.npu, "current_stream", lambda device=None: stream)
    with ascend_sample.use_backend("cffi"):
        text = error_of(make_batch().to("npu").sample)
    assert "must follow torch_npu's task queue, got a queue that has failed" in text


@pytest.mark.parametrize("operator", SAMPLERS)
def test_executor_of_a_phase_1_that_fails(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CANN's generated operators give it before they look at the arguments: it stays the caller's."""
    with ascend_sample.use_backend("cffi"), use_variant(operator):
        batch = make_batch().to("npu")
        batch.sample()
        cann = aclnn_call.cann_of(operator)
        phase_1 = cann.get_workspace_size

        def failing(*arguments: object) -> int:
            assert phase_1(*arguments) == 0
            return 561002

        monkeypatch.setattr(cann, "get_workspace_size", failing)
        before = own_handles()
        assert f"{OPERATORS[operator].phase_1} failed in workspace: 561002" in error_of(batch.sample)
        assert own_handles() == before
