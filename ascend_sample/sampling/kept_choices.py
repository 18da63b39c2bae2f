"""What is left to rows once all filters have acted, with probabilities, for rules that look at them before a draw."""

from __future__ import annotations

import math
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ascend_sample.sampling.kept import KeptSets
from ascend_sample.sampling.segmented import SEGMENT, draw_from_segments, segments_of, whole_columns, whole_segments

BITS_OF_PLACE: Final = SEGMENT.bit_length() - 1
WIDTH: Final = 0.3
"""Of probabilities that are near to one another."""
SHARPNESS: Final = 10.0
FALL: Final = math.exp(-SHARPNESS / WIDTH)
LEAST_LOGPROB: Final = -64 * math.log(2)
"""No draw reaches deeper."""
INFINITESIMAL: Final = 2.0**-126
"""A factor that makes nothing of any logit but an infinite one."""


class Choices(Protocol):
    """What is left to some rows."""

    def logprobs_of(self, token_ids: Tensor) -> Tensor:
        """Returns the logarithm of the probability of a token of each row, float32 [rows]; any if nothing is left."""

    def probabilities_of(self, token_ids: Tensor, out: Tensor) -> None:
        """Writes the probabilities themselves to a float32 [rows]."""

    def drawn_near(self, wanted: Tensor, ones: Tensor, noise: Tensor) -> Tensor:
        """Draws ids by `nearness`, int64 [rows]; any id where nothing is left.

        Args:
            wanted: float32 [rows, 1], a probability each.
            ones: float32 [rows, 1].
            noise: float32 [rows, `lanes_of` the vocabulary]: the places', then the segments'.
        """


def nearness(distances: Tensor, ones: Tensor, out: Tensor | None = None) -> Tensor:
    """Returns weights that fall with the distance from a probability, quadratically at first, then linearly.

    They are exp(-10 d^2 / (1 + d)) with d = distance / 0.3, all of them times exp(-20).

    Args:
        distances: float32, of any sign; they are overwritten. What is infinitely far weighs 0.
        ones: float32, as they can be divided by distances.
        out: where the result is written; it may be the distances.

    Example:
        >>> nearness(torch.tensor([0.0, -0.1, -0.3]), torch.ones(1)) * math.exp(20)
        tensor([1.0000, 0.4346, 0.0067])

    Source: llama.cpp's adaptive-p.
    """
    # d^2 / (1 + d) is (1 + d) + 1 / (1 + d) - 2: no infinity is divided by another one, and it takes a launch less.
    widened = distances.abs_().add_(WIDTH)
    return torch.pow(FALL, torch.addcdiv(widened, ones, widened, value=WIDTH**2), out=out)


class Listed(NamedTuple):
    """What the CPU kernel has kept of some rows: ids and probabilities, one row behind the other; as `Choices`.

    Attributes:
        keys: int64 [kept], ascending: an id and where its row begins, all rows being whole segments.
        logprobs: float32 [kept].
        begins: int64 [rows], where each row begins.
        counts: int32 [rows], how much each has kept.
        vocab_size: how many ids.
    """

    keys: Tensor
    logprobs: Tensor
    begins: Tensor
    counts: Tensor
    vocab_size: int

    @classmethod
    def of(cls, kept: KeptSets, rows: npt.NDArray[np.int64], vocab_size: int) -> Listed:
        """Returns those of some rows of a batch, ascending."""
        there = torch.from_numpy(rows)
        if len(rows) < len(kept.counts):
            kept = kept.of_rows(torch.zeros(len(kept.counts), dtype=torch.bool).index_fill_(0, there, 1))
        begins, counts = torch.arange(len(rows)) * whole_columns(vocab_size), kept.counts[there]
        return cls(begins.repeat_interleave(counts).add_(kept.ids), kept.logprobs, begins, counts, vocab_size)

    def logprobs_of(self, token_ids: Tensor) -> Tensor:
        wanted = self.begins + token_ids
        places = torch.searchsorted(self.keys, wanted)
        is_there = torch.searchsorted(self.keys, wanted, right=True) > places
        return torch.zeros(len(wanted)).masked_scatter_(is_there, self.logprobs[places[is_there]])

    def probabilities_of(self, token_ids: Tensor, out: Tensor) -> None:
        torch.exp(self.logprobs_of(token_ids), out=out)

    def drawn_near(self, wanted: Tensor, ones: Tensor, noise: Tensor) -> Tensor:
        """Runs the two races of `draw_from_segments` of what is listed alone."""
        weights = nearness(self.logprobs.exp().sub_(wanted.squeeze(1).repeat_interleave(self.counts)), ones[0])
        rows, count = len(self.begins), segments_of(self.vocab_size)
        # One entry after the other, so that a row's sums do not depend on the others.
        sums = torch.zeros(rows * count).index_add_(0, self.keys >> BITS_OF_PLACE, weights).view(rows, count)
        winner = (sums / noise[:, SEGMENT:]).argmax(1)
        first = (self.begins + winner * SEGMENT).unsqueeze(1)
        starts, ends = torch.searchsorted(self.keys, torch.stack((first, first + SEGMENT)))
        places = starts + torch.arange(SEGMENT)
        is_inside = places < ends
        inside, places = torch.zeros(rows, SEGMENT), places[is_inside]
        inside[is_inside.nonzero()[:, 0], (self.keys[places] - first.expand(-1, SEGMENT)[is_inside])] = weights[places]
        return winner * SEGMENT + (inside / noise[:, :SEGMENT]).argmax(1)


class Dense:
    """What a device's operators keep of some rows; as `Choices`.

    Args:
        values: float32 [rows, vocab_size], scaled logits, but for a shift of a row, with -inf for what is dropped.
        is_other: they are not those that the tokens were drawn from: rounding may have dropped the token itself.
    """

    def __init__(self, values: Tensor, is_other: bool = False) -> None:
        self._values, self._is_other = values, is_other
        self._found: Tensor | None = None

    def _probabilities(self) -> Tensor:
        if self._found is None:
            self._found = self._values.softmax(1)
        return self._found

    def logprobs_of(self, token_ids: Tensor) -> Tensor:
        found = self._values.log_softmax(1).gather(1, token_ids.unsqueeze(1)).squeeze(1)
        return found.clamp_(min=LEAST_LOGPROB) if self._is_other else found

    def probabilities_of(self, token_ids: Tensor, out: Tensor) -> None:
        torch.gather(self._probabilities(), 1, token_ids.unsqueeze(1), out=out.unsqueeze(1))

    def drawn_near(self, wanted: Tensor, ones: Tensor, noise: Tensor) -> Tensor:
        rows, vocab_size = self._values.shape
        segments = whole_segments(rows, vocab_size, self._values.device)
        weights = segments[:, :vocab_size]
        # What is dropped is infinitely far.
        torch.add(self._probabilities(), self._values, alpha=INFINITESIMAL, out=weights)
        nearness(weights.sub_(wanted), ones, out=weights)
        return draw_from_segments(segments, vocab_size, noise)
