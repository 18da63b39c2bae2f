"""The operators on an NPU without a compiled extension: those of CANN through cffi in ABI mode.

`ascend_sample.npu.aclnn_call` makes the call. The compiled binding does the same with less host time per call.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from ascend_sample._contract import OPERATOR_NAME
from ascend_sample.npu.aclnn_call import Call, cann_of
from ascend_sample.npu.operators import OPERATORS


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


def launch(op: str, *arguments: Any, **keywords: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Launches CANN's operator that is our `op` on the current stream of the logits' device.

    Args:
        op: the name of our operator.
        arguments: those of the dispatcher operator, with the same rules, which are checked first. CANN takes them in
            the same order. The logits are on an NPU, with any strides and storage offset.
        keywords: the same by name.

    Returns:
        The dispatcher operator's results, a single one by itself: an empty tensor [0] for what was not asked for.

    Raises:
        NotImplementedError: see `obstacle`; nothing has been launched.
        TypeError: an argument has a wrong dtype or layout.
        ValueError: an argument has a wrong shape, device, value or memory format, or an address that CANN cannot use.
        torch.OutOfMemoryError: the workspace cannot be allocated.
        RuntimeError: CANN refused a phase; the text carries its code and message.
    """
    getattr(torch.ops.ascend_sample, f"check_{op}")(*arguments, **keywords)
    tensors, options = _by_name(op, arguments, keywords)
    call = Call(op, tensors, options)
    workspace = call.run()
    if options.get("is_need_sample_result"):
        # CANN's documentation promises no id then. The one without q is the first of the total order, whatever the
        # filters: a second launch finds it as the best 1.
        options |= {"is_need_logits": False, "is_need_sample_result": False}
        Call(op, tensors, options, best_into=call.results[0]).run(workspace)
    return call.results[0] if len(call.results) == 1 else tuple(call.results)


def serve(op: str, *arguments: Any, **keywords: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Serves as the dispatcher's NPU kernel of our `op` where the compiled binding is missing.

    As the compiled one does, it leaves to the composite of torch operators what CANN's operator does not serve, and
    warns once for each reason.
    """
    logits = arguments[0] if arguments else keywords[_parameters(op)[0][0]]
    reason = OPERATORS[op].obstacle_of(logits.dtype) or obstacle(op)
    if reason is None:
        return launch(op, *arguments, **keywords)
    composite: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]
    composite = getattr(torch.ops.ascend_sample, f"{op}_composite")
    results = composite(*arguments, **keywords)  # refuses what breaks a rule, of which there is nothing to warn
    _warn_of_composite(op, reason)
    return results


def _by_name(
    op: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[dict[str, torch.Tensor | None], dict[str, float]]:
    """Returns the tensors and the numbers of a call, each in the order of the operator's schema."""
    tensors: dict[str, torch.Tensor | None] = {}
    options: dict[str, float] = {}
    for place, (name, default, is_tensor) in enumerate(_parameters(op)):
        value = arguments[place] if place < len(arguments) else keywords.get(name, default)
        (tensors if is_tensor else options)[name] = value
    return tensors, options


@functools.cache
def _parameters(op: str) -> tuple[tuple[str, Any, bool], ...]:
    """Returns what the operator's schema says of each argument: its name, its default, whether it is a tensor."""
    schema = getattr(torch.ops.ascend_sample, op).default._schema
    return tuple((each.name, each.default_value, "Tensor" in str(each.type)) for each in schema.arguments)


@functools.cache
def _warn_of_composite(op: str, reason: str) -> None:
    warnings.warn(
        f"{op}: served by the composite of torch operators, which is much slower: {reason}. (Warned once.)",
        stacklevel=3,
    )
