"""Hand-worked rows for the second operator: where it differs from the first, and what only it has."""

from __future__ import annotations

from dataclasses import replace

from .probe import ANSWERED_ALIKE, ANSWERED_DIFFERENTLY, NO_TOP_K, NO_TOP_P, Outcome, Probe, first, ids

_HALF_QUARTERS = (0.25, 0.5, 0.125, 0.125)
_PROBABILITIES = (("input_is_logits", False),)


def _min_p(question: str, m: float, outcomes: tuple[Outcome, ...], q: tuple[float, ...] | None = None) -> Probe:
    """Of probabilities, so that every product is exact."""
    return Probe(question, _HALF_QUARTERS, NO_TOP_K, NO_TOP_P, q, outcomes, min_p=m, options=_PROBABILITIES, filler=0.0)


PROBES_V2 = (
    *(replace(probe, outcomes=probe.outcomes[::-1]) for probe in ANSWERED_DIFFERENTLY),
    *ANSWERED_ALIKE,
    _min_p(
        "weight equal to min-p times the largest",
        0.5,
        (Outcome("it is kept", 1, ids(0, 1)), Outcome("it is dropped", 1, ids(1))),
    ),
    _min_p("min_p = 1", 1.0, (Outcome("the best alone", 1, ids(1)), Outcome("min-p is skipped", 1, first(4)))),
    _min_p("min_p = 0", 0.0, (Outcome("min-p is skipped", 1, first(4)), Outcome("the best alone", 1, ids(1)))),
    Probe(
        # By place among the kept ids (1, 3) the second noise is id 3's; by rank or by id it is another's.
        "index of q, min-p alone",
        (0.0, 0.25, 0.0, 0.5),
        NO_TOP_K,
        NO_TOP_P,
        (1.0, 1e-3, 9.0, 4.0),
        (
            Outcome("by place among the kept", 3, ids(1, 3)),
            Outcome("by rank or by vocabulary id", 1, ids(1, 3)),
        ),
        min_p=0.5,
        options=_PROBABILITIES,
        filler=0.0,
    ),
    Probe(
        # Softmaxed, the four would differ by less than a factor of e.
        "probabilities",
        _HALF_QUARTERS,
        NO_TOP_K,
        0.75,
        None,
        (Outcome("used as they are", 1, ids(0, 1)), Outcome("softmaxed again", 1, ids(0, 1, 2))),
        options=_PROBABILITIES,
        filler=0.0,
    ),
    Probe(
        "top-p after top-k, of probabilities",
        (0.25, 0.5, 0.125, 0.125),
        2,
        0.7,
        None,
        (Outcome("not renormalised", 1, ids(0, 1)), Outcome("renormalised", 1, ids(1))),
        options=_PROBABILITIES,
        filler=0.0,
    ),
    Probe(
        "ks_max = 9",
        tuple(-rank / 16 for rank in range(32)),
        16,
        NO_TOP_P,
        None,
        (
            Outcome("rounded up to 16", 0, first(16)),
            Outcome("taken as it is", 0, first(32)),
            Outcome("k is capped by it", 0, first(9)),
        ),
        options=(("ks_max", 9),),
    ),
)
