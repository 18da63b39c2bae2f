"""The operators on an NPU without a compiled extension: aclnnTopKTopPSample and its V2 through cffi in ABI mode.

`ascend_sample.npu.aclnn_call` makes the call. The compiled binding does the same with less host time per call.
"""

import functools
import warnings

import torch

from ascend_sample._contract import OPERATOR_NAME, OPERATOR_V2_NAME
from ascend_sample.npu.aclnn_call import FLOAT_BYTES, INT64_BYTES, Call, cann_of
from ascend_sample.npu.operators import OPERATORS, AclnnOperator


def obstacle(op: str = OPERATOR_NAME) -> str | None:
    """Returns why this process cannot call the operator `op`, or None when it can.

    The text names the missing function, the libraries that were tried and the remedy, or the SoC, in the words of the
    compiled binding. Nothing is remembered: a later call looks again.
    """
    try:
        cann_of(op)
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
        eps: added to the absolute value of q before the division.
        is_need_logits: whether to return the kept logits.
        top_k_guess: how many of the best tokens to try before a full sort; changes no result.

    Returns:
        The sampled ids, int64 [batch], and the kept logits, float32 [batch, vocab_size] with -inf elsewhere, or an
        empty tensor [0] when they were not asked for.

    Raises:
        NotImplementedError: see `obstacle`; nothing has been launched.
        TypeError: an argument has a wrong dtype or layout.
        ValueError: an argument has a wrong shape, device, value or memory format, or an address that CANN cannot use.
        torch.OutOfMemoryError: the workspace cannot be allocated.
        RuntimeError: CANN refused a phase; the text carries its code and message.
    """
    torch.ops.ascend_sample.check_top_k_top_p_sample(logits, k, p, q, eps, is_need_logits, top_k_guess)
    call = Call(OPERATOR_NAME, logits, 0 if is_need_logits else FLOAT_BYTES)
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
        eps: added to the absolute value of q before the division.
        is_need_logits: whether to return the kept logits.
        top_k_guess: how many of the best tokens to try before a full sort; changes no result.
        ks_max: the largest k that is honoured, before it is rounded up to a multiple of 8.
        input_is_logits: False where logits are probabilities.
        is_need_sample_result: whether to return the kept ids and their weights.

    Returns:
        The sampled ids, int64 [batch]; the kept logits, float32 [batch, vocab_size]; the kept ids, int64, and their
        weights, float32, both [batch, vocab_size]. An empty tensor [0] for what was not asked for.

    Raises:
        NotImplementedError: see `obstacle`; nothing has been launched.
        TypeError, ValueError, torch.OutOfMemoryError, RuntimeError: as `top_k_top_p_sample`.
    """
    options = (eps, is_need_logits, top_k_guess, ks_max, input_is_logits, is_need_sample_result)
    torch.ops.ascend_sample.check_top_k_top_p_sample_v2(logits, k, p, q, min_p, *options)
    call = Call(OPERATOR_V2_NAME, logits, INT64_BYTES)
    call.inputs = [("logits", logits), ("k", k), ("p", p), ("q", q), ("min_p", min_p)]
    ids = call.result("logits_select_idx", torch.int64)
    kept = call.result_of_logits("logits_top_kp_select", torch.float32, is_need_logits)
    dense_ids = call.result_of_logits("logits_idx", torch.int64, is_need_sample_result)
    dense_weights = call.result_of_logits("logits_sort_masked", torch.float32, is_need_sample_result)
    workspace = call.run(*options)
    if is_need_sample_result:
        # CANN's documentation promises no id then. The one without q is the first of the total order, whatever the
        # filters: a second launch finds it as the best 1.
        best = Call(OPERATOR_V2_NAME, logits, INT64_BYTES, with_ones=True)
        best.inputs = call.inputs
        best.outputs = [(name, tensor if tensor is ids else tensor[:0]) for name, tensor in call.outputs]
        best.run(eps, False, top_k_guess, ks_max, input_is_logits, False, workspace=workspace)
    return ids, kept, dense_ids, dense_weights


def top_k_top_p_sample_kernel(
    logits: torch.Tensor,
    k: torch.Tensor,
    p: torch.Tensor,
    q: torch.Tensor | None = None,
    eps: float = 1e-8,
    is_need_logits: bool = False,
    top_k_guess: int = 32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Serves as the dispatcher's NPU kernel where the compiled binding is missing.

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
    """Serves as `top_k_top_p_sample_kernel` does, for the second operator."""
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
        f"{op}: served by the composite of torch operators, which is much slower: {reason}. (Warned once.)",
        stacklevel=3,
    )
