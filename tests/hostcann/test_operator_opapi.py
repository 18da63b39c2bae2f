"""hostcann's operator library from C: handles, lists and executors, where tests/conformance does not go.

Each test misuses the library on purpose, so it runs in a process of its own, without torch, and says there which
violations it expects. ``python test_operator_opapi.py NAME FOLDER`` is that process.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from ctypes import byref, c_bool, c_char_p, c_double, c_int, c_int64, c_uint64, c_void_p
from pathlib import Path
from threading import Barrier, Thread

import pytest

SUCCESS = 0
INVALID = 161002
FLOAT, FLOAT16, INT32, INT64, STRING = 0, 1, 3, 9, 13
FORMAT_ND, FORMAT_FRACTAL_NZ = 2, 29
VOCAB_SIZE = 4
NO_TOP_P_BITS = 0x3C00  # 1.0 as float16

CASES: dict[str, Callable[[Library], None]] = {}


def case(function: Callable[[Library], None]) -> Callable[[Library], None]:
    """Registers what one process runs."""
    CASES[function.__name__] = function
    return function


def library_folder() -> Path:
    """Where the package keeps hostcann's libraries."""
    spec = importlib.util.find_spec("ascend_sample")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "hostcann" / "home" / "lib64"


class Library:
    """libascendcl.so and libopapi.so, with the device set up."""

    def __init__(self, folder: Path) -> None:
        self.acl = ctypes.CDLL(str(folder / "libascendcl.so"), ctypes.RTLD_GLOBAL)
        self.aclnn = ctypes.CDLL(str(folder / "libopapi.so"))
        for name in ("aclGetRecentErrMsg", "hostcann_violations", "hostcann_live"):
            getattr(self.acl, name).restype = c_char_p
        for name in ("Tensor", "Scalar", "IntArray", "TensorList", "ScalarList"):
            getattr(self.aclnn, f"aclCreate{name}").restype = c_void_p
        assert self.acl.aclInit(None) == SUCCESS
        assert self.acl.aclrtSetDevice(0) == SUCCESS

    def message(self) -> str:
        text: bytes = self.acl.aclGetRecentErrMsg()
        return text.decode()

    def live(self, kind: str) -> int:
        return int(json.loads(self.acl.hostcann_live())[kind])

    def expect_violations(self, *kinds: str) -> None:
        violations = json.loads(self.acl.hostcann_violations())
        assert [violation["kind"] for violation in violations] == list(kinds), violations

    def malloc(self, size: int, contents: bytes = b"") -> int:
        address = c_void_p()
        assert self.acl.aclrtMalloc(byref(address), c_uint64(size), 0) == SUCCESS, self.message()
        assert address.value is not None
        if contents:
            size = len(contents)
            assert self.acl.aclrtMemcpy(address, c_uint64(size), contents, c_uint64(size), 1) == SUCCESS
        return address.value

    def tensor(
        self, shape: Sequence[int], data_type: int = FLOAT, address: int | None = None, format: int = FORMAT_ND
    ) -> int | None:
        """A contiguous aclTensor, as its handle; None when it was refused."""
        sizes = (c_int64 * len(shape))(*shape)
        strides = (c_int64 * len(shape))()
        storage = 1
        for axis in reversed(range(len(shape))):
            strides[axis] = storage
            storage *= shape[axis]
        handle: int | None = self.aclnn.aclCreateTensor(
            sizes, c_uint64(len(shape)), data_type, strides, c_int64(0), format, (c_int64 * 1)(storage), c_uint64(1),
            c_void_p(address),
        )  # fmt: skip
        return handle

    def destroy(self, kind: str, handle: int | None) -> int:
        return int(getattr(self.aclnn, f"aclDestroy{kind}")(c_void_p(handle)))


class Call:
    """One row of VOCAB_SIZE float16 logits 0 for aclnnTopKTopPSample: id 0 is drawn."""

    def __init__(self, library: Library, logits_format: int = FORMAT_ND) -> None:
        self.library = library
        self.result = library.malloc(8)
        half = NO_TOP_P_BITS.to_bytes(2, "little")
        self.tensors = [
            library.tensor([1, VOCAB_SIZE], FLOAT16, library.malloc(8, bytes(8)), logits_format),
            library.tensor([1], INT32, library.malloc(4, bytes(4))),
            library.tensor([1], FLOAT16, library.malloc(2, half)),
            None,
            library.tensor([1], INT64, self.result),
            library.tensor([1, VOCAB_SIZE], FLOAT, library.malloc(16)),
        ]
        self.executor = c_void_p()
        self.workspace_size = c_uint64()

    def plan(self) -> int:
        tensors = [c_void_p(handle) for handle in self.tensors]
        return int(
            self.library.aclnn.aclnnTopKTopPSampleGetWorkspaceSize(
                *tensors[:4], c_double(1e-8), c_bool(False), c_int64(32), *tensors[4:],
                byref(self.workspace_size), byref(self.executor),
            )
        )  # fmt: skip

    def run(self, workspace: int) -> int:
        return int(
            self.library.aclnn.aclnnTopKTopPSample(c_void_p(workspace), self.workspace_size, self.executor, None)
        )

    def check_result(self) -> None:
        assert self.library.acl.aclrtSynchronizeDevice() == SUCCESS, self.library.message()
        host = c_int64(-1)
        size = c_uint64(8)
        assert self.library.acl.aclrtMemcpy(byref(host), size, c_void_p(self.result), size, 2) == SUCCESS
        assert host.value == 0

    def destroy(self) -> None:
        for handle in self.tensors:
            assert self.library.destroy("Tensor", handle) == SUCCESS


