"""Compares two results of `top_k_top_p_sample` row by row and proves, in float64, why they may differ.

The rules are those of docs/semantics.md, section 7. Bits are compared first, so rows that agree cost next to nothing;
only a row that disagrees is worked out again (`row_model`). A row is one of:

- `exact`: the same id and, where asked for, the same kept logits bit for bit.
- `tie`: another id whose logit and q equal those of the expected one.
- `near_draw`: another id whose score is within 1e-5 (relative) of the best one.
- `near_boundary`: another number of kept entries, where the float64 cumulative sum at the disputed cut is within 2e-5
  of p; the id is the winner of the draw under a cut that this tolerance admits.
- `failed`: anything else, with the reason.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .row_model import Row, RowModel, model_row, order_by_probability


class Kind(enum.IntEnum):
    """How two results of one row relate."""

    EXACT = 0
    TIE = 1
    NEAR_DRAW = 2
    NEAR_BOUNDARY = 3
    FAILED = 4

    @property
    def label(self) -> str:
        """The name in reports."""
        return self.name.lower()


@dataclass(frozen=True)
class Result:
    """What the operator returned: ids int64 `[B]`, and kept logits float32 `[B, V]` or None where not asked for."""

    ids: torch.Tensor
    kept: torch.Tensor | None


@dataclass(frozen=True)
class Verdict:
    """The judgement of one row that is not exact."""

    kind: Kind
    reason: str


@dataclass(frozen=True)
class Comparison:
    """The judgement of a batch: a kind for every row, and a verdict for each row that is not exact."""

    kinds: list[Kind]
    verdicts: dict[int, Verdict]


class _RejectedError(Exception):
    """A result that no admissible computation of the row gives."""


def compare(
    logits: torch.Tensor,
    k: torch.Tensor,
    p: torch.Tensor,
    q: torch.Tensor | None,
    eps: float,
    expected: Result,
    actual: Result,
    *,
    device_sorts_probabilities: bool = False,
) -> Comparison:
    """Judges every row of a batch.

    `top_k_guess` is no argument: it must not change any result.

    Args:
        logits: `[B, V]`, float16, bfloat16 or float32, on the CPU like every tensor here.
        k: int32 `[B]`.
        p: `[B]`, the logits' dtype.
        q: float32 `[B, V]`, or None.
        eps: as given to the operator.
        expected: the reference's result.
        actual: the result under test.
        device_sorts_probabilities: also admit, in branch B, the order of float32 probabilities, in which unequal logits
            can tie. A real device sorts so; no implementation of this project may.

    Returns:
        The kinds and the verdicts.

    Example:
        >>> logits = torch.tensor([[0.0, 2.0]])
        >>> expected, actual = Result(torch.tensor([1]), None), Result(torch.tensor([0]), None)
        >>> k, p = torch.tensor([0], dtype=torch.int32), torch.tensor([1.0])
        >>> compare(logits, k, p, None, 1e-8, expected, actual).kinds
        [<Kind.FAILED: 4>]
    """
    batch_size, vocab_size = logits.shape
    problem = (
        form_problem(expected, "expected", batch_size, vocab_size)
        or form_problem(actual, "actual", batch_size, vocab_size)
        or _presence_problem(expected, actual)
    )
    if problem:
        verdict = Verdict(Kind.FAILED, problem)
        return Comparison([Kind.FAILED] * batch_size, dict.fromkeys(range(batch_size), verdict))
    same = expected.ids == actual.ids
    same &= (actual.ids >= 0) & (actual.ids < vocab_size)
    if expected.kept is not None and actual.kept is not None:
        same &= bits(expected.kept).eq(bits(actual.kept)).all(dim=1)
    verdicts = {}
    for index in torch.nonzero(~same).flatten().tolist():
        row = Row(
            logits=logits[index].float().contiguous().numpy(),
            k=int(k[index]),
            p=float(p[index]),
            q=None if q is None else q[index].contiguous().numpy(),
            eps=eps,
        )
        verdicts[index] = _judge(row, _pick(expected, index), _pick(actual, index), device_sorts_probabilities)
    kinds = [verdicts[index].kind if index in verdicts else Kind.EXACT for index in range(batch_size)]
    return Comparison(kinds, verdicts)


def form_problem(result: Result, name: str, batch_size: int, vocab_size: int) -> str:
    """What is wrong with the form of a result; empty when nothing is."""
    if result.ids.dtype != torch.int64 or result.ids.shape != (batch_size,):
        return f"{name} ids are {result.ids.dtype} {list(result.ids.shape)}, not int64 [{batch_size}]"
    kept = result.kept
    if kept is not None and (kept.dtype != torch.float32 or kept.shape != (batch_size, vocab_size)):
        return f"{name} kept logits are {kept.dtype} {list(kept.shape)}, not float32 [{batch_size}, {vocab_size}]"
    return ""


def _presence_problem(expected: Result, actual: Result) -> str:
    if (expected.kept is None) != (actual.kept is None):
        missing = "actual" if actual.kept is None else "expected"
        return f"the {missing} result has no kept logits, the other one has"
    return ""


def bits(values: torch.Tensor) -> torch.Tensor:
    """The bits of float32 values: tells +0 from -0, and NaN equals itself."""
    return values.contiguous().view(torch.int32)


@dataclass(frozen=True)
class _RowResult:
    token: int
    kept: torch.Tensor | None


def _pick(result: Result, index: int) -> _RowResult:
    return _RowResult(int(result.ids[index]), None if result.kept is None else result.kept[index])


@dataclass(frozen=True)
class _Explanation:
    """How a result comes about: so many entries are kept, and the one at this place is drawn."""

    count: int
    place: int


def _judge(row: Row, expected: _RowResult, actual: _RowResult, device_sorts_probabilities: bool) -> Verdict:
    """Tries the explanations in turn; the strongest that holds is the verdict."""
    model = model_row(row)
    try:
        ours = _explain(row, model, expected, preferred=model.strict)
    except _RejectedError as rejection:
        return Verdict(Kind.FAILED, f"the expected result itself is not admissible: {rejection}")
    try:
        theirs = _explain(row, model, actual, preferred=ours.count)
    except _RejectedError as rejection:
        if device_sorts_probabilities and row.branch == "B":
            verdict = _judge_by_probability_order(row, actual)
            if verdict is not None:
                return verdict
        return Verdict(Kind.FAILED, str(rejection))
    if theirs.count != ours.count:
        distance = max(model.distance_to_cut(count, row.p) for count in (ours.count, theirs.count))
        return Verdict(
            Kind.NEAR_BOUNDARY,
            f"{theirs.count} kept against {ours.count}: the sum at the cut is {distance:.2e} from p = {row.p:.9g}",
        )
    ids = f"ids {expected.token} and {actual.token}"
    first, second = ours.place, theirs.place
    if model.values[first] == model.values[second] and (row.q is None or row.q[first] == row.q[second]):
        return Verdict(Kind.TIE, f"{ids} have equal logits and equal q")
    low, high = sorted((float(model.scores[first]), float(model.scores[second])))
    return Verdict(Kind.NEAR_DRAW, f"the scores of {ids} differ by {(high - low) / high:.2e}")


def _judge_by_probability_order(row: Row, actual: _RowResult) -> Verdict | None:
    model = model_row(row, order_by_probability(row.logits))
    try:
        _explain(row, model, actual, preferred=model.strict)
    except _RejectedError:
        return None
    return Verdict(Kind.TIE, "unequal logits with one float32 probability, taken in the order of their ids")


def _explain(row: Row, model: RowModel, result: _RowResult, preferred: int) -> _Explanation:
    """Finds out how an admissible computation gives this result.

    Args:
        row: the inputs.
        model: the row in float64.
        result: what was returned.
        preferred: the count to try first.

    Returns:
        An admissible count of kept entries under which the result holds, and the place of the drawn one.

    Raises:
        _RejectedError: there is none; the message says what contradicts it.
    """
    if not 0 <= result.token < len(row.logits):
        raise _RejectedError(f"id {result.token} is outside [0, {len(row.logits)})")
    least, most = model.least, model.most
    if result.kept is not None:
        least, most = _admissible_counts(row, model, result.kept.contiguous().numpy())
    place = model.place_of(result.token)
    if place is None or place >= most:
        raise _RejectedError(f"id {result.token} is not among the first {most} of the order, which may be kept")
    # A larger cut only adds rivals, so the smallest one that holds the place is the kindest to it.
    smallest = max(least, place + 1)
    counts = [count for count in (preferred, smallest) if least <= count <= most]
    for count in counts:
        if model.is_winner(place, count):
            return _Explanation(count, place)
    best = int(model.scores[: counts[-1]].argmax())
    raise _RejectedError(
        f"id {result.token} scores {model.scores[place]:.9g}, "
        f"id {model.ids[best]} scores {model.scores[best]:.9g} among the first {counts[-1]}"
    )


def _admissible_counts(row: Row, model: RowModel, kept: NDArray[np.float32]) -> tuple[int, int]:
    """The least and the greatest admissible count that a row of kept logits can mean.

    Raises:
        _RejectedError: a value was altered, the kept entries are not the first of the order, or too many or too few.
    """
    shown = kept != -np.inf
    altered = shown & (kept.view(np.int32) != row.logits.view(np.int32))
    if altered.any():
        token = int(altered.argmax())
        raise _RejectedError(f"the kept logit of id {token} is {kept[token]:.9g}, not {row.logits[token]:.9g}")
    count = int(shown.sum())
    visible_ids = model.ids[model.values > -np.inf]
    first = np.zeros_like(shown)
    first[visible_ids[:count]] = True
    if (shown != first).any():
        token = int((shown != first).argmax())
        state = "kept" if shown[token] else "not kept"
        raise _RejectedError(f"id {token} is {state} among {count} entries, against the total order")
    # Entries of -inf do not show: where every other one is kept, any number of them may be kept as well.
    least, most = count, count if count < len(visible_ids) else len(model.ids)
    if most < model.least or least > model.most:
        raise _RejectedError(
            f"{count} entries are kept instead of {model.least} to {model.most}: "
            f"a sum at the cut is {model.distance_to_cut(count, row.p):.2e} from p = {row.p:.9g}"
        )
    return max(least, model.least), min(most, model.most)
