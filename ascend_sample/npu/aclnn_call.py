"""One call of an operator of CANN through cffi in ABI mode.

One call walks the two phases of every aclnn operator:

1. describe each tensor to CANN (`_acl_tensor`);
2. phase 1, ``...GetWorkspaceSize``: CANN validates, plans and returns an executor, which serves once;
3. take the workspace from torch_npu's caching allocator, so that memory statistics and graph pools see it;
4. take the raw handle of the current stream. torch_npu's ``Stream.npu_stream`` first waits until its task queue has
   launched all that was submitted before, which orders this launch after it;
5. phase 2: launch. Nothing here waits for the device.

Outputs and workspace are allocated on the stream that uses them, and the allocator hands freed memory on in stream
order, so both may be released as soon as phase 2 has returned. Inputs follow torch's rule: whoever made them on another
stream synchronises and calls ``record_stream``.

An operator that fails inside torch_npu's queue kills the queue: torch_npu raises once and drops every later operator
silently. The error then comes from here if this call is the next to wait for the queue; results after it are void.
"""

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch

from ascend_sample._contract import SKIP_TOP_K
from ascend_sample._errors import refuse
from ascend_sample.npu import _abi
from ascend_sample.npu._abi import ffi
from ascend_sample.npu.libraries import find_operator, find_operator_symbol, find_runtime_symbol
from ascend_sample.npu.operators import MOST_ELEMENTS, OPERATORS
from ascend_sample.npu.scratch import Scratch, take_scratch

_INT32_BYTES: Final = 4
_DTYPE_LABELS: Final = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


class _Cann:
    """The functions of CANN that one of our operators calls, each bound once."""

    def __init__(self, op: str) -> None:
        self.op = op
        self.operator: Final = OPERATORS[op]
        self.recent_error_message = find_runtime_symbol("aclGetRecentErrMsg").bind()
        self.soc_name = find_runtime_symbol("aclrtGetSocName").bind()
        self.synchronize_stream = find_runtime_symbol("aclrtSynchronizeStream").bind()
        self.create_tensor = find_operator_symbol("aclCreateTensor").bind()
        self.destroy_tensor = find_operator_symbol("aclDestroyTensor").bind()
        self.destroy_executor = find_operator_symbol("aclDestroyAclOpExecutor").bind()
        phase_1, phase_2 = find_operator(self.operator)
        self.get_workspace_size, self.launch = phase_1.bind(), phase_2.bind()

    def check(self, status: int, call: str, stage: str, logits: torch.Tensor) -> None:
        """Raises RuntimeError with CANN's own message when `status` is not success."""
        if status == _abi.SUCCESS:
            return
        name = _abi.status_name(status)
        raise RuntimeError(
            f"{self.op}: {call} failed in {stage}: {status} {name}: {self.take_message()}; logits={_label(logits)}"
        )

    def take_message(self) -> str:
        """Returns CANN's message for the calling thread's last failure; reading clears it."""
        message = self.recent_error_message()
        text = "" if message == ffi.NULL else str(ffi.string(message).decode(errors="replace")).strip()
        return text or "(no message)"


@functools.cache
def cann_of(op: str) -> _Cann:
    """Returns the functions for our operator `op`.

    Raises:
        NotImplementedError: the operator cannot be called; the text is the reason.
    """
    cann = _Cann(op)
    soc = cann.soc_name()
    name = "(unknown)" if soc == ffi.NULL else str(ffi.string(soc).decode())
    if not cann.operator.supported_soc.match(name):
        raise NotImplementedError(f"{cann.operator.name} runs on {cann.operator.devices}, not on SoC {name}")
    return cann