@case
def handles_are_never_given_again(library: Library) -> None:
    seen = set()
    for _ in range(100):
        handle = library.tensor([2, 3])
        assert handle is not None
        seen.add(handle)
        assert library.destroy("Tensor", handle) == SUCCESS
    assert len(seen) == 100
    assert library.destroy("Tensor", None) == SUCCESS  # an optional argument that was left out
    library.expect_violations()


@case
def a_handle_of_another_type_is_refused_and_stays_alive(library: Library) -> None:
    tensor = library.tensor([2])
    for kind in ("Scalar", "IntArray", "FloatArray", "BoolArray", "TensorList", "ScalarList"):
        assert library.destroy(kind, tensor) == INVALID
        assert f"aclDestroy{kind}" in library.message()
    assert library.destroy("Tensor", 0x1000) == INVALID
    assert library.live("tensor") == 1
    assert library.destroy("Tensor", tensor) == SUCCESS
    library.expect_violations()


@case
def a_list_owns_its_members(library: Library) -> None:
    tensors = (c_void_p * 3)(library.tensor([1]), None, library.tensor([2]))
    tensor_list = library.aclnn.aclCreateTensorList(tensors, c_uint64(3))
    size = c_uint64()
    assert library.aclnn.aclGetTensorListSize(c_void_p(tensor_list), byref(size)) == SUCCESS
    assert size.value == 3
    assert library.destroy("TensorList", tensor_list) == SUCCESS
    assert (library.live("tensor"), library.live("tensor_list")) == (0, 0)
    assert library.destroy("Tensor", tensors[0]) == INVALID
    assert library.destroy("TensorList", tensor_list) == INVALID
    library.expect_violations("tensor_destroyed_twice", "tensor_destroyed_twice")


@case
def a_scalar_list_owns_its_members(library: Library) -> None:
    value = c_double(1.5)
    scalars = (c_void_p * 2)(*(library.aclnn.aclCreateScalar(byref(value), 11) for _ in range(2)))
    assert library.live("scalar") == 2
    scalar_list = library.aclnn.aclCreateScalarList(scalars, c_uint64(2))
    assert library.destroy("ScalarList", scalar_list) == SUCCESS
    assert library.live("scalar") == 0
    library.expect_violations()


@case
def getters_return_what_was_given(library: Library) -> None:
    tensor = c_void_p(library.tensor([2, 3, 4], INT64))
    values, count = ctypes.POINTER(c_int64)(), c_uint64()
    for getter, expected in (
        ("aclGetViewShape", [2, 3, 4]),
        ("aclGetViewStrides", [12, 4, 1]),
        ("aclGetStorageShape", [24]),
    ):
        assert getattr(library.aclnn, getter)(tensor, byref(values), byref(count)) == SUCCESS
        assert values[: count.value] == expected
        assert getattr(library.aclnn, getter)(tensor, None, byref(count)) != SUCCESS
    data_type, offset = c_int(), c_int64(-1)
    assert library.aclnn.aclGetDataType(tensor, byref(data_type)) == SUCCESS
    assert library.aclnn.aclGetViewOffset(tensor, byref(offset)) == SUCCESS
    assert (data_type.value, offset.value) == (INT64, 0)
    assert library.destroy("Tensor", tensor.value) == SUCCESS
    assert library.aclnn.aclGetDataType(tensor, byref(data_type)) == INVALID
    assert "was destroyed" in library.message()


@case
def what_cannot_be_counted_is_refused(library: Library) -> None:
    for shape in ([1 << 40, 1 << 40], [-1], [1 << 62]):
        assert library.tensor(shape) is None
        assert "aclCreateTensor" in library.message()
    assert library.aclnn.aclCreateScalar(None, FLOAT) is None
    assert library.aclnn.aclCreateScalar(byref(c_double(0)), STRING) is None
    assert "string" in library.message()
    assert library.aclnn.aclCreateIntArray(None, c_uint64(1)) is None
    assert (library.live("tensor"), library.live("scalar"), library.live("array")) == (0, 0, 0)


@case
def a_blocked_format_is_refused(library: Library) -> None:
    call = Call(library, logits_format=FORMAT_FRACTAL_NZ)
    assert call.plan() == INVALID
    assert "logits must have a strided format" in library.message()
    assert library.live("executor") == 0
    call.destroy()
    library.expect_violations()


@case
def a_repeatable_executor_serves_until_it_is_destroyed(library: Library) -> None:
    call = Call(library)
    assert call.plan() == SUCCESS
    assert library.aclnn.aclSetAclOpExecutorRepeatable(call.executor) == SUCCESS
    workspace = library.malloc(call.workspace_size.value)
    for _ in range(3):
        assert call.run(workspace) == SUCCESS, library.message()
        call.check_result()
    assert library.live("executor") == 1
    assert library.destroy("AclOpExecutor", call.executor.value) == SUCCESS
    library.expect_violations()
    assert call.run(workspace) == INVALID
    call.destroy()
    library.expect_violations("executor_reused")


@case
def of_many_threads_one_gets_the_executor(library: Library) -> None:
    call = Call(library)
    assert call.plan() == SUCCESS
    workspace = library.malloc(call.workspace_size.value)
    barrier, statuses = Barrier(8), []

    def run() -> None:
        library.acl.aclrtSetDevice(0)
        barrier.wait()
        statuses.append(call.run(workspace))

    threads = [Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [SUCCESS] + [INVALID] * 7
    call.check_result()
    call.destroy()
    library.expect_violations(*["executor_reused"] * 7)


@pytest.mark.skipif(not (library_folder() / "libopapi.so").is_file(), reason="hostcann was not built")
@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    command = [sys.executable, __file__, name, str(library_folder())]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"


if __name__ == "__main__":
    CASES[sys.argv[1]](Library(Path(sys.argv[2])))
