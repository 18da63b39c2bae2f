"""The places of drafts as rows of a batch of their own: a request after none, one, two, ... of its drafts."""

from __future__ import annotations

import weakref
from typing import Final

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.edits.bitmask import Bitmask
from ascend_sample.sampling.edits.plan import PenalizedRows
from ascend_sample.sampling.edits.row_edits import RowEdits
from ascend_sample.sampling.edits.slots import addend_of, has_addend
from ascend_sample.sampling.rows.host_copy import HostTokens
from ascend_sample.sampling.rows.normal_mode import in_normal_mode
from ascend_sample.sampling.rows.table import NO_SLOT, TABLE, RowTable, to_device

NO_TOKEN: Final = -1
"""What stands where no token is."""
Ids = NDArray[numpy.int64]


class PlacesLayout:
    """Where the places of requests are.

    Args:
        counts: int64 [requests], how many drafts each has.
        column: int64 [places], after how many of its request's drafts each place is.
        before: int64 [places, most], the numbers of the drafts before each place; where it has fewer, how many drafts
            there are.
        device: of the drafts.

    Attributes:
        counts, column, before, device: as they were given.
        most: the largest number of drafts before a place.
        request: int64 [places], whose each place is.
        ends: int64 [requests], where the places of each end.
    """

    def __init__(self, counts: Ids, column: Ids, before: Ids, device: torch.device) -> None:
        self.counts, self.column, self.before, self.device = counts, column, before, device
        self.most = before.shape[1]
        self.request, self.ends = requests_of_places(counts), numpy.cumsum(counts + 1)


def requests_of_places(counts: Ids) -> Ids:
    """Returns the request of each place, for requests of so many drafts."""
    return numpy.repeat(numpy.arange(len(counts)), counts + 1)


class ChainLayout(PlacesLayout):
    """Where places are whose drafts follow one another.

    Args:
        counts: int64 [requests], how many drafts each has.
        device: of the drafts.

    Attributes:
        columns: int64 [most + 1] on the device, from 0 on.
        is_draft: bool [places], whether a draft is judged there: all but the last of a request.
        is_even: whether all requests have as many drafts, so that places in order are a table.
        places: int64 [requests * (most + 1)] on the device, what each cell of a table is of; where a request has fewer
            drafts, its last place.
        first_places: int64 [requests], those in the first column.
        places_of_drafts, cells_of_drafts: int64 [drafts] on the device, where each is judged, and its cell in a table.
        drafts_of_places: int64 [places] on the device, the number of the draft that is judged there; of the last one of
            a request, any.
    """

    def __init__(self, counts: Ids, device: torch.device) -> None:
        most = int(counts.max(initial=0))
        request, starts = requests_of_places(counts), numpy.cumsum(counts + 1) - counts - 1
        column = numpy.arange(len(request)) - starts[request]
        columns = numpy.arange(most + 1)
        first_drafts = starts - numpy.arange(len(counts))
        is_draft = columns < counts[:, None]
        beyond = int(counts.sum())  # where `padded` has no token
        drafts = numpy.where(is_draft, first_drafts[:, None] + columns, beyond)
        places = starts[:, None] + numpy.minimum(columns, counts[:, None])
        before = numpy.where(columns[:most] < column[:, None], drafts[request, :most], beyond)
        super().__init__(counts, column, before, device)
        cells = request * (most + 1) + column
        self.is_draft = column < counts[request]
        self.is_even = len(cells) == len(counts) * (most + 1)
        of_drafts = (numpy.flatnonzero(self.is_draft), cells[self.is_draft])
        of_places = numpy.minimum(numpy.arange(len(request)) - request, max(0, beyond - 1))
        parts = (drafts.ravel(), places.ravel(), columns, *of_drafts, of_places, cells)
        sent = to_device(numpy.concatenate(parts), device).split([len(part) for part in parts])
        self._drafts, self.places, self.columns = sent[:3]
        self.places_of_drafts, self.cells_of_drafts, self.drafts_of_places, self._cells = sent[3:]
        self.first_places = self.places.view(-1, most + 1)[:, 0]
        self._most = torch.full((1,), most, dtype=torch.int64, device=device)

    def table(self, of_places: Tensor) -> Tensor:
        """Returns [requests, most + 1] of what places have; beyond a request's places its last one is repeated.

        It may be a view of them.
        """
        rows = of_places if self.is_even else of_places.index_select(0, self.places)
        return rows.view(-1, self.most + 1)

    def spread(self, of_places: Tensor, beyond: int) -> Tensor:
        """Returns [requests, most + 1] of what places have, and ``beyond`` beyond a request's places."""
        if self.is_even:
            return of_places.view(-1, self.most + 1)
        table = of_places.new_full((len(self.counts) * (self.most + 1),), beyond)
        return table.index_copy_(0, self._cells, of_places).view(-1, self.most + 1)

    def of_places(self, table: Tensor) -> Tensor:
        """Returns [places] of a table."""
        return table.view(-1).index_select(0, self._cells)

    def accepted(self, tokens: Tensor, draft_ids: Tensor) -> Tensor:
        """Returns how many drafts of each request, from the first on, are what their places have, int64 [requests].

        Args:
            tokens: int64 [requests, most + 1], what the places have, each an id.
            draft_ids: int64 [drafts].
        """
        return self.first_without(tokens == self.draft_table(draft_ids, NO_TOKEN))  # never in the last column

    def draft_table(self, of_drafts: Tensor, beyond: float) -> Tensor:
        """Returns [requests, most + 1] of what drafts have, and ``beyond`` where there is none: no view of them."""
        if self.is_even:
            return pad(of_drafts.view(len(self.counts), self.most), (0, 1), value=beyond)
        return pad(of_drafts, (0, 1), value=beyond).index_select(0, self._drafts).view(-1, self.most + 1)

    def first_without(self, stays: Tensor) -> Tensor:
        """Returns the first column of each row, bool [requests, most + 1], that is False, int64 [requests]."""
        return torch.where(stays, self._most, self.columns).amin(1)


