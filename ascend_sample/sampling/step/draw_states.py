"""How a step changes what requests remember of their draws, and what it draws by that.

The probabilities that a token is drawn with are known from what the filters have kept of its row: on the CPU the draw
lists that; elsewhere torch's operators make it of the logits that were drawn from, unless the draw has returned it.
Only rows that remember something pay. Nothing here reads a device.
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
from ascend_sample.sampling.draws.kept_choices import Dense, Listed
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.draws.placed_noise import DrawKeys, NoiseOfRows, noise_of_groups
from ascend_sample.sampling.draws.segmented import lanes_of
from ascend_sample.sampling.edits.slots import HeldSlots
from ascend_sample.sampling.rows.parameters import RowStatus
from ascend_sample.sampling.rows.row_set import RowSet
from ascend_sample.sampling.rows.table import to_device
from ascend_sample.sampling.step.distribution import Distributions
from ascend_sample.sampling.step.serving import Drawn

NATS_OF_A_BIT: Final = math.log(2)


class StepStates(NamedTuple):
    """What rows remember after a step.

    It is put together where somebody reads it, before the next step: what has not moved is looked up in the batch.

    Attributes:
        parts: of each rule its rows, and what `torch.where` takes: whether a row moves, bool [rows, 1], what it
            remembers then, and what it has remembered, float32 [rows, `STATE_WIDTH`].
    """

    parts: Sequence[tuple[StatefulRows, tuple[Tensor, Tensor, Tensor]]]

    @property
    def rows(self) -> Sequence[int]:
        """Returns their places in the batch."""
        return [row for of_rule, _ in self.parts for row in of_rule.row_list]

    @property
    def values(self) -> Tensor:
        """Returns what they remember, float32 [rows, `STATE_WIDTH`]."""
        return torch.cat([torch.where(*found) for _, found in self.parts])

    def keep(self, batch: SamplingBatch) -> None:
        """Lets the batch remember it: for steps that were taken without ``advance``, before rows come or move."""
        held = batch.row_edits.states.values
        assert held is not None, "its rows hold slots"
        for of_rule, found in self.parts:
            of_rule.keep(found, held)


class StatefulRows:
    """The rows of a batch that remember their draws by one rule: what stays the same from step to step.

    Args:
        batch: the requests.
        rows: those that follow the rule.
        keep_ties: as for `Sampler`.

    Attributes:
        row_list: the same rows.
    """

    def __init__(self, batch: SamplingBatch, rows: npt.NDArray[np.int64], keep_ties: bool) -> None:
        self._rows = RowSet.of(rows, len(batch), batch.device)
        self.row_list: list[int] = rows.tolist()
        self._slots = HeldSlots.of(batch.host.state_slot[rows], batch.device)
        parameters = batch.row_parameters().of_rows(self._rows)
        self._distributions = Distributions(parameters, batch.vocab_size, keep_ties)

    def after(
        self, drawn: Drawn, batch: SamplingBatch, purpose: Purpose
    ) -> tuple[Drawn, tuple[Tensor, Tensor, Tensor]]:
        """Returns what is drawn by what the rows remember, and what they remember then, as `StepStates` has it.

        Args:
            drawn: what was drawn from what filters keep, and that. A row whose status is not OK keeps its token and its
                state.
            batch: as it was before the step; it stays so.
            purpose: of the noise.
        """
        is_ok = (self._rows.take(drawn.status) == RowStatus.OK).unsqueeze(1)
        before = batch.row_edits.states.read(self._slots)
        choices = self._choices(drawn)
        token_ids = self._rows.take(drawn.token_ids)
        found = self._drawn(choices, before, batch, purpose)
        if found is not None:
            token_ids = torch.where(is_ok.squeeze(1), found, token_ids)
            drawn = drawn._replace(token_ids=self._rows.put(token_ids, drawn.token_ids))
        return drawn, (is_ok, self._moved(before, choices, token_ids), before)

    def keep(self, found: tuple[Tensor, Tensor, Tensor], held: Tensor) -> None:
        """Writes what the rows remember to the slots of a batch: in one launch where they follow one another."""
        if self._slots.part is None:
            held.index_copy_(0, self._slots.there, torch.where(*found))
        else:
            torch.where(*found, out=held[self._slots.part])

    def _choices(self, drawn: Drawn) -> Dense | Listed:
        if drawn.sets:
            return Listed(drawn.sets, self._rows.host)
        if drawn.kept is not None:
            return Dense(self._rows.take(drawn.kept))
        return Dense(self._distributions.kept_values(self._rows.take(drawn.logits)), is_other=True)

    def _drawn(self, choices: Dense | Listed, before: Tensor, batch: SamplingBatch, purpose: Purpose) -> Tensor | None:
        """Returns other tokens than those of the draw, int64 [rows]; None: they stay."""
        return None

    def _moved(self, before: Tensor, choices: Dense | Listed, token_ids: Tensor) -> Tensor:
        """Returns what the rows remember after tokens, int64 [rows]: float32 [rows, `STATE_WIDTH`]."""
        raise NotImplementedError


class Mirostat(StatefulRows):
    """The bound, in bits, moves against what the surprise is more than `mirostat_tau`. What it drops is not drawn."""

    def __init__(self, batch: SamplingBatch, rows: npt.NDArray[np.int64], keep_ties: bool) -> None:
        super().__init__(batch, rows, keep_ties)
        tau, eta = (getattr(batch.host, name)[rows].astype(np.float64) for name in ("mirostat_tau", "mirostat_eta"))
        # By natural logarithms, as probabilities come.
        numbers = np.stack((tau * NATS_OF_A_BIT, eta / NATS_OF_A_BIT)).astype(np.float32)
        self._tau, self._eta = to_device(numbers, batch.device).unsqueeze(2)

    def _moved(self, before: Tensor, choices: Dense | Listed, token_ids: Tensor) -> Tensor:
        """Returns mu - eta * (surprise - tau)."""
        return torch.addcmul(before, self._eta, choices.logprobs_of(token_ids).unsqueeze(1).add_(self._tau))


class AdaptiveP(StatefulRows):
    """A weighted sum of probabilities, and that of the weights, whose ratio is to be `adaptive_target`."""

    def __init__(self, batch: SamplingBatch, rows: npt.NDArray[np.int64], keep_ties: bool) -> None:
        super().__init__(batch, rows, keep_ties)
        target, decay = batch.host.adaptive_target[rows], batch.host.adaptive_decay[rows]
        numbers = np.stack((2 * target, decay, np.zeros_like(target), np.ones_like(target)))
        there = to_device(numbers, batch.device)
        self._twice_the_target, self._decay, _, self._ones = there.unsqueeze(2)
        self._chances_and_ones = there[2:]  # each step writes its chances

    def _drawn(self, choices: Dense | Listed, before: Tensor, batch: SamplingBatch, purpose: Purpose) -> Tensor:
        """Returns tokens whose probabilities are near to what is wanted: see `Dense.draw_near`."""
        # Twice the target less the average so far, which is the one sum over the other.
        missing = torch.addcdiv(self._twice_the_target, before[:, :1], before[:, 1:], value=-1)
        reading = NoiseOfRows(self._rows, batch.seed, lanes_of(batch.vocab_size))  # as a draw by segments does
        is_cpu = batch.device.type == "cpu"
        keys = None if is_cpu else DrawKeys(batch.host.seed, batch.host.position)
        noise = noise_of_groups([reading], batch.position if is_cpu else None, keys, purpose)[0]
        assert noise is not None, "it has lanes"
        return choices.draw_near(missing.clamp_(0, 1), self._ones, noise)

    def _moved(self, before: Tensor, choices: Dense | Listed, token_ids: Tensor) -> Tensor:
        """Returns the sums with the tokens' probabilities, of weight 1, and what was before with less."""
        choices.probabilities_of(token_ids, out=self._chances_and_ones[0])
        return torch.addcmul(self._chances_and_ones.t(), before, self._decay)


def stateful_rows(batch: SamplingBatch, keep_ties: bool) -> list[StatefulRows]:
    """Returns the rows of a batch that remember their draws, by rules."""
    host = batch.host
    if not host.is_remembering.any():
        return []
    rules = ((Mirostat, host.mirostat_tau > 0), (AdaptiveP, host.adaptive_target >= 0))
    rows_of = ((rule, np.flatnonzero(host.is_remembering & follows)) for rule, follows in rules)
    return [rule(batch, rows, keep_ties) for rule, rows in rows_of if len(rows)]
