"""The operator on an NPU without a compiled extension: aclnnTopKTopPSample called through cffi in ABI mode.

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

from ascend_sample._validate import SKIP_TOP_K
from ascend_sample.npu import _abi
from ascend_sample.npu._abi import ffi
from ascend_sample.npu.libraries import find_operator_symbol, find_runtime_symbol

OPERATOR: Final = "top_k_top_p_sample"
PHASE_1: Final = "aclnnTopKTopPSampleGetWorkspaceSize"
PHASE_2: Final = "aclnnTopKTopPSample"

_DTYPE_LABELS: Final = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


class _Cann:
    """The functions of CANN that the operator calls, each bound once."""

    def __init__(self) -> None:
        self.recent_error_message = find_runtime_symbol("aclGetRecentErrMsg").bind()
        self.soc_name = find_runtime_symbol("aclrtGetSocName").bind()
        self.synchronize_stream = find_runtime_symbol("aclrtSynchronizeStream").bind()
        self.create_tensor = find_operator_symbol("aclCreateTensor").bind()
        self.destroy_tensor = find_operator_symbol("aclDestroyTensor").bind()
        self.destroy_executor = find_operator_symbol("aclDestroyAclOpExecutor").bind()
        self.get_workspace_size = find_operator_symbol(PHASE_1).bind()
        self.launch = find_operator_symbol(PHASE_2).bind()

    def check(self, status: int, call: str, stage: str, logits: torch.Tensor) -> None:
        """Raises RuntimeError with CANN's own message when `status` is not success."""
        if status == _abi.SUCCESS:
            return
        name = _abi.status_name(status)
        raise RuntimeError(
            f"{OPERATOR}: {call} failed in {stage}: {status} {name}: {self.take_message()}; logits={_label(logits)}"
        )

    def take_message(self) -> str:
        """CANN's message for the calling thread's last failure; reading clears it."""
        message = self.recent_error_message()
        text = "" if message == ffi.NULL else str(ffi.string(message).decode(errors="replace")).strip()
        return text or "(no message)"


@functools.cache
def _cann() -> _Cann:
    cann = _Cann()
    soc = cann.soc_name()
    name = "unknown" if soc == ffi.NULL else str(ffi.string(soc).decode())
    if not _abi.SUPPORTED_SOC.match(name):
        raise NotImplementedError(
            f"{OPERATOR}: {PHASE_2} must run on Atlas A2 (Ascend910B1 to B4) or A3 (Ascend910_93), got SoC {name}. "
            "Only the composite of torch operators serves it."
        )
    return cann


