"""The gate: what counts of draws have to pass, and how sure it is to stop a sampler that is wrong.

Familywise: all tests of a run together stop a right sampler with a probability of at most `FAMILYWISE_ALPHA`, since
each gets `ALPHA` of it (Bonferroni) and a run makes at most `TESTS_IN_FAMILY`. All seeds are fixed, so a run that has
passed once passes always.

Draws of one row go through three tests:

forbidden  an id that must not be drawn is never drawn: exactly 0;
missing    an id that is expected often enough is drawn at least once;
bins       Pearson's chi-square of the counts in bins of at least `LEAST_EXPECTED`, pooled twice: along the
           probabilities and, where ids had to be pooled, along the vocabulary.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

FAMILYWISE_ALPHA: Final = 1e-6
TESTS_IN_FAMILY: Final = 5000
ALPHA: Final = FAMILYWISE_ALPHA / TESTS_IN_FAMILY
LEAST_EXPECTED: Final = 100.0
FORBIDDEN: Final = -1
"""The bin of ids that must not be drawn."""


@dataclass(frozen=True)
class Verdict:
    """What the gate says of one experiment.

    Attributes:
        p_value: the smallest of its tests'; 0 where something happened that must not happen at all.
        reason: the test that has it, and its figures.
        tests: how many of the family it made.
    """

    p_value: float
    reason: str
    tests: int = 1

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the sampler."""
        return self.p_value > ALPHA


def worst(verdicts: list[Verdict]) -> Verdict:
    """The verdict on several experiments together."""
    least = min(verdicts, key=lambda verdict: verdict.p_value)
    return Verdict(least.p_value, least.reason, sum(verdict.tests for verdict in verdicts))


def chi_square_tail(statistic: float, degrees: float) -> float:
    """The probability that a chi-square variable exceeds ``statistic``.

    Needed here: tails around 1e-9 to within a factor of 1.01, which is 0.003 standard deviations of the gate. What
    torch gives is exact to 1e-9 of them; `test_gate.py` holds that against the closed form.
    """
    shape, half = torch.tensor(degrees / 2, dtype=torch.float64), torch.tensor(statistic / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(shape, half))


def normal_tail(deviation: float) -> float:
    """The probability that a normal variable is further from its mean, on either side, in standard deviations."""
    return math.erfc(abs(deviation) / math.sqrt(2))


def z_test(observed: float, mean: float, variance: float, what: str) -> Verdict:
    """For a sum of many: how far it is from its mean."""
    deviation = (observed - mean) / math.sqrt(variance)
    return Verdict(normal_tail(deviation), f"{what}: {observed:.6g}, expected {mean:.6g}, z = {deviation:.1f}")


def binomial_test(hits: int, draws: int, probability: float, what: str) -> Verdict:
    """Exact, two-sided (twice the smaller tail), also where few hits are expected."""
    mean = draws * probability
    tail = binomial_tail(hits, draws, probability, upper=hits >= mean)
    return Verdict(min(1.0, 2 * tail), f"{what}: {hits} hits, expected {mean:.6g}")


def binomial_tail(hits: int, draws: int, probability: float, *, upper: bool) -> float:
    """P(X >= hits), or P(X <= hits): terms from there on outwards, until they no longer matter."""
    log_term = (
        math.lgamma(draws + 1)
        - math.lgamma(hits + 1)
        - math.lgamma(draws - hits + 1)
        + hits * math.log(probability)
        + (draws - hits) * math.log1p(-probability)
    )
    odds, factor, total, count = probability / (1 - probability), 1.0, 0.0, hits
    while 0 <= count <= draws and factor > total * 1e-17:
        total += factor
        factor *= (draws - count) / (count + 1) * odds if upper else count / (draws - count + 1) / odds
        count += 1 if upper else -1
    return min(1.0, math.exp(log_term) * total)


