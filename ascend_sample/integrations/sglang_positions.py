"""Where SGLang's requests are, as far as the host knows it: the noise of a step is made there then, and sent.

SGLang hands a sampler its positions as a tensor on the device. It has the lengths of the sequences on the host as well:
in plain steps always, and where drafts are verified, unless the attention backend goes without them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import torch
from torch import Tensor

from ascend_sample.integrations._importing import when_imported
from ascend_sample.integrations._replacing import replacing

RUNNER: Final = "sglang.srt.model_executor.model_runner"

_step: Final[ContextVar[Any]] = ContextVar("SGLang's ForwardBatch that is sampled", default=None)


def install() -> None:
    """Lets SGLang's runner tell which batch it samples; a second call changes nothing."""
    when_imported(RUNNER, lambda module: take_runner(module.ModelRunner))


def take_runner(runner: type[Any]) -> None:
    """Replaces a runner's `sample`; a second call changes nothing."""

    @replacing(runner, "sample")
    def sample_known(
        sample: Callable[..., Any], self: Any, logits_output: Any, forward_batch: Any, *arguments: Any, **named: Any
    ) -> Any:
        before = _step.set(forward_batch)
        try:
            return sample(self, logits_output, forward_batch, *arguments, **named)
        finally:
            _step.reset(before)


def of_rows(sampling_info: Any, positions: Tensor) -> Tensor:
    """Returns the positions of a step's rows, int64 [rows]: on the CPU, if they are known there, else as they came.

    Args:
        sampling_info: SGLang's, of the batch that is sampled.
        positions: SGLang's, [rows]: one less than the sequences' lengths.
    """
    step = _step.get()
    lengths = None if step is None or step.sampling_info is not sampling_info else step.seq_lens_cpu
    if lengths is None or lengths.shape != positions.shape:
        return positions
    known: Tensor = (lengths.to(torch.int64) - 1).clamp_(min=0)
    return known


def of_nodes(verify_input: Any) -> Tensor:
    """Returns the positions of drafts' nodes, int64 [nodes]: on the CPU, if they are chains and the host knows them.

    Args:
        verify_input: SGLang's `EagleVerifyInput`, or what it has for n-grams. A tree's depths are on the device alone.
    """
    lengths: Tensor | None = getattr(verify_input, "seq_lens_cpu", None)
    if lengths is None or verify_input.tree_topk != 1:
        positions: Tensor = verify_input.positions
        return positions
    return (lengths.to(torch.int64).unsqueeze(1) + torch.arange(verify_input.draft_token_num, device="cpu")).view(-1)