def obstacle() -> str | None:
    """Why this process cannot call the operator, or None when it can.

    The text names the missing function, the libraries that were tried and the remedy, or the SoC. Nothing is
    remembered: a later call looks again.
    """
    try:
        _cann()
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
    batch, vocab_size = logits.shape
    if batch == 0:
        kept_shape = (0, vocab_size) if is_need_logits else (0,)
        return logits.new_empty(0, dtype=torch.int64), logits.new_empty(kept_shape, dtype=torch.float32)

    if logits.numel() > _abi.MAX_ELEMENTS:
        raise ValueError(
            f"{OPERATOR}: logits must have fewer than 2^32 elements on an NPU, got {_label(logits)}. Split the batch."
        )

    import torch_npu  # deferred: importing this module must not need it

    with torch_npu.npu.device(logits.device), ExitStack() as owners:
        # The first allocation gives this thread a device context, which CANN's calls below need.
        ids = torch.empty(batch, dtype=torch.int64, device=logits.device)
        # CANN checks this output's shape even when it writes nothing to it.
        kept = torch.empty((batch, vocab_size), dtype=torch.float32, device=logits.device)
        cann = _cann()
        k = torch.threshold(k, 0, SKIP_TOP_K)
        arguments = {"logits": logits, "k": k, "p": p, "q": q, "logits_select_idx": ids, "logits_top_kp_select": kept}
        handles = {name: owners.enter_context(_acl_tensor(cann, name, tensor)) for name, tensor in arguments.items()}

        size, executor = ffi.new("uint64_t *"), ffi.new("aclOpExecutor **")
        status = cann.get_workspace_size(
            handles["logits"],
            handles["k"],
            handles["p"],
            handles["q"],
            eps,
            is_need_logits,
            top_k_guess,
            handles["logits_select_idx"],
            handles["logits_top_kp_select"],
            size,
            executor,
        )
        cann.check(status, PHASE_1, "workspace", logits)
        with _unused_executor_destroyed(cann, executor, logits):
            workspace = _allocate_workspace(size[0], logits)
            stream = ffi.cast("void *", torch_npu.npu.current_stream().npu_stream)
            if stream == ffi.NULL:
                raise RuntimeError(
                    f"{OPERATOR}: {PHASE_2} must follow torch_npu's task queue, got a queue that has failed. "
                    "An earlier operator failed asynchronously: its error comes with torch.npu.synchronize(). "
                    f"logits={_label(logits)}"
                )
            address = ffi.cast("void *", 0 if workspace is None else workspace.data_ptr())
            # From here the executor is CANN's, also when the launch fails.
            status = cann.launch(address, size[0], _release(executor), stream)
            cann.check(status, PHASE_2, "launch", logits)
            if os.environ.get("ASCEND_LAUNCH_BLOCKING") == "1":
                cann.check(cann.synchronize_stream(stream), "aclrtSynchronizeStream", "sync", logits)
    return ids, kept if is_need_logits else kept.new_empty(0)


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
    reason = (
        obstacle()
        if logits.dtype in (torch.float16, torch.bfloat16)
        else f"{PHASE_2} takes float16 and bfloat16 logits, not {logits.dtype}"
    )
    if reason is None:
        return top_k_top_p_sample(logits, k, p, q, eps, is_need_logits, top_k_guess)
    _warn_of_composite(reason)
    composite = torch.ops.ascend_sample.top_k_top_p_sample_composite
    selected, kept = composite(logits, k, p, q, eps, is_need_logits, top_k_guess)
    return selected, kept


@functools.cache
def _warn_of_composite(reason: str) -> None:
    warnings.warn(
        f"{OPERATOR}: served by the composite of torch operators, which is much slower: {reason} (Warned once.)",
        stacklevel=3,
    )


@contextmanager
def _acl_tensor(cann: _Cann, name: str, tensor: torch.Tensor | None) -> Iterator[Any]:
    """CANN's description of a tensor, destroyed on leaving; NULL for None."""
    if tensor is None:
        yield ffi.NULL
        return
    _check_memory(name, tensor)
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
        raise RuntimeError(f"{OPERATOR}: aclCreateTensor failed for {name}={_label(tensor)}: {cann.take_message()}")
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


def _allocate_workspace(size: int, logits: torch.Tensor) -> torch.Tensor | None:
    if size == 0:
        return None
    # torch counts bytes in int64: a size beyond that is refused by the allocator as any other that is too large.
    bounded = min(size, torch.iinfo(torch.int64).max // 2)
    try:
        return torch.empty(bounded, dtype=torch.uint8, device=logits.device)
    except torch.OutOfMemoryError as error:
        raise torch.OutOfMemoryError(
            f"{OPERATOR}: {PHASE_1} asks for a workspace of {size} bytes, which cannot be allocated: {error}; "
            f"logits={_label(logits)}"
        ) from error


def _check_memory(name: str, tensor: torch.Tensor) -> None:
    import torch_npu

    memory_format = torch_npu.get_npu_format(tensor)
    if memory_format not in _abi.PLAIN_FORMATS:
        raise ValueError(
            f"{OPERATOR}: {name} must have a plain memory format ({', '.join(_abi.PLAIN_FORMATS.values())}), "
            f"got format {memory_format}. Call torch_npu.npu_format_cast({name}, 2) first."
        )
    address = tensor.untyped_storage().data_ptr()
    if address % _abi.ADDRESS_ALIGNMENT != 0:
        raise ValueError(
            f"{OPERATOR}: {name} must have a storage address that is a multiple of {_abi.ADDRESS_ALIGNMENT}, got "
            f"{address:#x}. Slice the tensor that owns the memory, or copy it through the host."
        )


def _label(tensor: torch.Tensor) -> str:
    dtype = _DTYPE_LABELS.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    return f"{list(tensor.shape)} {dtype}"