def binomial_power(draws: int, probability: float, wrong: float) -> float:
    """The probability that `binomial_test` stops a sampler whose hits have the probability ``wrong``."""
    mean, spread = draws * probability, 12 * math.sqrt(draws * probability) + 20
    power = 0.0
    for upper in (False, True):
        ends = (max(0, round(mean - spread)), round(mean)) if not upper else (round(mean), round(mean + spread))
        counts = range(*ends) if upper else range(ends[1], ends[0] - 1, -1)
        stopped = [hits for hits in counts if 2 * binomial_tail(hits, draws, probability, upper=upper) <= ALPHA]
        power += binomial_tail(stopped[0], draws, wrong, upper=upper) if stopped else 0.0
    return min(1.0, power)


@dataclass(frozen=True)
class RowGate:
    """The gate for draws of one row.

    Attributes:
        target: float64 [vocab_size], the probability of each id.
        draws: how many there will be.
        may_occur: bool [vocab_size], the ids that may be drawn; None: those of a positive probability. More than
            these where rounding decides whether an id is kept: their mass is far below what any test could see.
    """

    target: Floats
    draws: int
    may_occur: Booleans | None = None
    bins: list[Integers] = field(init=False)

    def __post_init__(self) -> None:
        may_occur = self.target > 0 if self.may_occur is None else self.may_occur
        object.__setattr__(self, "may_occur", may_occur)
        by_probability = self._pool(np.lexsort((np.arange(len(self.target)), -self.target)))
        bins = [by_probability]
        if by_probability.max() + 1 < may_occur.sum():
            bins.append(self._pool(np.arange(len(self.target))))
        object.__setattr__(self, "bins", bins)

    def _pool(self, order: Integers) -> Integers:
        """The bin of each id: as few neighbours in ``order`` as are expected `LEAST_EXPECTED` times together."""
        assert self.may_occur is not None
        order = order[self.may_occur[order]]
        bins = np.full(len(self.target), FORBIDDEN)
        number, expected = 0, 0.0
        for token_id, mean in zip(order.tolist(), (self.draws * self.target[order]).tolist(), strict=True):
            if expected >= LEAST_EXPECTED:
                number, expected = number + 1, 0.0
            bins[token_id] = number
            expected += mean
        if expected < LEAST_EXPECTED and number > 0:
            bins[bins == number] = number - 1
        return bins

    def judge(self, counts: Integers) -> Verdict:
        """The verdict on counts of each id."""
        assert self.may_occur is not None
        assert counts.sum() == self.draws
        forbidden = int(counts[~self.may_occur].sum())
        if forbidden > 0:
            token_id = int(np.flatnonzero(~self.may_occur & (counts > 0))[0])
            return Verdict(0.0, f"forbidden: {forbidden} draws, of id {token_id} for one", 1)
        missing = np.flatnonzero((counts == 0) & (self.draws * self.target >= self._enough()))
        if len(missing) > 0:
            expected = self.draws * self.target[missing].max()
            return Verdict(
                math.exp(-expected) * len(self.target), f"missing: {len(missing)} ids, {expected:.0f} expected", 1
            )
        verdict = worst([self._judge_bins(bins, counts) for bins in self.bins])
        return Verdict(verdict.p_value, verdict.reason, verdict.tests + 1)  # one more: nothing is missing

    def _enough(self) -> float:
        """So many expected draws of an id that not one of the vocabulary's ids would be missing by chance."""
        return math.log(len(self.target) / ALPHA)

    def _judge_bins(self, bins: Integers, counts: Integers) -> Verdict:
        expected = self._binned(bins, self.target) * self.draws
        if len(expected) == 1:
            return Verdict(1.0, "a single bin")
        statistic = self._statistic(bins, counts, expected)
        scale, degrees = self._scale_and_degrees(expected)
        return Verdict(
            chi_square_tail(statistic / scale, degrees),
            f"bins: chi-square {statistic:.0f} of {len(expected) - 1} degrees",
        )

    def _statistic(self, bins: Integers, counts: Integers, expected: Floats) -> float:
        return float(((self._binned(bins, counts) - expected) ** 2 / expected).sum())

    def judge_scatter(self, many_counts: list[Integers]) -> Verdict:
        """Whether counts of many experiments scatter as those of independent draws: no more, and no less either.

        The sum of their statistics, by z-test: draws that are spread too evenly fit too well.
        """
        bins = self.bins[0]
        expected = self._binned(bins, self.target) * self.draws
        scale, degrees = self._scale_and_degrees(expected)
        total = sum(self._statistic(bins, counts, expected) for counts in many_counts)
        many = len(many_counts)
        return z_test(total, many * scale * degrees, many * 2 * scale**2 * degrees, "sum of chi-squares")

    def _binned(self, bins: Integers, values: Floats | Integers) -> Floats:
        counted = bins != FORBIDDEN
        sums: Floats = np.bincount(bins[counted], weights=values[counted]).astype(np.float64)
        return sums / sums.sum() if values is self.target else sums

    def _scale_and_degrees(self, expected: Floats) -> tuple[float, float]:
        """Pearson's statistic is close to scale * chi-square(degrees), with its exact mean and variance.

        Its variance exceeds chi-square's by (sum of 1 / p - bins^2 - 2 bins + 2) / draws; with 100 expected in a bin
        that is 0.5 %, which at tails of 1e-9 is a factor of 1.2 where it is left out.
        """
        bins = len(expected)
        probabilities = expected / self.draws
        variance = 2 * (bins - 1) + ((1 / probabilities).sum() - bins**2 - 2 * bins + 2) / self.draws
        scale = max(1.0, float(variance) / (2 * (bins - 1)))
        return scale, (bins - 1) / scale

    def power(self, wrong: Floats) -> float:
        """The probability that the gate stops a sampler of another distribution: of its best test, so at least that."""
        assert self.may_occur is not None
        never_forbidden = (1 - wrong[~self.may_occur].sum()) ** self.draws
        required = self.draws * self.target >= self._enough()
        always_there = float(np.prod(1 - (1 - wrong[required]) ** self.draws))
        kept = np.where(self.may_occur, wrong, 0)
        best = max(1 - float(never_forbidden), 1 - always_there)
        for bins in self.bins:
            expected = self._binned(bins, self.target) * self.draws
            if len(expected) > 1 and kept.sum() > 0:
                observed = self._binned(bins, kept / kept.sum()) * self.draws
                noncentrality = float(((observed - expected) ** 2 / expected).sum())
                scale, degrees = self._scale_and_degrees(expected)
                best = max(best, noncentral_power(noncentrality / scale, degrees))
        return best

    def detectable_bias(self, token_id: int, power: float = 0.99) -> float:
        """The relative bias of one id that is stopped with this power: 0.03 means 3 % more than its due."""

        def power_of(bias: float) -> float:
            wrong = self.target.copy()
            wrong[token_id] *= 1 + bias
            return self.power(wrong / wrong.sum())

        return bisect(lambda bias: power_of(bias) - power, 0.0, 10.0)


