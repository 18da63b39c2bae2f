"""Whether llama.cpp and this package keep the same ids of a row, and where they do not, why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from ascend_sample.sampling import SamplingParams
from ascend_sample.sampling.reference.distribution import keep_range, kept_ids
from tests.sampling.oracle import near_entropy

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

EQUAL, TIE, ROUNDING = "equal", "ties", "rounding"
NEAR: Final = 1e-5
"""How far, relatively, a bound may be moved by rounding in rows of up to a hundred ids."""
PROBABILITIES: Final = ("typical_p", "epsilon_cutoff", "xtc_threshold", "top_p", "min_p")
NUMBERS: Final = (*PROBABILITIES, "top_n_sigma")


@dataclass
class Tally:
    """How many rows were equal and not, and the largest relative difference of a probability.

    Attributes:
        rows: by what they are.
        largest: of the probabilities of rows whose sets are equal.
    """

    rows: Counter[str] = field(default_factory=Counter)
    largest: float = 0.0

    def add(self, reason: str, difference: float = 0.0) -> None:
        """Counts a row."""
        self.rows[reason] += 1
        self.largest = max(self.largest, difference)

    def __str__(self) -> str:
        """The counts in a line."""
        counts = ", ".join(f"{self.rows[reason]} {reason}" for reason in (EQUAL, TIE, ROUNDING))
        within = f"; probabilities within {self.largest:.1e}" if self.largest else ""
        return f"{self.rows.total()} rows: {counts}{within}"


def kept_by_reference(processed: Floats, params: SamplingParams) -> Ids:
    """What all filters keep of an edited row, ascending, where the coin of XTC falls whenever there is one."""
    within = keep_range(processed, params, params.xtc_probability > 0)
    ids = np.sort(np.array(kept_ids(within, params), np.int64))
    return ids[within[ids] > -np.inf]


def nearness(vocab_size: int) -> float:
    """How far, relatively, a bound may be moved by sums that llama.cpp makes in float32, one id after the other."""
    return max(NEAR, vocab_size * float(np.finfo(np.float32).epsneg))


def reason_of(processed: Floats, params: SamplingParams, ours: Ids, theirs: Ids, near: float | None = None) -> str:
    """Returns why two sets differ; raises where it is neither of the reasons.

    Args:
        processed: the row that both were made of, float64 [vocab_size].
        params: the request.
        ours: ids, ascending.
        theirs: the same.
        near: how far a bound may be moved; None: `nearness`.

    Returns:
        `EQUAL`; `TIE`: the same values stay, as many of each or, of typical sampling and XTC, fewer; `ROUNDING`: what
        differs is what a bound that is moved by `near` keeps or drops.
    """
    if np.array_equal(ours, theirs):
        return EQUAL
    differing = np.setxor1d(processed[ours], processed[theirs])
    parts_equals = params.typical_p < 1 or params.xtc_probability > 0
    if not differing.size and (parts_equals or len(ours) == len(theirs)):
        return TIE
    near = near or nearness(len(processed))
    wanted = processed[kept_by_reference(processed, params)]
    near_sets = list(_near_sets(processed, params, near))
    borders = [np.setxor1d(wanted, processed[each]) for each in near_sets]
    if not differing.size:
        lengths = [len(wanted), *map(len, near_sets)]
        assert min(lengths) <= len(theirs) <= max(lengths), (params, lengths, len(theirs))
    borders.append(processed[near_entropy(processed, np.isin(processed, wanted), params, near)])
    unexplained = np.setdiff1d(differing, np.concatenate([[], *borders]))
    assert not unexplained.size, (params, unexplained[:5], np.setdiff1d(ours, theirs), np.setdiff1d(theirs, ours))
    return ROUNDING


def _near_sets(processed: Floats, params: SamplingParams, near: float) -> Iterator[Ids]:
    """What filters keep with their numbers moved a little, one at a time."""
    for name in NUMBERS:
        number = getattr(params, name)
        if number != getattr(SamplingParams(), name):
            for factor in (1 - near, 1 + near):
                moved = min(number * factor, 1.0) if name in PROBABILITIES else number * factor
                yield kept_by_reference(processed, replace(params, **{name: moved}))
