"""SGLang's sampling masks, ``return_sampling_mask``: the kept sets of the requests that ask, as its scheduler reads
them.

SGLang's sampler looks for masks in what its own draws leave. Here the draw tells what it keeps, so a forward pass is
run as if nobody asked, and the masks are put where SGLang would have put its own. Nothing of SGLang is imported before.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ascend_sample.sampling import KeptSets

OUTPUTS: Final = "sglang.srt.layers.logits_processor"


def with_masks(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the sampler's forward pass of SGLang's, which then serves requests that ask for sampling masks.

    Args:
        original: `sglang.srt.layers.sampler.Sampler.forward`. Batches of greedy requests are its own.
    """

    def forward(self: Any, logits_output: Any, sampling_info: Any, *arguments: Any, **named: Any) -> Any:
        rows = sampling_info.sampling_mask_batch_indices
        if rows is None or sampling_info.is_all_greedy:
            return original(self, logits_output, sampling_info, *arguments, **named)
        sampling_info.sampling_mask_batch_indices = None  # SGLang's own draw, which it would ask, is not run
        self.masked_rows = [row for row, asks in enumerate(sampling_info.return_sampling_masks) if asks]
        try:
            token_ids = original(self, logits_output, sampling_info, *arguments, **named)
            kept = self.kept
        finally:
            sampling_info.sampling_mask_batch_indices = rows
            self.masked_rows = self.kept = None
        with_log_probs = sampling_info.sampling_support_logprobs_capture_indices
        logits_output.sampling_mask_output = _masks(self, token_ids, kept, rows, with_log_probs)
        return token_ids

    return forward


def _masks(sampler: Any, token_ids: Tensor, kept: KeptSets, rows: Tensor, with_log_probs: Tensor | None) -> Any:
    """Returns SGLang's `SamplingMaskOutput`.

    Args:
        sampler: SGLang's.
        token_ids: int32 [batch], as its ranks have agreed on them.
        kept: of the batch; sets beyond the sampler's limit are empty.
        rows: int64, those that ask.
        with_log_probs: which of these want the log-probabilities of all ids; None: none does.
    """
    module = importlib.import_module(OUTPUTS)
    status = module.SamplingMaskStatus
    most = sampler.sampling_mask_max_tokens
    ids, log_probs = (table.index_select(0, rows) for table in kept.padded(most))
    is_drawn = ids == token_ids.index_select(0, rows).unsqueeze(1)
    selected = log_probs.masked_fill(~is_drawn, -torch.inf).amax(1)
    lengths = kept.counts.index_select(0, rows)
    statuses = torch.where(is_drawn.any(1), int(status.OK), int(status.INVALID))
    statuses = statuses.masked_fill(lengths > most, int(status.OVERFLOW)).to(torch.int32)
    _agree(sampler, statuses)
    return module.SamplingMaskOutput(
        token_ids=ids,
        lengths=lengths.clamp(max=most),
        selected_logprobs=selected,
        support_logprobs=None if with_log_probs is None else log_probs.index_select(0, with_log_probs),
        statuses=statuses,
    )


def _agree(sampler: Any, statuses: Tensor) -> None:
    """Lets all ranks take the worst status that one of them has: they have to end the same requests."""
    distributed = torch.distributed
    if not distributed.is_initialized():
        return
    groups = [sampler.tp_sync_group] + ([] if sampler.cp_sync_group is None else [sampler.cp_sync_group])
    for group in groups:
        if distributed.get_world_size(group) > 1:
            distributed.all_reduce(statuses, op=distributed.ReduceOp.MAX, group=group)
