"""Handles, lists and executors of hostcann's operator library: who owns them, how long they serve, what is refused."""

import threading

import pytest

from tests.support.cann import abi, aclnn, check_violations, ffi, live, ok, pointer, recent_message

from .hand_worked import MIXED, NO_P
from .sampler import Device, Tensor

pytestmark = pytest.mark.hostcann_only

INVALID = 161002
DOUBLE, STRING = 11, 13

ffi.cdef("""
void *aclCreateScalar(const void *value, int data_type);
void *aclCreateIntArray(const int64_t *values, uint64_t size);
void *aclCreateTensorList(const void *const *tensors, uint64_t size);
void *aclCreateScalarList(const void *const *scalars, uint64_t size);
int aclGetTensorListSize(const void *list, uint64_t *size);
int aclDestroyScalar(const void *scalar);
int aclDestroyIntArray(const void *array);
int aclDestroyFloatArray(const void *array);
int aclDestroyBoolArray(const void *array);
int aclDestroyTensorList(const void *list);
int aclDestroyScalarList(const void *list);
int aclSetAclOpExecutorRepeatable(aclOpExecutor *executor);
""")


def test_a_handle_of_another_type_is_refused_and_stays_alive(device: Device) -> None:
    tensor = device.tensor([1.0], "float32")
    for kind in ("Scalar", "IntArray", "FloatArray", "BoolArray", "TensorList", "ScalarList"):
        assert getattr(aclnn, f"aclDestroy{kind}")(tensor.handle) == INVALID
        assert f"aclDestroy{kind}" in recent_message()
    assert aclnn.aclDestroyTensor(pointer(0x1000)) == INVALID
    assert live("tensor") == 1


def test_lists_own_their_members(device: Device) -> None:
    tensors = [Tensor(device.buffer(64), "float32", (count,)) for count in (1, 2)]
    handles = [tensors[0].handle, ffi.NULL, tensors[1].handle]
    of_tensors = aclnn.aclCreateTensorList(handles, 3)
    size = ffi.new("uint64_t *")
    assert aclnn.aclGetTensorListSize(of_tensors, size) == abi.SUCCESS
    assert size[0] == 3
    value = ffi.new("double *", 1.5)
    of_scalars = aclnn.aclCreateScalarList([aclnn.aclCreateScalar(value, DOUBLE) for _ in range(2)], 2)
    assert (live("tensor"), live("scalar")) == (2, 2)
    assert aclnn.aclDestroyTensorList(of_tensors) == aclnn.aclDestroyScalarList(of_scalars) == abi.SUCCESS
    assert live("tensor") == live("scalar") == live("tensor_list") == 0
    assert tensors[0].destroy() == INVALID
    assert aclnn.aclDestroyTensorList(of_tensors) == INVALID
    check_violations("tensor_destroyed_twice", "tensor_destroyed_twice")


def test_what_cannot_be_counted_is_refused(device: Device) -> None:
    buffer, before = device.buffer(64), live()
    for shape, strides in (([1 << 40, 1 << 40], None), ([-1], None), ([1 << 62], None), ([1 << 62], [0])):
        with pytest.raises(AssertionError, match="aclCreateTensor"):
            Tensor(buffer, "float32", shape, strides)
    assert aclnn.aclCreateScalar(ffi.NULL, DOUBLE) == ffi.NULL
    assert aclnn.aclCreateScalar(ffi.new("double *"), STRING) == ffi.NULL
    assert "string" in recent_message()
    assert aclnn.aclCreateIntArray(ffi.NULL, 1) == ffi.NULL
    recent_message()
    assert live() == before


def test_a_repeatable_executor_serves_until_it_is_destroyed(device: Device) -> None:
    arguments = device.arguments([MIXED], [4], [NO_P])
    plan = device.plan(arguments)
    assert aclnn.aclSetAclOpExecutorRepeatable(plan.executor) == abi.SUCCESS
    for _ in range(3):
        assert device.launch(plan) == abi.SUCCESS, recent_message()
        assert device.synchronize() == abi.SUCCESS
        assert arguments.ids.numpy().tolist() == [1]
    assert aclnn.aclDestroyAclOpExecutor(plan.executor) == abi.SUCCESS
    check_violations()
    assert device.launch(plan) == INVALID
    check_violations("executor_reused")


def test_of_many_threads_one_gets_the_executor(device: Device) -> None:
    plan = device.plan(device.arguments([MIXED], [4], [NO_P]))
    workspace = device.buffer(plan.workspace_size)
    barrier, statuses = threading.Barrier(8), []

    def run() -> None:
        ok("aclrtSetDevice", 0)
        barrier.wait()
        statuses.append(device.launch(plan, workspace=workspace))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [abi.SUCCESS] + [INVALID] * 7
    assert device.synchronize() == abi.SUCCESS
    check_violations(*["executor_reused"] * 7)
