"""Compares two results of an operator row by row and proves, in float64, why they may differ.

What may differ is said in docs/semantics.md, section 7. Bits are compared first, so rows that agree cost next to
nothing; only a row that disagrees is worked out again (`row_model`). A row is one of:

- `exact`: the same id and, where asked for, the same kept logits bit for bit, and the same sample result: the ids of
  the kept entries, those that weigh 0 too, and the zeros behind the weights are equal, and weights, which are computed
  numbers, differ by 1e-5 at most, relatively.
- `tie`: another id whose logit and q equal those of the expected one.
- `near_draw`: another id whose score is within 1e-5 (relative) of the best one.
- `near_boundary`: another number of kept entries, where the float64 cumulative sum at the disputed cut is within 2e-5
  of p; the id is the winner of the draw under a cut that this tolerance admits.
- `other_reading`: what another reading of CANN's sources gives, which the reason names.
- `failed`: anything else, with the reason.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from .row_model import MAX_TOP_K, V1, Row, RowModel, Rules, model_row, order_by_probability

OTHER_WEIGHT = "the entry that p <= 0 keeps has its probability for a weight, not 1"
"""A reading of CANN's documentation, which its kernel does not have."""

WEIGHT_TOLERANCE = 1e-5
"""By how much, relatively, the weights of two implementations may differ."""

SMALLEST_WEIGHT = 2.0**-126
"""Weights below it are denormal in float32, where a device may have 0."""


class Kind(enum.IntEnum):
    """How two results of one row relate."""

    EXACT = 0
    TIE = 1
    NEAR_DRAW = 2
    NEAR_BOUNDARY = 3
    OTHER_READING = 4
    FAILED = 5

    @property
    def label(self) -> str:
        """Returns the name in reports."""
        return self.name.lower()