class Call:
    """One call of an operator: its tensors in CANN's order, then both phases.

    Attributes:
        results: a tensor for each: empty [0] where it is not asked for.
    """

    def __init__(
        self,
        op: str,
        tensors: Mapping[str, torch.Tensor | None],
        options: Mapping[str, float],
        best_into: torch.Tensor | None = None,
    ) -> None:
        """Prepares a call of our operator `op`, whose arguments are the tensors and then the options.

        With `best_into`, every k is 1 and the ids are written there. Else k <= 0, where it is undefined on the device,
        becomes one that skips top-k.
        """
        name, logits = next(iter(tensors.items()))
        assert logits is not None
        most_rows = OPERATORS[op].most_rows
        if logits.numel() > MOST_ELEMENTS:
            refuse(op, name, f"have at most {MOST_ELEMENTS} elements on an NPU", _label(logits), "Split the batch.")
        if most_rows is not None and len(logits) > most_rows:
            refuse(op, name, f"have at most {most_rows} rows on an NPU", _label(logits), "Split the batch.")
        self.op = op
        self.logits = logits
        self.tensors = tensors
        self.options = options
        self.results = [] if best_into is None else [best_into]
        for result in OPERATORS[op].results[len(self.results) :]:
            shape: tuple[int, ...] = logits.shape[:1] if result.is_per_row else logits.shape
            if result.option is not None and not options[result.option]:
                shape = (0,)  # CANN gets one all the same: those share one memory then
            self.results.append(result.new_empty(logits, shape))
        self.replaced_k: tuple[int, int] | None  # up to which k is replaced, and by what
        if best_into is not None:
            self.replaced_k = (torch.iinfo(torch.int32).max, 1)
        else:
            self.replaced_k = None if OPERATORS[op].takes_any_k else (0, SKIP_TOP_K)
            if OPERATORS[op].bounds_k:
                self.replaced_k = (0, logits.shape[1])  # which skips top-k
        self.unwanted_shape = logits.shape if OPERATORS[op].checks_unwanted else torch.Size([1])

    def run(self, workspace: torch.Tensor | None = None) -> torch.Tensor | None:
        """Runs phase 1 and phase 2, or nothing for an empty batch.

        Returns:
            The workspace, for the next call on this stream, or None. A given one is used where it is large enough.
        """
        batch_size, _ = self.logits.shape
        if batch_size == 0:
            return None
        import torch_npu  # deferred: importing this module must not need it

        with torch_npu.npu.device(self.logits.device), ExitStack() as owners:
            try:
                cann = cann_of(self.op)
            except NotImplementedError as reason:
                raise NotImplementedError(f"{self.op}: {reason}.") from None
            for described, result in zip(OPERATORS[self.op].results, self.results, strict=True):
                if described.is_written_in_part and result.numel() > 0:
                    result.zero_()
            k_bytes = _aligned(batch_size * _INT32_BYTES)
            unwanted_bytes = max((result.itemsize for result in self.results if result.numel() == 0), default=0)
            scratch = take_scratch(k_bytes + self.unwanted_shape.numel() * unwanted_bytes, self.logits.device)
            # Until the launch is on the stream: no other call's may come between the two operators of this one.
            owners.enter_context(scratch.order)
            handles = [
                owners.enter_context(_acl_tensor(cann, name, tensor))
                for name, tensor in self._described(scratch, k_bytes)
            ]
            inputs, outputs = handles[: len(self.tensors)], handles[len(self.tensors) :]
            size, executor = ffi.new("uint64_t *"), ffi.new("aclOpExecutor **")
            with _unused_executor_destroyed(cann, executor, self.logits):  # there may be one although phase 1 fails
                status = cann.get_workspace_size(*inputs, *self.options.values(), *outputs, size, executor)
                cann.check(status, cann.operator.phase_1, "workspace", self.logits)
                if workspace is None or workspace.numel() < size[0]:
                    workspace = _allocate_workspace(cann, size[0], self.logits)
                stream = ffi.cast("void *", torch_npu.npu.current_stream().npu_stream)
                if stream == ffi.NULL:
                    raise RuntimeError(
                        f"{self.op}: {cann.operator.phase_2} must follow torch_npu's task queue, got a queue that has "
                        "failed. An earlier operator failed asynchronously: its error comes with "
                        f"torch.npu.synchronize(). logits={_label(self.logits)}"
                    )
                address = ffi.cast("void *", 0 if workspace is None else workspace.data_ptr())
                # From here the executor is CANN's, also when the launch fails.
                status = cann.launch(address, size[0], _release(executor), stream)
                cann.check(status, cann.operator.phase_2, "launch", self.logits)
                if os.environ.get("ASCEND_LAUNCH_BLOCKING") == "1":
                    cann.check(cann.synchronize_stream(stream), "aclrtSynchronizeStream", "sync", self.logits)
            return workspace

    def _described(self, scratch: Scratch, k_bytes: int) -> Iterator[tuple[str, torch.Tensor | None]]:
        """Yields the tensors as CANN gets them, by name: a valid k, and scratch in the place of what is not wanted."""
        batch_size, _ = self.logits.shape
        for name, tensor in self.tensors.items():
            if name == "k" and tensor is not None and self.replaced_k is not None:
                valid_k = scratch.memory[: batch_size * _INT32_BYTES].view(torch.int32)
                tensor = torch.threshold(tensor, *self.replaced_k, out=valid_k)
                if OPERATORS[self.op].bounds_k:
                    tensor.clamp_(max=self.logits.shape[1])
            yield name, tensor
        for described, result in zip(OPERATORS[self.op].results, self.results, strict=True):
            if result.numel() == 0:
                size = self.unwanted_shape.numel() * result.element_size()
                result = scratch.memory[k_bytes : k_bytes + size].view(result.dtype).view(self.unwanted_shape)
            yield described.name, result


