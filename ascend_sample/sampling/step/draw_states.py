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
from ascend_sample.sampling.draws.leftover import Leftover, Weighing
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.draws.placed_noise import DrawKeys, NoiseOfRows, noise_of_groups
from ascend_sample.sampling.draws.segmented import draw_from_segments, lanes_of, whole_segments
from ascend_sample.sampling.edits.slots import HeldSlots
from ascend_sample.sampling.rows.parameters import RowsOutput, RowStatus
from ascend_sample.sampling.rows.table import to_device
from ascend_sample.sampling.step.distribution import Distributions
from ascend_sample.sampling.step.kept import KeptOfStep, kept_values

NATS_OF_A_BIT: Final = math.log(2)
ANY_PROBABILITY: Final = -1.0
"""Asked where a token may have any, and is told of."""


class MovedStates(NamedTuple):
    """What the rows of one rule remember after a step.

    Attributes:
        rows: their places in the batch.
        slots: where it belongs.
        is_ok: bool [rows, 1], whether the row moves.
        moved: float32 [rows, `STATE_WIDTH`], what it remembers then.
        before: what it has remembered, and does still if it does not move.
    """

    rows: Sequence[int]
    slots: HeldSlots
    is_ok: Tensor
    moved: Tensor
    before: Tensor

    def values(self, out: Tensor | None = None) -> Tensor:
        """Returns what all of the rows remember, float32 [rows, `STATE_WIDTH`]."""
        return torch.where(self.is_ok, self.moved, self.before, out=out)

    def keep(self, held: Tensor) -> None:
        """Writes it to the slots that a batch holds: in one launch where they follow one another."""
        if self.slots.part is None:
            held.index_copy_(0, self.slots.there, self.values())
        else:
            self.values(out=held[self.slots.part])


class StepStates(NamedTuple):
    """What rows remember after a step, by rules.

    It is put together where somebody reads it, before the next step: what has not moved is looked up in the batch.
    """

    parts: Sequence[MovedStates]

    @property
    def rows(self) -> Sequence[int]:
        """Returns their places in the batch."""
        return [row for part in self.parts for row in part.rows]

    @property
    def values(self) -> Tensor:
        """Returns what they remember, float32 [rows, `STATE_WIDTH`]."""
        return torch.cat([part.values() for part in self.parts])

    def keep(self, batch: SamplingBatch) -> None:
        """Lets the batch remember it: for steps that were taken without ``advance``, before rows come or move."""
        held = batch.row_edits.states.values
        assert held is not None, "its rows hold slots"
        for part in self.parts:
            part.keep(held)


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

    def weighing(self, batch: SamplingBatch) -> Weighing | None:
        """Returns what a draw of all rows by segments lets change their weights: adaptive-p, if any row has it."""
        for part in self._parts:
            if part.is_adaptive:
                return NearWeights(part, batch)
        return None

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
        return drawn, StepStates(states)


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

    @property
    def is_adaptive(self) -> bool:
        """Tells whether the rule changes what is drawn."""
        return isinstance(self._rule, AdaptiveP)

    def after(self, drawn: RowsOutput, step: StepOfBatch) -> tuple[RowsOutput, MovedStates]:
        """Does what `RememberingRows.after` does."""
        batch, token_ids = step.batch, self._of_batch(drawn.token_ids)
        weighed = None if step.left is None else step.left.weighing
        if self.is_adaptive and isinstance(weighed, NearWeights) and weighed.found is not None:
            return drawn, self._moved(*weighed.found, token_ids)
        before, is_ok = self._before(batch, drawn.status)
        choices = self._choices(step)
        if isinstance(self._rule, AdaptiveP) and isinstance(choices, Dense):
            seed = batch.seed
            reading = NoiseOfRows(self._rows, self._there, seed, lanes_of(batch.vocab_size))
            keys = DrawKeys(batch.host.seed, batch.host.position)
            noise = noise_of_groups([reading], None, keys, step.purpose)[0]
            assert noise is not None, "it has lanes"
            token_ids = torch.where(is_ok.squeeze(1), self._rule.drawn(choices, before, noise), token_ids)
            drawn = drawn._replace(token_ids=self._in_batch(token_ids, drawn.token_ids))
        return drawn, self._moved(before, is_ok, choices, token_ids)

    def weigh(self, batch: SamplingBatch, kept: Tensor, weights: Tensor, status: Tensor) -> Weighed:
        """Lets these of all rows weigh what is near, as `Weighing` has it, unless their status is not OK."""
        assert isinstance(self._rule, AdaptiveP), "others draw as usual"
        before, is_ok = self._before(batch, status)
        of_rows = self._of_batch(weights)
        choices = Dense(self._of_batch(kept))
        near = self._rule.weigh(choices, before, out=torch.empty_like(of_rows))
        if self._there is None:
            torch.where(is_ok, near, weights, out=weights)
        else:
            weights.index_copy_(0, self._there, torch.where(is_ok, near, of_rows, out=near))
        return Weighed(before, is_ok, choices)

    def _before(self, batch: SamplingBatch, status: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what the rows remember, and whether they are drawn from, bool [rows, 1]."""
        is_ok = self._of_batch(status) == RowStatus.OK
        return batch.row_edits.states.read(self._slots), is_ok.unsqueeze(1)

    def _moved(self, before: Tensor, is_ok: Tensor, choices: Dense | Told, token_ids: Tensor) -> MovedStates:
        moved = self._rule.moved(before, choices, token_ids)
        return MovedStates(self._row_list, self._slots, is_ok, moved, before)

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


class Weighed(NamedTuple):
    """What was found as rows were weighed: as of `_RowsOfRule`."""

    before: Tensor
    is_ok: Tensor
    choices: Dense


class NearWeights:
    """How one step weighs those rows that follow adaptive-p.

    Args:
        rows: these.
        batch: theirs.

    Attributes:
        found: None where the draw was of another kind, and has not asked.
    """

    def __init__(self, rows: _RowsOfRule, batch: SamplingBatch) -> None:
        self._rows, self._batch = rows, batch
        self.found: Weighed | None = None

    def __call__(self, kept: Tensor, weights: Tensor, status: Tensor) -> None:
        self.found = self._rows.weigh(self._batch, kept, weights, status)


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

    def weigh(self, choices: Dense, before: Tensor, out: Tensor) -> Tensor:
        """Writes the weights of what is near to the probabilities that are wanted, float32 [rows, vocab_size]."""
        return choices.weigh_near(self.wanted(before), self._ones, out)

    def drawn(self, choices: Dense, before: Tensor, noise: Tensor) -> Tensor:
        """Returns tokens, int64 [rows], whose probabilities are near to what is wanted.

        Args:
            choices: what is left to the rows.
            before: float32 [rows, `STATE_WIDTH`].
            noise: float32 [rows, `lanes_of` the vocabulary]: the places', then the segments'.
        """
        rows, vocab_size = choices.probabilities.shape
        segments = whole_segments(rows, vocab_size, before.device)
        self.weigh(choices, before, out=segments[:, :vocab_size])
        return draw_from_segments(segments, vocab_size, noise)

    def moved(self, before: Tensor, choices: Dense | Told, token_ids: Tensor) -> Tensor:
        """Returns the sums with the tokens' probabilities, of weight 1, and what was before with less."""
        choices.probabilities_of(token_ids, out=self._chances_and_ones[0])
        return torch.addcmul(self._chances_and_ones.t(), before, self._decay)
