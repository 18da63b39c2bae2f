"""What the rows of a batch change about their logits: the slots that they hold, and how a step uses what these have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascend_sample.sampling.edits.apply import Biases, LogitsEdits, apply
from ascend_sample.sampling.edits.bitmask import Bitmask
from ascend_sample.sampling.edits.plan import PenalizedRows, biases_of, masks_of
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
from ascend_sample.sampling.edits.stops import Ended, StopMatcher
from ascend_sample.sampling.edits.text_rules import TextRules, has_rules
from ascend_sample.sampling.edits.value_ranges import RangedRows, RangeNumbers
from ascend_sample.sampling.requests.params import SamplingParams
from ascend_sample.sampling.rows.arguments import TokenIds, check_params, to_token_ids
from ascend_sample.sampling.rows.host_copy import HostTokens
from ascend_sample.sampling.rows.table import NO_SLOT, PENALTIES, SLOTS, RowTable, to_device


class Known(NamedTuple):
    """What a batch notes of the tokens that a row comes with.

    Attributes:
        seen: for its penalties; None without. The prompt matters for the repetition penalty alone.
        rules: those that look at its text; None without.
        stops: what looks for the end of its text; None without.
    """

    seen: Seen | None
    rules: TextRules | None
    stops: StopMatcher | None

    @classmethod
    def of(cls, params: SamplingParams, prompt_ids: TokenIds, output_ids: TokenIds, vocab_size: int) -> Known:
        """Checks a request against the vocabulary of a batch, and its tokens as far as anything looks at them."""
        check_params(params)
        params.check_vocab_size(vocab_size)
        repeats = params.repetition_penalty != 1.0
        is_penalized = repeats or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        is_ruled = has_rules(params)
        stops = StopMatcher(params, output_ids, vocab_size) if params.stop_token_ids or params.stop_sequences else None
        if not (is_penalized or is_ruled):
            return cls(None, None, stops)
        prompt = to_token_ids("prompt_ids", prompt_ids if repeats or is_ruled else (), vocab_size)
        output = to_token_ids("output_ids", output_ids, vocab_size)
        rules = TextRules(params, [*prompt.tolist(), *output.tolist()], vocab_size) if is_ruled else None
        seen = (numpy.unique(prompt if repeats else prompt[:0]), output) if is_penalized else None
        return cls(seen, rules, stops)


EDITS_OF_ROWS: Final = {"addend_slot", "penalty_slot", "mask_slot", "penalties", "bitmask_rows", "ranges"}
"""Arguments of the CPU kernel that have a number for each row, in their last dimension; the others are tables."""


def edits_of_rows(edits: Mapping[str, Tensor], rows: slice | Tensor) -> dict[str, Tensor]:
    """Returns what `SamplingBatch.native_edits` has for some rows."""
    return {name: tensor[..., rows] if name in EDITS_OF_ROWS else tensor for name, tensor in edits.items()}


Takers = list[tuple[int, TextRules | StopMatcher]]
"""Who takes in which of some tokens."""
Pending = tuple[HostTokens, Takers, bool]
"""Tokens on their way to the host, who takes them in there, and whether rules do, for which a flush waits."""
MADE_OF_ROWS: Final = ("_biases", "_masks", "_ranged")
"""What `RowEdits` makes of its rows when a step reads it, for as long as they stay."""


class RowEdits:
    """The slots of a batch's rows, and what a step does with what they hold.

    Args:
        table: the rows, which hold the numbers of their slots.
        vocab_size: the number of columns of the logits.

    Attributes:
        is_on: some row changes its logits. Valid after a flush, as is `penalized`.
        penalized: the rows with penalties; None if there are none.
        plan_is_stale: what is made of the rows is made again at the next flush.
        columns: how far the rows of edited copies are apart.
        rules: those that look at a row's text, by its slot of addends.
        stop_matchers: what looks for the end of a row's text, by its slot of stops.
        lists: stands for the lists of biases and where all lists lie: another object when that changes.
    """

    def __init__(self, table: RowTable, vocab_size: int) -> None:
        self._table, self.vocab_size = table, vocab_size
        self.addends = AddendSlots(table.device)
        self.penalties = PenaltySlots(vocab_size, table.device)
        self.masks = MaskSlots(vocab_size, table.device)
        self.states = StateSlots(table.device)
        self.stops = Slots(table.device)
        self.is_on, self.plan_is_stale = False, False
        self.penalized: PenalizedRows | None = None
        self.columns = vocab_size
        self.rules: dict[int, TextRules] = {}
        self.stop_matchers: dict[int, StopMatcher] = {}
        self.lists = object()
        self._pending: list[Pending] = []
        self._are_lists_stale = False  # rules have seen tokens since they listed addends
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
            "stop_slot": [NO_SLOT if of_row.stops is None else self._stop_slot(of_row.stops) for of_row in known],
        }

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what is made of the rows anew: a copy's would look at the rows that were copied."""
        state = {name: value for name, value in vars(self).items() if name not in MADE_OF_ROWS}
        return state | {"is_on": False, "penalized": None, "plan_is_stale": True, "_native": None}

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
                if name == "stop_slot":
                    del self.stop_matchers[slot]

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
        if not (self.is_on or self.plan_is_stale or self.states.capacity):  # nothing could be written
            return
        while any(has_rules for *_, has_rules in self._pending):
            self._apply_pending()
        if self._are_lists_stale:
            self._renew_lists()
        self.addends.flush()
        self.masks.flush()
        self.states.flush()
        self.plan_is_stale |= not self.penalties.flush(more)
        self._renew_plan()

    def _renew_plan(self) -> None:
        """Makes again what is made of the rows, if it is stale."""
        if not self.plan_is_stale:
            return
        host, self.penalized, self._native = self._table.host, None, None
        self.lists = object()
        for name in MADE_OF_ROWS:
            vars(self).pop(name, None)
        self.is_on = bool(host.is_processed.any())
        if (host.penalty_slot != NO_SLOT).any():
            self.penalized = self._penalized_rows()
        self.plan_is_stale = False  # last, as a device may have no room

    def _penalized_rows(self) -> PenalizedRows:
        return PenalizedRows(self._table.host, self.penalties, self.columns)

    @cached_property
    def _biases(self) -> Biases | None:
        return biases_of(self._table.host, self.addends, self.columns)

    @cached_property
    def _masks(self) -> Tensor | None:
        return masks_of(self._table.host, self.masks)

    @cached_property
    def _ranged(self) -> RangedRows | None:
        host = self._table.host
        return RangedRows(host, self.states) if host.is_ranged.any() else None

    def append(self, token_ids: Tensor, are_ids: bool) -> None:
        """Takes in a token of each row, after a flush with room for it."""
        pending = self._copy_to_host(token_ids, slice(None))
        if self.penalized is not None:
            self.penalized.append(token_ids, are_ids)
        self._add_pending(pending)

    def append_to(self, rows: NDArray[numpy.int64], token_ids: Tensor) -> None:
        """Takes in tokens of some rows, after a flush with room for them."""
        pending = self._copy_to_host(token_ids, rows)
        if self.penalized is not None:
            self.penalized.append_to(rows, token_ids)
        self._add_pending(pending)

    def applied_to(self, logits: Tensor, bitmask: Bitmask | None, has_ranges: bool = True) -> Tensor | None:
        """Does what `SamplingBatch.edited` does, after a flush."""
        if not self.is_on and bitmask is None:
            return None
        if self._bits is None:
            self._bits = bits_of_bytes(self._table.device)
        words = None if bitmask is None else bitmask.of_all(len(logits))
        edits = self.edits(words, has_ranges, self._drafts)
        return apply(logits, edits, self._bits, self.columns)

    def edits(self, words: Tensor | None, has_ranges: bool, drafts: Tensor | None) -> LogitsEdits:
        """Returns what is done to logits in this step, after a flush.

        Args:
            words: int32 [batch, words], the ids that a grammar allows; None: all.
            has_ranges: whether rows lose what is outside of their ranges.
            drafts: as for `PenalizedRows.seen`.
        """
        own = self._own_words()
        return LogitsEdits(
            self._biases,
            None if self.penalized is None else self.penalized.penalties(drafts),
            words if own is None else own if words is None else own & words,
            self._ranged if has_ranges else None,
        )

    def _own_words(self) -> Tensor | None:
        """Returns the masks of all rows, int32 [batch, words], if any row has one."""
        length = self._table.host.length
        if self._masks is not None and len(self._masks) < length:  # rows without masks have come
            del self._masks
        return None if self._masks is None else self._masks[:length]

    def native(self) -> dict[str, Tensor]:
        """Does what `SamplingBatch.native_edits` does, after a flush."""
        if not self.is_on:
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
        if len(seen.occurrences):
            arguments |= {"penalty_ids": seen.ids, "occurrences": seen.occurrences}
            arguments["penalty_lengths"] = torch.from_numpy(seen.lengths)
            arguments["penalties"] = torch.from_numpy(host.stacked(PENALTIES))
        if len(masks.masks):
            arguments["masks"] = masks.masks
        self._ranges = RangeNumbers(host, self.states) if host.is_ranged.any() else None
        if self._ranges is not None:
            arguments["ranges"] = torch.from_numpy(self._ranges.of_step())
        held = {name: getattr(host, name) for name in SLOTS if self.slots[name].capacity}
        return arguments | {name: to_device(slots, self._table.device) for name, slots in held.items()}

    def _lists_of_addends(self) -> dict[str, Tensor]:
        """Returns the arguments that rules of texts change from step to step."""
        ids, addends = self.addends.ids, self.addends.addends
        if not len(addends):
            return {}
        # A slot beyond those that were written was given back before it was.
        lengths = torch.from_numpy(self.addends.lengths[: len(ids)])
        return {"addend_ids": ids, "addends": addends, "addend_lengths": lengths}

    def ended(self) -> list[Ended]:
        """Does what `SamplingBatch.ended` does."""
        matchers = self.stop_matchers
        while matchers and self._pending:
            self._apply_pending()
        new = {slot: each.end for slot, each in matchers.items() if each.end is not None and not each.is_reported}
        for slot in new:
            matchers[slot].is_reported = True
        slots = self._table.host.stop_slot
        return [Ended(row, *new[slot]) for row, slot in holders(slots) if slot in new] if new else []

    def _copy_to_host(self, token_ids: Tensor, rows: NDArray[numpy.int64] | slice) -> Pending | None:
        """Sends tokens of rows to the host, if any of these has rules or may stop."""
        host = self._table.host
        takers: Takers = []
        if self.rules:
            slots = holders(host.addend_slot[rows])
            takers += [(place, self.rules[slot]) for place, slot in slots if slot in self.rules]
        has_rules = bool(takers)
        if self.stop_matchers:
            matchers = ((place, self.stop_matchers[slot]) for place, slot in holders(host.stop_slot[rows]))
            takers += [(place, matcher) for place, matcher in matchers if matcher.end is None]
        return (HostTokens(token_ids), takers, has_rules) if takers else None

    def _add_pending(self, pending: Pending | None) -> None:
        """Notes tokens that come, once nothing can fail that counts them elsewhere."""
        if pending is None:
            return
        self._pending.append(pending)
        while self._pending and not self._pending[0][2] and self._pending[0][0].has_arrived:
            self._apply_pending()

    def _apply_pending(self) -> None:
        """Lets rules and matchers see the first ones of the tokens that come."""
        pending, takers, has_rules = self._pending[0]
        tokens = pending.read()
        del self._pending[0]
        for place, taker in takers:
            taker.extend((tokens[place],))
        self._are_lists_stale |= has_rules

    def _renew_lists(self) -> None:
        """Writes the lists of addends that follow from what rules have seen."""
        for slot, rules in self.rules.items():
            before = rules.listed
            rules.listed = rules.addends()
            if not (_are_equal(before[0], rules.listed[0]) and _are_equal(before[1], rules.listed[1])):
                self.addends.write(slot, rules.listed)
                self.lists = object()
                vars(self).pop("_biases", None)
        self._are_lists_stale = False

    def _stop_slot(self, matcher: StopMatcher) -> int:
        slot = self.stops.allocate()
        self.stop_matchers[slot] = matcher
        return slot

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
