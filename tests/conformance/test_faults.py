"""Injected faults: each ends in a status and a message, and the process goes on where CANN would let it."""

from pathlib import Path

import pytest

from . import control
from .cann import (
    OPERATORS,
    ROOT,
    Buffer,
    Device,
    abi,
    acl,
    aclnn,
    check,
    ffi,
    library_path,
    load_module,
    phase_1,
    recent_message,
)
from .isolation import own_process, run_in_process
from .test_phase_2 import arguments_of

pytestmark = pytest.mark.hostcann_only

OPERATOR, _ = OPERATORS
OUT_OF_MEMORY = 207001
RUNTIME_ERROR = 361001
TASK_FAILED = 507035

each_operator = pytest.mark.parametrize("operator", OPERATORS)


def second_call_fails(site: str) -> str:
    """HOSTCANN_FAULTS for each operator by itself."""
    return ",".join(f"{site}:{operator}:2" for operator in OPERATORS)


def check_works(device: Device, operator: str = OPERATOR) -> None:
    """The operator runs and is right."""
    ids, _ = device.run(arguments_of(device, operator))
    assert ids.tolist() == [1]


def allocate(size: int) -> int:
    """The status of one aclrtMalloc, freed again if it worked."""
    address = ffi.new("void **")
    status = int(acl.aclrtMalloc(address, size, abi.MALLOC_HUGE_FIRST))
    if status == abi.SUCCESS:
        check(acl.aclrtFree(address[0]), "aclrtFree")
    return status


@own_process()
def test_second_malloc_fails() -> None:
    with Device() as device:
        control.inject("malloc", nth=2)
        assert [allocate(64) for _ in range(3)] == [abi.SUCCESS, OUT_OF_MEMORY, abi.SUCCESS]
        assert "EL0004" in recent_message()
        check_works(device)
    control.check_violations()


@own_process(HOSTCANN_FAULTS="malloc::2")
def test_second_malloc_fails_by_environment() -> None:
    with Device():
        assert [allocate(64) for _ in range(3)] == [abi.SUCCESS, OUT_OF_MEMORY, abi.SUCCESS]


@own_process(HOSTCANN_MEMORY="64M")
def test_memory_cap_by_environment() -> None:
    with Device() as device:
        free, total = ffi.new("size_t *"), ffi.new("size_t *")
        check(acl.aclrtGetMemInfo(abi.MEMORY_HBM, free, total), "aclrtGetMemInfo")
        assert total[0] == 64 << 20
        half = Buffer(32 << 20)
        assert allocate((32 << 20) + 1) == OUT_OF_MEMORY
        assert "Failed to allocate" in recent_message()
        assert allocate(32 << 20) == abi.SUCCESS
        half.free()
        check_works(device)


@each_operator
@own_process()
def test_phase_1_fails_once(operator: str) -> None:
    with Device() as device:
        arguments = arguments_of(device, operator)
        control.inject("phase1", operator)
        plan = phase_1(arguments)
        assert plan.status == RUNTIME_ERROR
        assert plan.executor == ffi.NULL
        assert operator in recent_message()
        check_works(device, operator)
    control.check_violations()


@each_operator
@own_process(HOSTCANN_FAULTS=second_call_fails("phase1"))
def test_phase_1_fails_by_environment(operator: str) -> None:
    with Device() as device:
        check_works(device, operator)
        assert phase_1(arguments_of(device, operator)).status == RUNTIME_ERROR
        check_works(device, operator)


@each_operator
@own_process()
def test_fault_of_another_operator_does_not_apply(operator: str) -> None:
    with Device() as device:
        for site in ("phase1", "phase2", "task"):
            for other in ("aclnnAdd", *OPERATORS):
                if other != operator:
                    control.inject(site, other)
        check_works(device, operator)


@each_operator
@own_process()
def test_absurd_workspace(operator: str) -> None:
    with Device() as device:
        control.inject("workspace", operator)
        plan = device.plan(arguments_of(device, operator))
        assert plan.workspace_size > 1 << 50
        assert allocate(plan.workspace_size) == OUT_OF_MEMORY
        assert aclnn.aclDestroyAclOpExecutor(plan.executor) == abi.SUCCESS
        check_works(device, operator)
    control.check_violations()


@each_operator
@own_process()
def test_phase_2_fails_once(operator: str) -> None:
    with Device() as device:
        control.inject("phase2", operator)
        assert device.launch(device.plan(arguments_of(device, operator))) == RUNTIME_ERROR
        assert operator in recent_message()
        assert device.synchronize() == abi.SUCCESS
        check_works(device, operator)
    control.check_violations()


