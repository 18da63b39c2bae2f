"""The operators on an NPU without a compiled extension: aclnnTopKTopPSample and its V2 through cffi in ABI mode.

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

The compiled binding does the same with less host time per call.
"""

import functools
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch

from ascend_sample._validate import OPERATOR_NAME, OPERATOR_V2_NAME, SKIP_TOP_K
from ascend_sample.npu import _abi
from ascend_sample.npu._abi import ffi
from ascend_sample.npu.libraries import SymbolNotFoundError, find_operator_symbol, find_runtime_symbol
from ascend_sample.npu.operators import OPERATORS, AclnnOperator
from ascend_sample.npu.scratch import Scratch, take_scratch

_INT32_BYTES: Final = 4
_FLOAT_BYTES: Final = 4
_INT64_BYTES: Final = 8
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
        try:
            self.get_workspace_size = find_operator_symbol(self.operator.phase_1).bind()
            self.launch = find_operator_symbol(self.operator.phase_2).bind()
        except SymbolNotFoundError as error:
            raise SymbolNotFoundError(f"{error} {self.operator.found_in}.") from None

    def check(self, status: int, call: str, stage: str, logits: torch.Tensor) -> None:
        """Raises RuntimeError with CANN's own message when `status` is not success."""
        if status == _abi.SUCCESS:
            return
        name = _abi.status_name(status)
        raise RuntimeError(
            f"{self.op}: {call} failed in {stage}: {status} {name}: {self.take_message()}; logits={_label(logits)}"
        )

    def take_message(self) -> str:
        """CANN's message for the calling thread's last failure; reading clears it."""
        message = self.recent_error_message()
        text = "" if message == ffi.NULL else str(ffi.string(message).decode(errors="replace")).strip()
        return text or "(no message)"


@functools.cache
def _cann(op: str) -> _Cann:
    cann = _Cann(op)
    soc = cann.soc_name()
    name = "unknown" if soc == ffi.NULL else str(ffi.string(soc).decode())
    if not cann.operator.supported_soc.match(name):
        raise NotImplementedError(
            f"{op}: {cann.operator.phase_2} must run on {cann.operator.devices}, got SoC {name}. "
            "Only the composite of torch operators serves it."
        )
    return cann


def obstacle(op: str = OPERATOR_NAME) -> str | None:
    """Why this process cannot call the operator `op`, or None when it can.

    The text names the missing function, the libraries that were tried and the remedy, or the SoC. Nothing is
    remembered: a later call looks again.
    """
    try:
        _cann(op)
    except NotImplementedError as error:
        return str(error)
    return None