class DraftPlaces(SamplingBatch):
    """A batch whose rows are the places of another one's requests: each request after its first j drafts.

    It shares the other's slots. Positions and `min_tokens` are counted by place, and penalties count the drafts before
    a place.

    Args:
        batch: the requests, which stay as they are.
        layout: where the places are.

    Attributes:
        requests, layout: as they were given.
        draft_ids: int64 [drafts], those of the call.
    """

    row_edits: PlaceEdits
    draft_ids: Tensor

    def __init__(self, batch: SamplingBatch, layout: PlacesLayout) -> None:
        super().__init__(batch.vocab_size, batch.device)
        batch.flush()
        self.layout = layout
        self.requests: SamplingBatch = weakref.proxy(batch)  # which keeps these places as a plan, and goes with them
        self._taken: list[int] = []
        self._table = RowTable(batch.device, max(1, len(layout.request)))
        self.row_edits = PlaceEdits(self._table, batch.row_edits, layout)
        columns = {name: getattr(batch.host, name)[layout.request] for name in TABLE}
        columns["position"] = columns["position"] + layout.column
        columns["addend_slot"] = self._addend_slots(columns)  # behind all that may fail
        self._table.extend(columns)
        self._params = [batch.params[request] for request in layout.request.tolist()]

    @in_normal_mode
    def prepare(self, draft_ids: Tensor) -> None:
        """Goes to where the requests are now, with these drafts."""
        self.follow_requests()
        self.draft_ids = draft_ids
        self.row_edits.count_drafts(draft_ids)
        if self.requests.row_edits.rules:
            self._apply_rules(draft_ids)

    def follow_requests(self) -> None:
        """Goes to where the requests are now."""
        self.requests.flush()
        self._table.place_at(self.requests.host.position[self.layout.request] + self.layout.column)

    def native_edits(self, bitmask: Bitmask | None = None) -> dict[str, Tensor]:
        """Returns what the CPU kernel does to logits of places as rows: see `SamplingBatch.native_edits`."""
        self.flush()
        edits = self.row_edits.native_with_drafts()
        return edits if bitmask is None else edits | bitmask.native_edits(len(self))

    def request_edits(self, bitmask: Bitmask | None = None) -> dict[str, Tensor]:
        """Returns the same without drafts, for the operators that count them themselves."""
        return super().native_edits(bitmask)

    def take_back(self) -> None:
        """Gives back what was taken of the batch for this call."""
        for slot in self._taken:
            self.requests.row_edits.addends.release(slot)

    def _apply_rules(self, draft_ids: Tensor) -> None:
        """Gives places of requests with rules slots of their own: each has seen the drafts before it."""
        edits, layout, host = self.requests.row_edits, self.layout, self.requests.host
        drafts = HostTokens(draft_ids).read()
        held, left = host.addend_slot.tolist(), host.min_tokens_left.tolist()
        for place, (request, column) in enumerate(zip(layout.request.tolist(), layout.column.tolist(), strict=True)):
            rules = edits.rules.get(held[request])
            if rules is None:
                continue
            has_ended = 0 < left[request] <= column  # `min_tokens`, among the drafts before the place
            own = addend_of(self._params[place], False, self.vocab_size) if has_ended else None
            before = sorted(layout.before[place, :column].tolist())  # numbers of drafts grow along the way
            slot = edits.addends.allocate()
            self._taken.append(slot)
            with rules.after([drafts[number] for number in before]):
                edits.addends.write(slot, rules.addends(own))
            self._table.set("addend_slot", place, slot)
        self.requests.flush()

    def _addend_slots(self, columns: dict[str, NDArray[numpy.int64]]) -> NDArray[numpy.int64]:
        """Returns the places' slots: a request's own, and another one where `min_tokens` ends among its drafts."""
        slots, left = columns["addend_slot"].copy(), columns["min_tokens_left"]
        ends_before = (left > 0) & (self.layout.column >= left)
        for request in numpy.unique(self.layout.request[ends_before]).tolist():
            params, slot = self.requests.params[request], NO_SLOT
            if has_addend(params, self.vocab_size):
                slot = self.requests.row_edits.addends.hold(addend_of(params, False, self.vocab_size))
                self._taken.append(slot)
            slots[ends_before & (self.layout.request == request)] = slot
        return slots  # `follow_requests` writes them: a device that has no room then has `take_back` follow


