"""The per-row parameters of a batch, twice: on the host, valid at once, and on the device, written when needed.

The host decides routes by its copy and never asks the device. A row that changes is only noted; `flush` then writes
the noted rows, and nothing else, with one copy for each dtype that does not block. A batch on the CPU has both in the
same memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascend_sample.sampling.requests.fields import Column
from ascend_sample.sampling.requests.params import FIELDS
from ascend_sample.sampling.rows.normal_mode import in_normal_mode

NO_SLOT: Final = -1
COLUMNS: Final[Mapping[str, Column]] = {
    **{name: declaration.column for name, declaration in FIELDS.items() if declaration.column is not None},
    "position": Column("int64", off=0),
}
"""The numbers that a row has: those of its request, and where it is."""
TABLE: Final[Mapping[str, Column]] = {
    **COLUMNS,
    "min_tokens_left": Column("int64", is_on_device=False),
    "addend_slot": Column("int64", NO_SLOT, is_on_device=False),
    "penalty_slot": Column("int64", NO_SLOT, is_on_device=False),
    "mask_slot": Column("int64", NO_SLOT, is_on_device=False),
    "state_slot": Column("int64", NO_SLOT, is_on_device=False),
    "stop_slot": Column("int64", NO_SLOT, is_on_device=False),
    "is_ranged": Column("int64", 0, is_on_device=False),
}
"""All numbers of a row: those that it is sampled with, and what only the host needs."""
SLOTS: Final = ("addend_slot", "penalty_slot", "mask_slot")
"""Of what changes logits."""
PENALTIES: Final = ("repetition_penalty", "presence_penalty", "frequency_penalty")
ORDERED: Final = sorted(TABLE, key=lambda name: not TABLE[name].is_on_device)
NAMES: Final = {
    dtype: [name for name in ORDERED if TABLE[name].dtype == dtype] for dtype in ("int64", "float32", "int32")
}
"""Which columns lie in the buffer of each dtype, in order: the device has the first ones too."""
ON_DEVICE: Final = {dtype: sum(TABLE[name].is_on_device for name in names) for dtype, names in NAMES.items()}
PLACES: Final = {name: (dtype, names.index(name)) for dtype, names in NAMES.items() for name in names}
POSITION: Final = PLACES["position"][1]
MIN_TOKENS_LEFT: Final = PLACES["min_tokens_left"][1]
NO_ROWS: Final = numpy.empty(0, numpy.int64)


class DeviceColumn:
    """A column of a batch's rows on the device, [rows], by the name of the attribute."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, batch: Any, owner: type) -> Tensor:
        if batch is None:
            return self  # type: ignore[return-value]
        tensor: Tensor = batch.row_tensor(self._name)
        return tensor


class HostMirrors:
    """What the host knows of each row: numpy arrays [rows], read-only, valid after every call of the batch.

    Attributes: each column of `TABLE` by its name, in its dtype. Those that the device has too are as there.
        logprob_token_ids: how many ids are named.
        logprobs: how many of the best ids are asked for; -1 for no log-probabilities.
        min_tokens_left: for how many more tokens the stop ids are forbidden.
        addend_slot, penalty_slot, mask_slot: where the row's biases and bans, what it has seen, and its mask lie;
            -1 for none.
        state_slot: where lies what the row remembers of its draws; -1 for nothing.
        stop_slot: of the matcher of what ends the row's text; -1 for none.
        is_ranged: 1 where the row keeps a range of its values alone, 0 elsewhere.
        is_processed: bool, whether the row has a mask, a bias or penalties, an unexpired `min_tokens`, or a range.
        buffers: the arrays themselves, by dtype, [columns, capacity].
        length: how many rows exist.
    """

    def __init__(self, capacity: int) -> None:
        self.length = 0
        self.buffers = {dtype: numpy.zeros((len(names), capacity), dtype) for dtype, names in NAMES.items()}

    def __getattr__(self, name: str) -> NDArray[Any]:
        if name not in PLACES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        dtype, index = PLACES[name]
        view: NDArray[Any] = self.buffers[dtype][index, : self.length]
        view.flags.writeable = False
        return view

    def stacked(self, names: Sequence[str]) -> NDArray[Any]:
        """Returns a copy of columns of one dtype, [names, rows]: sooner than one by one."""
        dtype, _ = PLACES[names[0]]
        stacked: NDArray[Any] = self.buffers[dtype][[PLACES[name][1] for name in names], : self.length]
        return stacked

    @property
    def capacity(self) -> int:
        """Returns for how many rows there is room."""
        return int(self.buffers["int64"].shape[1])

    @property
    def is_processed(self) -> NDArray[numpy.bool_]:
        """Tells of each row whether its logits change before temperature."""
        slots = [getattr(self, name) for name in SLOTS]
        processed: NDArray[numpy.bool_] = (numpy.maximum.reduce(slots) != NO_SLOT) | (self.is_ranged != 0)
        return processed

    @property
    def is_remembering(self) -> NDArray[numpy.bool_]:
        """Tells of each row whether its draws change what it remembers: for a greedy one nothing is drawn."""
        remembering: NDArray[numpy.bool_] = (self.state_slot != NO_SLOT) & (self.temperature != 0)
        return remembering


