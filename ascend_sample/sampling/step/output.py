"""What one step of the sampler returns."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ascend_sample.sampling.rows.table import to_device
from ascend_sample.sampling.step.draw_states import StepStates
from ascend_sample.sampling.step.kept import KeptSets
from ascend_sample.sampling.step.logprobs import Logprobs
from ascend_sample.sampling.step.routes import SamplingRoute


class SamplerOutput(NamedTuple):
    """What one step returns, on the device of the logits.

    Attributes:
        token_ids: int64 [batch], valid ids in any case.
        status: int8 [batch], a `RowStatus` each.
        logprobs: of the rows that asked for them; None where none did.
        kept: what the filters left of the rows that asked for it; None where none did.
        states: what the rows remember that remember their draws, on the device of the batch, to be read before its next
            step; None where none does. The batch has it already if the step advanced it.
    """

    token_ids: Tensor
    status: Tensor
    logprobs: Logprobs | None
    kept: KeptSets | None = None
    states: StepStates | None = None

    def sent_to(self, device: torch.device) -> SamplerOutput:
        """Returns what was found on the CPU on a device, which gets it without anybody's waiting."""
        token_ids, status = (to_device(tensor.numpy(), device) for tensor in self[:2])
        logprobs, kept = self.logprobs, self.kept
        if logprobs is not None:
            logprobs = Logprobs(logprobs.rows, *(to_device(tensor.numpy(), device) for tensor in logprobs[1:]))
        if kept is not None:
            kept = KeptSets(*(to_device(tensor.numpy(), device) for tensor in kept))
        return SamplerOutput(token_ids, status, logprobs, kept, self.states)


class RowRoute(NamedTuple):
    """How one row is served.

    Attributes:
        row: its place in the batch.
        route: what serves it.
        reason: why.
    """

    row: int
    route: SamplingRoute
    reason: str
