"""Which rows of a batch are processed, and with which slots; made again when a processed row comes, moves or goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy
import torch
from torch import Tensor

from ascend_sample.sampling.processing import add_bias, apply_penalties
from ascend_sample.sampling.row_table import NO_SLOT, HostMirrors, to_device
from ascend_sample.sampling.slots import AddendSlots, PenaltySlots

CACHED_LOGITS: Final = 2**19  # float32: 2 MiB


@dataclass(frozen=True)
class ProcessingPlan:
    """The processed rows: first those with an addend, last those with penalties; those with both lie in between.

    So either kind is one slice of the gathered logits.

    Attributes:
        host_rows: the rows, on the host.
        rows: int64, the same on the device.
        addend_slots: int64, the slots of the first rows.
        penalty_slots: int64, the slots of the last rows.
        penalties: float32 [3, penalised rows]: repetition, presence, frequency.
        has_repetition: whether a row has a repetition penalty, so that prompts matter.
        has_presence, has_frequency: whether a row has such a penalty.
    """

    host_rows: list[int]
    rows: Tensor
    addend_slots: Tensor
    penalty_slots: Tensor
    penalties: Tensor
    has_repetition: bool
    has_presence: bool
    has_frequency: bool

    @property
    def penalized_rows(self) -> Tensor:
        """Returns the rows with penalties, int64."""
        return self.rows[len(self.host_rows) - self.penalty_slots.shape[0] :]

    def apply(self, logits: Tensor, addends: AddendSlots, penalties: PenaltySlots) -> Tensor:
        """Returns what becomes of the rows' logits: float32 [processed rows, vocab_size].

        On a CPU it takes a few rows at a time, so that what lies between two operators stays in its cache.
        """
        count, vocab_size = len(self.host_rows), logits.shape[1]
        at_once = max(1, CACHED_LOGITS // vocab_size) if logits.is_cpu else count
        if at_once >= count:
            return self._apply_to(0, count, logits, addends, penalties)
        processed = torch.empty((count, vocab_size), dtype=torch.float32, device=logits.device)
        for start in range(0, count, at_once):
            stop = min(start + at_once, count)
            processed[start:stop] = self._apply_to(start, stop, logits, addends, penalties)
        return processed

    def _apply_to(self, start: int, stop: int, logits: Tensor, addends: AddendSlots, penalties: PenaltySlots) -> Tensor:
        """Does what `apply` does, for the processed rows from ``start`` to ``stop``."""
        part = logits.index_select(0, self.rows[start:stop]).to(torch.float32)
        addend_slots = self.addend_slots[start:stop]
        first_penalized = len(self.host_rows) - self.penalty_slots.shape[0]
        columns = slice(max(start - first_penalized, 0), max(stop - first_penalized, 0))
        penalty_slots = self.penalty_slots[columns]
        if biased := addend_slots.shape[0]:
            assert addends.addend is not None, "slots are written before they are read"
            part[:biased] = add_bias(part[:biased], addends.addend.index_select(0, addend_slots))
        if penalized := penalty_slots.shape[0]:
            assert penalties.output_counts is not None, "slots are written before they are read"
            in_prompt = None
            if self.has_repetition:
                assert penalties.in_prompt is not None, "prompts are written before they are read"
                in_prompt = penalties.in_prompt.index_select(0, penalty_slots)
            counts = penalties.output_counts.index_select(0, penalty_slots)
            repetition, presence, frequency = self.penalties[:, columns]
            changed = apply_penalties(
                part[-penalized:],
                in_prompt,
                counts,
                repetition,
                presence if self.has_presence else None,
                frequency if self.has_frequency else None,
            )
            if penalized == len(part):
                return changed
            part[-penalized:] = changed
        return part


def make_plan(host: HostMirrors, device: torch.device) -> ProcessingPlan | None:
    """Makes the plan for the rows as they are; returns None if none is processed."""
    biased, penalized = host.addend_slot != NO_SLOT, host.penalty_slot != NO_SLOT
    only_biased, both, only_penalized = (
        numpy.flatnonzero(kind) for kind in (biased & ~penalized, biased & penalized, penalized & ~biased)
    )
    rows = numpy.concatenate((only_biased, both, only_penalized))
    if not len(rows):
        return None
    addend_slots = host.addend_slot[rows[: len(only_biased) + len(both)]]
    last = rows[len(only_biased) :]
    penalty_slots = host.penalty_slot[last]
    penalties = numpy.stack((host.repetition_penalty, host.presence_penalty, host.frequency_penalty))[:, last]
    sent = to_device(numpy.concatenate((rows, addend_slots, penalty_slots)), device)
    rows_there, addends_there, penalties_there = sent.split([len(rows), len(addend_slots), len(penalty_slots)])
    return ProcessingPlan(
        host_rows=rows.tolist(),
        rows=rows_there,
        addend_slots=addends_there,
        penalty_slots=penalties_there,
        penalties=to_device(penalties, device),
        has_repetition=bool((penalties[0] != 1.0).any()),
        has_presence=bool((penalties[1] != 0.0).any()),
        has_frequency=bool((penalties[2] != 0.0).any()),
    )