def top_k_top_p_sample(
    logits: torch.Tensor,
    k: torch.Tensor,
    p: torch.Tensor,
    q: torch.Tensor | None = None,
    eps: float = 1e-8,
    is_need_logits: bool = False,
    top_k_guess: int = 32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launches aclnnTopKTopPSample on the current stream of the logits' device.

    The arguments are those of the dispatcher operator, with the same rules, which are checked first.

    Args:
        logits: [batch, vocab_size], float16 or bfloat16, on an NPU; any strides and storage offset.
        k: [batch], int32. A row's k <= 0 skips top-k.
        p: [batch], the dtype of logits.
        q: [batch, vocab_size], float32, or None for no draw.
        eps: Added to the absolute value of q before the division.
        is_need_logits: Whether to return the kept logits.
        top_k_guess: How many of the best tokens to try before a full sort; changes no result.

    Returns:
        The sampled ids, int64 [batch], and the kept logits, float32 [batch, vocab_size] with -inf elsewhere, or an
        empty tensor [0] when they were not asked for.

    Raises:
        NotImplementedError: See `obstacle`; nothing has been launched.
        TypeError: An argument has a wrong dtype or layout.
        ValueError: An argument has a wrong shape, device, value or memory format, or an address that CANN cannot use.
        torch.OutOfMemoryError: The workspace cannot be allocated.
        RuntimeError: CANN refused a phase; the text carries its code and message.
    """
    torch.ops.ascend_sample.check_top_k_top_p_sample(logits, k, p, q, eps, is_need_logits, top_k_guess)
    call = _Call(OPERATOR_NAME, logits, 0 if is_need_logits else _FLOAT_BYTES)
    call.inputs = [("logits", logits), ("k", k), ("p", p), ("q", q)]
    ids = call.result("logits_select_idx", torch.int64)
    kept = call.result_of_logits("logits_top_kp_select", torch.float32, is_need_logits)
    call.run(eps, is_need_logits, top_k_guess)
    return ids, kept


def top_k_top_p_sample_v2(
    logits: torch.Tensor,
    k: torch.Tensor,
    p: torch.Tensor,
    q: torch.Tensor | None = None,
    min_p: torch.Tensor | None = None,
    eps: float = 1e-8,
    is_need_logits: bool = False,
    top_k_guess: int = 32,
    ks_max: int = 1024,
    input_is_logits: bool = True,
    is_need_sample_result: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Launches aclnnTopKTopPSampleV2 on the current stream of the logits' device.

    The arguments are those of the dispatcher operator, with the same rules, which are checked first.

    Args:
        logits: [batch, vocab_size], float16, bfloat16 or float32, on an NPU; any strides and storage offset.
        k: [batch], int32. A row's k <= 0 skips top-k.
        p: [batch], the dtype of logits.
        q: [batch, vocab_size], float32, or None for no draw.
        min_p: [batch], the dtype of logits, or None for no min-p.
        eps: Added to the absolute value of q before the division.
        is_need_logits: Whether to return the kept logits.
        top_k_guess: How many of the best tokens to try before a full sort; changes no result.
        ks_max: The largest k that is honoured, before it is rounded up to a multiple of 8.
        input_is_logits: False where logits are probabilities.
        is_need_sample_result: Whether to return the kept ids and their weights.

    Returns:
        The sampled ids, int64 [batch]; the kept logits, float32 [batch, vocab_size]; the kept ids, int64, and their
        weights, float32, both [batch, vocab_size]. An empty tensor [0] for what was not asked for.

    Raises:
        NotImplementedError: See `obstacle`; nothing has been launched.
        TypeError, ValueError, torch.OutOfMemoryError, RuntimeError: As `top_k_top_p_sample`.
    """
    options = (eps, is_need_logits, top_k_guess, ks_max, input_is_logits, is_need_sample_result)
    torch.ops.ascend_sample.check_top_k_top_p_sample_v2(logits, k, p, q, min_p, *options)
    unwanted_bytes = (0 if is_need_logits else _FLOAT_BYTES) if is_need_sample_result else _INT64_BYTES
    call = _Call(OPERATOR_V2_NAME, logits, unwanted_bytes)
    call.inputs = [("logits", logits), ("k", k), ("p", p), ("q", q), ("min_p", min_p)]
    ids = call.result("logits_select_idx", torch.int64)
    kept = call.result_of_logits("logits_top_kp_select", torch.float32, is_need_logits)
    dense_ids = call.result_of_logits("logits_idx", torch.int64, is_need_sample_result)
    dense_weights = call.result_of_logits("logits_sort_masked", torch.float32, is_need_sample_result)
    call.run(*options)
    if is_need_sample_result and ids.numel():
        # CANN's documentation promises no index then. The heaviest of the kept entries is the one.
        ids = dense_ids.gather(1, dense_weights.argmax(-1, keepdim=True)).squeeze(1)
    return ids, kept, dense_ids, dense_weights


class _Call:
    """One call of an operator: its tensors in CANN's order, then both phases."""

    def __init__(self, op: str, logits: torch.Tensor, unwanted_bytes: int) -> None:
        """For our operator `op`; `unwanted_bytes` a logit serve the outputs that nobody wants."""
        if logits.numel() > _abi.MAX_ELEMENTS:
            raise ValueError(
                f"{op}: logits must have fewer than 2^32 elements on an NPU, got {_label(logits)}. Split the batch."
            )
        self.op = op
        self.logits = logits
        self.inputs: list[tuple[str, torch.Tensor | None]] = []
        self.outputs: list[tuple[str, torch.Tensor]] = []
        self.unwanted_bytes = unwanted_bytes

    def result(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """An output of one value a row."""
        self.outputs.append((name, self.logits.new_empty(self.logits.shape[0], dtype=dtype)))
        return self.outputs[-1][1]

    def result_of_logits(self, name: str, dtype: torch.dtype, is_wanted: bool) -> torch.Tensor:
        """An output of the shape of logits; an empty tensor when it is not wanted.

        CANN checks its shape even then, and writes nothing to it: those that are not wanted share one memory.
        """
        wanted = self.logits.new_empty(self.logits.shape if is_wanted else 0, dtype=dtype)
        self.outputs.append((name, wanted))
        return wanted

    def run(self, *options: float) -> None:
        """Phase 1 and phase 2; nothing for an empty batch."""
        batch_size, _ = self.logits.shape
        if batch_size == 0:
            return
        import torch_npu  # deferred: importing this module must not need it

        with torch_npu.npu.device(self.logits.device), ExitStack() as owners:
            cann = _cann(self.op)
            k_bytes = _aligned(batch_size * _INT32_BYTES)
            scratch = take_scratch(k_bytes + self.logits.numel() * self.unwanted_bytes, self.logits.device)
            # Until the launch is on the stream: no other call's may come between the two operators of this one.
            owners.enter_context(scratch.order)
            handles = [
                owners.enter_context(_acl_tensor(cann, name, tensor))
                for name, tensor in self._described(scratch, k_bytes)
            ]
            inputs, outputs = handles[: len(self.inputs)], handles[len(self.inputs) :]
            size, executor = ffi.new("uint64_t *"), ffi.new("aclOpExecutor **")
            status = cann.get_workspace_size(*inputs, *options, *outputs, size, executor)
            cann.check(status, cann.operator.phase_1, "workspace", self.logits)
            with _unused_executor_destroyed(cann, executor, self.logits):
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

    def _described(self, scratch: Scratch, k_bytes: int) -> Iterator[tuple[str, torch.Tensor | None]]:
        """The tensors as CANN gets them: a valid k, and scratch in the place of what is not wanted."""
        batch_size, _ = self.logits.shape
        for name, tensor in self.inputs:
            if name == "k" and tensor is not None:
                valid_k = scratch.memory[: batch_size * _INT32_BYTES].view(torch.int32)
                tensor = torch.threshold(tensor, 0, SKIP_TOP_K, out=valid_k)
            yield name, tensor
        for name, tensor in self.outputs:
            if tensor.numel() == 0:
                size = self.logits.numel() * tensor.element_size()
                tensor = scratch.memory[k_bytes : k_bytes + size].view(tensor.dtype).view(self.logits.shape)
            yield name, tensor


def top_k_top_p_sample_kernel(
    logits: torch.Tensor,
    k: torch.Tensor,
    p: torch.Tensor,
    q: torch.Tensor | None = None,
    eps: float = 1e-8,
    is_need_logits: bool = False,
    top_k_guess: int = 32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The dispatcher's NPU kernel where the compiled binding is missing.

    As the compiled one does, it leaves to the composite of torch operators what aclnnTopKTopPSample does not serve, and
    warns once for each reason.
    """
    arguments = (logits, k, p, q, eps, is_need_logits, top_k_guess)
    reason = _reason_for_composite(OPERATOR_NAME, logits)
    if reason is None:
        return top_k_top_p_sample(*arguments)
    _warn_of_composite(OPERATOR_NAME, reason)
    selected, kept = torch.ops.ascend_sample.top_k_top_p_sample_composite(*arguments)
    return selected, kept


def top_k_top_p_sample_v2_kernel(
    logits: torch.Tensor,
    k: torch.Tensor,
    p: torch.Tensor,
    q: torch.Tensor | None = None,
    min_p: torch.Tensor | None = None,
    eps: float = 1e-8,
    is_need_logits: bool = False,
    top_k_guess: int = 32,
    ks_max: int = 1024,
    input_is_logits: bool = True,
    is_need_sample_result: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`top_k_top_p_sample_kernel` for the second operator."""
    options = (eps, is_need_logits, top_k_guess, ks_max, input_is_logits, is_need_sample_result)
    reason = _reason_for_composite(OPERATOR_V2_NAME, logits)
    if reason is None:
        return top_k_top_p_sample_v2(logits, k, p, q, min_p, *options)
    _warn_of_composite(OPERATOR_V2_NAME, reason)
    composite = torch.ops.ascend_sample.top_k_top_p_sample_v2_composite
    selected, kept, dense_ids, dense_weights = composite(logits, k, p, q, min_p, *options)
    return selected, kept, dense_ids, dense_weights


def _reason_for_composite(op: str, logits: torch.Tensor) -> str | None:
    operator: AclnnOperator = OPERATORS[op]
    if operator.takes(logits.dtype):
        return obstacle(op)
    return f"{operator.name} takes {' and '.join(operator.dtypes)} logits, not {logits.dtype}"


@functools.cache
def _warn_of_composite(op: str, reason: str) -> None:
    warnings.warn(
        f"{op}: served by the composite of torch operators, which is much slower: {reason} (Warned once.)",
        stacklevel=3,
    )


@contextmanager
def _acl_tensor(cann: _Cann, name: str, tensor: torch.Tensor | None) -> Iterator[Any]:
    """CANN's description of a tensor, destroyed on leaving; NULL for None."""
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

    memory_format = torch_npu.get_npu_format(tensor)
    if memory_format not in _abi.PLAIN_FORMATS:
        raise ValueError(
            f"{op}: {name} must have a plain memory format ({', '.join(_abi.PLAIN_FORMATS.values())}), "
            f"got format {memory_format}. Call torch_npu.npu_format_cast({name}, 2) first."
        )
    address = tensor.untyped_storage().data_ptr()
    if address % _abi.ADDRESS_ALIGNMENT != 0:
        raise ValueError(
            f"{op}: {name} must have a storage address that is a multiple of {_abi.ADDRESS_ALIGNMENT}, got "
            f"{address:#x}. Slice the tensor that owns the memory, or copy it through the host."
        )


def _aligned(size: int) -> int:
    """Bytes up to an address that CANN can use."""
    return -(-size // _abi.ADDRESS_ALIGNMENT) * _abi.ADDRESS_ALIGNMENT


def _label(tensor: torch.Tensor) -> str:
    dtype = _DTYPE_LABELS.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    return f"{list(tensor.shape)} {dtype}"
