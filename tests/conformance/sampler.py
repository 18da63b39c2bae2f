"""The two operators at CANN's C interface: buffers, tensors and the two phases, each foreign handle in an owner."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from tests.support.cann import (
    D2H,
    H2D,
    abi,
    acl,
    aclnn,
    address_of,
    check,
    ffi,
    made,
    malloc,
    ok,
    operators,
    pointer,
    recent_message,
)


def encode(values: Any, dtype: str) -> np.ndarray:
    """A numpy array of the bits of `values` in a dtype of CANN; bfloat16 (unknown to numpy) as uint16."""
    if dtype != "bfloat16":
        return np.ascontiguousarray(values, dtype=dtype)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    finite = np.isfinite(bits.view(np.float32))
    rounded = np.where(finite, bits + (0x7FFF + ((bits >> 16) & 1)), bits)  # to nearest, ties to even
    return (rounded >> 16).astype(np.uint16)


class Buffer:
    """A block of device memory."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pointer = malloc(size)
        self.address = address_of(self.pointer)

    def write(self, array: np.ndarray) -> None:
        """Copies the array's bytes to the start of the block."""
        ok("aclrtMemcpy", self.pointer, self.size, array.tobytes(), array.nbytes, H2D)

    def read(self, dtype: Any, count: int) -> np.ndarray:
        """The first `count` elements of the block."""
        result = np.empty(count, dtype)
        ok("aclrtMemcpy", pointer(result.ctypes.data), result.nbytes, self.pointer, result.nbytes, D2H)
        return result

    def free(self) -> None:
        """aclrtFree; the address must not be used again."""
        ok("aclrtFree", self.pointer)


