"""SGLang's verification of drafts, chains and trees: each node gets the token that plain decoding draws there.

For greedy requests SGLang takes the best token of each node, and follows the tree as long as a child is the token of
its parent. The same is done here for all requests, with tokens that are drawn with the requests' own seeds and the
nodes' positions.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from torch import Tensor

from ascend_sample.integrations import sglang_positions
from ascend_sample.integrations._left_alone import say_left
from ascend_sample.integrations._replacing import replacing

UTILS: Final = "sglang.srt.speculative.eagle_utils"
CONTEXT: Final = "sglang.srt.runtime_context"
IMPORTERS: Final = ("sglang.srt.speculative.eagle_worker_common", "sglang.srt.speculative.ngram_worker")
"""Modules that have `eagle_sample` by its name, if they were imported before this is installed."""

WITH_OWN_FUNCTIONS: Final = ("DFLASH", "DSPARK", "UNO")
"""Algorithms whose workers, or some of them, verify drafts without `eagle_sample`."""


class _Nodes(NamedTuple):
    """What is verified: the logits' owner, SGLang's tensors of a value a request, and the nodes' positions."""

    logits_output: Any
    sampling_info: Any
    positions: Tensor


_nodes: Final[ContextVar[_Nodes | None]] = ContextVar("nodes that are verified", default=None)


def is_in_use(backend: str) -> bool:
    """Tells whether SGLang was started with this sampler backend."""
    return bool(importlib.import_module(CONTEXT).get_exec().kernel.sampling_backend == backend)


def say_if_left(sampler: Any) -> None:
    """Warns if SGLang was started with an algorithm that verifies drafts by functions of its own.

    Args:
        sampler: SGLang's.
    """
    algorithm = str(importlib.import_module(CONTEXT).get_spec().speculative_algorithm).upper()
    if algorithm in WITH_OWN_FUNCTIONS:
        say_left(sampler, f"{algorithm} has functions of its own", "sglang")


def install(draw_nodes: Callable[[Tensor, Any, Tensor, int], Tensor], backend: str) -> None:
    """Lets SGLang verify drafts with tokens that are drawn here; a second call changes nothing.

    Args:
        draw_nodes: draws a token a node, int64 [nodes], from the nodes' logits, SGLang's tensors of a value a request,
            the nodes' positions and how many nodes each request has.
        backend: the name of the sampler backend that has to be in use.
    """
    utils = importlib.import_module(UTILS)

    @replacing(utils, "eagle_sample")
    def verify(
        eagle_sample: Callable[..., Any],
        verify_input: Any,
        batch: Any,
        logits_output: Any,
        *arguments: Any,
        **named: Any,
    ) -> Any:
        is_drawn = not batch.forward_mode.is_idle() and not batch.sampling_info.is_all_greedy
        nodes = None
        if is_drawn and is_in_use(backend):
            spec = importlib.import_module(CONTEXT).get_spec()
            reason = _why_left(spec, batch.sampling_info, named.get("watermark_state"))
            if reason is None:
                nodes = _Nodes(logits_output, batch.sampling_info, sglang_positions.of_nodes(verify_input))
            else:
                say_left(eagle_sample, reason, "sglang")
        before = _nodes.set(nodes)
        try:
            return eagle_sample(verify_input, batch, logits_output, *arguments, **named)
        finally:
            _nodes.reset(before)

    # Two things that `eagle_sample` calls: the first says whether it takes the best tokens and follows the tree by
    # them, the second does that. The logits are edited by then, in place.
    @replacing(utils, "_verify_uses_greedy")
    def uses_tokens(uses_greedy: Callable[..., Any], **named: Any) -> Any:
        return uses_greedy(**named) if _nodes.get() is None else True

    @replacing(utils, "verify_tree_greedy_func")
    def follow_drawn(follow: Callable[..., Any], *, target_predict: Tensor, **named: Any) -> Any:
        nodes = _nodes.get()
        if nodes is not None:
            requests, width = target_predict.shape
            logits = nodes.logits_output.next_token_logits
            token_ids = draw_nodes(logits, nodes.sampling_info, nodes.positions, width)
            target_predict = _of_first_rank(token_ids.to(target_predict.dtype)).view(requests, width)
        return follow(target_predict=target_predict, **named)

    for module in filter(None, map(sys.modules.get, IMPORTERS)):
        vars(module)["eagle_sample"] = utils.eagle_sample


def _of_first_rank(token_ids: Tensor) -> Tensor:
    """Returns the tokens of the first rank, as SGLang does with those that it draws: logits may differ in rounding."""
    parallel = importlib.import_module(CONTEXT).get_parallel()
    is_split = importlib.import_module("sglang.srt.layers.dp_attention").is_dp_attention_enabled()
    group = parallel.attn_tp_group if is_split else parallel.tp_group
    if group.world_size > 1:
        group.broadcast(token_ids, src=0)
    return token_ids


def _why_left(spec: Any, sampling_info: Any, watermark_state: Any) -> str | None:
    """Returns why drafts stay with SGLang's own verification; None where they do not."""
    if str(spec.speculative_algorithm).upper() == "UNO":
        return "UNO draws the first token of each tree itself"
    if spec.speculative_use_rejection_sampling:
        return "drafts are judged by their probabilities"
    if spec.speculative_accept_threshold_single != 1 or spec.speculative_accept_threshold_acc != 1:
        return "a threshold accepts what the target would not draw"
    if watermark_state is not None and sampling_info.has_watermark_candidates:
        return "tokens are watermarked"
    if sampling_info.sampling_mask_batch_indices is not None:
        return "requests ask for sampling masks"
    return None
