"""Whether counts are those of a distribution."""

from __future__ import annotations

import numpy as np
from gate import chi_square_tail

SMALLEST_P_VALUE = 1e-7
"""The chance of a false alarm of one test; the seeds are fixed, so that there is none."""
FEWEST_EXPECTED = 5.0


def p_value(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Of a chi-square test; cells that expect too few are pooled. 0 where something impossible occurred."""
    if counts[probabilities == 0].sum() > 0:
        return 0.0
    expected = probabilities * counts.sum()
    is_small = expected < FEWEST_EXPECTED
    observed = np.append(counts[~is_small], counts[is_small].sum())
    expected = np.append(expected[~is_small], expected[is_small].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    if len(observed) < 2:
        return 1.0
    return chi_square_tail(((observed - expected) ** 2 / expected).sum(), len(observed) - 1)