class Tensor:
    """An aclTensor over a buffer."""

    def __init__(
        self,
        buffer: Buffer,
        dtype: str,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        offset: int = 0,
        storage_size: int | None = None,
        address: int | None = None,
    ) -> None:
        self.buffer = buffer
        self.dtype = dtype
        self.shape = tuple(shape)
        self.offset = offset
        item_size = encode(0, dtype).itemsize
        self.storage_size = buffer.size // item_size if storage_size is None else storage_size
        contiguous = [int(np.prod(self.shape[axis + 1 :], dtype=np.int64)) for axis in range(len(self.shape))]
        self.strides = contiguous if strides is None else list(strides)
        self.handle = aclnn.aclCreateTensor(
            list(self.shape),
            len(self.shape),
            abi.DATA_TYPE_CODES[dtype],
            self.strides,
            offset,
            abi.FORMAT_ND,
            [self.storage_size],
            1,
            pointer(buffer.address if address is None else address),
        )
        if self.handle == ffi.NULL:
            raise AssertionError(f"aclCreateTensor: {recent_message()}")

    def numpy(self) -> np.ndarray:
        """The elements that the view selects, read back from the device; bfloat16 as uint16."""
        storage_dtype = encode(0, self.dtype).dtype
        storage = self.buffer.read(storage_dtype, self.storage_size)
        byte_strides = [stride * storage_dtype.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(storage[self.offset :], self.shape, byte_strides).copy()

    def destroy(self) -> int:
        """Destroys the aclTensor; returns the status."""
        return int(aclnn.aclDestroyTensor(self.handle))


@dataclass
class Arguments:
    """The arguments of phase 1: tensors, of which each may be None for a null pointer, and options."""

    logits: Any
    k: Any
    p: Any
    q: Any
    ids: Any
    kept: Any
    eps: float = 1e-8
    is_need_logits: bool = True
    top_k_guess: int = 32

    operator = "aclnnTopKTopPSample"

    def in_order(self) -> list[object]:
        """As phase 1 takes them; the tensors as they are here."""
        return [
            *(self.logits, self.k, self.p, self.q),
            *(self.eps, self.is_need_logits, self.top_k_guess),
            *(self.ids, self.kept),
        ]

    def tensors(self) -> list[Tensor]:
        """Those that are not null."""
        return [argument for argument in self.in_order() if isinstance(argument, Tensor)]


@dataclass
class ArgumentsV2(Arguments):
    """Those of aclnnTopKTopPSampleV2."""

    min_p: Any = None
    dense_ids: Any = None
    dense_weights: Any = None
    ks_max: int = 1024
    input_is_logits: bool = True
    is_need_sample_result: bool = False

    operator = "aclnnTopKTopPSampleV2"

    def in_order(self) -> list[object]:
        """As phase 1 takes them."""
        return [
            *(self.logits, self.k, self.p, self.q, self.min_p),
            *(self.eps, self.is_need_logits, self.top_k_guess),
            *(self.ks_max, self.input_is_logits, self.is_need_sample_result),
            *(self.ids, self.kept, self.dense_ids, self.dense_weights),
        ]


KINDS = {kind.operator: kind for kind in (Arguments, ArgumentsV2)}
"""The arguments of each operator."""
OPERATORS = tuple(KINDS)


@dataclass
class Plan:
    """What phase 1 of an operator returned."""

    status: int
    workspace_size: int
    executor: Any
    operator: str


def phase_1(arguments: Arguments) -> Plan:
    """Calls the operator's GetWorkspaceSize."""
    size, executor = ffi.new("uint64_t *"), ffi.new("aclOpExecutor **")
    values = [
        ffi.NULL if argument is None else argument.handle if isinstance(argument, Tensor) else argument
        for argument in arguments.in_order()
    ]
    status = getattr(operators, f"{arguments.operator}GetWorkspaceSize")(*values, size, executor)
    return Plan(status, size[0], executor[0], arguments.operator)


def check_refused(arguments: Arguments, status: int, *words: str) -> str:
    """Phase 1 must end with this status, no executor, and a message with these words, which is returned."""
    plan, message = phase_1(arguments), recent_message()
    assert plan.status == status, f"{plan.status}: {message}"
    assert plan.executor == ffi.NULL
    assert message != ""
    assert all(word in message for word in words), message
    assert recent_message() == "", "reading a message clears it"
    return message


class Device:
    """aclInit to aclFinalize, with one stream; frees on leaving what was made through it and not freed before."""

    def __init__(self) -> None:
        self.stream: Any = ffi.NULL
        self._buffers: list[Buffer] = []
        self._tensors: list[Tensor] = []

    def __enter__(self) -> "Device":
        ok("aclInit", None)
        ok("aclrtSetDevice", 0)
        self.stream = made("aclrtCreateStream")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            return  # what follows could fail in its turn and hide the error; the process ends anyway
        self.release()
        ok("aclrtDestroyStream", self.stream)
        ok("aclrtResetDevice", 0)
        ok("aclFinalize")

    def release(self) -> None:
        """Destroys the tensors and frees the buffers."""
        for tensor in self._tensors:
            check(tensor.destroy(), "aclDestroyTensor")
        for buffer in self._buffers:
            buffer.free()
        self._tensors, self._buffers = [], []

    def forget(self, *owned: Tensor | Buffer) -> None:
        """These are (or will be) destroyed by the test itself, or never."""
        self._tensors = [tensor for tensor in self._tensors if tensor not in owned]
        self._buffers = [buffer for buffer in self._buffers if buffer not in owned]

    def reset(self) -> None:
        """Makes a device usable whose context has failed: its blocks and streams go."""
        ok("aclrtResetDevice", 0)
        self._buffers = []
        ok("aclrtSetDevice", 0)
        self.stream = made("aclrtCreateStream")

    def buffer(self, size: int) -> Buffer:
        """A block of at least one byte."""
        block = Buffer(max(size, 1))
        self._buffers.append(block)
        return block

    def view(self, buffer: Buffer, dtype: str, shape: Sequence[int], **layout: Any) -> Tensor:
        """A tensor over an existing block; `layout` as in `Tensor`."""
        tensor = Tensor(buffer, dtype, shape, **layout)
        self._tensors.append(tensor)
        return tensor

    def tensor(self, values: Any, dtype: str, **layout: Any) -> Tensor:
        """A tensor over a new block that holds `values`; `shape` and `strides` of `layout` view them differently."""
        array = encode(values, dtype)
        block = self.buffer(array.nbytes)
        block.write(array)
        return self.view(block, dtype, layout.pop("shape", array.shape), **layout)

    def output(self, dtype: str, shape: Sequence[int], **layout: Any) -> Tensor:
        """A tensor over a new, unwritten block."""
        size = int(np.prod(shape, dtype=np.int64)) * encode(0, dtype).itemsize
        return self.view(self.buffer(size), dtype, shape, **layout)

    def arguments(self, logits: Any, k: Any, p: Any, q: Any = None, dtype: str = "float16", **others: Any) -> Arguments:
        """Contiguous arguments and outputs for host values."""
        shape = np.shape(logits)
        return Arguments(
            logits=self.tensor(logits, dtype),
            k=self.tensor(k, "int32"),
            p=self.tensor(p, dtype),
            q=None if q is None else self.tensor(q, "float32"),
            ids=self.output("int64", shape[:1]),
            kept=self.output("float32", shape),
            **others,
        )

    def arguments_v2(
        self, logits: Any, k: Any, p: Any, q: Any = None, min_p: Any = None, dtype: str = "float16", **others: Any
    ) -> ArgumentsV2:
        """`arguments` for the second operator."""
        return ArgumentsV2(
            **vars(self.arguments(logits, k, p, q, dtype)) | others,
            min_p=None if min_p is None else self.tensor(min_p, dtype),
            dense_ids=self.output("int64", np.shape(logits)),
            dense_weights=self.output("float32", np.shape(logits)),
        )

    def arguments_for(self, operator: str, logits: Any, k: Any, p: Any) -> Arguments:
        """`arguments` or `arguments_v2`, with nothing but what both operators need."""
        make = self.arguments if KINDS[operator] is Arguments else self.arguments_v2
        return make(logits, k, p)

    def plan(self, arguments: Arguments) -> Plan:
        """Phase 1, which must work."""
        plan = phase_1(arguments)
        check(plan.status, f"{arguments.operator}GetWorkspaceSize")
        return plan

    def launch(self, plan: Plan, stream: Any = None, workspace: Buffer | None = None) -> int:
        """Phase 2's status, with a workspace of the size asked for unless one is given."""
        if workspace is None and plan.workspace_size:
            workspace = self.buffer(plan.workspace_size)
        pointer = ffi.NULL if workspace is None else workspace.pointer
        on = self.stream if stream is None else stream
        return int(getattr(operators, plan.operator)(pointer, plan.workspace_size, plan.executor, on))

    def synchronize(self) -> int:
        """Waits for the device's own stream; returns the status."""
        return int(acl.aclrtSynchronizeStream(self.stream))

    def run(self, arguments: Arguments) -> tuple[np.ndarray, np.ndarray]:
        """Both phases and a synchronisation, which must work.

        Returns:
            ids [batch] and kept logits [batch, vocab_size].
        """
        check(self.launch(self.plan(arguments)), arguments.operator)
        check(self.synchronize(), "aclrtSynchronizeStream")
        return arguments.ids.numpy(), arguments.kept.numpy()
