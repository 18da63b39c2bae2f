"""The per-row parameters of a batch, twice: on the host, valid at once, and on the device, written when needed.

The host decides routes by its copy and never asks the device. A row that changes is only noted; `flush` then writes
the noted rows, and nothing else, with one copy for each dtype that does not block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Generic, Protocol, TypeVar, overload

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascend_sample._contract import SKIP_TOP_K
from ascend_sample.sampling._checks import to_fraction
from ascend_sample.sampling._normal_mode import in_normal_mode
from ascend_sample.sampling.params import SamplingParams

FLOAT32_FIELDS: Final = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
INT32_FIELDS: Final = ("top_k", "logprobs")
INT64_FIELDS: Final = ("seed", "position", "min_tokens_left", "addend_slot", "penalty_slot")
ON_DEVICE: Final = {"float32": 6, "int32": 1, "int64": 2}
"""How many of the fields of each dtype the device has too: the first ones."""
NO_SLOT: Final = -1
NO_LOGPROBS: Final = -1

Number = TypeVar("Number", bound=numpy.generic)


class _Field(Generic[Number]):
    """A read-only view of one field of the rows that exist."""

    def __init__(self, dtype: str, index: int) -> None:
        self._dtype, self._index = dtype, index

    def __get__(self, mirrors: HostMirrors, owner: type[HostMirrors]) -> NDArray[Number]:
        view: NDArray[Number] = mirrors.buffers[self._dtype][self._index, : mirrors.length]
        view.flags.writeable = False
        return view


class HasRowTensors(Protocol):
    """What keeps rows on a device."""

    def row_tensor(self, dtype: str, name: str) -> Tensor:
        """Returns one field of all rows."""


class DeviceField:
    """A field of the rows on the device, [rows]."""

    def __init__(self, dtype: str, name: str) -> None:
        self._dtype, self._name = dtype, name

    @overload
    def __get__(self, batch: None, owner: type) -> DeviceField: ...

    @overload
    def __get__(self, batch: HasRowTensors, owner: type) -> Tensor: ...

    def __get__(self, batch: HasRowTensors | None, owner: type) -> Tensor | DeviceField:
        return self if batch is None else batch.row_tensor(self._dtype, self._name)


class HostMirrors:
    """What the host knows of each row: numpy arrays [rows], read-only, valid after every call of the batch.

    Attributes:
        temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty: float32, as on the device.
        top_k: int32, as on the device; SKIP_TOP_K where top-k is off.
        seed, position: int64, as on the device.
        logprobs: int32, how many of the best ids are asked for; -1 for no log-probabilities.
        min_tokens_left: int64, for how many more tokens the stop ids are forbidden.
        is_processed: bool, whether the row has a mask, a bias or penalties, or an unexpired `min_tokens`.
        addend_slot, penalty_slot: int64, where the row's mask and bias, and its counts, lie; -1 for none.
        buffers: the arrays themselves, by dtype, [fields, capacity].
        length: how many rows exist.
    """

    temperature = _Field[numpy.float32]("float32", 0)
    top_p = _Field[numpy.float32]("float32", 1)
    min_p = _Field[numpy.float32]("float32", 2)
    repetition_penalty = _Field[numpy.float32]("float32", 3)
    presence_penalty = _Field[numpy.float32]("float32", 4)
    frequency_penalty = _Field[numpy.float32]("float32", 5)
    top_k = _Field[numpy.int32]("int32", 0)
    logprobs = _Field[numpy.int32]("int32", 1)
    seed = _Field[numpy.int64]("int64", 0)
    position = _Field[numpy.int64]("int64", 1)
    min_tokens_left = _Field[numpy.int64]("int64", 2)
    addend_slot = _Field[numpy.int64]("int64", 3)
    penalty_slot = _Field[numpy.int64]("int64", 4)

    def __init__(self, capacity: int) -> None:
        self.length = 0
        self.buffers: dict[str, NDArray[Any]] = {
            "float32": numpy.zeros((len(FLOAT32_FIELDS), capacity), numpy.float32),
            "int32": numpy.zeros((len(INT32_FIELDS), capacity), numpy.int32),
            "int64": numpy.zeros((len(INT64_FIELDS), capacity), numpy.int64),
        }

    @property
    def is_processed(self) -> NDArray[numpy.bool_]:
        """Tells of each row whether its logits change before temperature."""
        processed: NDArray[numpy.bool_] = numpy.maximum(self.addend_slot, self.penalty_slot) != NO_SLOT
        return processed


class RowTable:
    """The rows of a batch: appended at the end, moved, swapped, and copied to the device when they have changed."""

    def __init__(self, device: torch.device, capacity: int) -> None:
        self.device = device
        self.host = HostMirrors(capacity)
        self._tensors = self._new_tensors(capacity)
        self._changed: set[int] = set()

    @property
    def capacity(self) -> int:
        """Returns for how many rows there is room."""
        return int(self.host.buffers["int64"].shape[1])

    def field(self, dtype: str, name: str) -> Tensor:
        """Returns one field on the device, [rows]: a view, which sees later flushes until the table grows."""
        names = {"float32": FLOAT32_FIELDS, "int32": INT32_FIELDS, "int64": INT64_FIELDS}[dtype]
        return self._tensors[dtype][names.index(name), : self.host.length]

    def extend(self, float32: Sequence[Sequence[Any]], int32: Sequence[Sequence[int]], int64: NDArray[Any]) -> range:
        """Appends rows and returns their numbers.

        Args:
            float32: for each row its float32 fields.
            int32: for each row its int32 fields.
            int64: the int64 fields, [fields, rows].
        """
        start = self.host.length
        stop = start + len(float32)
        self.reserve(stop)
        buffers = self.host.buffers
        buffers["float32"][:, start:stop] = numpy.array(float32, numpy.float32).T
        buffers["int32"][:, start:stop] = numpy.array(int32, numpy.int32).T
        buffers["int64"][:, start:stop] = int64
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

    def set_int64(self, name: str, row: int, value: int) -> None:
        """Sets a row's value of an int64 field that the device does not have."""
        self.host.buffers["int64"][INT64_FIELDS.index(name), row] = value

    def flush(self) -> None:
        """Writes the rows that have changed to the device: three copies and three scatters, whatever their number."""
        if not self._changed:
            return
        rows = numpy.array(sorted(self._changed), numpy.int64)
        index = None
        for dtype in ("int64", "float32", "int32"):
            values = self.host.buffers[dtype][: ON_DEVICE[dtype], rows]
            if index is None:  # the rows' numbers travel with the other int64
                sent = to_device(numpy.concatenate((values, rows[None])), self.device)
                values_there, index = sent[:-1], sent[-1]
            else:
                values_there = to_device(values, self.device)
            self._tensors[dtype].index_copy_(1, index, values_there)
        self._changed.clear()

    def advance(self, rows: NDArray[numpy.int64] | None, rows_there: Tensor | None) -> NDArray[numpy.int64]:
        """Counts one more token of `rows` (None: all) on both sides; returns the rows whose `min_tokens` this fulfils.

        Args:
            rows: int64; a row may occur several times.
            rows_there: the same on the device.
        """
        int64, length = self.host.buffers["int64"], self.host.length
        position, left = int64[1, :length], int64[2, :length]
        was_counting = left > 0
        if rows is None or rows_there is None:
            position += 1
            left -= was_counting
            self._tensors["int64"][1, :length].add_(1)
        else:
            numpy.add.at(position, rows, 1)
            numpy.subtract.at(left, rows, 1)
            numpy.maximum(left, 0, out=left)
            self._tensors["int64"][1].index_add_(0, rows_there, torch.ones_like(rows_there))
        return numpy.flatnonzero(was_counting & (left == 0))

    def reserve(self, length: int) -> None:
        """Makes room for `length` rows, by doubling: a growing batch copies each row a constant number of times.

        Raises:
            torch.OutOfMemoryError: the device has no room; the table is as it was.
        """
        capacity = old = self.capacity
        while capacity < length:
            capacity *= 2
        if capacity == old:
            return
        tensors = self._new_tensors(capacity)
        for dtype, tensor in tensors.items():
            tensor[:, :old] = self._tensors[dtype]
        self._tensors = tensors
        for dtype, buffer in self.host.buffers.items():
            self.host.buffers[dtype] = numpy.zeros((buffer.shape[0], capacity), buffer.dtype)
            self.host.buffers[dtype][:, :old] = buffer

    @in_normal_mode
    def _new_tensors(self, capacity: int) -> dict[str, Tensor]:
        return {
            dtype: torch.zeros((count, capacity), dtype=getattr(torch, dtype), device=self.device)
            for dtype, count in ON_DEVICE.items()
        }


def float32_values(params: SamplingParams) -> tuple[float | numpy.float32, ...]:
    """Returns the float32 fields of a request, in the order of `FLOAT32_FIELDS`."""
    penalties = params.repetition_penalty, params.presence_penalty, params.frequency_penalty
    return params.temperature, to_fraction(params.top_p), to_fraction(params.min_p), *penalties


def int32_values(params: SamplingParams, vocab_size: int) -> tuple[int, int]:
    """Returns the int32 fields; a top-k of the whole vocabulary is off, so that routes need not know the vocabulary."""
    top_k, logprobs = params.top_k, params.logprobs
    return (
        SKIP_TOP_K if top_k is None or top_k >= vocab_size else top_k,
        NO_LOGPROBS if logprobs is None else logprobs,
    )


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """Copies an array to the device without waiting for it.

    The copy reads pinned memory later, so every call takes new pinned memory: torch's allocator hands it out again only
    when the copy is done.
    """
    if device.type == "cpu":
        return torch.from_numpy(numpy.array(values, order="C"))
    staged = torch.empty(values.shape, dtype=getattr(torch, values.dtype.name), pin_memory=True)
    staged.numpy()[...] = values
    return staged.to(device, non_blocking=True)
