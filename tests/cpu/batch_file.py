"""The file in which batches reach the driver (driver.cpp), and what it writes back; all little endian.

A batch file is the 8 bytes of MAGIC, an int64 count, and for each batch the int64 numbers of FIELDS, then the memory of
logits, k (int32), p (the type of the logits) and q (float32), from its first to its last element, with what lies
between the strides. Results are, for each batch in turn, int64 ids and, where kept logits were asked for, float32
`[batch_size, vocab_size]`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from ascend_sample.parity import Result

import torch  # isort: skip  ascend_sample imports it first, in a way that needs no CANN

MAGIC = b"SBATCHS1"
FIELDS = (
    *("type", "batch_size", "vocab_size", "logits_elements", "logits_offset", "logits_row_stride"),
    *("logits_column_stride", "k_elements", "k_stride", "p_elements", "p_stride", "q_elements", "q_offset"),
    *("q_row_stride", "q_column_stride", "eps_bits", "is_need_logits"),
)
TYPES = (torch.float32, torch.float16, torch.bfloat16)  # LogitsType of csrc/cpu/calls.h
_ALIGNMENTS = 32  # elements: how far from a vector's boundary a row starts is kept


class Call(NamedTuple):
    """The arguments of one call, in any layout."""

    logits: torch.Tensor
    k: torch.Tensor
    p: torch.Tensor
    q: torch.Tensor | None
    eps: float
    is_need_logits: bool


def _memory(tensor: torch.Tensor, offset: int = 0) -> torch.Tensor:
    """From `offset` elements before the first element of a view to its last: what lies in memory, strides included."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((offset + reach,), (1,), tensor.storage_offset() - offset)


def _bytes(memory: torch.Tensor) -> bytes:
    return memory.contiguous().view(torch.uint8).numpy().tobytes()


def write_batches(path: Path, calls: Iterable[Call]) -> None:
    """Writes a batch file."""
    with path.open("wb") as file:
        file.write(MAGIC + struct.pack("<q", 0))
        count = 0
        for call in calls:
            _write_batch(file, call)
            count += 1
        file.seek(len(MAGIC))
        file.write(struct.pack("<q", count))


def _write_batch(file: BinaryIO, call: Call) -> None:
    logits, k, p, q, eps, is_need_logits = call
    logits_offset = logits.storage_offset() % _ALIGNMENTS
    q_offset = 0 if q is None else q.storage_offset() % _ALIGNMENTS
    memories = [_memory(logits, logits_offset), _memory(k), _memory(p)]
    if q is not None:
        memories.append(_memory(q, q_offset))
    numbers = {
        "type": TYPES.index(logits.dtype),
        "batch_size": logits.shape[0],
        "vocab_size": logits.shape[1],
        "logits_elements": memories[0].numel(),
        "logits_offset": logits_offset,
        "logits_row_stride": logits.stride(0),
        "logits_column_stride": logits.stride(1),
        "k_elements": memories[1].numel(),
        "k_stride": k.stride(0),
        "p_elements": memories[2].numel(),
        "p_stride": p.stride(0),
        "q_elements": 0 if q is None else memories[3].numel(),
        "q_offset": q_offset,
        "q_row_stride": 0 if q is None else q.stride(0),
        "q_column_stride": 0 if q is None else q.stride(1),
        "eps_bits": int(np.float32(eps).view(np.uint32)),
        "is_need_logits": int(is_need_logits),
    }
    file.write(struct.pack(f"<{len(FIELDS)}q", *(numbers[field] for field in FIELDS)))
    for memory in memories:
        file.write(_bytes(memory))


def read_batches(path: Path) -> Iterator[Call]:
    """Reads a batch file back, every tensor in its layout."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{path} is no batch file")
        (count,) = struct.unpack("<q", file.read(8))
        for _ in range(count):
            values = struct.unpack(f"<{len(FIELDS)}q", file.read(8 * len(FIELDS)))
            numbers = dict(zip(FIELDS, values, strict=True))
            dtype = TYPES[numbers["type"]]
            shape = (numbers["batch_size"], numbers["vocab_size"])

            def tensor(
                name: str, dtype: torch.dtype, shape: tuple[int, ...], numbers: dict[str, int] = numbers
            ) -> torch.Tensor:
                memory = torch.frombuffer(
                    bytearray(file.read(numbers[f"{name}_elements"] * dtype.itemsize)), dtype=dtype
                )
                names = ("stride",) if len(shape) == 1 else ("row_stride", "column_stride")
                strides = [numbers[f"{name}_{stride}"] for stride in names]
                return memory.as_strided(shape, strides, numbers.get(f"{name}_offset", 0))

            logits = tensor("logits", dtype, shape)
            k = tensor("k", torch.int32, shape[:1])
            p = tensor("p", dtype, shape[:1])
            q = tensor("q", torch.float32, shape) if numbers["q_elements"] else None
            eps = float(np.uint32(numbers["eps_bits"]).view(np.float32))
            yield Call(logits, k, p, q, eps, bool(numbers["is_need_logits"]))


def write_results(path: Path, results: Iterable[Result]) -> None:
    """Writes what the driver would."""
    with path.open("wb") as file:
        for result in results:
            file.write(_bytes(result.ids))
            if result.kept is not None:
                file.write(_bytes(result.kept))


def read_results(path: Path, calls: Iterable[Call]) -> list[Result]:
    """Reads results, in the shapes of the calls that they are of."""
    data = path.read_bytes()
    results, place = [], 0
    for call in calls:
        batch_size, vocab_size = call.logits.shape
        ids = np.frombuffer(data, np.int64, batch_size, place)
        place += ids.nbytes
        kept = None
        if call.is_need_logits:
            values = np.frombuffer(data, np.float32, batch_size * vocab_size, place)
            place += values.nbytes
            kept = torch.from_numpy(values.reshape(batch_size, vocab_size).copy())
        results.append(Result(torch.from_numpy(ids.copy()), kept))
    if place != len(data):
        raise ValueError(f"{path} holds {len(data)} bytes, the calls' results are {place}")
    return results
