"""Faults injected into the operators: each ends in a status and a message, and the process goes on where CANN would.

Those of the runtime itself (memory, copies, synchronisation) are in hostcann/tests/test_runtime_process.py.
"""

from pathlib import Path

import pytest

from tests.support import cann
from tests.support.cann import (
    TASK_FAILED,
    abi,
    acl,
    aclnn,
    check_violations,
    ffi,
    inject,
    operators,
    recent_message,
    stream,
)
from tests.support.isolation import must_succeed, own_process, run_in_process

from .sampler import OPERATORS, Device, phase_1
from .test_phase_2 import arguments_of

pytestmark = pytest.mark.hostcann_only

OUT_OF_MEMORY = 207001
RUNTIME_ERROR = 361001


def check_works(device: Device, operator: str) -> None:
    """The operator runs and is right."""
    ids, _ = device.run(arguments_of(device, operator))
    assert ids.tolist() == [1]


@own_process(HOSTCANN_FAULTS=",".join(f"phase1:{operator}:2" for operator in OPERATORS))
def test_faults_that_the_device_survives() -> None:
    with Device() as device:
        for operator in OPERATORS:
            check_works(device, operator)
            plan = phase_1(arguments_of(device, operator))  # as the environment says
            assert (plan.status, plan.executor) == (RUNTIME_ERROR, ffi.NULL)
            assert operator in recent_message()
            check_works(device, operator)
        for operator in OPERATORS:
            inject("phase2", operator)
            assert device.launch(device.plan(arguments_of(device, operator))) == RUNTIME_ERROR
            assert operator in recent_message()
            assert device.synchronize() == abi.SUCCESS
            check_works(device, operator)

            inject("workspace", operator)
            plan = device.plan(arguments_of(device, operator))
            assert plan.workspace_size > 1 << 50
            assert acl.aclrtMalloc(ffi.new("void **"), plan.workspace_size, abi.MALLOC_HUGE_FIRST) == OUT_OF_MEMORY
            assert aclnn.aclDestroyAclOpExecutor(plan.executor) == abi.SUCCESS
            check_works(device, operator)

            for site in ("phase1", "phase2", "task"):
                for other in {"aclnnAdd", *OPERATORS} - {operator}:
                    inject(site, other)
            check_works(device, operator)
            acl.hostcann_clear_faults()
    check_violations()


@pytest.mark.parametrize("operator", OPERATORS)
@own_process()
def test_task_fails_and_its_context_stays_failed(operator: str) -> None:
    with Device() as device:
        device.run(arguments_of(device, operator))
        inject("task", operator)
        for arguments in (arguments_of(device, operator), arguments_of(device, operator)):
            assert device.launch(device.plan(arguments)) == abi.SUCCESS
        assert device.synchronize() == TASK_FAILED
        assert operator in recent_message()
        # Stop on failure: what was queued behind did not run, and nothing runs any more.
        assert device.synchronize() == TASK_FAILED
        for on in (device.stream, stream()):
            assert device.launch(device.plan(arguments_of(device, operator)), stream=on) != abi.SUCCESS
        device.reset()
        check_works(device, operator)
    check_violations()


def check_symbol_is_missing(library: str, symbol: str) -> None:
    """In a process of its own: a second copy of the operators' library is loaded."""
    assert hasattr(aclnn, "aclCreateTensor")  # loads what the others need
    assert hasattr(operators, symbol)
    older = ffi.dlopen(library, ffi.RTLD_NOW)
    assert [name for name in SYMBOLS if not hasattr(older, name)] == [symbol]


SYMBOLS = [name + phase for name in OPERATORS for phase in ("", "GetWorkspaceSize")]


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_older_cann_without_the_operator(tmp_path: Path, symbol: str) -> None:
    elf = cann.load_module("conformance_elf", "hostcann/src/hostcann/_elf.py")
    older = tmp_path / "libcust_opapi.so"
    elf.hide_symbols(Path(cann.library_path("cust_opapi")), [symbol], older)
    must_succeed(run_in_process(check_symbol_is_missing, [str(older), symbol]))
