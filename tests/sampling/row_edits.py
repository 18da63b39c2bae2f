"""Edits of rows for sample_rows, and the same by whole rows, as ascend_sample.sampling.edits.processing has it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ascend_sample.sampling.edits.processing import MASKED, add_bias, apply_penalties

SPARE_SLOTS = 2  # of no row: what they hold is never looked at
FAMILIES = {
    "addends": ("addend_slot", "addend_ids", "addends", "addend_lengths"),
    "penalties": ("penalty_slot", "penalty_ids", "penalty_lengths", "occurrences", "penalties"),
    "masks": ("mask_slot", "masks"),
    "bitmask": ("bitmask_rows", "bitmask"),
}


@dataclass
class RowEdits:
    """What is done to one row; None: nothing of that kind."""

    addends: dict[int, float] | None = None
    listed: list[int] | None = None
    occurrences: dict[int, int] | None = None  # 2 * (how often in the output) + (1 if in the prompt), by id
    penalties: tuple[float, float, float] = (1.0, 0.0, 0.0)
    mask: Tensor | None = None  # bool [vocab_size], True: allowed
    bitmask: Tensor | None = None

    @property
    def is_widened(self) -> bool:
        return self.addends is not None or self.listed is not None


def random_edits(count: int, vocab_size: int, seed: int = 0) -> list[RowEdits]:
    """Each kind in half of the rows; lists that are empty, short, or have ids several times; masks of all densities."""
    generator, rng = torch.Generator().manual_seed(seed), random.Random(seed)

    def mask() -> Tensor:
        kind = rng.randrange(5)
        words = torch.rand(vocab_size // 32 + 1, generator=generator).repeat_interleave(32)[:vocab_size]
        each = torch.rand(vocab_size, generator=generator)
        return (each > 0.5, each > 0.99, each < 0.99, words > 0.95, (words > 0.1) & (each > 0.1))[kind]

    rows = []
    for _ in range(count):
        row = RowEdits()
        if rng.randrange(2):
            ids = {rng.randrange(vocab_size) for _ in range(rng.randrange(20))}
            row.addends = {i: rng.choice((MASKED, 0.0, -0.0, 5.0, -100.0, 0.37, -1.21)) for i in ids}
        if rng.randrange(2):
            row.listed = [rng.randrange(vocab_size) for _ in range(rng.randrange(120))]
            row.listed += row.listed[: rng.randrange(20)]
            row.occurrences = {i: rng.randrange(9) for i in row.listed}
            row.penalties = (
                rng.choice((1.0, 1.05, 1.3, 0.8)),
                rng.choice((0.0, 0.7, -0.3)),
                rng.choice((0.0, 0.1, -0.2)),
            )
        row.mask = mask() if rng.randrange(2) else None
        row.bitmask = mask() if rng.randrange(2) else None
        rows.append(row)
    return rows


def whole_rows(logits: Tensor, edits: list[RowEdits]) -> Tensor:
    """The float32 logits after their edits, by functions of whole rows."""
    count, vocab_size = logits.shape
    addend = torch.zeros(count, vocab_size)
    in_prompt = torch.zeros(count, vocab_size, dtype=torch.bool)
    output_counts = torch.zeros(count, vocab_size, dtype=torch.int32)
    allowed = torch.ones(count, vocab_size, dtype=torch.bool)
    for i, row in enumerate(edits):
        if row.addends is not None:
            addend[i, as_ids(row.addends)] = torch.tensor(list(row.addends.values()))
        if row.occurrences is not None:
            occurrences = torch.tensor(list(row.occurrences.values()), dtype=torch.int32)
            output_counts[i, as_ids(row.occurrences)] = occurrences // 2
            in_prompt[i, as_ids(row.occurrences)] = occurrences % 2 == 1
        for mask in (row.mask, row.bitmask):
            if mask is not None:
                allowed[i] &= mask
    repetition, presence, frequency = torch.tensor([row.penalties for row in edits]).unbind(1)
    values = add_bias(logits.float(), addend)
    values = apply_penalties(values, in_prompt, output_counts, repetition, presence, frequency)
    return values.masked_fill(~allowed, MASKED)


def packed(masks: list[Tensor], vocab_size: int, beyond: int = 0) -> Tensor:
    """int32 [masks, ceil(vocab_size / 32)]; bits beyond the vocabulary are `beyond`."""
    bits = torch.full((len(masks), -(-vocab_size // 32) * 32), beyond, dtype=torch.uint8)
    for i, mask in enumerate(masks):
        bits[i, :vocab_size] = mask
    return torch.from_numpy(np.packbits(bits.numpy(), axis=1, bitorder="little").view(np.int32))


def as_ids(ids: Iterable[int]) -> Tensor:
    return torch.tensor(list(ids), dtype=torch.int64)


def arguments_of(edits: list[RowEdits], vocab_size: int, seed: int = 0) -> dict[str, Tensor]:
    """The operator's arguments: slots in any order, lists padded with what must not be read, words with bits beyond."""
    generator = torch.Generator().manual_seed(seed)
    count = len(edits)

    def slots(has_any: list[bool]) -> tuple[Tensor, int]:
        """The slot of each row, and the number of slots."""
        number = sum(has_any) + SPARE_SLOTS
        order = torch.randperm(number, generator=generator)
        slot = torch.full((count,), -1)
        slot[torch.tensor(has_any)] = order[: sum(has_any)]
        return slot, number

    arguments = {}
    slot, number = slots([row.addends is not None for row in edits])
    capacity = max(len(row.addends or ()) for row in edits) + 2
    arguments["addend_slot"] = slot
    arguments["addend_ids"] = torch.full((number, capacity), vocab_size + 7)
    arguments["addends"] = torch.full((number, capacity), torch.nan)
    arguments["addend_lengths"] = torch.full((number,), -3)
    for i, row in enumerate(edits):
        if row.addends is not None:
            length = len(row.addends)
            arguments["addend_ids"][slot[i], :length] = as_ids(row.addends)
            arguments["addends"][slot[i], :length] = torch.tensor(list(row.addends.values()))
            arguments["addend_lengths"][slot[i]] = length
    slot, number = slots([row.listed is not None for row in edits])
    capacity = max(len(row.listed or ()) for row in edits) + 2
    arguments["penalty_slot"] = slot
    arguments["penalty_ids"] = torch.full((number, capacity), -5)
    arguments["penalty_lengths"] = torch.full((number,), capacity + 1)
    arguments["occurrences"] = torch.full((number, vocab_size), 77, dtype=torch.int32)  # read at listed ids alone
    arguments["penalties"] = torch.tensor([row.penalties for row in edits]).t().contiguous()
    for i, row in enumerate(edits):
        if row.listed is not None and row.occurrences is not None:
            arguments["penalty_ids"][slot[i], : len(row.listed)] = as_ids(row.listed)
            arguments["penalty_lengths"][slot[i]] = len(row.listed)
            counts = torch.tensor([row.occurrences[token_id] for token_id in row.listed], dtype=torch.int32)
            arguments["occurrences"][slot[i], as_ids(row.listed)] = counts
    for slot_name, name in (("mask_slot", "masks"), ("bitmask_rows", "bitmask")):
        masks = [row.mask if name == "masks" else row.bitmask for row in edits]
        slot, number = slots([mask is not None for mask in masks])
        arguments[slot_name] = slot
        arguments[name] = torch.full((number, (vocab_size + 31) // 32), 0x5A5A5A5A, dtype=torch.int32)
        for i, mask in enumerate(masks):
            if mask is not None:
                arguments[name][slot[i]] = packed([mask], vocab_size, beyond=1)[0]
    return arguments
