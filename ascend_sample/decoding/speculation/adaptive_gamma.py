"""Adaptive gamma drafts as many tokens as make the time for a token least, by what was measured so far."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict, deque
from collections.abc import Sequence

from ascend_sample._errors import check_integer, check_number, refuse

WINDOW = 256
"""The number of draft tokens after which a look at one counts 1/e as much."""
FIRST_GUESS = 0.7
GUESSED_LOOKS = 4.0
TIMES_KEPT = 9
PLAIN_ROUNDS_FIRST = 2
SPECULATIVE_ROUNDS_FIRST = 2
FIRST_GAMMA = 3
FIRST_GAMMA_OF_A_BATCH = 1
"""The first gamma of several rows is smaller, because a pass over more of their tokens may cost much more."""
ROW_WEIGHT = 16.0
"""The number of looks at draft tokens of one row after which they count as much as those of all rows."""
LEAST_GAIN = 1.03
"""Drafting must promise this much more speed than plain decoding, for estimates are not sure."""
PROBING_SHARE = 0.01
"""The share of the time that may be lost by trying to draft where plain decoding seems better."""
READING_SHARE = 0.03
"""The share of the time that the drafter may need for such a try, to read the tokens that it missed."""
CERTAINTY = 2.0
"""What drafting again promises to gain must be this many times what it costs to begin with."""
FEWEST_ROUNDS_BETWEEN_PROBES = 32
ROUNDS_BETWEEN_PLAIN_ONES = 48
"""A round of plain decoding now and then tells whether its time has changed."""


class AdaptiveGamma:
    """Chooses gamma before each round of `speculative_sample`, 0 (plain decoding) included.

    With acceptance a of a draft token that was looked at, and the cost c of drafting a token beside a plain step, a
    round of gamma yields (1 + a + a^2 + ... + a^gamma) tokens and costs 1 + gamma * c. The gamma that makes most of it
    is chosen. a is estimated from the latest rounds; so is c, unless it is given, from the seconds that rounds of each
    gamma took: then it contains all that drafting and judging cost, and the first rounds are used to find it out.

    A batch is done when its slowest row is. So of several rows the one counts that accepts least: its own looks, and
    those of all rows as long as it has few.

    A drafter that was not asked for a while has to read what it missed, which for a batch on a CPU costs about as much
    as having drafted all the time. So drafting begins again only where what is left of the texts makes up for that.

    An object learns as long as it is used: give the same one to calls with the same models and batch size.

    What is drawn stays exact, as the choice depends on earlier places alone. With measured costs the same seed need not
    give the same text again, because other places are drafted; with a given cost it does, in the same batch.

    Args:
        largest: gamma is at most this.
        cost: c, where it is known: time of the drafter for a token / time of the target for a step. None: measured.

    Example:
        >>> control = AdaptiveGamma(cost=0.1)
        >>> control.observe(4, seconds=0.0, looked=1000, accepted=950)
        >>> control.choose(limit=20)
        8
        >>> control.observe(4, seconds=0.0, looked=1000, accepted=10)
        >>> control.choose(limit=20)
        0

    Source: docs/decoding.md, section "Adaptive gamma".
    """

    def __init__(self, largest: int = 8, *, cost: float | None = None) -> None:
        check_integer("AdaptiveGamma", "largest", largest, low=1)
        if cost is not None:
            check_number("AdaptiveGamma", "cost", cost, low=0)
        self.largest = int(largest)
        self.cost = cost
        self._looked = GUESSED_LOOKS
        self._accepted = FIRST_GUESS * GUESSED_LOOKS
        self._seconds: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=TIMES_KEPT))
        self._reading = 0.0
        self._rounds_since_plain = 0
        self._rounds_since_draft = 0

    def acceptance(self) -> float:
        """Returns the estimate of a."""
        return self._accepted / self._looked

    def relative_costs(self, largest: int) -> list[float]:
        """Returns the estimates of what a round of gamma = 0, 1, ..., largest costs in plain steps.

        Raises:
            ValueError: costs are to be measured, and no plain round, or no other one, was observed yet.
        """
        if self.cost is not None:
            return [1.0 + gamma * self.cost for gamma in range(largest + 1)]
        medians = {gamma: statistics.median(times) for gamma, times in self._seconds.items() if times}
        plain = medians.pop(0, None)
        if plain is None or not medians:
            value = f"{len(self._seconds[0])} plain rounds and {len(medians)} other gammas"
            refuse("AdaptiveGamma", "relative_costs", "come after rounds of both kinds", value, "Give cost, or decode.")
        if len(medians) == 1:
            ((drafted, seconds),) = medians.items()
            at_none, slope = plain, (seconds - plain) / drafted
        else:
            gammas = [gamma for gamma in medians for _ in self._seconds[gamma]]  # each as often as it was measured
            slope, at_none = statistics.linear_regression(gammas, [medians[gamma] for gamma in gammas])
        slope = max(slope, 0.0)
        return [1.0, *(max(1.0, (at_none + slope * gamma) / plain) for gamma in range(1, largest + 1))]

    def acceptance_of_slowest(self, rows: Sequence[tuple[int, int]]) -> float:
        """Returns the estimate of a of the row that accepts least; rows as for `choose`."""
        common = self.acceptance()
        if len(rows) < 2:
            return common
        return min((accepted + ROW_WEIGHT * common) / (looked + ROW_WEIGHT) for looked, accepted in rows)

    def choose(self, limit: int, rows: Sequence[tuple[int, int]] = (), unread: int = 0) -> int:
        """Returns the gamma of the next round.

        Args:
            limit: gamma is at most this; it is how many tokens the longest row still gets, but for one.
            rows: of each row that is not done, how many of its draft tokens were looked at so far, and accepted.
            unread: how many tokens of a row the drafter would have to read before it could draft.
        """
        largest = min(self.largest, limit)
        if largest < 1:
            return 0
        if self.cost is None:
            if len(self._seconds[0]) < PLAIN_ROUNDS_FIRST:
                return 0
            tried = sum(len(times) for drafted, times in self._seconds.items() if drafted)
            if tried < SPECULATIVE_ROUNDS_FIRST:
                return min(FIRST_GAMMA_OF_A_BATCH if len(rows) > 1 else FIRST_GAMMA, largest)
            if self._rounds_since_plain >= ROUNDS_BETWEEN_PLAIN_ONES:
                return 0
        slowest = self.acceptance_of_slowest(rows)
        costs = self.relative_costs(largest)
        tokens = list(itertools.accumulate(slowest**place for place in range(largest + 1)))
        best = max(range(1, largest + 1), key=lambda gamma: tokens[gamma] / costs[gamma])
        speed = tokens[best] / costs[best]
        reading = self._steps_of_reading(unread)
        if speed > LEAST_GAIN and reading * CERTAINTY <= limit * (1 - 1 / speed):
            return best
        # Nothing is learnt about acceptance without drafting; one token now and then tells.
        lost = max(0.0, costs[1] - tokens[1])
        rounds = max(FEWEST_ROUNDS_BETWEEN_PROBES, lost / PROBING_SHARE, reading / READING_SHARE)
        return 1 if self._rounds_since_draft >= rounds else 0

    def observe_reading(self, seconds: float, length: int) -> None:
        """Learns from the seconds in which the drafter read prompts of this length."""
        self._reading = seconds / length

    def observe(self, gamma: int, seconds: float, looked: int, accepted: int, unread: int = 0) -> None:
        """Learns from a round.

        Args:
            gamma: how many tokens were drafted.
            seconds: the time of the round.
            looked: draft tokens that the target looked at, of all rows.
            accepted: how many of them it accepted.
            unread: how many tokens of a row the drafter had to read first.
        """
        fading = math.exp(-looked / WINDOW)
        self._looked = self._looked * fading + looked
        self._accepted = self._accepted * fading + accepted
        self._seconds[gamma].append(seconds - unread * self._reading if gamma else seconds)
        self._rounds_since_plain = 0 if gamma == 0 else self._rounds_since_plain + 1
        self._rounds_since_draft = 0 if gamma else self._rounds_since_draft + 1

    def _steps_of_reading(self, unread: int) -> float:
        """Returns what it costs the drafter to read tokens, in plain steps; 0 where times are not measured."""
        return unread * self._reading / statistics.median(self._seconds[0]) if self.cost is None else 0.0


def checked_gamma(strategy: str, gamma: object) -> int | AdaptiveGamma:
    """Returns how many tokens are drafted, or what chooses it, or raises unless it is given."""
    if isinstance(gamma, AdaptiveGamma):
        return gamma
    if gamma == "adaptive":
        return AdaptiveGamma()
    if isinstance(gamma, str):
        refuse(strategy, "gamma", "be an int, 'adaptive' or an AdaptiveGamma", repr(gamma), "Use 'adaptive'.")
    return check_integer(strategy, "gamma", gamma, low=0)
