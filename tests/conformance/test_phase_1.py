"""What phase 1 of both operators refuses, with which status, and that nothing stays behind."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.cann import abi, acl, aclnn, ffi, operators
from tests.support.isolation import must_succeed, run_in_process

from .hand_worked import MIXED, NO_P, ONES, VOCAB_SIZE
from .sampler import KINDS, OPERATORS, Arguments, Device, check_refused, phase_1

FIRST, SECOND = OPERATORS
NULL_ARGUMENT = 161001
INVALID = 161002
TILING = 561002
NO_KERNEL = 561003

BATCH = 3
SHAPE = (BATCH, VOCAB_SIZE)
SAMPLE_RESULT = ("dense_ids", "dense_weights")
OF_ARGUMENT = {
    **{"logits": "logits", "k": "topK", "p": "topP", "q": "q", "min_p": "minPs", "ids": "logitsSelectIdx"},
    **{"kept": "logitsTopKpSelect", "dense_ids": "logitsIdx", "dense_weights": "logitsSortMasked"},
}
"""The beginning of CANN's name of each argument."""


def valid_arguments(device: Device, operator: str) -> Arguments:
    """Three rows that work."""
    rows = ([MIXED] * BATCH, [4] * BATCH, [NO_P] * BATCH, [ONES] * BATCH)
    return device.arguments(*rows) if operator == FIRST else device.arguments_v2(*rows, [0.0] * BATCH)


@pytest.fixture(params=OPERATORS)
def arguments(device: Device, request: pytest.FixtureRequest) -> Arguments:
    """Of each operator."""
    return valid_arguments(device, request.param)


def check_wrong(arguments: Arguments, status: int, *words: str, **changes: object) -> None:
    """Phase 1 refuses them for the changes; the message begins with the operator."""
    assert check_refused(replace(arguments, **changes), status, *words).startswith(f"{arguments.operator}: ")


def test_null_tensors(device: Device, arguments: Arguments) -> None:
    optional = {"q", "min_p"}
    for name in {name for name, value in vars(arguments).items() if value in arguments.tensors()} - optional:
        check_wrong(arguments, NULL_ARGUMENT, "null", **{name: None})
    for name in optional & vars(arguments).keys():
        ids, _ = device.run(replace(arguments, **{name: None}))
        assert ids.tolist() == [1] * BATCH


@pytest.mark.parametrize("missing", ["workspace_size", "executor"])
def test_null_result_pointer(device: Device, missing: str) -> None:
    handles = [tensor.handle for tensor in valid_arguments(device, FIRST).tensors()]
    size = ffi.NULL if missing == "workspace_size" else ffi.new("uint64_t *")
    executor = ffi.NULL if missing == "executor" else ffi.new("aclOpExecutor **")
    status = operators.aclnnTopKTopPSampleGetWorkspaceSize(*handles[:4], 1e-8, False, 32, *handles[4:], size, executor)
    assert status == NULL_ARGUMENT


DTYPES = {
    "logits": ("int32", "float64"),
    "k": ("int64", "uint32"),
    "p": ("float32", "bfloat16"),  # logits are float16
    "q": ("float16",),
    "min_p": ("float32",),
    "ids": ("int32",),
    "kept": ("float16", "int64"),
    "dense_ids": ("int32",),
    "dense_weights": ("float16",),
}


def test_dtypes(device: Device, arguments: Arguments) -> None:
    for name in DTYPES.keys() & vars(arguments).keys():
        for dtype in DTYPES[name]:
            values = np.ones(getattr(arguments, name).shape)
            check_wrong(arguments, INVALID, OF_ARGUMENT[name], **{name: device.tensor(values, dtype)})
    for dtype in ("bfloat16", *["float32"] * (arguments.operator == FIRST)):  # p is float16; the first has no float32
        check_wrong(arguments, INVALID, logits=device.tensor(np.ones(SHAPE), dtype))


SHAPES = {
    "logits": [(BATCH * VOCAB_SIZE,), (*SHAPE, 1), (BATCH + 1, VOCAB_SIZE), (BATCH, 0), (0, VOCAB_SIZE)],
    "k": [(BATCH + 1,), (BATCH, 1), (1,)],
    "p": [(BATCH - 1,), (BATCH, 1)],
    "q": [(BATCH, VOCAB_SIZE + 1), (BATCH - 1, VOCAB_SIZE), (VOCAB_SIZE,)],
    "min_p": [(BATCH + 1,), (BATCH, 1)],
    "ids": [(BATCH + 1,), (BATCH, 1)],
    "kept": [(BATCH, VOCAB_SIZE - 1), (0,)],
    "dense_ids": [(BATCH, VOCAB_SIZE - 1)],
    "dense_weights": [(1,)],
}


def test_shapes(device: Device, arguments: Arguments) -> None:
    """The second operator looks at outputs where they are wanted; torch_npu relies on it for the ids of a sample
    result."""
    for name in SHAPES.keys() & vars(arguments).keys():
        for shape in SHAPES[name]:
            wrong = {name: device.tensor(np.ones(shape), getattr(arguments, name).dtype)}
            is_output = name in {"ids", "kept", *SAMPLE_RESULT}
            if arguments.operator == FIRST or not is_output:
                for is_need_logits in (False, True):
                    check_wrong(arguments, TILING, **wrong, is_need_logits=is_need_logits)
                continue
            wanted = name in SAMPLE_RESULT
            options = {"q": None, "is_need_logits": True, "is_need_sample_result": wanted}
            check_wrong(arguments, TILING, "must have", **wrong, **options)
            options |= {"is_need_logits": False, "is_need_sample_result": not wanted}
            ids, _ = device.run(replace(arguments, **wrong, **options))
            assert len(ids) == len(wrong.get("ids", arguments.ids).numpy())


def check_accepted(arguments: Arguments) -> None:
    plan = phase_1(arguments)
    assert plan.status == abi.SUCCESS
    assert aclnn.aclDestroyAclOpExecutor(plan.executor) == abi.SUCCESS


def test_ks_max_and_q_beside_a_sample_result(device: Device) -> None:
    arguments = valid_arguments(device, SECOND)
    for ks_max in (-1, 0, 1025):
        check_wrong(arguments, TILING, "ksMax", str(ks_max), ks_max=ks_max)
    for ks_max in (1, 1024):
        check_accepted(replace(arguments, ks_max=ks_max))
    check_wrong(arguments, TILING, "qOptional", is_need_sample_result=True)


def test_vocabulary_limit(device: Device) -> None:
    check_accepted(device.arguments(np.zeros((1, 2**20)), [4], [NO_P]))
    check_refused(device.arguments(np.zeros((1, 2**20 + 1)), [4], [NO_P]), TILING)


def check_soc(first: int, second: int) -> None:
    """The statuses of phase 1."""
    with Device() as device:
        for operator, status in zip(KINDS, (first, second), strict=True):
            arguments = valid_arguments(device, operator)
            if status == abi.SUCCESS:
                assert device.run(arguments)[0].tolist() == [1] * BATCH
            else:
                check_wrong(arguments, status, ffi.string(acl.aclrtGetSocName()).decode())


@pytest.mark.hostcann_only
def test_operators_of_each_soc() -> None:
    for soc, statuses in {
        "Ascend310P3": (NO_KERNEL, NO_KERNEL),
        "Ascend910_9392": (abi.SUCCESS, abi.SUCCESS),
        "Ascend950PR_9599": (NO_KERNEL, abi.SUCCESS),
    }.items():
        must_succeed(run_in_process(check_soc, statuses, {"HOSTCANN_SOC": soc, "HOSTCANN_STRICT": "1"}))
