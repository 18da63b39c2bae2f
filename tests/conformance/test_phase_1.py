"""What phase 1 refuses, with which status, and that nothing stays behind."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from .cann import OPERATORS, Arguments, Device, abi, aclnn, check_refused, ffi, phase_1, soc_name
from .hand_worked import MIXED, NO_P, ONES, VOCAB_SIZE
from .isolation import own_process

NULL_ARGUMENT = 161001
INVALID = 161002
TILING = 561002
NO_KERNEL = 561003

BATCH = 3
Change = Callable[[Device], dict[str, object]]


def valid_arguments(device: Device) -> Arguments:
    """Three rows that work."""
    return device.arguments([MIXED] * BATCH, [4] * BATCH, [NO_P] * BATCH, [ONES] * BATCH)


@pytest.mark.parametrize("argument", ["logits", "k", "p", "ids", "kept"])
def test_null_tensor(device: Device, argument: str) -> None:
    check_refused(replace(valid_arguments(device), **{argument: None}), NULL_ARGUMENT, "null")


def test_null_q_is_no_draw(device: Device) -> None:
    ids, _ = device.run(replace(valid_arguments(device), q=None))
    assert ids.tolist() == [1] * BATCH


@pytest.mark.parametrize("missing", ["workspace_size", "executor"])
def test_null_result_pointer(device: Device, missing: str) -> None:
    arguments = valid_arguments(device)
    handles = [tensor.handle for tensor in arguments.tensors()]
    size = ffi.NULL if missing == "workspace_size" else ffi.new("uint64_t *")
    executor = ffi.NULL if missing == "executor" else ffi.new("aclOpExecutor **")
    status = aclnn.aclnnTopKTopPSampleGetWorkspaceSize(*handles[:4], 1e-8, False, 32, *handles[4:], size, executor)
    assert status == NULL_ARGUMENT


@pytest.mark.parametrize(
    ("argument", "dtype"),
    [
        ("logits", "float32"),
        ("logits", "int32"),
        ("logits", "bfloat16"),  # p is float16
        ("k", "int64"),
        ("k", "uint32"),
        ("p", "float32"),
        ("p", "bfloat16"),
        ("q", "float16"),
        ("ids", "int32"),
        ("kept", "float16"),
        ("kept", "int64"),
    ],
)
def test_dtype(device: Device, argument: str, dtype: str) -> None:
    arguments = valid_arguments(device)
    shape = getattr(arguments, argument).shape
    check_refused(replace(arguments, **{argument: device.tensor(np.ones(shape), dtype)}), INVALID)


@pytest.mark.parametrize(
    ("argument", "shape"),
    [
        ("logits", (BATCH * VOCAB_SIZE,)),
        ("logits", (BATCH, VOCAB_SIZE, 1)),
        ("logits", (BATCH + 1, VOCAB_SIZE)),
        ("logits", (BATCH, 0)),
        ("logits", (0, VOCAB_SIZE)),
        ("k", (BATCH + 1,)),
        ("k", (BATCH, 1)),
        ("k", (1,)),
        ("p", (BATCH - 1,)),
        ("p", (BATCH, 1)),
        ("q", (BATCH, VOCAB_SIZE + 1)),
        ("q", (BATCH - 1, VOCAB_SIZE)),
        ("q", (VOCAB_SIZE,)),
        ("ids", (BATCH + 1,)),
        ("ids", (BATCH, 1)),
        ("kept", (BATCH, VOCAB_SIZE - 1)),
        ("kept", (0,)),
    ],
)
@pytest.mark.parametrize("is_need_logits", [False, True])
def test_shape(device: Device, argument: str, shape: tuple[int, ...], is_need_logits: bool) -> None:
    arguments = replace(valid_arguments(device), is_need_logits=is_need_logits)
    dtype = getattr(arguments, argument).dtype
    check_refused(replace(arguments, **{argument: device.tensor(np.ones(shape), dtype)}), TILING)


@pytest.mark.parametrize(("vocab_size", "status"), [(2**20, abi.SUCCESS), (2**20 + 1, TILING)])
def test_vocabulary_limit(device: Device, vocab_size: int, status: int) -> None:
    plan = phase_1(device.arguments(np.zeros((1, vocab_size)), [4], [NO_P]))
    assert plan.status == status
    if status == abi.SUCCESS:
        assert aclnn.aclDestroyAclOpExecutor(plan.executor) == abi.SUCCESS


@pytest.mark.hostcann_only  # CANN looks at neither, and its kernels then write elsewhere
@pytest.mark.parametrize("operator", OPERATORS)
def test_limits_of_the_kernels(device: Device, operator: str) -> None:
    """The first one's lists have 128 rows for each of 40 cores. 32 bits count 5 numbers for each logit."""

    def arguments(rows: int, vocab_size: int) -> Arguments:
        made = device.arguments_for(operator, np.zeros((rows, 8)), [4] * rows, [NO_P] * rows)
        one = device.buffer(2 * vocab_size)
        logits = device.view(one, "float16", (rows, vocab_size), strides=(0, 1))
        kept = device.view(one, "float32", (rows, vocab_size), strides=(0, 0))
        return replace(made, logits=logits, kept=kept)

    check_refused(arguments(820, 2**20), TILING, f"{operator}: ", "at most 858993459 elements")
    for rows, vocab_size in ((819, 2**20), (5120, 8), (5121, 8)):
        given = arguments(rows, vocab_size)
        if rows == 5121 and operator == "aclnnTopKTopPSample":
            check_refused(given, TILING, f"{operator}: ", "at most 5120 rows")
            continue
        plan = phase_1(given)
        assert plan.status == abi.SUCCESS
        assert aclnn.aclDestroyAclOpExecutor(plan.executor) == abi.SUCCESS


def test_message_names_operator_and_argument(device: Device) -> None:
    wrong = replace(valid_arguments(device), k=device.tensor(np.ones(BATCH), "int64"))
    check_refused(wrong, INVALID, "aclnnTopKTopPSample", "topK")


def test_workspace_is_about_24_bytes_a_logit(device: Device) -> None:
    sizes = []
    for vocab_size in (8192, 65536):
        plan = device.plan(device.arguments(np.zeros((4, vocab_size)), [4] * 4, [NO_P] * 4))
        sizes.append(plan.workspace_size)
        assert aclnn.aclDestroyAclOpExecutor(plan.executor) == abi.SUCCESS
    # A reading of the operator's tiling, never measured on a device.
    assert 16 <= (sizes[1] - sizes[0]) / (4 * (65536 - 8192)) <= 32


@pytest.mark.hostcann_only
@pytest.mark.parametrize("operator", OPERATORS)
@own_process(HOSTCANN_SOC="Ascend310P3")
def test_unsupported_soc(operator: str) -> None:
    with Device() as device:
        assert soc_name() == "Ascend310P3"
        check_refused(device.arguments_for(operator, [MIXED], [4], [NO_P]), NO_KERNEL, f"{operator}: ", "Ascend310P3")


@pytest.mark.hostcann_only
@pytest.mark.parametrize("operator", OPERATORS)
@own_process(HOSTCANN_SOC="Ascend910_9392")
def test_atlas_a3_is_supported(operator: str) -> None:
    with Device() as device:
        ids, _ = device.run(device.arguments_for(operator, [MIXED], [4], [NO_P]))
        assert ids.tolist() == [1]
