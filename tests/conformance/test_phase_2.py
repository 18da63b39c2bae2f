"""Phase 2: what it refuses, that an executor serves once, and the order of what is launched."""

import numpy as np
import pytest

from tests.support.cann import abi, aclnn, check, check_violations, ffi, operators, recent_message, set_stream_mode
from tests.support.isolation import own_process

from .hand_worked import MIXED, NO_P, SCENARIOS
from .sampler import KINDS, OPERATORS, Arguments, Device, phase_1

NULL_ARGUMENT = 161001
INVALID = 161002

of_each_operator = pytest.mark.parametrize("operator", OPERATORS)


def arguments_of(device: Device, operator: str) -> Arguments:
    """One row that works and needs a workspace."""
    return device.arguments_for(operator, [MIXED], [4], [NO_P])


@of_each_operator
def test_what_is_null(device: Device, operator: str) -> None:
    assert getattr(operators, operator)(ffi.NULL, 0, ffi.NULL, device.stream) == NULL_ARGUMENT
    assert "executor" in recent_message()
    plan = device.plan(arguments_of(device, operator))
    assert plan.workspace_size > 0
    status = getattr(operators, operator)(ffi.NULL, plan.workspace_size, plan.executor, device.stream)
    assert status == NULL_ARGUMENT
    assert "workspace" in recent_message()


@of_each_operator
def test_an_executor_that_is_not_used(device: Device, operator: str) -> None:
    """It can be destroyed; a phase 1 that is refused leaves none."""
    plan = device.plan(arguments_of(device, operator))
    assert aclnn.aclDestroyAclOpExecutor(plan.executor) == abi.SUCCESS
    plan = phase_1(KINDS[operator](None, None, None, None, None, None))
    assert (plan.status, plan.executor) == (NULL_ARGUMENT, ffi.NULL)


@of_each_operator
def test_two_executors_at_a_time(device: Device, operator: str) -> None:
    first, second = arguments_of(device, operator), device.arguments_for(operator, [MIXED[::-1]], [2], [NO_P])
    plans = [device.plan(first), device.plan(second)]
    for plan in reversed(plans):  # nothing ties phase 2 to the latest phase 1
        assert device.launch(plan) == abi.SUCCESS
    assert device.synchronize() == abi.SUCCESS
    assert (first.ids.numpy().tolist(), second.ids.numpy().tolist()) == ([1], [1])
    assert second.kept.numpy()[0, [1, 4]].tolist() == [3.0, 3.0]


@of_each_operator
def test_tensors_may_go_once_phase_2_has_returned(device: Device, operator: str) -> None:
    arguments = arguments_of(device, operator)
    assert device.launch(device.plan(arguments)) == abi.SUCCESS
    for tensor in arguments.tensors():
        assert tensor.destroy() == abi.SUCCESS
    device.forget(*arguments.tensors())
    assert device.synchronize() == abi.SUCCESS
    assert arguments.ids.numpy().tolist() == [1]


@pytest.mark.hostcann_only
@of_each_operator
def test_workspace_smaller_than_asked(device: Device, operator: str) -> None:
    plan = device.plan(arguments_of(device, operator))
    workspace = device.buffer(plan.workspace_size)
    status = getattr(operators, operator)(workspace.pointer, plan.workspace_size - 1, plan.executor, device.stream)
    assert status == INVALID
    assert "workspaceSize" in recent_message()
    check_violations("workspace_undersized")


@pytest.mark.hostcann_only
@of_each_operator
def test_executor_serves_once(device: Device, operator: str) -> None:
    """Whether phase 2 works or fails, or the executor was destroyed."""
    for use in ("launched", "refused", "destroyed"):
        plan = device.plan(arguments_of(device, operator))
        if use == "launched":
            assert device.launch(plan) == abi.SUCCESS
        elif use == "refused":
            status = getattr(operators, operator)(ffi.NULL, plan.workspace_size, plan.executor, device.stream)
            assert status == NULL_ARGUMENT
        else:
            assert aclnn.aclDestroyAclOpExecutor(plan.executor) == abi.SUCCESS
            assert aclnn.aclDestroyAclOpExecutor(plan.executor) != abi.SUCCESS
            check_violations("executor_reused")
        assert device.launch(plan) == INVALID
        assert "executor" in recent_message()
        assert device.synchronize() == abi.SUCCESS
        check_violations("executor_reused")


def test_tasks_of_a_stream_run_in_order(device: Device) -> None:
    batches = [device.arguments([row], [1], [NO_P]) for row in ([9.0, 0.0], [0.0, 9.0])]
    ids = batches[0].ids
    batches[1].ids = ids
    for order in ((0, 1), (1, 0), (0, 1, 0, 1)):
        for index in order:
            check(device.launch(device.plan(batches[index])), "aclnnTopKTopPSample")
        check(device.synchronize(), "aclrtSynchronizeStream")
        assert ids.numpy().tolist() == [order[-1]]


@pytest.mark.hostcann_only
@own_process(HOSTCANN_STREAM_MODE="lazy")
def test_modes_give_the_same_results() -> None:
    """The scenarios that draw, launched one by one without a synchronisation between them."""
    rows = [row for row in SCENARIOS if row.q is not None]
    with Device() as device:
        for mode in (None, "normal", "delayed:20"):
            if mode is not None:  # the environment's comes first
                set_stream_mode(mode)
            batches = [device.arguments([row.logits], [row.k], [row.p], [row.q]) for row in rows]
            for arguments in batches:
                arguments.ids.buffer.write(np.array([-5]))
                check(device.launch(device.plan(arguments)), "aclnnTopKTopPSample")
            if mode is None:
                assert [arguments.ids.numpy().tolist() for arguments in batches] == [[-5]] * len(rows)
            check(device.synchronize(), "aclrtSynchronizeStream")
            assert [arguments.ids.numpy()[0] for arguments in batches] == [row.token for row in rows]
    check_violations()