class RowTable:
    """The rows of a batch: appended at the end, moved, swapped, and copied to the device when they have changed."""

    def __init__(self, device: torch.device, capacity: int) -> None:
        self.device = device
        self.host = HostMirrors(capacity)
        self._is_shared = device.type == "cpu"
        self._tensors = self._new_tensors()
        self._views: dict[str, Tensor] = {}
        self._changed: set[int] = set()
        self._behind = 0  # by how many tokens of every row the device's positions are
        self._is_elsewhere = False  # whether the device has none of the positions

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what looks at the host's memory, which a copy has elsewhere."""
        state = vars(self) | {"_views": {}}
        if self._is_shared:
            del state["_tensors"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self._is_shared:
            self._tensors = self._new_tensors()

    def column(self, name: str) -> Tensor:
        """Returns one column on the device, [rows]: a view, which sees later flushes until the table grows."""
        if name == "position":
            self._catch_up()
        view = self._views.get(name)
        if view is None or view.shape[0] != self.host.length:  # to make one takes a step of a row longer than a dict
            dtype, index = PLACES[name]
            view = self._tensors[dtype][index, : self.host.length]
            if not torch.is_inference_mode_enabled():  # what is made there is of another kind
                self._views[name] = view
        return view

    def extend(self, columns: Mapping[str, Iterable[Any]]) -> range:
        """Appends rows that there is room for, given each column of `TABLE`, and returns their numbers."""
        values = {dtype: numpy.array([columns[name] for name in names], dtype) for dtype, names in NAMES.items()}
        start = self.host.length
        stop = start + values["int64"].shape[1]
        for dtype, buffer in self.host.buffers.items():
            buffer[:, start:stop] = values[dtype]
        self.host.length = stop
        self._changed.update(range(start, stop))
        return range(start, stop)

    def remove(self, row: int) -> int | None:
        """Lets the last row take the place of `row`; returns where it was, or None if `row` was the last one."""
        last = self.host.length - 1
        if row != last:
            for buffer in self.host.buffers.values():
                buffer[:, row] = buffer[:, last]
            self._changed.add(row)
        self._changed.discard(last)
        self.host.length = last
        return None if row == last else last

    def permute(self, to: NDArray[numpy.int64], source: NDArray[numpy.int64]) -> None:
        """Lets the rows `to` become what the rows `source`, the same ones in another order, are now."""
        for buffer in self.host.buffers.values():
            buffer[:, to] = buffer[:, source]
        self._changed.update(to.tolist())

    def set(self, name: str, row: int, value: int) -> None:
        """Sets a row's number in a column that the device does not have."""
        dtype, index = PLACES[name]
        self.host.buffers[dtype][index, row] = value

    def set_seeds(self, rows: NDArray[numpy.int64], seeds: NDArray[numpy.int64]) -> None:
        """Sets the seeds of rows."""
        self.host.buffers["int64"][PLACES["seed"][1], rows] = seeds
        self._changed.update(rows.tolist())

    def flush(self) -> None:
        """Writes the rows that have changed to the device: three copies and three scatters, whatever their number."""
        if not self._changed:
            return
        if self._is_shared:
            self._changed.clear()
            return
        self._catch_up()
        rows = numpy.array(sorted(self._changed), numpy.int64)
        index = None
        for dtype in NAMES:
            values = self.host.buffers[dtype][: ON_DEVICE[dtype], rows]
            if index is None:  # the rows' numbers travel with the other int64
                sent = to_device(numpy.concatenate((values, rows[None])), self.device)
                values_there, index = sent[:-1], sent[-1]
            else:
                values_there = to_device(values, self.device)
            self._tensors[dtype].index_copy_(1, index, values_there)
        self._changed.clear()

    def advance(self, rows: NDArray[numpy.int64] | None) -> NDArray[numpy.int64]:
        """Counts one more token of `rows`, None for all; returns the rows whose `min_tokens` this fulfils.

        The device hears of it when somebody asks it for positions.

        Args:
            rows: int64; a row may occur several times.
        """
        host, length = self.host.buffers["int64"], self.host.length
        position, left = host[POSITION, :length], host[MIN_TOKENS_LEFT, :length]
        was_counting = left > 0
        if rows is None:
            position += 1
            self._behind += not self._is_shared
            if not numpy.count_nonzero(was_counting):
                return NO_ROWS
            left -= was_counting
        else:
            self._is_elsewhere = not self._is_shared
            numpy.add.at(position, rows, 1)
            numpy.subtract.at(left, rows, 1)
            numpy.maximum(left, 0, out=left)
        return numpy.flatnonzero(was_counting & (left == 0))

    def place_at(self, positions: NDArray[numpy.int64]) -> None:
        """Puts all rows at other positions; the device hears of them when somebody asks it."""
        self.host.buffers["int64"][POSITION, : self.host.length] = positions
        self._is_elsewhere = not self._is_shared

    @in_normal_mode
    def _catch_up(self) -> None:
        """Counts on the device the tokens of `advance` that it has not seen: steps themselves do not read positions."""
        if self._is_elsewhere:
            self._tensors["int64"][POSITION].copy_(to_device(self.host.buffers["int64"][POSITION], self.device))
        elif self._behind:
            self._tensors["int64"][POSITION].add_(self._behind)
        self._behind, self._is_elsewhere = 0, False

    def reserve(self, length: int) -> None:
        """Makes room for `length` rows, by doubling: a growing batch copies each row a constant number of times.

        Raises:
            torch.OutOfMemoryError: the device has no room; the table is as it was.
        """
        capacity = old = self.host.capacity
        while capacity < length:
            capacity *= 2
        if capacity == old:
            return
        self._catch_up()
        host, there = self.host.buffers, self._tensors
        self.host.buffers = HostMirrors(capacity).buffers
        try:
            self._tensors = self._new_tensors()
        except torch.OutOfMemoryError:
            self.host.buffers = host
            raise
        self._views.clear()
        for dtype, buffer in host.items():
            self.host.buffers[dtype][:, :old] = buffer
        if not self._is_shared:
            for dtype, tensor in self._tensors.items():
                tensor[:, :old] = there[dtype]

    @in_normal_mode
    def _new_tensors(self) -> dict[str, Tensor]:
        """Returns the columns that the device has, with as much room as the host's: on a CPU the host's own."""
        if self._is_shared:
            return {dtype: torch.from_numpy(self.host.buffers[dtype][:count]) for dtype, count in ON_DEVICE.items()}
        return {
            dtype: torch.zeros((count, self.host.capacity), dtype=getattr(torch, dtype), device=self.device)
            for dtype, count in ON_DEVICE.items()
        }


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """Copies an array to the device without waiting for it.

    The copy reads pinned memory later, so every call takes new pinned memory: torch's allocator hands it out again only
    when the copy is done.
    """
    if device.type == "cpu":
        return torch.from_numpy(numpy.array(values, order="C"))
    staged = torch.empty(values.shape, dtype=getattr(torch, values.dtype.name), pin_memory=True, device="cpu")
    staged.numpy()[...] = values
    return staged.to(device, non_blocking=True)
