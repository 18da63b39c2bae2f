"""Phase 2: what it refuses, and that an executor serves once."""

import pytest

from . import control
from .cann import KINDS, OPERATORS, Arguments, Device, abi, aclnn, ffi, phase_1, recent_message
from .hand_worked import MIXED, NO_P

NULL_ARGUMENT = 161001
INVALID = 161002

pytestmark = pytest.mark.parametrize("operator", OPERATORS)


def arguments_of(device: Device, operator: str) -> Arguments:
    """One row that works and needs a workspace."""
    return device.arguments_for(operator, [MIXED], [4], [NO_P])


def test_what_is_null(device: Device, operator: str) -> None:
    assert getattr(aclnn, operator)(ffi.NULL, 0, ffi.NULL, device.stream) == NULL_ARGUMENT
    assert "executor" in recent_message()
    plan = device.plan(arguments_of(device, operator))
    assert plan.workspace_size > 0
    status = getattr(aclnn, operator)(ffi.NULL, plan.workspace_size, plan.executor, device.stream)
    assert status == NULL_ARGUMENT
    assert "workspace" in recent_message()


def test_an_executor_that_is_not_used(device: Device, operator: str) -> None:
    """It can be destroyed; a phase 1 that is refused leaves none."""
    plan = device.plan(arguments_of(device, operator))
    assert aclnn.aclDestroyAclOpExecutor(plan.executor) == abi.SUCCESS
    plan = phase_1(KINDS[operator](None, None, None, None, None, None))
    assert (plan.status, plan.executor) == (NULL_ARGUMENT, ffi.NULL)


def test_two_executors_at_a_time(device: Device, operator: str) -> None:
    first, second = arguments_of(device, operator), device.arguments_for(operator, [MIXED[::-1]], [2], [NO_P])
    plans = [device.plan(first), device.plan(second)]
    # Launched in the other order: nothing ties phase 2 to the latest phase 1.
    for plan in reversed(plans):
        assert device.launch(plan) == abi.SUCCESS
    assert device.synchronize() == abi.SUCCESS
    assert (first.ids.numpy().tolist(), second.ids.numpy().tolist()) == ([1], [1])
    assert second.kept.numpy()[0, [1, 4]].tolist() == [3.0, 3.0]


def test_tensors_may_go_once_phase_2_has_returned(device: Device, operator: str) -> None:
    arguments = arguments_of(device, operator)
    assert device.launch(device.plan(arguments)) == abi.SUCCESS
    for tensor in arguments.tensors():
        assert tensor.destroy() == abi.SUCCESS
    device.forget(*arguments.tensors())
    assert device.synchronize() == abi.SUCCESS
    assert arguments.ids.numpy().tolist() == [1]


@pytest.mark.hostcann_only
def test_workspace_smaller_than_asked(device: Device, operator: str) -> None:
    plan = device.plan(arguments_of(device, operator))
    workspace = device.buffer(plan.workspace_size)
    status = getattr(aclnn, operator)(workspace.pointer, plan.workspace_size - 1, plan.executor, device.stream)
    assert status == INVALID
    assert "workspaceSize" in recent_message()
    assert device.synchronize() == abi.SUCCESS
    control.check_violations("workspace_undersized")


@pytest.mark.hostcann_only
@pytest.mark.parametrize("phase_2_fails", [False, True])
def test_executor_serves_once(device: Device, operator: str, phase_2_fails: bool) -> None:
    plan = device.plan(arguments_of(device, operator))
    if phase_2_fails:
        status = getattr(aclnn, operator)(ffi.NULL, plan.workspace_size, plan.executor, device.stream)
        assert status == NULL_ARGUMENT
    else:
        assert device.launch(plan) == abi.SUCCESS
    assert device.launch(plan) == INVALID
    assert "executor" in recent_message()
    assert device.synchronize() == abi.SUCCESS
    control.check_violations("executor_reused")


@pytest.mark.hostcann_only
def test_executor_destroyed_twice(device: Device, operator: str) -> None:
    plan = device.plan(arguments_of(device, operator))
    assert aclnn.aclDestroyAclOpExecutor(plan.executor) == abi.SUCCESS
    assert aclnn.aclDestroyAclOpExecutor(plan.executor) != abi.SUCCESS
    control.check_violations("executor_reused")
