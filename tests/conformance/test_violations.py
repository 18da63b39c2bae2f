"""Misuse that a device would punish later, or never: hostcann must notice each one when it happens."""

import threading

import numpy as np
import pytest

from tests.support.cann import H2D, TASK_FAILED, abi, check_violations, ok, operators, plus, recent_message
from tests.support.isolation import own_process

from .hand_worked import MIXED, NO_P, ONES
from .sampler import Arguments, Buffer, Device, check_refused

pytestmark = pytest.mark.hostcann_only

INVALID = 161002
TENSORS = ("logits", "k", "p", "q", "ids", "kept")


def arguments_of(device: Device) -> Arguments:
    """One row that works and draws."""
    return device.arguments([MIXED], [4], [NO_P], [ONES])


def free(device: Device, block: Buffer) -> None:
    """Frees a block that the device would otherwise free at the end."""
    device.forget(block)
    block.free()


def check_task_failure(device: Device, kind: str) -> None:
    """The launch was accepted; the failure comes with the synchronisation and names the operator."""
    assert device.synchronize() == TASK_FAILED
    assert "aclnnTopKTopPSample" in recent_message()
    check_violations(kind)


def test_tensor_destroyed_before_its_phase(device: Device) -> None:
    for argument in TENSORS:
        arguments = arguments_of(device)
        plan = device.plan(arguments)
        tensor = getattr(arguments, argument)
        assert tensor.destroy() == abi.SUCCESS
        device.forget(tensor)
        assert device.launch(plan) == INVALID
        assert "destroyed" in recent_message()
        check_violations("tensor_destroyed_early")
        check_refused(arguments, INVALID, "destroyed")
        check_violations("tensor_destroyed_early")


def test_tensor_destroyed_twice(device: Device) -> None:
    tensor = device.tensor([1.0], "float16")
    assert tensor.destroy() == abi.SUCCESS
    assert tensor.destroy() == INVALID
    device.forget(tensor)
    check_violations("tensor_destroyed_twice")


@own_process()
def test_operand_that_is_freed_or_longer_than_its_block() -> None:
    """The latter claims a storage that ends beyond it: phase 1 cannot know, the device would read on."""
    with Device() as device:
        for argument in TENSORS:
            arguments = arguments_of(device)
            plan = device.plan(arguments)
            free(device, getattr(arguments, argument).buffer)
            assert device.launch(plan) == abi.SUCCESS
            check_task_failure(device, "freed_operand")
            device.reset()

            arguments = arguments_of(device)
            tensor = getattr(arguments, argument)
            short = device.buffer(tensor.buffer.size - tensor.buffer.size // tensor.storage_size)
            long = device.view(short, tensor.dtype, tensor.shape, storage_size=tensor.storage_size)
            setattr(arguments, argument, long)
            assert device.launch(device.plan(arguments)) == abi.SUCCESS
            check_task_failure(device, "out_of_range_operand")
            device.reset()


def test_view_outside_its_storage(device: Device) -> None:
    arguments = arguments_of(device)
    arguments.logits = device.tensor([MIXED], "float16", offset=1)
    check_refused(arguments, INVALID, "storage")
    check_violations("out_of_range_operand")


def test_storage_address_off_by_one_element(device: Device) -> None:
    arguments = arguments_of(device)
    padded = device.buffer(1024)
    # The mistake of a binding that passes a slice's own address instead of its storage and an offset.
    arguments.logits = device.view(padded, "float16", (1, len(MIXED)), address=padded.address + 2)
    check_refused(arguments, INVALID, "multiple of 32")
    check_violations("misaligned")


def test_misaligned_workspace(device: Device) -> None:
    plan = device.plan(arguments_of(device))
    misaligned = plus(device.buffer(plan.workspace_size + 32).pointer, 16)
    assert operators.aclnnTopKTopPSample(misaligned, plan.workspace_size, plan.executor, device.stream) == INVALID
    check_violations("misaligned")


@own_process()
def test_workspace_block_smaller_than_said() -> None:
    with Device() as device:
        plan = device.plan(arguments_of(device))
        # The size that is passed is right, so this is found when the task runs, before anything is written.
        assert device.launch(plan, workspace=device.buffer(plan.workspace_size - 1)) == abi.SUCCESS
        check_task_failure(device, "out_of_range_operand")


@own_process(HOSTCANN_STREAM_MODE="lazy")
def test_workspace_freed_before_the_task_runs() -> None:
    with Device() as device:
        plan = device.plan(arguments_of(device))
        workspace = device.buffer(plan.workspace_size)
        assert device.launch(plan, workspace=workspace) == abi.SUCCESS
        free(device, workspace)
        check_task_failure(device, "freed_operand")


@own_process()
def test_workspace_overwritten_while_the_kernel_runs() -> None:
    with Device() as device:
        rows, vocab_size = 8, 2**18
        logits = np.tile(np.linspace(4.0, -4.0, vocab_size), (rows, 1))
        plan = device.plan(device.arguments(logits, [0] * rows, [0.9] * rows, top_k_guess=1))
        workspace = device.buffer(plan.workspace_size)
        assert device.launch(plan, workspace=workspace) == abi.SUCCESS
        tail = plus(workspace.pointer, workspace.size - 16)
        done = threading.Event()

        def overwrite() -> None:
            ok("aclrtSetDevice", 0)
            while not done.is_set():
                ok("aclrtMemcpy", tail, 16, bytes(16), 16, H2D)

        # The kernel sorts for long enough that some of these come after its start and before its end.
        thread = threading.Thread(target=overwrite)
        thread.start()
        status = device.synchronize()
        done.set()
        thread.join()
        assert status == TASK_FAILED
        assert "workspace" in recent_message()
        check_violations("workspace_overrun")
