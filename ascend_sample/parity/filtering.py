"""How `apply_top_k_top_p` is verified: its batches, the judge of its rows and its probes.

The batches are those of the first operator, with k up to the vocabulary size, and without k or p in two of three. A row
that differs is worked out in float64, from docs/semantics_apply.md alone: what is kept is an end of the ascending row,
and the judge asks where it may begin.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .cases import BATCHES, SEEDS, Batch, deal, make_batch
from .compare import SMALLEST_WEIGHT, Comparison, Kind, Verdict
from .operands import Operand
from .probe import NO_TOP_K, NO_TOP_P, Operator, Outcome, Probe
from .row_model import CUT_TOLERANCE, FloatArray, clean, exponentials, has_exact_sums

GIVEN = ("k and p", "k", "p")
"""What is dealt out to the batches: which of the filters are given."""
SCENARIOS = {
    name: name
    for name in (
        " ".join(word for word in words if word) or "nothing"
        for words in itertools.product(("", "top-k"), ("", "top-p", "one entry", "p = 1"))
    )
}
"""What may be on in a row."""
NO_TOKEN = -1
"""Of an operator that draws none."""


@dataclass(frozen=True)
class FilterBatch(Batch):
    """Inputs of one call: those of `Batch` without noise."""

    given: str  # one of `GIVEN`

    def tensors(self, device: str) -> tuple[torch.Tensor | None, ...]:
        """Returns copies of logits, k and p on a device, in their layouts."""
        logits, k, p, _ = super().tensors(device)
        return logits, k if "k" in self.given else None, p if "p" in self.given else None

    @property
    def options(self) -> dict[str, Any]:
        """Returns no other arguments: there are none."""
        return {}

    def scenarios(self) -> list[str]:
        """Returns what is on in every row, in words, each one of :data:`SCENARIOS`."""
        _, vocab_size = self.shape
        names = []
        for k, p in zip(self.k.view().tolist(), self.p.view().float().tolist(), strict=True):
            words = ["top-k"] * ("k" in self.given and 1 <= k < vocab_size)
            if "p" in self.given:
                words += ["one entry"] * (p <= 0) + ["top-p"] * (0 < p < 1) + ["p = 1"] * (p == 1)
            names.append(" ".join(words) or "nothing")
        return names

    def undefined_on_device(self) -> list[bool]:
        """Tells which rows a real device gives no promise for: NaN or +inf among the logits, p outside [0, 1]."""
        logits, p = self.logits.view().float(), self.p.view().float()
        undefined = logits.isnan().any(dim=1) | logits.isposinf().any(dim=1)
        if "p" in self.given:
            undefined |= ~((p >= 0) & (p <= 1))
        return list(undefined.tolist())

    def describe(self, row: int) -> str:
        """Describes the parameters of one row, for a report of a failure."""
        return f"{super().describe(row)}, given: {self.given}"


def make_filter_batch(seed: int, index: int, dtypes: tuple[torch.dtype, ...]) -> FilterBatch:
    """Makes one batch of the stream; arguments as for `cases.make_batch`.

    Returns:
        The batch, on the CPU. A third of its k are any up to the vocabulary size.
    """
    base = make_batch(seed, index, dtypes, noises=("none",))
    generator = torch.Generator().manual_seed(3 * SEEDS * BATCHES + seed * BATCHES + index)
    batch_size, vocab_size = base.shape
    any_k = torch.randint(1, vocab_size + 1, (batch_size,), generator=generator, dtype=torch.int32)
    is_any = torch.randint(3, (batch_size,), generator=generator) == 0
    k = torch.where(is_any, any_k, base.k.view())
    return FilterBatch(
        **vars(base) | {"k": Operand.arrange(k, base.k.layout, filler=7)},
        given=GIVEN[deal(seed, index, len(dtypes), len(GIVEN))],
    )


def compare_filtered(batch: FilterBatch, expected: torch.Tensor, actual: torch.Tensor) -> Comparison:
    """Judges every row of a batch.

    Args:
        batch: its inputs.
        expected: the reference's result, [B, V] on the CPU.
        actual: the result under test, likewise.

    Returns:
        The kinds and the verdicts: `exact` bit for bit; `near_boundary` where the float64 sum at the disputed cut of
        top-p is within 2e-5 of 1 - p; else `failed`.
    """
    logits, k, p = batch.tensors("cpu")
    assert logits is not None
    if (actual.dtype, actual.shape) != (logits.dtype, logits.shape):
        problem = f"the result is {actual.dtype} {list(actual.shape)}, not as the logits"
        return Comparison.failed(len(logits), problem)
    is_same = _bits(actual).eq(_bits(expected)).all(dim=1)
    verdicts = {}
    for row in torch.nonzero(~is_same).flatten().tolist():
        model = FilterModel.of(
            logits[row].float().numpy(),
            0 if k is None else int(k[row]),
            np.nan if p is None else float(p[row]),
        )
        problems = [model.problem_of(result[row].float().numpy()) for result in (expected, actual)]
        if problems[0]:
            verdicts[row] = Verdict(Kind.FAILED, f"the expected result itself is not admissible: {problems[0]}")
        elif problems[1]:
            verdicts[row] = Verdict(Kind.FAILED, problems[1])
        else:
            verdicts[row] = Verdict(Kind.NEAR_BOUNDARY, f"{CUT_TOLERANCE:g} at most from 1 - p")
    kinds = [verdicts[row].kind if row in verdicts else Kind.EXACT for row in range(len(logits))]
    return Comparison(kinds, verdicts)


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.int32 if values.itemsize == 4 else torch.int16)


@dataclass(frozen=True)
class FilterModel:
    """What the operator may keep of one row.

    Attributes:
        logits: float32 [V], as they came.
        order: the ids in ascending order.
        least: where in it what is kept may begin at the earliest.
        most: where it may begin at the latest.
    """

    logits: NDArray[np.float32]
    order: NDArray[np.int64]
    least: int
    most: int

    @classmethod
    def of(cls, logits: NDArray[np.float32], k: int, p: float) -> FilterModel:
        """Works a row out in float64; a p of NaN skips top-p, as one that is not given."""
        values = clean(logits)
        order = np.argsort(values, kind="stable").astype(np.int64)
        ascending = values[order]
        size = len(logits)
        first = int(np.searchsorted(ascending, ascending[size - k])) if 1 <= k < size else 0
        weights = exponentials(ascending[first:])
        weights = weights / (weights.sum() or 1.0)
        least, most = _cuts(weights, np.float32(1.0) - np.float32(p))
        return cls(logits, order, first + least, first + most)

    def problem_of(self, filtered: NDArray[np.float32]) -> str:
        """Returns why a result is not admissible; empty when it is."""
        shown = filtered != -np.inf
        changed = shown & (filtered.view(np.int32) != self.logits.view(np.int32))
        if changed.any():
            token = int(changed.argmax())
            return f"the logit of id {token} is {filtered[token]:.9g}, not {self.logits[token]:.9g}"
        # Entries of -inf do not show, whether they are kept or not: they are the first of the order.
        hidden = int((clean(self.logits) == -np.inf).sum())
        kept = int(shown.sum())
        begin = len(self.order) - kept
        if set(self.order[begin:].tolist()) != set(np.flatnonzero(shown).tolist()):
            return f"the {kept} entries that are kept are not the last of the ascending order"
        least, most = max(self.least, hidden), max(self.most, hidden)
        if not least <= begin <= most:
            return f"{kept} entries are kept instead of {len(self.order) - most} to {len(self.order) - least}"
        return ""


def _cuts(weights: FloatArray, tail: np.float32) -> tuple[int, int]:
    """Returns where what top-p keeps of an ascending row may begin, at the earliest and at the latest."""
    last = len(weights) - 1
    if np.isnan(tail) or tail < 0:
        return 0, 0
    if tail == 0:  # where weights begin; a device may have 0 for those below the smallest normal number
        denormal, normal = (int((weights < bound).sum()) for bound in (SMALLEST_WEIGHT / 2**24, SMALLEST_WEIGHT))
        return min(denormal, last), min(normal, last)
    sums = np.cumsum(weights)
    tolerance = 0.0 if has_exact_sums(weights) else CUT_TOLERANCE
    cuts = (int(np.searchsorted(sums, tail + error, side="right")) for error in (-tolerance, tolerance))
    least, most = (last if tail >= 1 else min(cut, last) for cut in cuts)
    return least, most


@dataclass(frozen=True)
class FilterProbe(Probe):
    """A row and what each reading keeps of it."""

    def answer(
        self, operator: Operator, device: torch.device | str, dtype: torch.dtype
    ) -> tuple[int, frozenset[int], float | None]:
        """Asks a device what it keeps."""
        logits, k, p = self.tensors(device, dtype)
        kept = torch.nonzero(operator(logits, k, p)[0].cpu() != self.filler).flatten().tolist()
        return NO_TOKEN, frozenset(kept), None


def _probe(
    question: str,
    logits: tuple[float, ...],
    k: int,
    p: float,
    *outcomes: tuple[str, range | tuple[int, ...]],
    defined_on_device: bool = True,
) -> FilterProbe:
    readings = tuple(Outcome(reading, NO_TOKEN, frozenset(kept)) for reading, kept in outcomes)
    return FilterProbe(question, logits, k, p, None, readings, defined_on_device)


_NAN, _INFINITY = float("nan"), float("inf")
PROBES_OF_FILTER = (
    _probe(
        "ties at the k-th logit",
        (0.0, 1.0, 1.0, 1.0, 2.0),
        2,
        NO_TOP_P,
        ("all of them are kept", (1, 2, 3, 4)),
        ("exactly k, the lowest ids", (1, 4)),
        ("exactly k, the highest ids", (3, 4)),
    ),
    _probe(
        "equal logits at the cut of top-p",
        (0.0, 0.0, 0.0, 0.0),
        NO_TOP_K,
        0.375,
        ("the highest ids are kept", (2, 3)),
        ("the lowest ids are kept", (0, 1)),
        ("all of them are kept", (0, 1, 2, 3)),
    ),
    _probe(
        "sum equal to 1 - p",
        (0.0, 0.0, 0.0, 0.0),
        NO_TOP_K,
        0.5,
        ("it is dropped", (2, 3)),
        ("it is kept", (1, 2, 3)),
    ),
    _probe(
        "p = 0",
        (2.0, 1.0, 2.0),
        NO_TOP_K,
        0.0,
        ("the highest id of the largest", (2,)),
        ("the lowest id of the largest", (0,)),
        ("top-p is skipped", (0, 1, 2)),
    ),
    _probe(
        "p = 1, a logit 200 below the largest",
        (0.0, -200.0),
        NO_TOP_K,
        1.0,
        ("it is dropped", (0,)),
        ("it is kept", (0, 1)),
    ),
    _probe("k = 0", (3.0, 2.0, 1.0), 0, NO_TOP_P, ("top-k is skipped", range(3)), ("one is kept", (0,))),
    _probe("k = -1", (3.0, 2.0, 1.0), -1, NO_TOP_P, ("top-k is skipped", range(3)), ("one is kept", (0,))),
    _probe(
        "k above the vocabulary size",
        (3.0, 2.0, 1.0),
        2**30,
        NO_TOP_P,
        ("top-k is skipped", range(3)),
        ("one is kept", (0,)),
    ),
    _probe(
        "k = 1200",
        (2.0,) * 1100 + (1.0,) * 400 + (0.0,) * 100,
        1200,
        NO_TOP_P,
        ("k is honoured", range(1500)),
        ("k is capped at 1024", range(1100)),
        ("top-k is skipped", range(1600)),
    ),
    _probe(
        "p = 1.5",
        (0.0, -200.0),
        NO_TOP_K,
        1.5,
        ("everything is kept", (0, 1)),
        ("as p = 1", (0,)),
        defined_on_device=False,
    ),
    _probe(
        "p is NaN",
        (1.0, 0.0),
        NO_TOP_K,
        _NAN,
        ("top-p is skipped", (0, 1)),
        ("one is kept", (0,)),
        defined_on_device=False,
    ),
    _probe(
        "NaN among the logits",
        (1.0, _NAN, 0.0),
        2,
        NO_TOP_P,
        ("it counts as -inf", (0, 2)),
        ("it is the greatest", (0, 1)),
        defined_on_device=False,
    ),
    _probe(
        "+inf among the logits",
        (_INFINITY, 0.0, _INFINITY),
        NO_TOP_K,
        0.75,
        ("they share the mass", (0, 2)),
        ("top-p is skipped", (0, 1, 2)),
        defined_on_device=False,
    ),
)
