"""What requests remember of their draws, in float64 and word by word as docs/filters.md says it: what tests go by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ascend_sample.sampling.reference.distribution import Floats
from ascend_sample.sampling.requests.params import SamplingParams


def with_bound(params: SamplingParams, bound: float) -> SamplingParams:
    """Returns the request without a state whose next draw is that of a request with mirostat, at a bound.

    Ids go whose surprise, -log2(p), is above the bound: whose p is below 2**-bound, but the best one.

    Args:
        params: a request with `mirostat_tau`.
        bound: what it remembers, in bits.

    Example:
        >>> with_bound(SamplingParams(mirostat_tau=1.5), 2.0)
        SamplingParams(epsilon_cutoff=0.25)
    """
    cutoff = max(params.epsilon_cutoff, float(np.exp2(-np.clip(bound, 0, 126))))
    return replace(params, mirostat_tau=0.0, mirostat_eta=SamplingParams().mirostat_eta, epsilon_cutoff=cutoff)


def moved_bound(params: SamplingParams, bound: float, chance: float) -> float:
    """Returns the bound after a draw.

    Args:
        params: a request with `mirostat_tau`.
        bound: what it was before.
        chance: the probability with which the token was drawn, among what all filters keep.

    Example:
        >>> moved_bound(SamplingParams(mirostat_tau=1.5, mirostat_eta=0.5), 2.0, 0.25)  # 2 bits, 0.5 too many
        1.75

    Source: Basu et al., "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity", ICLR 2021; the
        second version is the authors' and llama.cpp's.
    """
    surprise = -np.log2(chance)
    return float(bound - params.mirostat_eta * (surprise - params.mirostat_tau))


def adapted_target(params: SamplingParams, state: Sequence[float]) -> float:
    """Returns the probability that the next token of a request with `adaptive_target` is to have.

    Args:
        params: the request.
        state: the weighted sum of the probabilities of its tokens, and that of the weights.

    Example:
        >>> adapted_target(SamplingParams(adaptive_target=0.5), (6.0, 10.0))  # 0.6 on average: 0.1 too much
        0.4
    """
    assert params.adaptive_target is not None, "it is on"
    return float(np.clip(2 * params.adaptive_target - state[0] / state[1], 0, 1))


def adapted(probabilities: npt.ArrayLike, target: float) -> Floats:
    """Returns what adaptive-p draws with, of the probabilities of what all filters keep.

    Args:
        probabilities: float64 [kept].
        target: from `adapted_target`.

    Example:
        >>> adapted([0.7, 0.2, 0.1], 0.2).round(3).tolist()
        [0.0, 0.697, 0.303]

    Source: llama.cpp's sampler adaptive-p.
    """
    distances = np.abs(np.asarray(probabilities, np.float64) - target) / 0.3
    logits = 5 - 10 * distances**2 / (1 + distances)
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def moved_average(params: SamplingParams, state: Sequence[float], chance: float) -> tuple[float, float]:
    """Returns what a request with `adaptive_target` remembers after a draw.

    Args:
        params: the request.
        state: as for `adapted_target`.
        chance: the token's probability among what all filters keep, before it was adapted.

    Example:
        >>> moved_average(SamplingParams(adaptive_target=0.5, adaptive_decay=0.5), (1.0, 2.0), 0.25)
        (0.75, 2.0)
    """
    weighted_sum, weights = state
    return chance + params.adaptive_decay * weighted_sum, 1 + params.adaptive_decay * weights
