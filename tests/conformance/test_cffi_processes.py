"""The cffi binding in processes of their own: modes of the queue, kernels that fail, a CANN that lacks something."""

import functools
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ascend_sample
from ascend_sample import hostcann
from ascend_sample.npu import aclnn_cffi
from ascend_sample.npu.operators import OPERATORS
from tests.support.warm_python import run_warm

from .cffi_calls import SAMPLE, WITH_Q, WITHOUT_Q, check_rows, each_operator, function, tensors_of
from .isolation import TIMEOUT_SECONDS, program_of


def run(test: Callable[..., None], **environment: str) -> None:
    """Calls a function in a process with hostcann, and expects it to end well."""
    folder = Path(ascend_sample.__file__).parents[1]
    variables = os.environ | {"PYTHONPATH": str(folder)} | environment
    result = run_warm(program_of(test, {}), variables, folder, TIMEOUT_SECONDS)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"


def check_everything_works() -> None:
    """In a process of its own."""
    import torch_npu  # noqa: F401

    for rows in (WITH_Q[SAMPLE], WITHOUT_Q[SAMPLE]):
        check_rows(rows, aclnn_cffi.launch(SAMPLE, *tensors_of(rows), is_need_logits=True))
    hostcann.inject("phase2", OPERATORS[SAMPLE].name)
    with pytest.raises(RuntimeError, match="failed in launch: 361001"):
        aclnn_cffi.launch(SAMPLE, *tensors_of(WITH_Q[SAMPLE]))
    check_rows(WITH_Q[SAMPLE], aclnn_cffi.launch(SAMPLE, *tensors_of(WITH_Q[SAMPLE]), is_need_logits=True))


@pytest.mark.parametrize("queue", ["0", "1", "2"])
def test_task_queue_modes(emulated: None, queue: str) -> None:
    run(check_everything_works, TASK_QUEUE_ENABLE=queue, HOSTCANN_STRICT="1")


def fail_in_the_kernel() -> None:
    """The error comes with the call where launches block, else with the next synchronisation."""
    import torch_npu  # noqa: F401

    arguments = tensors_of(WITH_Q[SAMPLE])
    torch.npu.synchronize()
    hostcann.inject("task", OPERATORS[SAMPLE].name)
    if os.environ["ASCEND_LAUNCH_BLOCKING"] == "1":
        pattern = r"aclrtSynchronizeStream failed in sync: 507035 ACL_ERROR_RT_VECTOR_CORE_EXCEPTION: .*logits=\[4, 8\]"
        with pytest.raises(RuntimeError, match=pattern):
            aclnn_cffi.launch(SAMPLE, *arguments)
    else:
        aclnn_cffi.launch(SAMPLE, *arguments)
        with pytest.raises(RuntimeError, match="507035"):
            torch.npu.synchronize()
    os._exit(0)  # the context is lost, and torch_npu's own clean-up with it


@pytest.mark.parametrize("blocking", ["0", "1"])
def test_failing_kernel(emulated: None, blocking: str) -> None:
    run(fail_in_the_kernel, ASCEND_LAUNCH_BLOCKING=blocking)


def fail_in_the_queue_before() -> None:
    """An operator that was queued before fails: its error is raised while the stream is taken, and nothing leaks."""
    import torch_npu  # noqa: F401

    arguments = tensors_of(WITH_Q[SAMPLE])
    torch.npu.synchronize()
    hostcann.inject("phase2", "aclnnThreshold")
    with hostcann.profile() as counted:
        with pytest.raises(RuntimeError, match="aclnnThreshold"):
            aclnn_cffi.launch(SAMPLE, *arguments)
        assert hostcann.live()["executor"] == 0
        assert OPERATORS[SAMPLE].name not in counted.launches
        os._exit(0)  # the queue is dead


def test_failing_queue(emulated: None) -> None:
    run(fail_in_the_queue_before, TASK_QUEUE_ENABLE="1")


def fall_back() -> None:
    """The dispatcher's kernel leaves to the composite what CANN here cannot do, and says why once."""
    import torch_npu  # noqa: F401

    operator, expected = os.environ["OPERATOR"], os.environ["EXPECTED_OBSTACLE"]
    obstacle = aclnn_cffi.obstacle(operator)
    assert obstacle is not None
    assert re.search(expected, obstacle), obstacle
    rows = WITH_Q[operator]
    arguments = tensors_of(rows)
    with pytest.raises(NotImplementedError) as caught:
        function(operator)(*arguments)
    assert str(caught.value) == f"{operator}: {obstacle}."
    serve = functools.partial(aclnn_cffi.serve, operator)
    warning = (
        f"{operator}: served by the composite of torch operators, which is much slower: {obstacle}. (Warned once.)"
    )
    with pytest.warns(UserWarning, match=re.escape(warning)):
        result = serve(*arguments, is_need_logits=True)
    check_rows(rows, result)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        serve(*arguments)


@each_operator
def test_unsupported_soc(emulated: None, operator: str) -> None:
    run(fall_back, HOSTCANN_SOC="Ascend310P3", OPERATOR=operator, EXPECTED_OBSTACLE="not on SoC Ascend310P3$")


@pytest.mark.parametrize("phase", ["phase_1", "phase_2"])
@each_operator
def test_missing_symbol(emulated: None, operator: str, phase: str) -> None:
    symbol = getattr(OPERATORS[operator], phase)
    expected = (
        rf"^{symbol} was not found in any of: .*libopapi\.so \(does not export it\), .*\. "
        r"Install a CANN .* set_env\.sh\. "
        f"{OPERATORS[operator].found_in}$"
    )
    run(fall_back, **hostcann.environment(without=[symbol]), OPERATOR=operator, EXPECTED_OBSTACLE=expected)
