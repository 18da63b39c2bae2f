"""What requests remember of their draws, in float64 and word by word as docs/sampling.md says it: what tests go by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ascend_sample.sampling.params import SamplingParams


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
