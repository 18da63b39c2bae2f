"""What some requests change about logits, for those that need it: short lists of ids, counts of tokens, packed masks.

Each kind has slots, which a row of the batch holds as long as it needs one; a row that moves takes along the slot's
number alone. Device memory is taken when slots are written, grows by doubling, and is given back when the last slot is
released: tensors have no rows before and after. A list is as long as its ids; tensors of lists are as wide as the
longest one needs, and what lies beyond the end of a list changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascend_sample.sampling.edits.processing import MASKED, WORD, words_of
from ascend_sample.sampling.requests.params import SamplingParams
from ascend_sample.sampling.rows.table import NO_SLOT, to_device

Ids = NDArray[numpy.int64]
Floats = NDArray[numpy.float32]
Seen = tuple[Ids, Ids]
"""What a row has seen before the batch counts for it: ids of its prompt, each once, and its output, as it came."""
LEAST_HISTORY: Final = 16
"""How many tokens a list of penalties has room for at first."""
STATE_WIDTH: Final = 2
"""How many numbers the state of a row has at most."""
SHRINKS: Final = 4
"""How many times too wide lists may be before they are made narrower."""


class Slots:
    """Numbers of slots, the lowest free one first, and tensors that have a row for each.

    Args:
        device: where the tensors are.
        least_width: how many entries lists have room for at first.
        dtypes: of the tensors, by the attributes that have them.

    Attributes:
        capacity: how many slots there are, free ones included.
        width: how many entries a list has room for.
        lengths: int64 [capacity], how many entries each slot's list has; valid at once.
    """

    def __init__(self, device: torch.device, least_width: int = 1, **dtypes: torch.dtype) -> None:
        self.device = device
        self._empty = {name: torch.empty((0, 0), dtype=dtype, device=device) for name, dtype in dtypes.items()}
        vars(self).update(self._empty)
        self.capacity, self.width = 0, least_width
        self._least_width = least_width
        self.lengths = numpy.zeros(0, numpy.int64)
        self._free: list[int] = []
        self._changed: dict[int, Any] = {}

    def allocate(self) -> int:
        """Hands out a slot that nobody has; its contents are undefined until it is written."""
        if not self._free:
            grown = max(1, 2 * self.capacity)
            self._free = list(range(self.capacity, grown))
            self.lengths = numpy.concatenate((self.lengths, numpy.zeros(grown - self.capacity, numpy.int64)))
            self.capacity = grown
        return heapq.heappop(self._free)

    def write(self, slot: int, entry: Any) -> None:
        """Notes what the slot is to hold from the next flush on."""
        self._changed[slot] = entry

    def hold(self, entry: Any) -> int:
        """Hands out a slot that is to hold an entry."""
        slot = self.allocate()
        self.write(slot, entry)
        return slot

    def release(self, slot: int) -> None:
        """Takes a slot back, and forgets what was to be written to it; memory is given back with the last one."""
        self._changed.pop(slot, None)
        self.lengths[slot] = 0
        heapq.heappush(self._free, slot)
        if len(self._free) == self.capacity:
            self.capacity, self.width = 0, self._least_width
            self.lengths = self.lengths[:0]
            self._free = []
            vars(self).update(self._empty)

    @property
    def bytes(self) -> int:
        """Returns how many bytes of device memory the slots take."""
        return sum(vars(self)[name].nbytes for name in self._empty)

    def fit_lists(self, more: int = 0) -> None:
        """Chooses the width that the lists need with so many more entries: a power of two, which changes rarely."""
        longest = max(self._least_width, int(self.lengths.max(initial=1)) + more)
        wanted = 2 ** (longest - 1).bit_length()
        if not wanted <= self.width < SHRINKS * wanted:
            self.width = wanted

    def sized(self, tensor: Tensor, width: int) -> Tensor:
        """Returns the tensor as [capacity, width]: slots keep what they have, the first entry being repeated."""
        if tensor.shape == (self.capacity, width):
            return tensor
        other = torch.zeros((self.capacity, width), dtype=tensor.dtype, device=self.device)
        if len(tensor):
            slots, columns = len(tensor), min(tensor.shape[1], width)
            other[:slots, :columns] = tensor[:, :columns]
            other[:slots, columns:] = tensor[:, :1]
        return other

    def places(self, slots: Ids) -> tuple[Ids, Ids]:
        """Returns where lists begin that lie one after the other, and where their entries go in a flattened tensor."""
        lengths = self.lengths[slots]
        ends = numpy.cumsum(lengths)
        starts = ends - lengths
        return starts, numpy.repeat(slots * self.width - starts, lengths) + numpy.arange(ends[-1])


def holders(slots: Ids) -> Iterable[tuple[int, int]]:
    """Returns which of these, each the slot of a row or `NO_SLOT`, are slots: their places, and what they are.

    Example:
        >>> list(holders(numpy.array([-1, 4, -1, 0])))
        [(1, 4), (3, 0)]
    """
    places = numpy.flatnonzero(slots != NO_SLOT)
    return zip(places.tolist(), slots[places].tolist(), strict=True)


class AddendSlots(Slots):
    """What is added to some logits of a row: its bias, and -inf where an id is forbidden.

    Attributes:
        ids: int64 [capacity, width]; beyond a list's end its first id is repeated.
        addends: float32 [capacity, width], theirs.
    """

    ids: Tensor
    addends: Tensor

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, ids=torch.int64, addends=torch.float32)

    def write(self, slot: int, entry: tuple[Ids, Floats]) -> None:
        """Notes the list that the slot is to hold from the next flush on: ids, each once and at least one."""
        super().write(slot, entry)
        self.lengths[slot] = len(entry[0])

    def flush(self) -> None:
        """Writes the slots that were noted: two copies and four launches, whatever their number."""
        if not self._changed:
            return
        self.fit_lists()
        self.ids, self.addends = self.sized(self.ids, self.width), self.sized(self.addends, self.width)
        slots = numpy.array(list(self._changed), numpy.int64)
        ids, addends = (numpy.concatenate(lists) for lists in zip(*self._changed.values(), strict=True))
        starts, places = self.places(slots)
        sent = to_device(numpy.concatenate((slots, ids[starts], places, ids)), self.device)
        slots_there, first_there, places_there, ids_there = sent.split([len(slots)] * 2 + [len(ids)] * 2)
        sent = to_device(numpy.concatenate((addends[starts], addends)), self.device)
        first_addends_there, addends_there = sent.split([len(slots), len(ids)])
        fill(self.ids, slots_there, first_there)
        fill(self.addends, slots_there, first_addends_there)
        self.ids.view(-1).index_copy_(0, places_there, ids_there)
        self.addends.view(-1).index_copy_(0, places_there, addends_there)
        self._changed.clear()


def fill(table: Tensor, slots: Tensor, values: Tensor) -> None:
    """Fills rows of a table, in one launch: each with a value of its own."""
    if table.is_cpu:  # index_copy_ takes a row there element by element
        table.numpy()[slots.numpy()] = values.numpy()[:, None]
        return
    # torch_npu's index_fill_ would read the slots back from the device.
    table.index_copy_(0, slots, values.unsqueeze(1).expand(-1, table.shape[1]))


def has_mask(params: SamplingParams, vocab_size: int) -> bool:
    """Tells whether the request has a mask: it allows ids, or forbids more than a mask has words."""
    return params.allowed_token_ids is not None or len(params.suppress_token_ids) > words_of(vocab_size)


def has_addend(params: SamplingParams, vocab_size: int) -> bool:
    """Tells whether the request has a list of addends, apart from `min_tokens`."""
    is_biased = any(params.logit_bias.values())
    return is_biased or (bool(params.suppress_token_ids) and not has_mask(params, vocab_size))


def addend_of(params: SamplingParams, stop_ids_forbidden: bool, vocab_size: int) -> tuple[Ids, Floats]:
    """Returns the list of addends of a request: ids, each once and ascending, and what is added to their logits."""
    forbidden = numpy.array(() if has_mask(params, vocab_size) else params.suppress_token_ids, numpy.int64)
    if stop_ids_forbidden:
        forbidden = numpy.union1d(forbidden, numpy.array(params.stop_token_ids, numpy.int64))
    biased = numpy.array(list(params.logit_bias), numpy.int64)
    bias = numpy.array(list(params.logit_bias.values()), numpy.float32)
    is_possible = ~numpy.isin(biased, forbidden)
    masked = numpy.full(len(forbidden), MASKED, numpy.float32)
    ids = numpy.concatenate((biased[is_possible], forbidden))
    ascending = ids.argsort()
    return ids[ascending], numpy.concatenate((bias[is_possible], masked))[ascending]


class MaskSlots(Slots):
    """Which ids of a row are allowed.

    Attributes:
        masks: int32 [capacity, words], a bit an id, set where it is allowed.
    """

    masks: Tensor

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        super().__init__(device, words_of(vocab_size), masks=torch.int32)

    def flush(self) -> None:
        """Writes the slots that were noted: two copies and two launches, whatever their number."""
        if not self._changed:
            return
        self.masks = self.sized(self.masks, self.width)
        slots, places, words = list(self._changed), [], []
        usual = [-1 if params.allowed_token_ids is None else 0 for params in self._changed.values()]
        for slot, params, word in zip(slots, self._changed.values(), usual, strict=True):
            mask = self._mask_of(params)
            named = numpy.flatnonzero(mask != word)
            places.append(slot * self.width + named)
            words.append(mask[named])
        there = to_device(numpy.concatenate((slots, *places)), self.device)
        words_there = to_device(numpy.concatenate((numpy.array(usual, numpy.int32), *words)), self.device)
        fill(self.masks, there[: len(slots)], words_there[: len(slots)])
        self.masks.view(-1).index_copy_(0, there[len(slots) :], words_there[len(slots) :])
        self._changed.clear()

    def _mask_of(self, params: SamplingParams) -> NDArray[numpy.int32]:
        is_allowed = numpy.full(self.width * WORD, params.allowed_token_ids is None)
        is_allowed[list(params.allowed_token_ids or ())] = True
        is_allowed[list(params.suppress_token_ids)] = False
        return numpy.packbits(is_allowed, bitorder="little").view(numpy.int32)


class PenaltySlots(Slots):
    """Which ids occur in a row's prompt and output, and how often.

    Attributes:
        ids: int64 [capacity, width], the slots' lists: the ids of the prompt, then the output's as they came, with
            repeats; beyond the end of a list lies any id.
        occurrences: int32 [capacity, vocab_size], 2 * (how often in the output) + (1 if in the prompt).
    """

    ids: Tensor
    occurrences: Tensor

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        super().__init__(device, LEAST_HISTORY, ids=torch.int64, occurrences=torch.int32)
        self.vocab_size = vocab_size

    def write(self, slot: int, entry: Seen) -> None:
        """Notes what the slot is to hold from the next flush on."""
        super().write(slot, entry)
        self.lengths[slot] = sum(map(len, entry))

    def flush(self, more: int = 0) -> bool:
        """Writes the slots that were noted: two copies and three launches, whatever their number.

        Args:
            more: for how many more tokens there has to be room in each list.

        Returns:
            Whether the lists lie where they lay: a plan for them is stale otherwise.
        """
        if not self.capacity:
            return True
        if more or self._changed:
            self.fit_lists(more)
        are_there = self.ids.shape == (self.capacity, self.width)
        if not are_there:
            ids = self.sized(self.ids, self.width)
            self.occurrences = self.sized(self.occurrences, self.vocab_size)
            self.ids = ids  # last, as a device may have no room
        if self._changed:
            self._write()
        return are_there

    def _write(self) -> None:
        slots = numpy.array(list(self._changed), numpy.int64)
        counted, codes = [], [numpy.zeros(1, numpy.int32)]
        for slot, seen in self._changed.items():
            named, code = occurrences_of(seen)
            counted.append(slot * self.vocab_size + named)
            codes.append(code)
        ids = numpy.concatenate([part for seen in self._changed.values() for part in seen])
        parts = [slots, ids, self.places(slots)[1], numpy.concatenate(counted)]
        slots_there, ids_there, places_there, counted_there = to_device(numpy.concatenate(parts), self.device).split(
            [len(part) for part in parts]
        )
        codes_there = to_device(numpy.concatenate(codes), self.device)
        fill(self.occurrences, slots_there, codes_there[:1].expand(len(slots)))
        if ids_there.shape[0]:
            self.ids.view(-1).index_copy_(0, places_there, ids_there)
            self.occurrences.view(-1).index_copy_(0, counted_there, codes_there[1:])
        self._changed.clear()  # last, as a device may fail


def occurrences_of(seen: Seen) -> tuple[Ids, NDArray[numpy.int32]]:
    """Returns the ids that a row has seen, each once, and what `PenaltySlots.occurrences` has of them."""
    ids = numpy.concatenate(seen)
    codes = numpy.repeat(numpy.array([1, 2], numpy.int32), [len(part) for part in seen])
    named, place = numpy.unique(ids, return_inverse=True)
    return named, numpy.bincount(place, codes, minlength=len(named)).astype(numpy.int32)


class HeldSlots(NamedTuple):
    """Slots that some rows hold, for all steps until rows change.

    Attributes:
        there: int64 [rows], on the device.
        part: which they are, if each follows the one before it, as in a batch that no row has left yet.
    """

    there: Tensor
    part: slice | None

    @classmethod
    def of(cls, slots: Ids, device: torch.device) -> HeldSlots:
        """Puts slots, int64, at least one, on a device.

        Example:
            >>> HeldSlots.of(numpy.array([2, 3, 4]), torch.device("cpu"))
            HeldSlots(there=tensor([2, 3, 4]), part=slice(2, 5, None))
        """
        first = int(slots[0])
        follows = numpy.array_equal(slots, numpy.arange(first, first + len(slots)))
        return cls(to_device(slots, device), slice(first, first + len(slots)) if follows else None)


class StateSlots(Slots):
    """What the rows remember that hold the slots.

    Attributes:
        values: float32 [capacity, `STATE_WIDTH`]; what a state has no number for means nothing.
    """

    values: Tensor

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, STATE_WIDTH, values=torch.float32)

    def read(self, slots: HeldSlots) -> Tensor:
        """Returns what some slots hold, float32 [slots, `STATE_WIDTH`]: a part of the values where they allow it."""
        if slots.part is not None:
            return self.values[slots.part]
        return self.values.index_select(0, slots.there)

    def flush(self) -> None:
        """Writes the slots that were noted: two copies, whatever their number."""
        if not self._changed:
            return
        self.values = self.sized(self.values, STATE_WIDTH)
        states = numpy.zeros((len(self._changed), STATE_WIDTH), numpy.float32)
        for place, state in enumerate(self._changed.values()):
            states[place, : len(state)] = state
        slots = to_device(numpy.array(list(self._changed), numpy.int64), self.device)
        self.values.index_copy_(0, slots, to_device(states, self.device))
        self._changed.clear()
