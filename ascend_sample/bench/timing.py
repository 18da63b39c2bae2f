"""Measures alternatives side by side, so that their ratios mean something on a machine that is not quiet.

Every round times each subject once, and each round begins with another one: a disturbance, a change of the clock rate
or what the one before left in the caches meets all of them alike. A subject's result is the median over the rounds,
with its quartiles beside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace

Repeat = Callable[[int], float]
"""Calls a subject so many times and returns the seconds that they took together."""

_SLOW_SECONDS = 0.02  # a call this long needs no untimed one before it: it finds the caches as it leaves them
_MOST_CALLS = 2000
_MOST_EXTENSIONS = 2


@dataclass(frozen=True)
class Budget:
    """How long to measure."""

    seconds: float = 0.5  # for all subjects together; the fewest rounds may take more, and so may a noisy subject
    sample_seconds: float = 1e-3  # a sample of a fast subject is a loop of about this length
    fewest_rounds: int = 3  # of every subject, also of a slow one
    most_rounds: int = 40  # of every subject
    noise: float = 0.15  # a spread (see `Statistics.spread`) above which a fast subject is measured for longer


@dataclass(frozen=True)
class Statistics:
    """Seconds of one call of a subject, over its rounds."""

    median: float
    lower_quartile: float
    upper_quartile: float
    minimum: float
    rounds: int
    calls_per_round: int

    @staticmethod
    def of(samples: list[float], calls_per_round: int = 1) -> Statistics:
        """Summarises seconds of one call, one value a round.

        Example:
            >>> Statistics.of([4.0, 1.0, 2.0]).median
            2.0
        """
        lower, median, upper = (
            statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else samples * 3
        )
        return Statistics(median, lower, upper, min(samples), len(samples), calls_per_round)

    @property
    def spread(self) -> float:
        """Returns the distance of the quartiles from one another, relative to the median."""
        return (self.upper_quartile - self.lower_quartile) / self.median

    def to_json(self) -> dict[str, float]:
        """Returns the values by their names."""
        return asdict(self)


@dataclass(frozen=True)
class _Plan:
    """How one subject is measured."""

    calls: int
    rounds: int
    is_slow: bool


def repeat(call: Callable[[], object], synchronize: Callable[[], None] | None = None) -> Repeat:
    """Turns a function into a subject.

    Args:
        call: what is measured.
        synchronize: waits for the device that `call` gives work to; None where a call returns when it is done.
    """

    def run(calls: int) -> float:
        if synchronize is not None:
            synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        if synchronize is not None:
            synchronize()
        return time.perf_counter() - began

    return run


def rotate(function: Callable[..., object], batches: Iterable[tuple[object, ...]]) -> Callable[[], object]:
    """Returns a function that calls `function` on the next of `batches`, over and over.

    Where there is only one, it does so without detour.
    """
    arguments = list(batches)
    if len(arguments) == 1:
        (only,) = arguments
        return lambda: function(*only)
    place = -1

    def call() -> object:
        nonlocal place
        place = place + 1 if place + 1 < len(arguments) else 0
        return function(*arguments[place])

    return call


def measure(subjects: Mapping[str, Repeat], budget: Budget) -> dict[str, Statistics]:
    """Times all subjects, interleaved.

    Args:
        subjects: by name.
        budget: how long.

    Returns:
        The statistics of every subject, in the same order.

    Example:
        >>> list(measure({"sum": repeat(lambda: sum(range(10)))}, Budget(seconds=0.01)))
        ['sum']
    """
    share = budget.seconds / max(1, len(subjects))
    plans = {name: _plan(subject, share, budget) for name, subject in subjects.items()}
    samples: dict[str, list[float]] = {name: [] for name in subjects}
    _run_rounds(subjects, plans, samples)
    for _ in range(_MOST_EXTENSIONS):
        noisy = {
            name: replace(plan, rounds=max(1, plan.rounds // 2))
            for name, plan in plans.items()
            if not plan.is_slow and Statistics.of(samples[name]).spread > budget.noise
        }
        if not noisy:
            break
        _run_rounds({name: subjects[name] for name in noisy}, noisy, samples)
    return {name: Statistics.of(samples[name], plans[name].calls) for name in subjects}


def _plan(subject: Repeat, seconds: float, budget: Budget) -> _Plan:
    """Tries a subject, and decides how it is measured so that it takes about `seconds`."""
    once = subject(1)
    if once < _SLOW_SECONDS:
        once = subject(1)  # the first call also paid for loading and allocating
    is_slow = once >= _SLOW_SECONDS
    calls = max(1, min(_MOST_CALLS, round(budget.sample_seconds / max(once, 1e-9))))
    round_seconds = once * (calls + (not is_slow))
    rounds = max(budget.fewest_rounds, min(budget.most_rounds, int(seconds / max(round_seconds, 1e-9))))
    return _Plan(calls, rounds, is_slow)


def _run_rounds(subjects: Mapping[str, Repeat], plans: Mapping[str, _Plan], samples: Mapping[str, list[float]]) -> None:
    """Adds each subject's samples; one that has fewer rounds than another takes part in evenly spread ones."""
    names = list(subjects)
    total = max((plans[name].rounds for name in names), default=0)
    for number in range(total):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            plan = plans[name]
            if (number + 1) * plan.rounds // total == number * plan.rounds // total:
                continue
            if not plan.is_slow:
                subjects[name](1)
            samples[name].append(subjects[name](plan.calls) / plan.calls)