def bisect(function: Callable[[float], float], low: float, high: float) -> float:
    """Where an increasing function crosses 0."""
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if function(middle) > 0 else (middle, high)
    return high


def noncentral_power(noncentrality: float, degrees: float, alpha: float = ALPHA) -> float:
    """The probability that a noncentral chi-square variable exceeds what a central one exceeds with ``alpha``.

    A mixture of central ones, their degrees raised by twice a Poisson variable of mean ``noncentrality`` / 2.
    """
    critical = critical_value(degrees, alpha)
    mean = noncentrality / 2
    if mean > 10 * (critical + 100):
        return 1.0
    spread = 12 * math.sqrt(mean) + 20
    steps = np.arange(max(0, math.floor(mean - spread)), math.ceil(mean + spread) + 1)
    if mean == 0:
        return alpha
    log_weights = torch.from_numpy(steps * math.log(mean) - mean) - torch.lgamma(torch.from_numpy(steps + 1.0))
    shapes = torch.from_numpy(degrees / 2 + steps)
    tails = torch.special.gammaincc(shapes, torch.full_like(shapes, critical / 2))
    return float((log_weights.exp() * tails).sum().clamp(0, 1))


@functools.cache
def critical_value(degrees: float, alpha: float = ALPHA) -> float:
    """What a chi-square variable exceeds with probability ``alpha``."""
    return bisect(lambda value: alpha - chi_square_tail(value, degrees), 0.0, 10 * degrees + 1000)
