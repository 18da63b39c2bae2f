"""Where what is kept of rows ends, found digit by digit in the order of values, by histograms of all ranks.

A digit is 8 bits of a number that grows with the value: bfloat16 has two, float16 three and float32 four. In each round
a rank tells what its logits weigh by the next digit, those whose digits before are the end's; in the last round it
counts them, so that the ranks know how many equals each of them keeps. For top-k this is exact. Sums of weights are
not those of a row that is not split, so top-p has two ends: what it keeps surely, and what it may keep at most.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ascend_sample.sampling.vocabulary_parallel.kinds import Booleans

BINS: Final = 256
UNSURE: Final = 1e-5
"""A share of a sum: what rounding of weights and of probabilities can move the end of a nucleus by, at most."""
DIGITS: Final = {torch.bfloat16: 2, torch.float16: 3, torch.float32: 4}
LEAST_KEY: Final = 0x00800000
"""That of -inf."""
NOTHING: Final = 2**32
"""More than any number of a value."""
ALL: Final = -2
"""Stands for as many equals as a rank has."""

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def value_of(keys: Integers) -> npt.NDArray[np.float32]:
    """Returns the values of numbers that grow with them.

    Example:
        >>> value_of(np.array([0x80000000, 0xBF800000, 0x40800000]))
        array([ 0.,  1., -1.], dtype=float32)
    """
    ordinals = keys - 0x80000000
    bits = np.where(ordinals < 0, 0x80000000 | -ordinals, ordinals).astype(np.uint32)
    values: npt.NDArray[np.float32] = bits.view(np.float32)
    return values


def key_of(values: npt.NDArray[np.float32]) -> Integers:
    """Returns the numbers of values, which grow with them; the inverse of `value_of`, but for -0, which is 0.

    Example:
        >>> [hex(key) for key in key_of(np.array([0.0, 1.0, -1.0, -np.inf], np.float32)).tolist()]
        ['0x80000000', '0xbf800000', '0x40800000', '0x800000']
    """
    bits = values.view(np.int32).astype(np.int64)
    return 0x80000000 + np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


class End(NamedTuple):
    """What is kept: everything above some values, and some of their equals, those with the lowest ids.

    Attributes:
        keys: int64 [rows], the values.
        equals: int64 [rows], how many of these are kept.
    """

    keys: Integers
    equals: Integers

    def replaced(self, where: Booleans, keys: Integers, equals: Integers) -> End:
        """Returns another end for some of the rows."""
        return End(np.where(where, keys, self.keys), np.where(where, equals, self.equals))


class CutSearch:
    """The search for the ends of some rows, the same on all ranks.

    Args:
        top_k: int64 [rows], or 0 for rows with top-p.
        top_p: float64 [rows].
        maxima: float32 [rows], finite: what weights are relative to.
        digits: int64 [rows], how many each has.
        keep_ties: top-k keeps all equals of the k-th.

    Attributes:
        is_counted: bool [rows], those with top-k.
        rounds: how many there are.
        prefix: int64 [rows], the digits that are known.
        least: what is kept surely; keys above all for a row of which nothing is.
        most: what is kept at most.
    """

    def __init__(
        self, top_k: Integers, top_p: Numbers, maxima: npt.NDArray[np.float32], digits: Integers, keep_ties: bool
    ):
        rows = len(top_k)
        self.is_counted, self._top_p, self._keep_ties = top_k > 0, top_p, keep_ties
        self._maxima, self._digits = maxima.astype(np.float64), digits
        self.rounds = int(digits.max(initial=0))
        self._targets = np.stack((top_k - 0.5, top_k - 0.5, top_k - 0.5))  # less, as it is, more
        self._above = np.zeros(rows)
        self.prefix = np.zeros(rows, np.int64)
        self.least = End(np.full(rows, NOTHING), np.zeros(rows, np.int64))
        self.most = End(np.full(rows, LEAST_KEY), np.zeros(rows, np.int64))
        self._equals = np.zeros((2, 0, rows), np.int64)

    def rows_of_round(self, digit: int) -> Integers:
        """Returns the rows that have this digit."""
        return np.flatnonzero(self._digits > digit)

    def counts_in(self, digit: int) -> Booleans:
        """Tells of each row whether this round counts: all weights of its last digit are equal."""
        counts: Booleans = self.is_counted | (self._digits == digit + 1)
        return counts

    def take(self, digit: int, histograms: Tensor) -> None:
        """Takes in what all ranks have told of a round's rows: float64 [ranks, rows of the round, 256]."""
        rows = self.rows_of_round(digit)
        is_last = self._digits[rows] == digit + 1
        of_ranks = histograms.numpy()[..., ::-1]  # larger values first
        totals = of_ranks.sum(0)
        shift = 24 - 8 * digit
        keys = ((self.prefix[rows, None] << 8) | np.arange(BINS)[::-1]) << shift
        weights = np.ones_like(totals)
        by_value = np.flatnonzero(is_last & ~self.is_counted[rows])
        with np.errstate(invalid="ignore", over="ignore"):
            values = value_of(keys[by_value]).astype(np.float64)
            weights[by_value] = np.exp(np.minimum(values - self._maxima[rows[by_value], None], 0.0))
        weights = np.where(np.isnan(weights) | (weights == 0), 1e-300, weights)
        masses = totals * np.where(is_last[:, None], weights, 1.0)
        after = self._above[rows, None] + masses.cumsum(1)
        before = np.concatenate((self._above[rows, None], after[:, :-1]), 1)
        if digit == 0:
            of_p = np.flatnonzero(~self.is_counted[rows])
            target = self._top_p[rows[of_p]] * after[of_p, -1]
            self._targets[:, rows[of_p]] = target * np.array([[1 - UNSURE], [1.0], [1 + UNSURE]])
        targets = self._targets[:, rows]
        self._take_coarse(rows, ~is_last, keys, shift, before, after, targets)
        if is_last.any():
            last = np.flatnonzero(is_last)
            self._take_values(
                rows[last], keys[last], totals[last], weights[last], before[last], targets[:, last], of_ranks[:, last]
            )

    def _take_coarse(
        self,
        rows: Integers,
        is_of: Booleans,
        keys: Integers,
        shift: int,
        before: Numbers,
        after: Numbers,
        targets: Numbers,
    ) -> None:
        """Bounds the ends by whole bins, and goes into the bin that has the end."""
        every = np.arange(len(rows))
        exceeds = after > targets[1][:, None]
        chosen = np.where(exceeds.any(1), exceeds.argmax(1), BINS - 1)
        surely = (after <= targets[0][:, None]).sum(1) - 1  # the last bin that is kept as a whole
        beyond = before > targets[2][:, None]
        first_beyond = beyond.argmax(1)
        none = np.zeros(len(rows), np.int64)
        least = End(self.least.keys[rows], self.least.equals[rows]).replaced(
            is_of & (surely >= 0), keys[every, surely] - 1, none
        )
        most = End(self.most.keys[rows], self.most.equals[rows]).replaced(
            is_of & beyond.any(1), keys[every, first_beyond] + (1 << shift) - 1, none
        )
        self._set(rows, least, most)
        self.prefix[rows] = keys[every, chosen] >> shift
        self._above[rows] = before[every, chosen]

    def _take_values(
        self,
        rows: Integers,
        keys: Integers,
        counts: Numbers,
        weights: Numbers,
        before: Numbers,
        targets: Numbers,
        of_ranks: Numbers,
    ) -> None:
        """Finds the values at the ends, and how many of their equals are kept: of each rank, too."""
        every = np.arange(len(rows))
        ends = []
        shares = []
        for bound, target in ((self.least, targets[0]), (self.most, targets[2])):
            with np.errstate(over="ignore"):
                kept = np.clip(np.floor((target[:, None] - before) / weights) + 1, 0, counts)
            if self._keep_ties:
                kept = np.where(self.is_counted[rows, None] & (kept > 0), counts, kept)
            has_some = kept > 0
            last = BINS - 1 - has_some[:, ::-1].argmax(1)
            is_found = has_some.any(1)
            if bound is self.most:  # else what is kept at most ends beyond
                is_found &= (kept < counts).any(1)
            number = kept[every, last].astype(np.int64)
            end = End(bound.keys[rows], bound.equals[rows]).replaced(is_found, keys[every, last], number)
            ends.append(end)
            of_rank = of_ranks[:, every, last].astype(np.int64)
            so_far = of_rank.cumsum(0) - of_rank
            share = np.clip(number - so_far, 0, of_rank)
            share = np.where((share == of_rank) & (of_rank > 0), ALL, share)
            shares.append(np.where(is_found, share, 0))
        self._set(rows, *ends)
        if self._equals.shape[1] == 0:
            self._equals = np.zeros((2, len(of_ranks), len(self.prefix)), np.int64)
        self._equals[:, :, rows] = np.stack(shares)

    def _set(self, rows: Integers, least: End, most: End) -> None:
        for end, other in ((self.least, least), (self.most, most)):
            end.keys[rows], end.equals[rows] = other

    def local_cuts(self, rank: int, rows: Integers, tensor: Tensor, places: Tensor | None) -> tuple[Tensor, ...]:
        """Returns the ends as a rank has them: values and the last ids that are kept, of the least and of the most.

        Args:
            rank: whose part.
            rows: those of the search that the tensor has.
            tensor: [rows, ids] of the part.
            places: where in the tensor they are; None: in order.
        """
        found: list[Tensor] = []
        width = tensor.shape[1]
        for index, end in enumerate((self.least, self.most)):
            shares = self._equals[index, rank, rows]
            keys = end.keys[rows]
            last_ids = np.where(shares == ALL, width - 1, -1)
            values = torch.from_numpy(value_of(keys).copy())
            for place in np.flatnonzero(shares > 0).tolist():
                row = tensor[place if places is None else int(places[place])]
                is_equal = (row == values[place].to(row.dtype)).nonzero().view(-1)
                last_ids[place] = int(is_equal[int(shares[place]) - 1])
            is_uncut = torch.from_numpy(keys <= LEAST_KEY)
            found += [
                values.masked_fill(is_uncut, -torch.inf),
                torch.from_numpy(last_ids).masked_fill(is_uncut, width - 1),
            ]
        return tuple(found)
