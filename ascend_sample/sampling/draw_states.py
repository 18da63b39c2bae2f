"""How a step changes what requests remember of their draws.

The probability that a token was drawn with is known from what the filters have kept of its row: on the CPU the draw
lists it (`kept.py`), elsewhere torch's operators make it of the logits that were drawn from. Only rows that remember
something pay. Nothing here reads a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ascend_sample.sampling.distribution import Distributions
from ascend_sample.sampling.kept import KeptOfStep, KeptSets, kept_values
from ascend_sample.sampling.row_parameters import RowParameters, RowsOutput, RowStatus
from ascend_sample.sampling.row_table import to_device

if TYPE_CHECKING:
    from ascend_sample.sampling.batch import SamplingBatch

LEAST_PROBABILITY: Final = 2.0**-64
"""No draw reaches deeper, so no surprise is above 64 bits."""


class Listed(NamedTuple):
    """What the CPU kernel has kept of some rows: the ids and probabilities of each, one row behind the other.

    Attributes:
        row: int64 [kept], whose each is, from 0.
        ids: int64 [kept].
        probabilities: float32 [kept].
        rows: how many rows there are.
    """

    row: Tensor
    ids: Tensor
    probabilities: Tensor
    rows: int

    @classmethod
    def of(cls, kept: KeptSets, rows: npt.NDArray[np.int64]) -> Listed:
        """Returns those of some rows of a batch."""
        batch_size = len(kept.counts)
        place = torch.full((batch_size,), -1, dtype=torch.int64)
        place[torch.from_numpy(rows)] = torch.arange(len(rows))
        row = place.repeat_interleave(kept.counts)
        is_theirs = row >= 0
        return cls(row[is_theirs], kept.ids[is_theirs].long(), kept.logprobs[is_theirs].exp(), len(rows))

    def of_tokens(self, token_ids: Tensor) -> Tensor:
        """Returns the probability of a token of each row, float32 [rows]; 0 where nothing was kept."""
        is_it = self.ids == token_ids[self.row]
        return torch.zeros(self.rows).index_copy_(0, self.row[is_it], self.probabilities[is_it])


class Dense(NamedTuple):
    """What a device's operators keep of some rows.

    Attributes:
        probabilities: float32 [rows, vocab_size].
    """

    probabilities: Tensor

    def of_tokens(self, token_ids: Tensor) -> Tensor:
        """Returns the probability of a token of each row, float32 [rows]."""
        return self.probabilities.gather(1, token_ids.unsqueeze(1)).squeeze(1)


class StepStates(NamedTuple):
    """What rows remember after a step.

    Attributes:
        rows: their places in the batch, ascending.
        values: float32 [rows, `STATE_WIDTH`].
        slots: int64 [rows], where it belongs.
    """

    rows: Sequence[int]
    values: Tensor
    slots: Tensor

    def keep(self, batch: SamplingBatch) -> None:
        """Lets the batch remember it: for steps that were taken without ``advance``, before rows come or move."""
        held = batch._edits.states.values
        assert held is not None, "its rows hold slots"
        held.index_copy_(0, self.slots, self.values)


class MirostatRows:
    """The rows of a batch whose draws move a bound of surprise: what stays the same from step to step.

    Args:
        batch: some of its rows remember something.
        keep_ties: as for `Sampler`.
    """

    def __init__(self, batch: SamplingBatch, keep_ties: bool) -> None:
        host, device = batch.host, batch.device
        self.rows = np.flatnonzero(host.is_remembering)
        is_all = len(self.rows) == len(batch)
        self._there = None if is_all else to_device(self.rows, device)
        self._slots = to_device(host.state_slot[self.rows], device)
        self._tau, self._eta = to_device(np.stack((host.mirostat_tau, host.mirostat_eta))[:, self.rows], device)
        self._parameters: RowParameters = batch.row_parameters()
        if self._there is not None:
            self._parameters = self._parameters.of_rows(self.rows, self._there)
        self._distributions = None
        if device.type != "cpu" and not keep_ties:
            self._distributions = Distributions(self._parameters, batch.vocab_size)
        self._keep_ties = keep_ties

    def after(self, batch: SamplingBatch, logits: Tensor, drawn: RowsOutput, kept: KeptOfStep | None) -> StepStates:
        """Returns what the rows remember after a step, which has not changed it yet.

        Args:
            batch: as it was before it.
            logits: floats [batch, vocab_size], what was drawn from. They stay as they are.
            drawn: what was drawn. A row whose status is not OK remembers what it did.
            kept: what the CPU kernel has kept; a device needs none.
        """
        held = batch._edits.states.values
        assert held is not None, "rows hold slots"
        before = held.index_select(0, self._slots)
        if logits.is_cpu:
            assert kept is not None, "the kernel tells it"
            choices: Listed | Dense = Listed.of(kept.of_all(), self.rows)
        else:
            choices = Dense(self._probabilities(logits))
        chances = choices.of_tokens(self._of_batch(drawn.token_ids))
        # mu - eta (surprise - tau), of -log2(chance) bits of surprise.
        moved = torch.addcmul(before, self._eta.unsqueeze(1), (bits_of(chances) + self._tau).unsqueeze(1))
        is_ok = (self._of_batch(drawn.status) == RowStatus.OK).unsqueeze(1)
        return StepStates(self.rows.tolist(), torch.where(is_ok, moved, before), self._slots)

    def _of_batch(self, tensor: Tensor) -> Tensor:
        return tensor if self._there is None else tensor.index_select(0, self._there)

    def _probabilities(self, logits: Tensor) -> Tensor:
        values = kept_values(self._of_batch(logits), self._parameters, self._distributions, self._keep_ties)
        return values.softmax(1)


def bits_of(chances: Tensor) -> Tensor:
    """Returns the base 2 logarithms of probabilities, at least -64: the surprise is that without its sign."""
    return chances.clamp(min=LEAST_PROBABILITY).log2()