@contextmanager
def _acl_tensor(cann: _Cann, name: str, tensor: torch.Tensor | None) -> Iterator[Any]:
    """Yields CANN's description of a tensor, destroyed on leaving, or NULL for None."""
    if tensor is None:
        yield ffi.NULL
        return
    _check_memory(cann.op, name, tensor)
    storage = tensor.untyped_storage()
    handle = cann.create_tensor(
        list(tensor.shape),
        tensor.dim(),
        _abi.DATA_TYPE_CODES[str(tensor.dtype).removeprefix("torch.")],
        list(tensor.stride()),
        # The base address and the offset go apart: CANN requires an aligned address, which that of a slice need not be.
        tensor.storage_offset(),
        _abi.FORMAT_ND,
        [storage.nbytes() // tensor.element_size()],
        1,
        ffi.cast("void *", storage.data_ptr()),
    )
    if handle == ffi.NULL:
        raise RuntimeError(f"{cann.op}: aclCreateTensor failed for {name}={_label(tensor)}: {cann.take_message()}")
    try:
        yield handle
    finally:
        cann.check(cann.destroy_tensor(handle), "aclDestroyTensor", "launch", tensor)


@contextmanager
def _unused_executor_destroyed(cann: _Cann, executor: Any, logits: torch.Tensor) -> Iterator[None]:
    """Destroys ``executor[0]`` on leaving unless `_release` has taken it: phase 2 frees the executors that it gets."""
    try:
        yield
    finally:
        if executor[0] != ffi.NULL:
            cann.check(cann.destroy_executor(_release(executor)), "aclDestroyAclOpExecutor", "workspace", logits)


def _release(executor: Any) -> Any:
    released, executor[0] = executor[0], ffi.NULL
    return released


def _allocate_workspace(cann: _Cann, size: int, logits: torch.Tensor) -> torch.Tensor | None:
    if size == 0:
        return None
    # torch counts bytes in int64: a size beyond that is refused by the allocator as any other that is too large.
    bounded = min(size, torch.iinfo(torch.int64).max // 2)
    try:
        return torch.empty(bounded, dtype=torch.uint8, device=logits.device)
    except torch.OutOfMemoryError as error:
        raise torch.OutOfMemoryError(
            f"{cann.op}: {cann.operator.phase_1} asks for a workspace of {size} bytes, which cannot be allocated: "
            f"{error}; logits={_label(logits)}"
        ) from error


def _check_memory(op: str, name: str, tensor: torch.Tensor) -> None:
    import torch_npu

    try:
        memory_format = torch_npu.get_npu_format(tensor)
    except RuntimeError:  # memory that torch wraps by itself, as at::from_blob does, has none
        memory_format = _abi.FORMAT_ND
    if memory_format not in _abi.PLAIN_FORMATS:
        rule = f"have a plain memory format ({', '.join(_abi.PLAIN_FORMATS.values())})"
        refuse(op, name, rule, f"format {memory_format}", f"Call torch_npu.npu_format_cast({name}, 2) first.")
    address = tensor.untyped_storage().data_ptr()
    if address % _abi.ADDRESS_ALIGNMENT != 0:
        rule = f"have a storage address that is a multiple of {_abi.ADDRESS_ALIGNMENT}"
        remedy = "Slice the tensor that owns the memory, or copy it through the host."
        refuse(op, name, rule, f"{address:#x}", remedy)


def _aligned(size: int) -> int:
    """Returns `size` rounded up to a multiple of the address alignment that CANN requires."""
    return -(-size // _abi.ADDRESS_ALIGNMENT) * _abi.ADDRESS_ALIGNMENT


def _label(tensor: torch.Tensor) -> str:
    dtype = _DTYPE_LABELS.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    return f"{list(tensor.shape)} {dtype}"
