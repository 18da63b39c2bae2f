"""Compares two results of `top_k_top_p_sample_v2` row by row, as `compare` does for the first operator.

The kinds and tolerances are the same. Weights of the sample result are computed numbers, so they may differ by 1e-5,
relatively, and are then exact. The ids of the kept entries, those that weigh 0 too, and the zeros behind the weights
must be equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from .compare import Comparison, Kind, Result, Verdict, bits, form_problem
from .row_model import order_by_probability
from .row_model_v2 import RowModelV2, RowV2, model_row_v2

WEIGHT_TOLERANCE = 1e-5
"""By how much, relatively, the weights of two implementations may differ."""

SMALLEST_WEIGHT = 2.0**-126
"""Weights below it are denormal in float32, where a device may have 0."""


@dataclass(frozen=True)
class ResultV2(Result):
    """What the operator returned: also the kept ids and their weights, `[B, V]`, or None where not asked for."""

    dense_ids: torch.Tensor | None = None
    dense_weights: torch.Tensor | None = None


class _RejectedError(Exception):
    """A result that no admissible computation of the row gives."""


@dataclass(frozen=True)
class _RowResult:
    token: int
    kept: torch.Tensor | None
    dense_ids: torch.Tensor | None
    dense_weights: torch.Tensor | None


def compare_v2(
    logits: torch.Tensor,
    k: torch.Tensor,
    p: torch.Tensor,
    q: torch.Tensor | None,
    min_p: torch.Tensor | None,
    eps: float,
    ks_max: int,
    input_is_logits: bool,
    expected: ResultV2,
    actual: ResultV2,
    *,
    device_sorts_probabilities: bool = False,
) -> Comparison:
    """Judges every row of a batch.

    Args:
        logits: `[B, V]`, float16, bfloat16 or float32, on the CPU like every tensor here.
        k: int32 `[B]`.
        p: `[B]`, the logits' dtype.
        q: float32 `[B, V]`, or None.
        min_p: `[B]`, the logits' dtype, or None.
        eps: as given to the operator.
        ks_max: as given to the operator.
        input_is_logits: as given to the operator.
        expected: the reference's result.
        actual: the result under test.
        device_sorts_probabilities: also admit, with top-p alone, the order of float32 probabilities, in which unequal
            logits can tie. A real device may sort so; no implementation of this project may.

    Returns:
        The kinds and the verdicts.

    Example:
        >>> logits = torch.tensor([[0.0, 2.0]])
        >>> expected, actual = (ResultV2(torch.tensor([token]), None) for token in (1, 0))
        >>> k, p = torch.tensor([0], dtype=torch.int32), torch.tensor([1.0])
        >>> compare_v2(logits, k, p, None, None, 1e-8, 1024, True, expected, actual).kinds
        [<Kind.FAILED: 4>]
    """
    batch_size, vocab_size = logits.shape
    problem = (
        _form_problem(expected, "expected", batch_size, vocab_size)
        or _form_problem(actual, "actual", batch_size, vocab_size)
        or _presence_problem(expected, actual)
    )
    if problem:
        verdict = Verdict(Kind.FAILED, problem)
        return Comparison([Kind.FAILED] * batch_size, dict.fromkeys(range(batch_size), verdict))
    same = expected.ids == actual.ids
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
        row = RowV2(
            logits=logits[index].float().contiguous().numpy(),
            k=int(k[index]),
            p=float(p[index]),
            min_p=0.0 if min_p is None else float(min_p[index]),
            q=None if q is None else q[index].contiguous().numpy(),
            eps=eps,
            ks_max=ks_max,
            input_is_logits=input_is_logits,
        )
        verdicts[index] = _judge(row, _pick(expected, index), _pick(actual, index), device_sorts_probabilities)
    kinds = [verdicts[index].kind if index in verdicts else Kind.EXACT for index in range(batch_size)]
    return Comparison(kinds, verdicts)


def _form_problem(result: ResultV2, name: str, batch_size: int, vocab_size: int) -> str:
    problem = form_problem(result, name, batch_size, vocab_size)
    for values, dtype in ((result.dense_ids, torch.int64), (result.dense_weights, torch.float32)):
        if not problem and values is not None and (values.dtype, values.shape) != (dtype, (batch_size, vocab_size)):
            return f"{name} sample result has {values.dtype} {list(values.shape)}, not {dtype} of the logits' shape"
    return problem


def _presence_problem(expected: ResultV2, actual: ResultV2) -> str:
    for name in ("kept", "dense_ids", "dense_weights"):
        if (getattr(expected, name) is None) != (getattr(actual, name) is None):
            return f"one of the two results has {name}, the other has not"
    return ""


def _pick(result: ResultV2, index: int) -> _RowResult:
    parts = [None if part is None else part[index] for part in (result.kept, result.dense_ids, result.dense_weights)]
    return _RowResult(int(result.ids[index]), *parts)


def _judge(row: RowV2, expected: _RowResult, actual: _RowResult, device_sorts_probabilities: bool) -> Verdict:
    """Tries the explanations in turn; the strongest that holds is the verdict."""
    model = model_row_v2(row)
    try:
        ours = _explain(model, expected, model.strict)
    except _RejectedError as rejection:
        return Verdict(Kind.FAILED, f"the expected result itself is not admissible: {rejection}")
    try:
        theirs = _explain(model, actual, ours)
    except _RejectedError as rejection:
        if device_sorts_probabilities and row.input_is_logits and row.is_ranked and not row.uses_top_k:
            model = model_row_v2(row, order_by_probability(row.logits))
            try:
                _explain(model, actual, model.strict)
            except _RejectedError:
                return Verdict(Kind.FAILED, str(rejection))
            return Verdict(Kind.TIE, "unequal logits with one float32 probability, taken in the order of their ids")
        return Verdict(Kind.FAILED, str(rejection))
    if theirs != ours:
        return Verdict(Kind.NEAR_BOUNDARY, f"{theirs} entries are kept against {ours}, within the tolerance of the cut")
    if expected.token == actual.token:
        return Verdict(Kind.EXACT, "the same entries; their weights differ within the tolerance of float32")
    ids, _ = model.arranged(ours)
    first, second = (int(np.flatnonzero(ids == result.token)[0]) for result in (expected, actual))
    has_equal_noise = row.q is None or row.q[first] == row.q[second]
    if model.values[expected.token] == model.values[actual.token] and has_equal_noise:
        return Verdict(Kind.TIE, f"ids {expected.token} and {actual.token} have equal logits and equal q")
    return Verdict(Kind.NEAR_DRAW, f"the scores of ids {expected.token} and {actual.token} differ by less than 1e-5")


def _explain(model: RowModelV2, result: _RowResult, preferred: int) -> int:
    """Finds an admissible count of kept entries under which the result holds.

    Raises:
        _RejectedError: there is none; the message says what contradicts the count that comes nearest.
    """
    size = len(model.row.logits)
    if not 0 <= result.token < size:
        raise _RejectedError(f"id {result.token} is outside [0, {size})")
    reasons = []
    for count in model.counts(preferred):
        reason = (
            _kept_problem(model, result, count)
            or _dense_problem(model, result, count)
            or _draw_problem(model, result, count)
        )
        if not reason:
            return count
        reasons.append(reason)
    raise _RejectedError(f"{reasons[0]} (of {model.least} to {model.most} entries that may be kept)")


def _kept_problem(model: RowModelV2, result: _RowResult, count: int) -> str:
    """What contradicts that these logits are those of the first `count` of the order; empty when nothing does."""
    if result.kept is None:
        return ""
    expected = np.full(len(model.row.logits), model.row.filler, np.float32)
    ids = model.order[:count]
    expected[ids] = model.values[ids]
    kept = result.kept.contiguous().numpy()
    wrong = np.flatnonzero(expected.view(np.int32) != kept.view(np.int32))
    if len(wrong) == 0:
        return ""
    token = int(wrong[0])
    return f"the kept logit of id {token} is {kept[token]:.9g}, not {expected[token]:.9g}, if {count} are kept"


def _dense_problem(model: RowModelV2, result: _RowResult, count: int) -> str:
    if result.dense_weights is None or result.dense_ids is None:
        return ""
    weights = result.dense_weights.contiguous().numpy().astype(np.float64)
    ids, expected = model.arranged(count)
    if weights[count:].any():
        return f"the sample result has a weight behind the first {count}"
    if not np.allclose(weights[:count], expected, rtol=WEIGHT_TOLERANCE, atol=SMALLEST_WEIGHT):
        place = int(np.abs(weights[:count] - expected).argmax())
        return f"weight {place} of the sample result is {weights[place]:.9g}, not {expected[place]:.9g}"
    if (result.dense_ids.contiguous().numpy()[:count] != ids).any():
        return f"the ids of the sample result are not those of the first {count}"
    return ""


def _draw_problem(model: RowModelV2, result: _RowResult, count: int) -> str:
    if model.is_winner(result.token, count):
        return ""
    ids, scores = model.scores(count)
    best = int(scores.argmax())
    place = np.flatnonzero(ids == result.token)
    if len(place) == 0:
        return f"id {result.token} is not among the first {count} of the order"
    return f"id {result.token} scores {scores[place[0]]:.9g}, id {ids[best]} {scores[best]:.9g} among the first {count}"
