"""An operator with readings of its own, in plain float64: what parity checks and probes must tell apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from ascend_sample.parity.cases import shape_of
from ascend_sample.parity.compare import Comparison, Kind, Result, compare
from ascend_sample.parity.row_model import V1, V2, Rules

MAX_TOP_K = 1024
SKIPS_TOP_K = 0
Drawn = int | tuple[int, list[int]]
"""An id, or an id with the kept ids."""
HALVES = [math.log(probability) for probability in (0.5, 0.3, 0.2)]


def places_of(rows: int, largest: int) -> Iterator[int]:
    """The indices of those batches of a stream of `rows` rows whose vocabulary is at most so large."""
    made = 0
    for index in itertools.count():
        if made >= rows:
            return
        vocab_size, batch_size = shape_of(index)
        made += batch_size
        if vocab_size <= largest:
            yield index


def judge(
    logits: list[float],
    expected: Drawn,
    actual: Drawn,
    k: int = SKIPS_TOP_K,
    p: float = 1.0,
    q: list[float] | None = None,
    min_p: float = 0.0,
    input_is_logits: bool = True,
    rules: Rules = V1,
    device_sorts_probabilities: bool = False,
) -> Comparison:
    """Judges one float32 row."""
    values = torch.tensor([logits])

    def result(drawn: Drawn) -> Result:
        if isinstance(drawn, int):
            return Result(torch.tensor([drawn]), None)
        kept = torch.full_like(values, -math.inf if input_is_logits else 0.0)
        kept[0, drawn[1]] = values[0, drawn[1]]
        return Result(torch.tensor([drawn[0]]), kept)

    return compare(
        values,
        torch.tensor([k], dtype=torch.int32),
        torch.tensor([p]),
        None if q is None else torch.tensor([q]),
        1e-8,
        result(expected),
        result(actual),
        rules=rules,
        min_p=torch.tensor([min_p]) if rules is V2 else None,
        input_is_logits=input_is_logits,
        device_sorts_probabilities=device_sorts_probabilities,
    )


def check_judged(
    table: list[tuple[Kind | str, list[float], Drawn, Drawn, dict[str, Any]]], rules: Rules, subtests: pytest.Subtests
) -> None:
    """Checks the verdict on each row of a table; a text is part of the reason for which a row has failed."""
    for outcome, logits, expected, actual, options in table:
        with subtests.test(f"{logits} {expected} {actual} {options}"):
            comparison = judge(logits, expected, actual, rules=rules, **options)
            assert comparison.kinds == [Kind.FAILED if isinstance(outcome, str) else outcome]
            assert not isinstance(outcome, str) or outcome in comparison.verdicts[0].reason


@dataclass(frozen=True)
class Reading:
    """How the operator is read. The defaults are the contract's (docs/semantics.md); every change is a mutant.

    Attributes:
        second_softmax: branch B softmaxes the probabilities again.
        keeps_one_at_zero: p <= 0 keeps one entry instead of skipping top-p.
        descending_ids: equal values are ordered by id descending.
        keeps_tied: every entry equal to the k-th is kept.
        inclusive: kept until the sum is >= p.
        extra: entries kept beyond those that top-p asks for.
        q_by_id: q is indexed by vocabulary id in branches A and B.
        q_by_rank: q is indexed by rank in branch C.
        signed_q: a negative q gives a negative score.
        maximum_from_zero: the row's maximum starts at 0 in float32, so low rows underflow.
        large_k: what k > 1024 does: "skip", "honour" or "cap".
        filler: the value of filtered logits.
        altered: added to every kept logit.
        lost_row: the row whose id is replaced by that of its neighbour.
        nan_wins: a NaN logit is the greatest.
        sorts_probabilities: with top-p alone float32 probabilities are ordered, and equal ones by id.
        score_of_nan: that of an entry whose noise is NaN.
        score_of_nothing: that of an entry without weight, where q and eps are 0.
    """

    second_softmax: bool = True
    keeps_one_at_zero: bool = False
    descending_ids: bool = False
    keeps_tied: bool = False
    inclusive: bool = False
    extra: int = 0
    q_by_id: bool = False
    q_by_rank: bool = False
    signed_q: bool = False
    maximum_from_zero: bool = False
    large_k: str = "skip"
    filler: float = -math.inf
    altered: float = 0.0
    lost_row: int | None = None
    nan_wins: bool = False
    sorts_probabilities: bool = False
    score_of_nan: float = -1.0
    score_of_nothing: float = 0.0

    def __call__(
        self,
        logits: torch.Tensor,
        k: torch.Tensor,
        p: torch.Tensor,
        q: torch.Tensor | None = None,
        eps: float = 1e-8,
        is_need_logits: bool = False,
        top_k_guess: int = 32,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The operator; `top_k_guess` must not matter and does not."""
        ids, rows = [], []
        for row in range(logits.shape[0]):
            values = logits[row].double()
            values = torch.where(values.isnan(), math.inf if self.nan_wins else -math.inf, values)
            token, kept = self._sample(values, int(k[row]), float(p[row]), None if q is None else q[row].double(), eps)
            ids.append(token)
            select = torch.full(values.shape, self.filler, dtype=torch.float32)
            original = values[kept].float()
            select[kept] = original + self.altered if self.altered else original  # -0 + 0 would be +0
            rows.append(select)
        if self.lost_row is not None and len(ids) > 1:
            row = self.lost_row % len(ids)
            ids[row] = ids[row - 1]
        return torch.tensor(ids), torch.stack(rows) if is_need_logits else None

    def _sample(
        self, x: torch.Tensor, k: int, p: float, q: torch.Tensor | None, eps: float
    ) -> tuple[int, torch.Tensor]:
        size = len(x)
        if k > MAX_TOP_K and self.large_k != "skip":
            k = k if self.large_k == "honour" else MAX_TOP_K
            uses_k = k <= size
        else:
            uses_k = 1 <= k <= min(size, MAX_TOP_K)
        uses_p = 0 < p < 1 or (self.keeps_one_at_zero and p <= 0)
        if not uses_k and not uses_p:
            weights = self._softmax(x)
            noise = q if q is None or not self.q_by_rank else q[self._order(x).argsort()]
            return self._draw(torch.arange(size), weights, x, noise, eps), torch.arange(size)
        kept = self._order(x)
        if uses_k:
            if self.keeps_tied:
                k = int((x >= x[kept[k - 1]]).sum())
            kept = kept[:k]
        elif self.sorts_probabilities:
            kept = self._order(self._softmax(x).float())
        probabilities = self._softmax(x[kept])
        if uses_p:
            kept = kept[: self._count(probabilities, p)]
        weights = self._softmax(x[kept])
        if not uses_k and self.second_softmax:
            massless = (x == -math.inf) | ((x != math.inf) & (x.max() == math.inf))
            weights = self._softmax(probabilities[: len(kept)].masked_fill(massless[kept], -math.inf))
        noise = None if q is None else q[kept] if self.q_by_id else q[: len(kept)]
        return self._draw(kept, weights, x, noise, eps), kept

    def _order(self, x: torch.Tensor) -> torch.Tensor:
        if self.descending_ids:
            return len(x) - 1 - x.flip(0).sort(descending=True, stable=True).indices
        return x.sort(descending=True, stable=True).indices

    def _softmax(self, x: torch.Tensor) -> torch.Tensor:
        top = x.max()
        if top == -math.inf:
            return torch.zeros_like(x)
        if top == math.inf:
            return (x == math.inf).double() / (x == math.inf).sum()
        if self.maximum_from_zero:
            weights = (x - max(float(top), 0.0)).float().exp()
            return (weights / weights.sum()).nan_to_num(0.0).double()
        return torch.softmax(x, 0)

    def _count(self, probabilities: torch.Tensor, p: float) -> int:
        before = probabilities.cumsum(0)[:-1]
        stays = before < p if self.inclusive else before <= p
        return max(1, min(1 + int(stays.sum()) + self.extra, len(probabilities)))

    def _draw(
        self, kept: torch.Tensor, weights: torch.Tensor, x: torch.Tensor, noise: torch.Tensor | None, eps: float
    ) -> int:
        if noise is None:
            scores = weights.clone()
        else:
            scores = weights / ((noise if self.signed_q else noise.abs()) + eps)
            scores[scores.isnan()] = self.score_of_nothing
            scores[noise.isnan()] = self.score_of_nan
        scores[x[kept] == -math.inf] = -math.inf
        return int(kept[int((scores == scores.max()).nonzero()[0])])


CONTRACT = Reading()


def mutant(**changes: object) -> Reading:
    """The contract with some readings changed."""
    return replace(CONTRACT, **changes)  # type: ignore[arg-type]
