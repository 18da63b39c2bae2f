"""What the ranks have to tell each other of each row, decided on the host from what every rank knows."""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.rows.parameters import is_limited
from ascend_sample.sampling.step.routes import LARGEST_FUSED_K

Rows = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


class Kind(enum.IntEnum):
    """How the ranks find the token of a row."""

    BEST = 0  # the best logit of each part
    FIRST = 1  # the first k of each part
    RACE = 2  # the leads of each part, weighed by its own maximum
    LATE_RACE = 3  # the same, when the maximum of the row, or the row's seed, is known
    CUT = 4  # the same, when the end of what is kept is known
    WHOLE = 5  # the logits themselves


def rows_of(of_row: Rows, *kinds: Kind) -> Rows:
    """Returns the rows of these kinds, ascending."""
    return np.flatnonzero(np.isin(of_row, kinds))


def kinds_of(batch: SamplingBatch, keep_ties: bool) -> Rows:
    """Chooses the kind of each row, of which all seeds are known: int64 [batch], a `Kind` each.

    Example:
        >>> from ascend_sample.sampling import SamplingParams
        >>> batch = SamplingBatch(vocab_size=4)
        >>> batch.extend([SamplingParams(temperature=0), SamplingParams(top_k=2), SamplingParams(min_p=0.5)])
        range(0, 3)
        >>> kinds_of(batch, keep_ties=False)
        array([0, 1, 3])
    """
    host, vocab_size = batch.host, batch.vocab_size
    limited = is_limited(host.top_k, vocab_size)
    is_greedy = (host.temperature == 0) | (limited & (host.top_k == 1))
    is_ranked = limited & (host.top_k <= LARGEST_FUSED_K) & (not keep_ties)
    kinds = np.where(host.min_p > 0, Kind.LATE_RACE, Kind.RACE)
    kinds = np.where(limited | (host.top_p < 1), Kind.CUT, kinds)
    kinds = np.where(limited & (host.top_p < 1), Kind.WHOLE, kinds)
    kinds = np.where(is_ranked, Kind.FIRST, kinds)
    kinds = np.where(is_greedy, Kind.BEST, kinds)
    kinds = np.where(host.is_ranged != 0, Kind.WHOLE, kinds)  # a range is told by sums of whole rows
    return kinds.astype(np.int64)
