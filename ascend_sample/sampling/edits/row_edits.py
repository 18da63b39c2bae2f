"""What the rows of a batch change about their logits: the slots that they hold, and how a step uses what these have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascend_sample.sampling.edits.apply import LogitsEdits, apply
from ascend_sample.sampling.edits.bitmask import Bitmask
from ascend_sample.sampling.edits.plan import PenalizedRows, ProcessingPlan
from ascend_sample.sampling.edits.processing import bits_of_bytes
from ascend_sample.sampling.edits.slots import (
    AddendSlots,
    MaskSlots,
    PenaltySlots,
    Seen,
    Slots,
    StateSlots,
    addend_of,
    has_addend,
    has_mask,
    holders,
)
from ascend_sample.sampling.edits.state_slots import initial_state
from ascend_sample.sampling.edits.stops import StopSlots, StopWatch
from ascend_sample.sampling.edits.text_rules import TextRules, has_rules
from ascend_sample.sampling.edits.value_ranges import RangeNumbers
from ascend_sample.sampling.requests.params import SamplingParams
from ascend_sample.sampling.rows.arguments import TokenIds, check_params, to_token_ids
from ascend_sample.sampling.rows.host_copy import HostTokens
from ascend_sample.sampling.rows.table import NO_SLOT, PENALTIES, SLOTS, RowTable, to_device


class Known(NamedTuple):
    """What a batch notes of the tokens that a row comes with.

    Attributes:
        seen: for its penalties; None without.
        rules: those that look at its text; None without.
        stops: what looks for the end of its text; None without.
    """

    seen: Seen | None
    rules: TextRules | None
    stops: StopWatch | None

    @classmethod
    def of(cls, params: SamplingParams, prompt_ids: TokenIds, output_ids: TokenIds, vocab_size: int) -> Known:
        """Checks a request against the vocabulary of a batch, and its tokens as far as anything looks at them."""
        check_params(params)
        params.check_vocab_size(vocab_size)
        repeats = params.repetition_penalty != 1.0
        is_penalized = repeats or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        is_ruled = has_rules(params)
        stops = StopWatch(params, output_ids, vocab_size) if params.stop_token_ids or params.stop_sequences else None
        if not (is_penalized or is_ruled):
            return cls(None, None, stops)
        prompt = to_token_ids("prompt_ids", prompt_ids if repeats or is_ruled else (), vocab_size)
        output = to_token_ids("output_ids", output_ids, vocab_size)
        rules = TextRules(params, [*prompt.tolist(), *output.tolist()], vocab_size) if is_ruled else None
        seen = Seen(numpy.unique(prompt if repeats else prompt[:0]), output) if is_penalized else None
        return cls(seen, rules, stops)


class _Coming(NamedTuple):
    """Tokens on their way to the host, and who takes them there: by their places, rules and watches."""

    tokens: HostTokens
    ruled: list[tuple[int, TextRules]]
    watched: list[tuple[int, StopWatch]]


EDITS_OF_ROWS: Final = {"addend_slot", "penalty_slot", "mask_slot", "penalties", "bitmask_rows", "ranges"}
"""Arguments of the CPU kernel that have a number for each row, in their last dimension; the others are tables."""


def edits_of_rows(edits: Mapping[str, Tensor], rows: slice | Tensor) -> dict[str, Tensor]:
    """Returns what `SamplingBatch.native_edits` has for some rows."""
    return {name: tensor[..., rows] if name in EDITS_OF_ROWS else tensor for name, tensor in edits.items()}


class RowEdits:
    """The slots of a batch's rows.

    Args:
        table: the rows, which hold the numbers of their slots.
        vocab_size: the number of columns of the logits.

    Attributes:
        plan: what a step does with the rows; None when nothing changes. Valid after a flush.
        plan_is_stale: the plan is made again at the next flush.
        columns: how far the rows of edited copies are apart.
        rules: those that look at a row's text, by its slot of addends.
    """

    def __init__(self, table: RowTable, vocab_size: int) -> None:
        self._table, self.vocab_size = table, vocab_size
        self.addends = AddendSlots(table.device)
        self.penalties = PenaltySlots(vocab_size, table.device)
        self.masks = MaskSlots(vocab_size, table.device)
        self.states = StateSlots(table.device)
        self.stops = StopSlots(table.device)
        self.plan: ProcessingPlan | None = None
        self.plan_is_stale = False
        self.columns = vocab_size
        self.rules: dict[int, TextRules] = {}
        self._coming: list[tuple[HostTokens, list[tuple[int, TextRules]]]] = []
        self._native: dict[str, Tensor] | None = None  # what `native` has returned
        self._ranges: RangeNumbers | None = None
        self._bits: Tensor | None = None
        self._drafts: Tensor | None = None  # of the step, as of `PenalizedRows.seen`

    @property
    def slots(self) -> dict[str, Slots]:
        """Returns the slots by the columns that have their numbers."""
        by_column = {"addend_slot": self.addends, "penalty_slot": self.penalties, "mask_slot": self.masks}
        return {**by_column, "state_slot": self.states, "stop_slot": self.stops}

    def allocate(
        self, params: Sequence[SamplingParams], known: Sequence[Known], left: Sequence[int]
    ) -> dict[str, list[int]]:
        """Notes what new rows change, and returns their slots by column.

        Args:
            params: of the rows.
            known: what they come with.
            left: for how many tokens their stop ids are forbidden.
        """
        rows = zip(params, left, known, strict=True)
        return {
            "addend_slot": [
                self._addend_slot(one, forbidden > 0 and len(one.stop_token_ids) > 0, of_row.rules)
                for one, forbidden, of_row in rows
            ],
            "penalty_slot": [NO_SLOT if of_row.seen is None else self.penalties.hold(of_row.seen) for of_row in known],
            "mask_slot": [self.masks.hold(one) if has_mask(one, self.vocab_size) else NO_SLOT for one in params],
            "state_slot": [
                NO_SLOT if (state := initial_state(one)) is None else self.states.hold(state) for one in params
            ],
            "stop_slot": [NO_SLOT if of_row.stops is None else self.stops.hold(of_row.stops) for of_row in known],
        }

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what is made of the rows anew: a copy's would look at the rows that were copied."""
        return vars(self) | {"plan": None, "plan_is_stale": True, "_native": None}

    def rows_changed(self, are_processed: bool) -> None:
        """Notes that rows came, went or moved, and whether some of them change their logits."""
        self.plan_is_stale |= are_processed
        self._native = None

    def use_columns(self, columns: int) -> None:
        """Notes how far the rows of edited copies are to be apart from the next flush on."""
        self.plan_is_stale |= columns != self.columns
        self.columns = columns

    def release(self, row: int) -> None:
        """Takes back the slots of a row."""
        for name, slots in self.slots.items():
            slot = int(getattr(self._table.host, name)[row])
            if slot != NO_SLOT:
                slots.release(slot)
                if name == "addend_slot":
                    self.rules.pop(slot, None)

    def allow_stop_token_ids(self, row: int, params: SamplingParams) -> None:
        """Writes the addends of a row again without the stop ids, or releases them: the row has its `min_tokens`."""
        if not params.stop_token_ids:  # sequences alone end its text
            return
        slot = int(self._table.host.addend_slot[row])
        if slot in self.rules or has_addend(params, self.vocab_size):
            self._write_addends(slot, params, False)
        else:
            self.addends.release(slot)
            self._table.set("addend_slot", row, NO_SLOT)

    def flush(self, more: int = 0) -> None:
        """Writes what was noted, and makes room for so many more tokens in the lists of rows with penalties."""
        if self.plan is None and not (self.plan_is_stale or self.states.capacity):  # nothing could be written
            return
        if self._coming:
            self._take_in()
        self.addends.flush()
        self.masks.flush()
        self.states.flush()
        self.plan_is_stale |= not self.penalties.flush(more)
        self._renew_plan()

    def _renew_plan(self) -> None:
        """Makes the plan again, if it is stale."""
        if not self.plan_is_stale:
            return
        host, self.plan = self._table.host, None
        self._native = None
        if host.is_processed.any():
            penalties = self._penalized_rows() if (host.penalty_slot != NO_SLOT).any() else None
            self.plan = ProcessingPlan(host, self.addends, penalties, self.masks, self.states, self.columns)
        self.plan_is_stale = False  # last, as a device may have no room

    def _penalized_rows(self) -> PenalizedRows:
        return PenalizedRows(self._table.host, self.penalties, self.columns)

    def append(self, token_ids: Tensor, are_ids: bool) -> None:
        """Takes in a token of each row, after a flush with room for it."""
        coming = self._awaited(token_ids, slice(None))
        if self.plan is not None and self.plan.penalties is not None:
            self.plan.penalties.append(token_ids, are_ids)
        self._note(coming)

    def append_to(self, rows: NDArray[numpy.int64], token_ids: Tensor) -> None:
        """Takes in tokens of some rows, after a flush with room for them."""
        coming = self._awaited(token_ids, rows)
        if self.plan is not None and self.plan.penalties is not None:
            self.plan.penalties.append_to(rows, token_ids)
        self._note(coming)

    def applied_to(self, logits: Tensor, bitmask: Bitmask | None, has_ranges: bool = True) -> Tensor | None:
        """Does what `SamplingBatch.edited` does, after a flush."""
        if self.plan is None and bitmask is None:
            return None
        if self._bits is None:
            self._bits = bits_of_bytes(self._table.device)
        words = None if bitmask is None else bitmask.of_all(len(logits))
        edits = LogitsEdits(words=words)
        if self.plan is not None:
            edits = self.plan.edits(words, has_ranges, self._drafts)
        return apply(logits, edits, self._bits, self.columns)

    def native(self) -> dict[str, Tensor]:
        """Does what `SamplingBatch.native_edits` does, after a flush."""
        if self.plan is None:
            return {}
        if self._native is None:
            self._native = self._native_arguments()
        elif self._ranges is not None and self._ranges.change:
            self._native["ranges"] = torch.from_numpy(self._ranges.of_step())
        return self._native | self._lists_of_addends()

    def _native_arguments(self) -> dict[str, Tensor]:
        """Returns the arguments but for `_lists_of_addends`: most stay the same objects until rows change."""
        seen, masks, host = self.penalties, self.masks, self._table.host
        arguments: dict[str, Tensor] = {}
        if seen.ids is not None and seen.occurrences is not None:
            arguments |= {"penalty_ids": seen.ids, "occurrences": seen.occurrences}
            arguments["penalty_lengths"] = torch.from_numpy(seen.lengths)
            arguments["penalties"] = torch.from_numpy(host.stacked(PENALTIES))
        if masks.masks is not None:
            arguments["masks"] = masks.masks
        self._ranges = RangeNumbers(host, self.states) if host.is_ranged.any() else None
        if self._ranges is not None:
            arguments["ranges"] = torch.from_numpy(self._ranges.of_step())
        held = {name: getattr(host, name) for name in SLOTS if self.slots[name].capacity}
        return arguments | {name: to_device(slots, self._table.device) for name, slots in held.items()}

    def _lists_of_addends(self) -> dict[str, Tensor]:
        """Returns the arguments that rules of texts change from step to step."""
        ids, addends = self.addends.ids, self.addends.addends
        if ids is None or addends is None:
            return {}
        # A slot beyond those that were written was given back before it was.
        lengths = torch.from_numpy(self.addends.lengths[: len(ids)])
        return {"addend_ids": ids, "addends": addends, "addend_lengths": lengths}

    def _awaited(self, token_ids: Tensor, rows: NDArray[numpy.int64] | slice) -> _Coming | None:
        """Sends tokens of rows to the host, if any of these has rules or waits for stops."""
        host = self._table.host
        ruled: list[tuple[int, TextRules]] = []
        watched: list[tuple[int, StopWatch]] = []
        if self.rules:
            slots = holders(host.addend_slot[rows])
            ruled = [(place, self.rules[slot]) for place, slot in slots if slot in self.rules]
        if self.stops.watches:
            watched = self.stops.takers(host.stop_slot[rows])
        return _Coming(HostTokens(token_ids), ruled, watched) if ruled or watched else None

    def _note(self, coming: _Coming | None) -> None:
        """Notes tokens that come, once nothing can fail that counts them elsewhere."""
        if coming is None:
            return
        if coming.ruled:
            self._coming.append((coming.tokens, coming.ruled))
        if coming.watched:
            self.stops.take(coming.tokens, coming.watched)

    def _take_in(self) -> None:
        """Lets rules see the tokens that have come, and writes the lists of addends that follow."""
        for coming, takers in self._coming:
            tokens = coming.read()
            for place, rules in takers:
                rules.extend((tokens[place],))
        self._coming.clear()
        for slot, rules in self.rules.items():
            before = rules.listed
            rules.listed = rules.addends()
            if not (_are_equal(before[0], rules.listed[0]) and _are_equal(before[1], rules.listed[1])):
                self.addends.write(slot, rules.listed)
                if self.plan is not None:
                    self.plan.forget_biases()

    def _addend_slot(self, params: SamplingParams, stop_ids_forbidden: bool, rules: TextRules | None) -> int:
        if not (stop_ids_forbidden or rules is not None or has_addend(params, self.vocab_size)):
            return NO_SLOT
        slot = self.addends.allocate()
        if rules is not None:
            self.rules[slot] = rules
        self._write_addends(slot, params, stop_ids_forbidden)
        return slot

    def _write_addends(self, slot: int, params: SamplingParams, stop_ids_forbidden: bool) -> None:
        listed = addend_of(params, stop_ids_forbidden, self.vocab_size)
        if slot in self.rules:
            rules = self.rules[slot]
            rules.own = listed
            listed = rules.listed = rules.addends()
        self.addends.write(slot, listed)


def _are_equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Tells whether two arrays are equal; a list that changes nothing is the same one as before, as often as not."""
    return one is other or numpy.array_equal(one, other)
