"""How a step changes what requests remember of their draws, and what it draws by that.

The probabilities that a token is drawn with are known from what the filters have kept of its row: on the CPU the draw
tells them, and draws by them where that is asked for (`csrc/cpu/filters/kept_list.h`); elsewhere torch's operators
make them of the logits that were drawn from. Only rows that remember something pay. Nothing here reads a device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.draws.kept_choices import Dense, Told
from ascend_sample.sampling.draws.leftover import Leftover
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.draws.placed_noise import DrawKeys, NoiseOfRows, noise_of_groups
from ascend_sample.sampling.draws.segmented import lanes_of
from ascend_sample.sampling.edits.slots import HeldSlots
from ascend_sample.sampling.rows.parameters import RowsOutput, RowStatus
from ascend_sample.sampling.rows.table import to_device
from ascend_sample.sampling.step.distribution import Distributions
from ascend_sample.sampling.step.kept import KeptOfStep, kept_values

NATS_OF_A_BIT: Final = math.log(2)
ANY_PROBABILITY: Final = -1.0
"""Asked where a token may have any, and is told of."""


class StepStates(NamedTuple):
    """What rows remember after a step.

    Attributes:
        rows: their places in the batch.
        values: float32 [rows, `STATE_WIDTH`].
        slots: int64 [rows], where it belongs.
    """

    rows: Sequence[int]
    values: Tensor
    slots: Tensor

    def keep(self, batch: SamplingBatch) -> None:
        """Lets the batch remember it: for steps that were taken without ``advance``, before rows come or move."""
        held = batch.row_edits.states.values
        assert held is not None, "its rows hold slots"
        held.index_copy_(0, self.slots, self.values)

    @classmethod
    def joined(cls, parts: Sequence[StepStates]) -> StepStates:
        """Returns those of all parts."""
        if len(parts) == 1:
            return parts[0]
        rows = [row for part in parts for row in part.rows]
        return cls(rows, torch.cat([part.values for part in parts]), torch.cat([part.slots for part in parts]))


class StepOfBatch(NamedTuple):
    """A step that has drawn from what filters keep.

    Attributes:
        batch: as it was before the step; it stays so.
        logits: floats [batch, vocab_size], what was drawn from. They stay as they are.
        kept: where the CPU kernel has told of the tokens; a device needs none.
        left: what the draw of a device has left of its filters; None: they are applied to the logits again.
        purpose: of the noise.
    """

    batch: SamplingBatch
    logits: Tensor
    kept: KeptOfStep | None
    left: Leftover | None
    purpose: Purpose


class RememberingRows:
    """The rows of a batch that remember their draws: what stays the same from step to step.

    Args:
        batch: some of its rows remember something.
        keep_ties: as for `Sampler`.
    """

    def __init__(self, batch: SamplingBatch, keep_ties: bool) -> None:
        host = batch.host
        surprised = np.flatnonzero(host.is_remembering & (host.mirostat_tau > 0))
        adaptive = np.flatnonzero(host.is_remembering & (host.adaptive_target >= 0))
        self._parts: list[_RowsOfRule] = []
        self._near = torch.full((len(batch),), torch.nan, dtype=torch.float32, device="cpu")
        self._near[torch.from_numpy(surprised)] = ANY_PROBABILITY
        if len(surprised):
            self._parts.append(_RowsOfRule(batch, surprised, Mirostat(batch, surprised), keep_ties))
        if len(adaptive):
            self._parts.append(_RowsOfRule(batch, adaptive, AdaptiveP(batch, adaptive), keep_ties))

    def near(self, batch: SamplingBatch) -> Tensor:
        """Returns what rows ask of the CPU kernel, as of `KeptRows.begun`: float32 [batch]."""
        for part in self._parts:
            part.write_near(batch, self._near)
        return self._near

    def after(self, drawn: RowsOutput, step: StepOfBatch) -> tuple[RowsOutput, StepStates]:
        """Returns what is drawn by what rows remember, and what they remember after it.

        Args:
            drawn: what was drawn from what filters keep; on the CPU by what rows remember. A row whose status is not OK
                keeps its token and its state.
            step: the one that has drawn it.
        """
        states = []
        for part in self._parts:
            drawn, moved = part.after(drawn, step)
            states.append(moved)
        return drawn, StepStates.joined(states)


class _RowsOfRule:
    """The rows of a batch that follow one rule.

    Args:
        batch: theirs.
        rows: which.
        rule: theirs.
        keep_ties: as for `Sampler`.
    """

    def __init__(
        self, batch: SamplingBatch, rows: npt.NDArray[np.int64], rule: Mirostat | AdaptiveP, keep_ties: bool
    ) -> None:
        device = batch.device
        self._rows, self._row_list, self._keep_ties = rows, rows.tolist(), keep_ties
        self._there = None if len(rows) == len(batch) else to_device(rows, device)
        self._slots = HeldSlots.of(batch.host.state_slot[rows], device)
        self._parameters = batch.row_parameters().of_rows(rows, self._there)
        self._distributions = None
        if device.type != "cpu" and not keep_ties:
            self._distributions = Distributions(self._parameters, batch.vocab_size)
        self._rule = rule

    def write_near(self, batch: SamplingBatch, near: Tensor) -> None:
        """Writes the probabilities that tokens are to have, if any, to a float32 [batch]."""
        if isinstance(self._rule, AdaptiveP):
            batch.flush()  # states may have been set
            wanted = self._rule.wanted(batch.row_edits.states.read(self._slots)).squeeze(1)
            if self._there is None:
                near.copy_(wanted)
            else:
                near.index_copy_(0, self._there, wanted)

    def after(self, drawn: RowsOutput, step: StepOfBatch) -> tuple[RowsOutput, StepStates]:
        """Does what `RememberingRows.after` does."""
        batch = step.batch
        before, token_ids = batch.row_edits.states.read(self._slots), self._of_batch(drawn.token_ids)
        choices, is_ok = self._choices(step), self._of_batch(drawn.status) == RowStatus.OK
        if isinstance(self._rule, AdaptiveP) and isinstance(choices, Dense):
            seed = batch.seed
            reading = NoiseOfRows(self._rows, self._there, seed, lanes_of(batch.vocab_size))
            keys = DrawKeys(batch.host.seed, batch.host.position)
            noise = noise_of_groups([reading], None, keys, step.purpose)[0]
            assert noise is not None, "it has lanes"
            token_ids = torch.where(is_ok, self._rule.drawn(choices, before, noise), token_ids)
            drawn = drawn._replace(token_ids=self._in_batch(token_ids, drawn.token_ids))
        moved = self._rule.moved(before, choices, token_ids)
        states = torch.where(is_ok.unsqueeze(1), moved, before)
        return drawn, StepStates(self._row_list, states, self._slots.there)

    def _choices(self, step: StepOfBatch) -> Dense | Told:
        if step.logits.is_cpu:
            assert step.kept is not None, "the kernel tells it"
            told = step.kept.told
            return Told(self._of_batch(told[0] if len(told) == 1 else torch.cat(told)))
        if step.left is not None:
            return Dense(self._of_batch(step.left.kept))
        values = kept_values(self._of_batch(step.logits), self._parameters, self._distributions, self._keep_ties)
        return Dense(values, is_other=True)

    def _of_batch(self, tensor: Tensor) -> Tensor:
        return tensor if self._there is None else tensor.index_select(0, self._there)

    def _in_batch(self, of_rows: Tensor, of_batch: Tensor) -> Tensor:
        return of_rows if self._there is None else of_batch.index_copy(0, self._there, of_rows)


class Mirostat:
    """The bound, in bits, moves against what the surprise is more than `mirostat_tau`. What it drops is not drawn from.

    Args:
        batch: the requests.
        rows: those that ask for it.
    """

    def __init__(self, batch: SamplingBatch, rows: npt.NDArray[np.int64]) -> None:
        tau, eta = (getattr(batch.host, name)[rows].astype(np.float64) for name in ("mirostat_tau", "mirostat_eta"))
        # By natural logarithms, as probabilities come.
        numbers = np.stack((tau * NATS_OF_A_BIT, eta / NATS_OF_A_BIT)).astype(np.float32)
        self._tau, self._eta = to_device(numbers, batch.device).unsqueeze(2)

    def moved(self, before: Tensor, choices: Dense | Told, token_ids: Tensor) -> Tensor:
        """Returns mu - eta * (surprise - tau), float32 [rows, `STATE_WIDTH`]: of the tokens, int64 [rows]."""
        return torch.addcmul(before, self._eta, choices.logprobs_of(token_ids).unsqueeze(1).add_(self._tau))


class AdaptiveP:
    """A weighted sum of probabilities, and that of the weights, whose ratio is to be `adaptive_target`.

    Args:
        batch: the requests.
        rows: those that ask for it.
    """

    def __init__(self, batch: SamplingBatch, rows: npt.NDArray[np.int64]) -> None:
        target, decay = batch.host.adaptive_target[rows], batch.host.adaptive_decay[rows]
        numbers = np.stack((2 * target, decay, np.zeros_like(target), np.ones_like(target)))
        there = to_device(numbers, batch.device)
        self._twice_the_target, self._decay, _, self._ones = there.unsqueeze(2)
        self._chances_and_ones = there[2:]  # each step writes its chances

    def wanted(self, before: Tensor) -> Tensor:
        """Returns the probabilities that the next tokens are to have, float32 [rows, 1]."""
        # Twice the target less the average so far, which is the one sum over the other.
        missing = torch.addcdiv(self._twice_the_target, before[:, :1], before[:, 1:], value=-1)
        return missing.clamp_(0, 1)

    def drawn(self, choices: Dense, before: Tensor, noise: Tensor) -> Tensor:
        """Returns tokens, int64 [rows], whose probabilities are near to what is wanted: by noise, as of `Dense`."""
        return choices.drawn_near(self.wanted(before), self._ones, noise)

    def moved(self, before: Tensor, choices: Dense | Told, token_ids: Tensor) -> Tensor:
        """Returns the sums with the tokens' probabilities, of weight 1, and what was before with less."""
        choices.probabilities_of(token_ids, out=self._chances_and_ones[0])
        return torch.addcmul(self._chances_and_ones.t(), before, self._decay)
