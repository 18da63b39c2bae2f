"""Asks a device which semantics it has: hand-worked rows on which the known readings of the operator differ.

A parity run says that rows differ; a probe says which reading would explain it. The first outcome of every probe is
that of docs/semantics.md. Section 6 there says who holds the other readings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Operator = Callable[..., tuple[Any, ...]]
"""Called like `ascend_sample.top_k_top_p_sample` or its V2; the ids and the kept logits come first."""

NO_TOP_K = -1
NO_TOP_P = 1.0
_SEGMENT = 8192


@dataclass(frozen=True)
class Outcome:
    """What one reading of the operator gives.

    Attributes:
        reading: the reading in words.
        token: the id it draws.
        kept: the ids that come back in the kept logits.
    """

    reading: str
    token: int
    kept: frozenset[int]


@dataclass(frozen=True)
class Probe:
    """A row and what each reading makes of it.

    Attributes:
        question: what the probe decides.
        logits: the row; every value is exact in float16 and bfloat16, or its rounding does not matter.
        k: top-k.
        p: top-p.
        q: the noise, padded with ones; None for no draw.
        outcomes: one per reading, the contract's first.
        defined_on_device: whether the contract holds a real device to the first outcome.
        min_p: of the second operator; None for none.
        options: of the operator, by their names.
        filler: the value of filtered logits.
    """

    question: str
    logits: tuple[float, ...]
    k: int
    p: float
    q: tuple[float, ...] | None
    outcomes: tuple[Outcome, ...]
    defined_on_device: bool = True
    min_p: float | None = None
    options: tuple[tuple[str, object], ...] = ()
    filler: float = -float("inf")

    def run(self, operator: Operator, device: torch.device | str, dtype: torch.dtype) -> Finding:
        """Puts the question to an operator on a device."""
        logits = torch.tensor([self.logits], dtype=dtype).to(device)
        k = torch.tensor([self.k], dtype=torch.int32).to(device)
        p = torch.tensor([self.p], dtype=dtype).to(device)
        q = None
        if self.q is not None:
            padding = [1.0] * (len(self.logits) - len(self.q))
            q = torch.tensor([[*self.q, *padding]], dtype=torch.float32).to(device)
        options = dict(self.options)
        if self.min_p is not None:
            options["min_p"] = torch.tensor([self.min_p], dtype=dtype).to(device)
        drawn, select, *_ = operator(logits, k, p, q, is_need_logits=True, **options)
        if select is None:
            raise TypeError("the operator under test must return the kept logits when is_need_logits is true")
        token = int(drawn[0])
        kept = frozenset(torch.nonzero(select[0].cpu() != self.filler).flatten().tolist())
        for outcome in self.outcomes:
            if (outcome.token, outcome.kept) == (token, kept):
                return Finding(self, outcome.reading, outcome is self.outcomes[0])
        return Finding(self, f"no known reading: id {token}, kept {_abridge(sorted(kept))}", False)


@dataclass(frozen=True)
class Finding:
    """What a device answered to a probe."""

    probe: Probe
    reading: str
    as_contract: bool


def _abridge(ids: Sequence[int]) -> str:
    return str(list(ids)) if len(ids) <= 8 else f"{len(ids)} ids from {ids[0]} to {ids[-1]}"


def ids(*tokens: int) -> frozenset[int]:
    return frozenset(tokens)


def first(count: int) -> frozenset[int]:
    return frozenset(range(count))


def _skipped_p(p: float) -> Probe:
    """With top-p skipped the draw is over everything, by vocabulary id; of one kept entry there is no draw."""
    return Probe(
        f"p = {p:g}",
        (3.0, 2.0, 1.0, 0.0),
        NO_TOP_K,
        p,
        (100.0, 1e-3, 100.0, 100.0),
        (Outcome("top-p is skipped", 1, first(4)), Outcome("one entry is kept", 0, first(1))),
    )


def _boundary(name: str, k: int) -> Probe:
    """Four probabilities of exactly 1/4: the sum of two is p itself."""
    return Probe(
        f"cumulative sum equal to p, {name}",
        (0.0, 0.0, 0.0, 0.0),
        k,
        0.5,
        None,
        (
            Outcome("kept until the sum is > p", 0, first(3)),
            Outcome("kept until the sum is >= p", 0, first(2)),
        ),
    )


def _q_index(name: str, k: int, p: float) -> Probe:
    """In the order 1, 2, 3 the smallest noise has rank 2 (id 3) or id 2."""
    by_rank, by_id = Outcome("by rank", 3, ids(1, 2, 3)), Outcome("by vocabulary id", 2, ids(1, 2, 3))
    return Probe(f"index of q, {name}", (0.0, 3.0, 2.0, 1.0), k, p, (10.0, 10.0, 1e-3, 10.0), (by_rank, by_id))


def _tie_across_segments() -> Probe:
    """Two equal best logits, in different segments of the rolling top-k."""
    logits = [0.0] * (2 * _SEGMENT)
    late = _SEGMENT + 808
    logits[5] = logits[late] = 7.0
    outcomes = (Outcome("the lowest id", 5, ids(5)), Outcome("the highest id", late, ids(late)))
    return Probe("equal logits in different segments, k = 1", tuple(logits), 1, NO_TOP_P, None, outcomes)


def _large_k() -> Probe:
    outcomes = (
        Outcome("top-k is skipped", 0, first(2048)),
        Outcome("k is honoured", 0, first(1500)),
        Outcome("k is capped at 1024", 0, first(1024)),
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
        (Outcome("softmax twice", 1, first(2)), Outcome("softmax once", 0, first(2))),
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
            Outcome("exactly k, the lowest ids", 1, ids(1, 2)),
            Outcome("exactly k, the highest ids", 3, ids(2, 3)),
            Outcome("all of them are kept", 1, ids(1, 2, 3)),
        ),
    ),
    _tie_across_segments(),
    Probe(
        "equal logits at the cut of top-p alone",
        (0.0, 0.0, 0.0, 0.0),
        NO_TOP_K,
        0.3,
        None,
        (Outcome("the lowest ids", 0, ids(0, 1)), Outcome("the highest ids", 3, ids(2, 3))),
    ),
    Probe(
        "rank of equal logits",
        (5.0, 5.0, 5.0, 0.0),
        3,
        NO_TOP_P,
        (9.0, 9.0, 0.01),
        (Outcome("ids ascending", 2, first(3)), Outcome("ids descending", 0, first(3))),
    ),
    _q_index("top-k", 3, NO_TOP_P),
    _q_index("top-p alone", NO_TOP_K, 0.95),
    Probe(
        "index of q, neither",
        (0.0, 3.0, 2.0, 1.0),
        NO_TOP_K,
        NO_TOP_P,
        (10.0, 10.0, 1e-3, 10.0),
        (Outcome("by vocabulary id", 2, first(4)), Outcome("by rank", 3, first(4))),
    ),
    Probe(
        "sign of q",
        (0.5, 0.0),
        2,
        NO_TOP_P,
        (-1.0, 4.0),
        (Outcome("ignored", 0, first(2)), Outcome("a negative score", 1, first(2))),
    ),
    _large_k(),
    Probe(
        "value of filtered logits",
        (3.0, 2.0, 1.0, 0.5),
        2,
        NO_TOP_P,
        None,
        (Outcome("-inf", 0, first(2)), Outcome("another value", 0, first(4))),
    ),
    Probe(
        "a row far below 0",
        (-200.0, -199.0, -198.0, -197.0),
        NO_TOP_K,
        NO_TOP_P,
        None,
        (
            Outcome("shifted by its maximum", 3, first(4)),
            Outcome("underflows: the maximum starts at 0", 0, first(4)),
        ),
        defined_on_device=False,
    ),
)
"""Both operators have one answer."""

PROBES = ANSWERED_DIFFERENTLY + ANSWERED_ALIKE