class KeptPlaces(dict[tuple[bytes, ...], DraftPlaces]):
    """Places of a batch's requests, by their counts and parents."""


class PlaceEdits(RowEdits):
    """What places change about their logits: with the slots of the batch whose requests they are of.

    Args:
        table: the places.
        edits: of that batch; somebody else flushes its slots.
        layout: where the places are.
    """

    def __init__(self, table: RowTable, edits: RowEdits, layout: PlacesLayout) -> None:
        super().__init__(table, edits.vocab_size)
        self.addends, self.penalties, self.masks = edits.addends, edits.penalties, edits.masks
        self._layout = layout
        self.plan_is_stale = True

    def count_drafts(self, draft_ids: Tensor) -> None:
        """Lets penalties count these drafts."""
        self._drafts = draft_ids

    def flush(self, more: int = 0) -> None:
        """Makes the plan, if it is stale; the lists may lie elsewhere since the last step."""
        self._native = None
        self._renew_plan()

    def _penalized_rows(self) -> PenalizedRows:
        return PenalizedRows(self._table.host, self.penalties, self.columns, self._layout.before)

    def native_with_drafts(self) -> dict[str, Tensor]:
        """Returns what `native` does for the CPU kernel's rows: each place with penalties has a list of its own.

        The lists have the ids that the request has seen and the drafts before the place.
        """
        arguments = self.native()
        if self.penalized is None:
            return arguments
        ids, occurrences = self.penalized.seen(self._drafts)
        # What is beyond a request's list, and a draft that is no id, is there only as an id that was seen.
        order = (occurrences == 0).to(torch.int8).sort(dim=1, stable=True).indices
        slots = torch.full_like(arguments["penalty_slot"], NO_SLOT)
        slots[torch.from_numpy(self.penalized.rows.host)] = torch.arange(len(ids), device="cpu")
        return arguments | {
            "penalty_slot": slots,
            "penalty_ids": ids.gather(1, order),
            "penalty_lengths": (occurrences != 0).sum(1),
            # An id has the same in each of its entries.
            "occurrences": occurrences.new_zeros(len(ids), self.vocab_size).scatter_(1, ids, occurrences),
        }
