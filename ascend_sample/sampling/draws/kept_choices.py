"""What is left to rows once all filters have acted, with probabilities, for rules that look at them before a draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ascend_sample.sampling.draws.segmented import SEGMENT, draw_from_segments, whole_segments

WIDTH: Final = 0.3
"""Of probabilities that are near to one another."""
SHARPNESS: Final = 10.0
FALL: Final = math.exp(-SHARPNESS / WIDTH)
LEAST_LOGPROB: Final = -64 * math.log(2)
"""No draw reaches deeper."""
INFINITESIMAL: Final = 2.0**-126
"""A factor that makes nothing of any logit but an infinite one."""


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
    return torch.pow(FALL, widened.addcdiv_(ones, widened, value=WIDTH**2), out=out)


class Listed:
    """What the CPU kernel keeps of some rows.

    Args:
        sets: what is kept of all rows of a batch, as `KeptSets` has it.
        rows: int64 [rows], which of them; those that keep nothing have a status that is not OK.
    """

    def __init__(self, sets: Sequence[Tensor], rows: npt.NDArray[np.int64]) -> None:
        offsets, self._ids, self._logprobs, counts = (tensor.numpy() for tensor in sets)
        self._starts, self._counts = offsets[rows], counts[rows]

    def logprobs_of(self, token_ids: Tensor) -> Tensor:
        """Returns the logarithm of the probability of a kept token of each row, float32 [rows]; any if none is kept."""
        found = np.zeros(len(token_ids), np.float32)
        for row, token_id in enumerate(token_ids.tolist()):
            if self._counts[row]:
                ids = self._ids[self._starts[row] : self._starts[row] + self._counts[row]]
                found[row] = self._logprobs[self._starts[row] + ids.searchsorted(token_id)]
        return torch.from_numpy(found)

    def probabilities_of(self, token_ids: Tensor, out: Tensor) -> None:
        """Writes the probabilities themselves to a float32 [rows]."""
        torch.exp(self.logprobs_of(token_ids), out=out)

    def draw_near(self, wanted: Tensor, ones: Tensor, noise: Tensor) -> Tensor:
        """Does what `Dense.draw_near` does: only what is kept is weighed, and races."""
        count = len(self._counts)
        rows = np.repeat(np.arange(count), self._counts)
        first = np.repeat(self._starts - np.cumsum(self._counts) + self._counts, self._counts)
        places = first + np.arange(len(rows))
        ids, numbers = self._ids[places], noise.numpy()
        distances = torch.from_numpy(self._logprobs[places]).exp_().sub_(wanted.view(-1)[torch.from_numpy(rows)])
        weights = nearness(distances, ones.view(-1)[:1]).numpy()
        segments, lanes = np.divmod(ids, SEGMENT)
        sums = np.bincount(rows * (numbers.shape[1] - SEGMENT) + segments, weights, numbers[:, SEGMENT:].size)
        winner = (sums.reshape(count, -1) / numbers[:, SEGMENT:]).argmax(1)
        inside = np.flatnonzero(segments == winner[rows])
        scores = np.zeros((count, SEGMENT))
        scores[rows[inside], lanes[inside]] = weights[inside] / numbers[rows[inside], lanes[inside]]
        return torch.from_numpy(scores.argmax(1) + winner * SEGMENT)


class Dense:
    """What a device's operators keep of some rows.

    Args:
        values: float32 [rows, vocab_size], scaled logits, but for a shift of a row, with -inf for what is dropped.
        is_other: they are not those that the tokens were drawn from: rounding may have dropped the token itself.
    """

    def __init__(self, values: Tensor, is_other: bool = False) -> None:
        self._values, self._is_other = values, is_other
        self._found: Tensor | None = None

    @property
    def probabilities(self) -> Tensor:
        """Returns all of them, float32 [rows, vocab_size]."""
        if self._found is None:
            self._found = self._values.softmax(1)
        return self._found

    def logprobs_of(self, token_ids: Tensor) -> Tensor:
        """Returns the logarithm of the probability of a token of each row, float32 [rows]; any if nothing is left."""
        found = self._values.log_softmax(1).gather(1, token_ids.unsqueeze(1)).squeeze(1)
        return found.clamp_(min=LEAST_LOGPROB) if self._is_other else found

    def probabilities_of(self, token_ids: Tensor, out: Tensor) -> None:
        """Writes the probabilities themselves to a float32 [rows]."""
        torch.gather(self.probabilities, 1, token_ids.unsqueeze(1), out=out.unsqueeze(1))

    def draw_near(self, wanted: Tensor, ones: Tensor, noise: Tensor) -> Tensor:
        """Draws tokens, int64 [rows], by the `nearness` of their probabilities, with the races of a draw by segments.

        Args:
            wanted: float32 [rows, 1], a probability each.
            ones: float32 [rows, 1].
            noise: float32 [rows, `lanes_of` the vocabulary]: the places', then the segments'.
        """
        rows, vocab_size = self.probabilities.shape
        segments = whole_segments(rows, vocab_size, self._values.device)
        weights = segments[:, :vocab_size]
        # What is dropped is infinitely far.
        torch.add(self.probabilities, self._values, alpha=INFINITESIMAL, out=weights)
        nearness(weights.sub_(wanted), ones, out=weights)
        return draw_from_segments(segments, vocab_size, noise)
