"""Whole rows of the vocabulary for those requests that need them: masks with biases, and counts of tokens.

Such a row is large, so it is a slot of its own, which a row of the batch holds as long as it needs it; a row that moves
takes along the slot's number alone. Device memory is taken when slots are written, grows by doubling, and is given back
when the last slot is released.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascend_sample.sampling.params import SamplingParams
from ascend_sample.sampling.processing import MASKED
from ascend_sample.sampling.row_table import to_device

Ids = NDArray[numpy.int64]


class Slots:
    """Numbers of slots, the lowest free one first."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size, self.device = vocab_size, device
        self.capacity = 0
        self._free: list[int] = []
        self._changed: dict[int, Any] = {}

    def allocate(self) -> int:
        """Hands out a slot that nobody has; its contents are undefined until it is written."""
        if not self._free:
            grown = max(1, 2 * self.capacity)
            self._free = list(range(self.capacity, grown))
            self.capacity = grown
        return heapq.heappop(self._free)

    def release(self, slot: int) -> None:
        """Takes a slot back, and forgets what was to be written to it; memory is given back with the last one."""
        self._changed.pop(slot, None)
        heapq.heappush(self._free, slot)
        if len(self._free) == self.capacity:
            self.capacity = 0
            self._free = []
            for name in self._tensors():
                setattr(self, name, None)

    @property
    def bytes(self) -> int:
        """Returns how many bytes of device memory the slots take."""
        return sum(tensor.nbytes for tensor in self._tensors().values())

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def grown(self, tensor: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Returns the tensor as [capacity, vocab_size]: it keeps the slots that it has, and new ones hold zeros."""
        if tensor is not None and tensor.shape[0] == self.capacity:
            return tensor
        larger = torch.zeros((self.capacity, self.vocab_size), dtype=dtype, device=self.device)
        if tensor is not None:
            larger[: tensor.shape[0]] = tensor
        return larger

    def flat(self, slot: int, ids: Ids) -> Ids:
        """Returns where ids of a slot lie in the flattened tensor."""
        return ids + slot * self.vocab_size


class AddendSlots(Slots):
    """What is added to the logits of a row: its bias, and -inf where an id is forbidden."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        super().__init__(vocab_size, device)
        self.addend: Tensor | None = None

    def write(self, slot: int, params: SamplingParams, stop_ids_forbidden: bool) -> None:
        """Notes what the slot is to hold from the next flush on."""
        self._changed[slot] = (params, stop_ids_forbidden)

    def flush(self) -> None:
        """Writes the slots that were noted: two copies, whatever their number, and a fill for each."""
        if not self._changed:
            return
        self.addend = self.grown(self.addend, torch.float32)
        positions, values = [], []
        for slot, (params, stop_ids_forbidden) in self._changed.items():
            base, ids, addends = addend_of(params, stop_ids_forbidden)
            self.addend[slot].fill_(base)  # torch_npu's index_fill_ would read the slots back from the device
            positions.append(self.flat(slot, ids))
            values.append(addends)
        there = to_device(numpy.concatenate(positions), self.device)
        if there.shape[0]:
            self.addend.view(-1).index_copy_(0, there, to_device(numpy.concatenate(values), self.device))
        self._changed.clear()


def has_addend(params: SamplingParams) -> bool:
    """Tells whether the request masks or biases, apart from `min_tokens`."""
    return params.allowed_ids is not None or bool(params.bad_ids) or any(params.logit_bias.values())


def addend_of(params: SamplingParams, stop_ids_forbidden: bool) -> tuple[float, Ids, NDArray[numpy.float32]]:
    """Returns the addend of a request, as one value for all ids and other ones for some.

    Returns:
        The value of the ids that are not named; ids, each once; their values.
    """
    forbidden = numpy.array(params.bad_ids, numpy.int64)
    if stop_ids_forbidden:
        forbidden = numpy.union1d(forbidden, numpy.array(params.stop_ids, numpy.int64))
    biased = numpy.array(list(params.logit_bias), numpy.int64)
    bias = numpy.array(list(params.logit_bias.values()), numpy.float32)
    possible = ~numpy.isin(biased, forbidden)
    biased, bias = biased[possible], bias[possible]
    if params.allowed_ids is None:
        masked = numpy.full(len(forbidden), MASKED, numpy.float32)
        return 0.0, numpy.concatenate((biased, forbidden)), numpy.concatenate((bias, masked))
    allowed = numpy.setdiff1d(numpy.array(params.allowed_ids, numpy.int64), forbidden, assume_unique=True)
    values = numpy.zeros(len(allowed), numpy.float32)
    values[numpy.searchsorted(allowed, biased)] = bias  # biased ids are allowed ones, which are sorted
    return MASKED, allowed, values


@dataclass(frozen=True)
class Occurrences:
    """The tokens that a row has seen before the batch counts for it.

    Attributes:
        prompt_ids: int64, or None for a row without a repetition penalty, for which the prompt does not matter.
        output_ids: int64, in any order.
    """

    prompt_ids: Ids | None
    output_ids: Ids


class PenaltySlots(Slots):
    """How often each id occurs in the output of a row, and whether it occurs in the prompt."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        super().__init__(vocab_size, device)
        self.output_counts: Tensor | None = None
        self.in_prompt: Tensor | None = None
        self._with_prompt: set[int] = set()

    def write(self, slot: int, occurrences: Occurrences) -> None:
        """Notes what the slot is to hold from the next flush on."""
        self._changed[slot] = occurrences
        if occurrences.prompt_ids is not None:
            self._with_prompt.add(slot)

    def release(self, slot: int) -> None:
        """Takes a slot back, as `Slots` does, and lets go of the prompts when none matters any more."""
        self._with_prompt.discard(slot)
        if not self._with_prompt:
            self.in_prompt = None
        super().release(slot)

    def flush(self) -> None:
        """Writes the slots that were noted: two copies, whatever their number, and a fill for each."""
        if not self._changed:
            return
        self.output_counts = self.grown(self.output_counts, torch.int32)
        if self._with_prompt:
            self.in_prompt = self.grown(self.in_prompt, torch.bool)
        prompts, outputs, counts = [], [], []
        for slot, occurrences in self._changed.items():
            self.output_counts[slot].zero_()
            if self.in_prompt is not None:
                self.in_prompt[slot].zero_()
            ids, count = numpy.unique(occurrences.output_ids, return_counts=True)
            outputs.append(self.flat(slot, ids))
            counts.append(count.astype(numpy.int32))
            if occurrences.prompt_ids is not None:
                prompts.append(self.flat(slot, numpy.unique(occurrences.prompt_ids)))
        parts = [numpy.concatenate(outputs), numpy.concatenate(prompts or [outputs[0][:0]])]
        sent = to_device(numpy.concatenate(parts), self.device)
        outputs_there, prompts_there = sent.split([len(part) for part in parts])
        if outputs_there.shape[0]:
            values = to_device(numpy.concatenate(counts), self.device)
            self.output_counts.view(-1).index_copy_(0, outputs_there, values)
        if self.in_prompt is not None and prompts_there.shape[0]:
            self.in_prompt.view(-1).index_copy_(0, prompts_there, torch.ones_like(prompts_there, dtype=torch.bool))
        self._changed.clear()

    def count(self, token_ids: Tensor, slots: Tensor) -> None:
        """Counts one token in each of `slots`, in which a slot may occur several times.

        Args:
            token_ids: int64 [tokens]; what is no id of the vocabulary, such as a placeholder of -1, counts for nothing.
            slots: int64 [tokens].
        """
        assert self.output_counts is not None, "slots are written before they count"
        places = token_ids.clamp(0, self.vocab_size - 1)
        is_valid = places == token_ids
        positions = torch.add(places, slots, alpha=self.vocab_size)
        self.output_counts.view(-1).index_add_(0, positions, is_valid.to(torch.int32))
