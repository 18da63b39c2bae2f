"""Asks a device which semantics it has: hand-worked rows on which the known readings of the operator differ.

A parity run says that rows differ; a probe says which reading would explain it. The first outcome of every probe is
that of docs/semantics.md. Section 6 there says who holds the other readings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

Operator = Callable[..., Any]
"""Called like `ascend_sample.top_k_top_p_sample` or its V2; the ids and the kept logits come first."""

NO_TOP_K = -1
NO_TOP_P = 1.0
_SEGMENT = 8192
_NAN = float("nan")


@dataclass(frozen=True)
class Outcome:
    """What one reading of the operator gives."""

    reading: str  # the reading in words
    token: int  # the id it draws
    kept: frozenset[int]  # the ids that come back in the kept logits
    weight: float | None = None  # the first of the sample result; None where there is none
    is_admitted: bool = False  # whether a device may have this reading instead of the contract's


@dataclass(frozen=True)
class Probe:
    """A row and what each reading makes of it."""

    question: str  # what the probe decides
    logits: tuple[float, ...]  # the row; every value is exact in float16 and bfloat16, or its rounding does not matter
    k: int  # top-k
    p: float  # top-p
    q: tuple[float, ...] | None  # the noise, padded with ones; None for no draw
    outcomes: tuple[Outcome, ...]  # one per reading, the contract's first
    defined_on_device: bool = True  # whether the contract holds a real device to the first outcome
    min_p: float | None = None  # of the second operator; None for none
    options: tuple[tuple[str, object], ...] = ()  # of the operator, by their names
    filler: float = -float("inf")  # the value of filtered logits

    def run(self, operator: Operator, device: torch.device | str, dtype: torch.dtype) -> Finding:
        """Puts the question to an operator on a device."""
        token, kept, weight = answer = self.answer(operator, device, dtype)
        for outcome in self.outcomes:
            if (outcome.token, outcome.kept, outcome.weight) == answer:
                as_contract = outcome is self.outcomes[0]
                return Finding(self, outcome.reading, as_contract, as_contract or outcome.is_admitted)
        weighing = "" if weight is None else f", weight {weight}"
        return Finding(self, f"no known reading: id {token}, kept {_abridge(sorted(kept))}{weighing}", False, False)

    def tensors(self, device: torch.device | str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """Returns logits, [1, vocab_size], k, int32 [1], and p, [1], on a device."""
        given = ([self.logits], dtype), ([self.k], torch.int32), ([self.p], dtype)
        return tuple(torch.tensor(numbers, dtype=each).to(device) for numbers, each in given)

    def answer(
        self, operator: Operator, device: torch.device | str, dtype: torch.dtype
    ) -> tuple[int, frozenset[int], float | None]:
        """Returns what an operator on a device makes of the row: an `Outcome` without its reading."""
        logits, k, p = self.tensors(device, dtype)
        q = None
        if self.q is not None:
            padding = [1.0] * (len(self.logits) - len(self.q))
            q = torch.tensor([[*self.q, *padding]], dtype=torch.float32).to(device)
        options = dict(self.options)
        if self.min_p is not None:
            options["min_p"] = torch.tensor([self.min_p], dtype=dtype).to(device)
        drawn, select, *result = operator(logits, k, p, q, is_need_logits=True, **options)
        if select is None:
            raise TypeError("the operator under test must return the kept logits when is_need_logits is true")
        token = int(drawn[0])
        kept = frozenset(torch.nonzero(select[0].cpu() != self.filler).flatten().tolist())
        weight = round(float(result[1][0, 0]), 4) if options.get("is_need_sample_result") else None
        return token, kept, weight


@dataclass(frozen=True)
class Finding:
    """What a device answered to a probe."""

    probe: Probe
    reading: str
    as_contract: bool
    is_admitted: bool  # as the contract's, or a reading that a device may have


def _abridge(ids: Sequence[int]) -> str:
    return str(list(ids)) if len(ids) <= 8 else f"{len(ids)} ids from {ids[0]} to {ids[-1]}"


def _ids(*tokens: int) -> frozenset[int]:
    return frozenset(tokens)


def _first(count: int) -> frozenset[int]:
    return frozenset(range(count))


def _skipped_p(p: float) -> Probe:
    """Makes a probe of a p that skips top-p, or keeps one entry.

    With top-p skipped the draw is over everything, by vocabulary id; of one kept entry there is no draw.
    """
    return Probe(
        f"p = {p:g}",
        (3.0, 2.0, 1.0, 0.0),
        NO_TOP_K,
        p,
        (100.0, 1e-3, 100.0, 100.0),
        (Outcome("top-p is skipped", 1, _first(4)), Outcome("one entry is kept", 0, _first(1))),
    )


def _boundary(name: str, k: int) -> Probe:
    """Makes a probe of four probabilities of exactly 1/4: the sum of two is p itself."""
    return Probe(
        f"cumulative sum equal to p, {name}",
        (0.0, 0.0, 0.0, 0.0),
        k,
        0.5,
        None,
        (Outcome("kept until the sum is > p", 0, _first(3)), Outcome("kept until the sum is >= p", 0, _first(2))),
    )


def _q_index(name: str, k: int, p: float) -> Probe:
    """Makes a probe in which, in the order 1, 2, 3, the smallest noise has rank 2 (id 3) or id 2."""
    by_rank, by_id = Outcome("by rank", 3, _ids(1, 2, 3)), Outcome("by vocabulary id", 2, _ids(1, 2, 3))
    return Probe(f"index of q, {name}", (0.0, 3.0, 2.0, 1.0), k, p, (10.0, 10.0, 1e-3, 10.0), (by_rank, by_id))


def _tie_across_segments() -> Probe:
    """Makes a probe of two equal best logits, in different segments of the rolling top-k."""
    logits = [0.0] * (2 * _SEGMENT)
    late = _SEGMENT + 808
    logits[5] = logits[late] = 7.0
    outcomes = (Outcome("the lowest id", 5, _ids(5)), Outcome("the highest id", late, _ids(late)))
    return Probe("equal logits in different segments, k = 1", tuple(logits), 1, NO_TOP_P, None, outcomes)


def _large_k() -> Probe:
    outcomes = (
        Outcome("top-k is skipped", 0, _first(2048)),
        Outcome("k is honoured", 0, _first(1500)),
        Outcome("k is capped at 1024", 0, _first(1024)),
    )
    return Probe("k above 1024", tuple(-rank / 256 for rank in range(2048)), 1500, NO_TOP_P, None, outcomes)


ANSWERED_DIFFERENTLY = (
    # Softmax gives 0.881 and 0.119. Weighed so (7.4 to 1), id 0 beats a four times smaller noise; softmaxed again
    # (2.1 to 1), it does not.
    Probe(
        "softmax of the probabilities, top-p alone",
        (2.0, 0.0, -8.0, -8.0),
        NO_TOP_K,
        0.99,
        (4.0, 1.0),
        (Outcome("softmax twice", 1, _first(2)), Outcome("softmax once", 0, _first(2))),
    ),
    _skipped_p(0.0),
    _skipped_p(-0.5),
    _boundary("top-k and top-p", 4),
    _boundary("top-p alone", NO_TOP_K),
)
"""The first outcomes are those of the first operator, the last ones those of the second."""

ANSWERED_ALIKE = (
    Probe(
        "equal logits at the k-th place",
        (1.0, 2.0, 2.0, 2.0, 0.0, 0.0),
        2,
        NO_TOP_P,
        None,
        (
            Outcome("exactly k, the lowest ids", 1, _ids(1, 2)),
            Outcome("exactly k, the highest ids", 3, _ids(2, 3)),
            Outcome("all of them are kept", 1, _ids(1, 2, 3)),
        ),
    ),
    _tie_across_segments(),
    Probe(
        "equal logits at the cut of top-p alone",
        (0.0, 0.0, 0.0, 0.0),
        NO_TOP_K,
        0.3,
        None,
        (Outcome("the lowest ids", 0, _ids(0, 1)), Outcome("the highest ids", 3, _ids(2, 3))),
    ),
    Probe(
        "rank of equal logits",
        (5.0, 5.0, 5.0, 0.0),
        3,
        NO_TOP_P,
        (9.0, 9.0, 0.01),
        (Outcome("ids ascending", 2, _first(3)), Outcome("ids descending", 0, _first(3))),
    ),
    _q_index("top-k", 3, NO_TOP_P),
    _q_index("top-p alone", NO_TOP_K, 0.95),
    Probe(
        "index of q, neither",
        (0.0, 3.0, 2.0, 1.0),
        NO_TOP_K,
        NO_TOP_P,
        (10.0, 10.0, 1e-3, 10.0),
        (Outcome("by vocabulary id", 2, _first(4)), Outcome("by rank", 3, _first(4))),
    ),
    Probe(
        "sign of q",
        (0.5, 0.0),
        2,
        NO_TOP_P,
        (-1.0, 4.0),
        (Outcome("ignored", 0, _first(2)), Outcome("a negative score", 1, _first(2))),
    ),
    _large_k(),
    Probe(
        "value of filtered logits",
        (3.0, 2.0, 1.0, 0.5),
        2,
        NO_TOP_P,
        None,
        (Outcome("-inf", 0, _first(2)), Outcome("another value", 0, _first(4))),
    ),
    Probe(
        "a row far below 0",
        (-200.0, -199.0, -198.0, -197.0),
        NO_TOP_K,
        NO_TOP_P,
        None,
        (Outcome("shifted by its maximum", 3, _first(4)), Outcome("underflows: the maximum starts at 0", 0, _first(4))),
        defined_on_device=False,
    ),
    Probe(
        # The last is greater by the smallest that float16 holds, so that the 14 have one float32 probability.
        "order of unequal logits with one probability, top-p alone",
        (*[0.0] * 13, 2.0**-24),
        NO_TOP_K,
        0.05,
        None,
        (Outcome("the logits decide", 13, _ids(13)), Outcome("the lowest id", 0, _ids(0))),
        defined_on_device=False,
    ),
    Probe(
        "q of nothing but NaN",
        (-float("inf"), 1.0, 2.0),
        NO_TOP_K,
        NO_TOP_P,
        (_NAN, _NAN, _NAN),
        (Outcome("the first that is not -inf", 1, _ids(1, 2)), Outcome("the first, -inf as it is", 0, _ids(1, 2))),
        defined_on_device=False,
    ),
    Probe(
        "q of NaN beside an entry without weight",
        (0.0, -1000.0),
        NO_TOP_K,
        NO_TOP_P,
        (_NAN, 1.0),
        (Outcome("it loses", 1, _first(2)), Outcome("it is drawn", 0, _first(2))),
        defined_on_device=False,
    ),
    Probe(
        "q and eps of 0 with an entry without weight",
        (0.0, -1000.0),
        NO_TOP_K,
        NO_TOP_P,
        (1.0, 0.0),
        (Outcome("it loses", 0, _first(2)), Outcome("0 / 0 is drawn", 1, _first(2))),
        defined_on_device=False,
        options=(("eps", 0.0),),
    ),
)
"""Both operators have one answer."""

PROBES = ANSWERED_DIFFERENTLY + ANSWERED_ALIKE

_HALF_QUARTERS = (0.25, 0.5, 0.125, 0.125)
_PROBABILITIES = (("input_is_logits", False),)


def _min_p(question: str, m: float, outcomes: tuple[Outcome, ...], q: tuple[float, ...] | None = None) -> Probe:
    """Makes a probe of min-p, of probabilities, so that every product is exact."""
    return Probe(question, _HALF_QUARTERS, NO_TOP_K, NO_TOP_P, q, outcomes, min_p=m, options=_PROBABILITIES, filler=0.0)


PROBES_V2 = (
    *(replace(probe, outcomes=probe.outcomes[::-1]) for probe in ANSWERED_DIFFERENTLY),
    *ANSWERED_ALIKE,
    Probe(
        "weight of the entry that p <= 0 keeps",
        (0.0, 1.0, 2.0),
        NO_TOP_K,
        0.0,
        None,
        (Outcome("1", 2, _ids(2), 1.0), Outcome("its probability", 2, _ids(2), 0.6652, is_admitted=True)),
        options=(("is_need_sample_result", True),),
    ),
    _min_p(
        "weight equal to min-p times the largest",
        0.5,
        (Outcome("it is kept", 1, _ids(0, 1)), Outcome("it is dropped", 1, _ids(1))),
    ),
    _min_p("min_p = 1", 1.0, (Outcome("the best alone", 1, _ids(1)), Outcome("min-p is skipped", 1, _first(4)))),
    _min_p("min_p = 0", 0.0, (Outcome("min-p is skipped", 1, _first(4)), Outcome("the best alone", 1, _ids(1)))),
    Probe(
        # By place among the kept ids (1, 3) the second noise is id 3's; by rank or by id it is another's.
        "index of q, min-p alone",
        (0.0, 0.25, 0.0, 0.5),
        NO_TOP_K,
        NO_TOP_P,
        (1.0, 1e-3, 9.0, 4.0),
        (Outcome("by place among the kept", 3, _ids(1, 3)), Outcome("by rank or by vocabulary id", 1, _ids(1, 3))),
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
        (Outcome("used as they are", 1, _ids(0, 1)), Outcome("softmaxed again", 1, _ids(0, 1, 2))),
        options=_PROBABILITIES,
        filler=0.0,
    ),
    Probe(
        "top-p after top-k, of probabilities",
        _HALF_QUARTERS,
        2,
        0.7,
        None,
        (Outcome("not renormalised", 1, _ids(0, 1)), Outcome("renormalised", 1, _ids(1))),
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
            Outcome("rounded up to 16", 0, _first(16)),
            Outcome("taken as it is", 0, _first(32)),
            Outcome("k is capped by it", 0, _first(9)),
        ),
        options=(("ks_max", 9),),
    ),
)
"""For the second operator: where it differs from the first, and what only it has."""