@each_operator
@own_process()
def test_task_fails_and_its_context_stays_failed(operator: str) -> None:
    with Device() as device:
        before = arguments_of(device, operator)
        device.run(before)
        control.inject("task", operator)
        failing, behind = arguments_of(device, operator), arguments_of(device, operator)
        for arguments in (failing, behind):
            assert device.launch(device.plan(arguments)) == abi.SUCCESS
        assert device.synchronize() == TASK_FAILED
        assert operator in recent_message()
        # Stop on failure: what was queued behind did not run, and nothing runs any more.
        assert device.synchronize() == TASK_FAILED
        assert device.launch(device.plan(arguments_of(device, operator))) != abi.SUCCESS
        other = device.create_stream()
        assert device.launch(device.plan(arguments_of(device, operator)), stream=other) != abi.SUCCESS
        control.check_violations()


@each_operator
@own_process(HOSTCANN_FAULTS=second_call_fails("task"))
def test_task_fails_by_environment(operator: str) -> None:
    with Device() as device:
        check_works(device, operator)
        assert device.launch(device.plan(arguments_of(device, operator))) == abi.SUCCESS
        assert device.synchronize() == TASK_FAILED


@own_process()
def test_reset_makes_a_failed_device_usable() -> None:
    with Device() as device:
        control.inject("task", OPERATOR)
        assert device.launch(device.plan(arguments_of(device, OPERATOR))) == abi.SUCCESS
        assert device.synchronize() == TASK_FAILED
        check(acl.aclrtResetDevice(0), "aclrtResetDevice")
        device.forget_memory()
        check(acl.aclrtSetDevice(0), "aclrtSetDevice")
        device.stream = device.create_stream()
        check_works(device)


@own_process()
def test_memcpy_fails_once() -> None:
    with Device() as device:
        block = device.buffer(16)
        control.inject("memcpy")
        status = acl.aclrtMemcpy(block.pointer, 16, b"\0" * 16, 16, abi.MEMCPY_HOST_TO_DEVICE)
        assert status != abi.SUCCESS
        assert "memcpy" in recent_message().lower()
        check_works(device)


@own_process()
def test_synchronize_fails_once() -> None:
    with Device() as device:
        control.inject("synchronize")
        assert device.launch(device.plan(arguments_of(device, OPERATOR))) == abi.SUCCESS
        assert device.synchronize() != abi.SUCCESS
        assert "synchron" in recent_message().lower()
        check_works(device)


@own_process()
def test_code_and_message_can_be_chosen() -> None:
    with Device() as device:
        control.inject("synchronize", code=507014, message="the clock ran out")
        assert device.synchronize() == 507014
        assert "the clock ran out" in recent_message()


@own_process()
def test_cleared_faults_do_not_happen() -> None:
    with Device() as device:
        for site in ("malloc", "phase1", "phase2", "task", "memcpy", "synchronize"):
            control.inject(site)
        control.clear_faults()
        check_works(device)


@own_process(HOSTCANN_FAULTS="malloc:nonsense")
def test_wrong_environment_is_an_error() -> None:
    # "nonsense" is a name here, and right; the order of the fields below is not.
    with Device() as device:
        check_works(device)


@own_process(HOSTCANN_FAULTS="somewhere:else:1")
def test_unknown_site_is_an_error() -> None:
    assert acl.aclInit(ffi.NULL) != abi.SUCCESS
    message = recent_message()
    assert "HOSTCANN_FAULTS" in message
    assert "somewhere" in message


def check_symbol_is_missing(library: str, symbol: str) -> None:
    """In a process of its own: a second copy of the operator library is loaded."""
    older = ffi.dlopen(library, ffi.RTLD_NOW)
    assert not hasattr(older, symbol)
    assert hasattr(older, "aclCreateTensor")
    assert hasattr(aclnn, symbol)


@pytest.mark.parametrize("symbol", [name + phase for name in OPERATORS for phase in ("", "GetWorkspaceSize")])
def test_older_cann_without_the_operator(tmp_path: Path, symbol: str) -> None:
    elf = load_module("conformance_elf", ROOT / "ascend_sample" / "hostcann" / "_elf.py")
    older = tmp_path / "libopapi.so"
    elf.hide_symbols(Path(library_path("opapi")), [symbol], older)
    result = run_in_process(check_symbol_is_missing, {"library": str(older), "symbol": symbol}, {})
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