@dataclass(frozen=True)
class Result:
    """What the operator returned; None for what was not asked for, or what the operator does not have.

    Attributes:
        ids: int64 `[B]`.
        kept: float32 `[B, V]`, the kept logits.
        dense_ids: int64 `[B, V]`, the kept ids.
        dense_weights: float32 `[B, V]`, their weights.
    """

    ids: torch.Tensor
    kept: torch.Tensor | None
    dense_ids: torch.Tensor | None = None
    dense_weights: torch.Tensor | None = None


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

    @staticmethod
    def failed(batch_size: int, reason: str) -> Comparison:
        """Judges a batch that has failed as a whole."""
        return Comparison([Kind.FAILED] * batch_size, dict.fromkeys(range(batch_size), Verdict(Kind.FAILED, reason)))


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
    rules: Rules = V1,
    min_p: torch.Tensor | None = None,
    ks_max: int = MAX_TOP_K,
    input_is_logits: bool = True,
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
        rules: of the operator.
        min_p: `[B]`, the logits' dtype, or None.
        ks_max: as given to the operator.
        input_is_logits: as given to the operator.
        device_sorts_probabilities: also admit, with top-p alone, the order of float32 probabilities, in which unequal
            logits can tie. A real device sorts so; no implementation of this project may.

    Returns:
        The kinds and the verdicts.

    Example:
        >>> logits = torch.tensor([[0.0, 2.0]])
        >>> expected, actual = Result(torch.tensor([1]), None), Result(torch.tensor([0]), None)
        >>> k, p = torch.tensor([0], dtype=torch.int32), torch.tensor([1.0])
        >>> compare(logits, k, p, None, 1e-8, expected, actual).kinds
        [<Kind.FAILED: 5>]
    """
    batch_size, vocab_size = logits.shape
    problem = (
        _form_problem(expected, "expected", batch_size, vocab_size)
        or _form_problem(actual, "actual", batch_size, vocab_size)
        or _presence_problem(expected, actual)
    )
    if problem:
        return Comparison.failed(batch_size, problem)
    same = expected.ids == actual.ids
    same &= (actual.ids >= 0) & (actual.ids < vocab_size)
    if expected.kept is not None and actual.kept is not None:
        same &= bits(expected.kept).eq(bits(actual.kept)).all(dim=1)
    if expected.dense_weights is not None and actual.dense_weights is not None:
        same &= bits(expected.dense_weights).eq(bits(actual.dense_weights)).all(dim=1)
        assert expected.dense_ids is not None
        assert actual.dense_ids is not None
        # Ids behind the kept ones are undefined, but a kept entry may weigh 0 as well: the row's model counts them.
        same &= (expected.dense_ids == actual.dense_ids).all(dim=1)
    verdicts = {}
    for index in torch.nonzero(~same).flatten().tolist():
        row = Row(
            logits=logits[index].float().contiguous().numpy(),
            k=int(k[index]),
            p=float(p[index]),
            q=None if q is None else q[index].contiguous().numpy(),
            eps=eps,
            rules=rules,
            min_p=0.0 if min_p is None else float(min_p[index]),
            ks_max=ks_max,
            input_is_logits=input_is_logits,
        )
        verdicts[index] = _judge(row, _pick(expected, index), _pick(actual, index), device_sorts_probabilities)
    kinds = [verdicts[index].kind if index in verdicts else Kind.EXACT for index in range(batch_size)]
    return Comparison(kinds, verdicts)


def _form_problem(result: Result, name: str, batch_size: int, vocab_size: int) -> str:
    """Returns what is wrong with the form of a result; empty when nothing is."""
    if result.ids.dtype != torch.int64 or result.ids.shape != (batch_size,):
        return f"{name} ids are {result.ids.dtype} {list(result.ids.shape)}, not int64 [{batch_size}]"
    kept = result.kept
    if kept is not None and (kept.dtype != torch.float32 or kept.shape != (batch_size, vocab_size)):
        return f"{name} kept logits are {kept.dtype} {list(kept.shape)}, not float32 [{batch_size}, {vocab_size}]"
    for values, dtype in ((result.dense_ids, torch.int64), (result.dense_weights, torch.float32)):
        if values is not None and (values.dtype, values.shape) != (dtype, (batch_size, vocab_size)):
            return f"{name} sample result has {values.dtype} {list(values.shape)}, not {dtype} of the logits' shape"
    return ""


def _presence_problem(expected: Result, actual: Result) -> str:
    for name in ("kept", "dense_ids", "dense_weights"):
        if (getattr(expected, name) is None) != (getattr(actual, name) is None):
            return f"one of the two results has {name}, the other has not"
    return ""


def bits(values: torch.Tensor) -> torch.Tensor:
    """Returns the bits of float32 values, which tell +0 from -0 and in which NaN equals itself."""
    return values.contiguous().view(torch.int32)


@dataclass(frozen=True)
class _RowResult:
    token: int
    kept: NDArray[np.float32] | None
    dense_ids: NDArray[np.int64] | None
    dense_weights: NDArray[np.float32] | None


def _pick(result: Result, index: int) -> _RowResult:
    parts = (result.kept, result.dense_ids, result.dense_weights)
    return _RowResult(int(result.ids[index]), *(None if p is None else p[index].contiguous().numpy() for p in parts))


def _judge(row: Row, expected: _RowResult, actual: _RowResult, device_sorts_probabilities: bool) -> Verdict:
    """Tries the explanations in turn; the strongest that holds is the verdict."""
    model = model_row(row)
    try:
        ours = _explain(model, expected, model.strict)
    except _RejectedError as rejection:
        return Verdict(Kind.FAILED, f"the expected result itself is not admissible: {rejection}")
    try:
        theirs = _explain(model, actual, ours)
    except _RejectedError as rejection:
        for other, verdict in _other_models(row, device_sorts_probabilities):
            with contextlib.suppress(_RejectedError):
                _explain(other, actual, other.strict)
                return verdict
        return Verdict(Kind.FAILED, str(rejection))
    if theirs != ours:
        distance = max(map(model.distance_to_cut, (ours, theirs)))
        return Verdict(
            Kind.NEAR_BOUNDARY,
            f"{theirs} kept against {ours}, within the tolerance of the cut: a sum is {distance:.2e} from p",
        )
    if expected.token == actual.token:
        return Verdict(Kind.EXACT, "the same entries; their weights differ within the tolerance of float32")
    ids, scores = model.scores(ours)
    first, second = (int(np.flatnonzero(ids == result.token)[0]) for result in (expected, actual))
    has_equal_noise = row.q is None or row.q[first] == row.q[second]
    drawn = f"ids {expected.token} and {actual.token}"
    if model.values[expected.token] == model.values[actual.token] and has_equal_noise:
        return Verdict(Kind.TIE, f"{drawn} have equal logits and equal q")
    low, high = sorted((float(scores[first]), float(scores[second])))
    return Verdict(Kind.NEAR_DRAW, f"the scores of {drawn} differ by {(high - low) / high:.2e}")


def _other_models(row: Row, device_sorts_probabilities: bool) -> Iterator[tuple[RowModel, Verdict]]:
    """Yields what a result that the contract does not have may be all the same, and what is said of it then."""
    if device_sorts_probabilities and row.input_is_logits and row.uses_top_p and not row.uses_top_k:
        reason = "unequal logits with one float32 probability, taken in the order of their ids"
        yield model_row(row, order_by_probability(row.logits)), Verdict(Kind.TIE, reason)
    if row.keeps_one:
        other_rules = replace(row.rules, is_weighed_alone=False)
        yield model_row(replace(row, rules=other_rules)), Verdict(Kind.OTHER_READING, OTHER_WEIGHT)


def _explain(model: RowModel, result: _RowResult, preferred: int) -> int:
    """Finds an admissible count of kept entries under which the result holds, the preferred one if it is such.

    Raises:
        _RejectedError: there is none; the message says what contradicts it.
    """
    size = len(model.row.logits)
    if not 0 <= result.token < size:
        raise _RejectedError(f"id {result.token} is outside [0, {size})")
    least, most = model.least, model.most
    if result.kept is not None:
        least, most = _shown_counts(model, result.kept)
    places = np.flatnonzero(model.order[:most] == result.token)
    if len(places) == 0:
        raise _RejectedError(f"id {result.token} is not among the first {most} of the order, which may be kept")
    counts: list[int] = [preferred, *range(max(least, int(places[0]) + 1), most + 1)]
    if model.row.is_ranked and result.dense_weights is None:
        counts = counts[:2]  # where q is read by rank, a larger cut only adds rivals
    problem = "entries of one value are parted"
    for count in counts:
        if least <= count <= most and (count == preferred or not model.cuts_ties(count)):
            problem = _dense_problem(model, result, count) or _draw_problem(model, result.token, count)
            if not problem:
                return count
    raise _RejectedError(f"{problem} (of {model.least} to {model.most} entries that may be kept)")


def _shown_counts(model: RowModel, kept: NDArray[np.float32]) -> tuple[int, int]:
    """Returns the least and the greatest admissible count that a row of kept logits can mean.

    Raises:
        _RejectedError: a value was altered, the kept entries are not the first of the order, or too many or too few.
    """
    filler = np.float32(model.row.filler)
    shown = kept != filler
    expected = np.where(shown, model.values.astype(np.float32), filler)
    altered = expected.view(np.int32) != kept.view(np.int32)
    if altered.any():
        token = int(altered.argmax())
        raise _RejectedError(f"the kept logit of id {token} is {kept[token]:.9g}, not {expected[token]:.9g}")
    count = int(shown.sum())
    visible_ids = model.order[model.values[model.order] != filler]
    first = np.zeros_like(shown)
    first[visible_ids[:count]] = True
    if (shown != first).any():
        token = int((shown != first).argmax())
        state = "kept" if shown[token] else "not kept"
        raise _RejectedError(f"id {token} is {state} among {count} entries, against the total order")
    # Entries that weigh nothing do not show: where every other one is kept, any number of them may be kept as well.
    least, most = count, count if count < len(visible_ids) else len(model.order)
    if most < model.least or least > model.most:
        raise _RejectedError(
            f"{count} entries are kept instead of {model.least} to {model.most}: "
            f"a sum at the cut is {model.distance_to_cut(count):.2e} from p = {model.row.p:.9g}"
        )
    return max(least, model.least), min(most, model.most)


def _dense_problem(model: RowModel, result: _RowResult, count: int) -> str:
    """Returns why the sample result is not that of the first `count` of the order; empty when it is."""
    if result.dense_weights is None or result.dense_ids is None:
        return ""
    weights = result.dense_weights.astype(np.float64)
    ids, expected = model.arranged(count)
    if weights[count:].any():
        return f"the sample result has a weight behind the first {count}"
    if not np.allclose(weights[:count], expected, rtol=WEIGHT_TOLERANCE, atol=SMALLEST_WEIGHT):
        place = int(np.abs(weights[:count] - expected).argmax())
        return f"weight {place} of the sample result is {weights[place]:.9g}, not {expected[place]:.9g}"
    if (result.dense_ids[:count] != ids).any():
        return f"the ids of the sample result are not those of the first {count}"
    return ""


def _draw_problem(model: RowModel, token: int, count: int) -> str:
    """Returns why an id is not drawn among the first `count`; empty when it is."""
    if model.is_winner(token, count):
        return ""
    ids, scores = model.scores(count)
    best = int(scores.argmax())
    place = np.flatnonzero(ids == token)
    if len(place) == 0:
        return f"id {token} is not among the first {count} of the order"
    return f"id {token} scores {scores[place[0]]:.9g}, id {ids[best]} {scores[best]:.9g} among the first {count}"
