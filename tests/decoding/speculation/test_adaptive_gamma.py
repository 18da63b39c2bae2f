"""Adaptive gamma: the best by the formula where costs are known, and what is learned of acceptance and costs."""

from __future__ import annotations

import pytest

from ascend_sample.decoding.speculation.adaptive_gamma import AdaptiveGamma


def test_the_best_gamma_of_the_formula() -> None:
    found = []
    for acceptance, cost in ((0.95, 0.29), (0.8, 0.29), (0.5, 0.29), (0.2, 0.29), (0.99, 0.05), (0.9, 0.0), (0.6, 0.7)):
        control = AdaptiveGamma(16, cost=cost)
        control.observe(4, seconds=0.0, looked=100_000, accepted=int(acceptance * 100_000))
        best = max(range(17), key=lambda gamma: sum(acceptance**i for i in range(gamma + 1)) / (gamma * cost + 1))
        assert control.choose(16) == best
        assert control.choose(0) == 0
        found.append(best)
    assert found == [8, 3, 1, 0, 16, 16, 0]


def test_acceptance_follows_the_latest_rounds() -> None:
    control = AdaptiveGamma(cost=0.1)
    for accepted in (8, 0):
        for _ in range(100):
            control.observe(8, seconds=0.0, looked=8, accepted=accepted)
        assert control.acceptance() == pytest.approx(accepted / 8, abs=0.06)


def test_of_several_rows_the_slowest_counts() -> None:
    control = AdaptiveGamma(cost=0.2)
    control.observe(4, seconds=0.0, looked=1000, accepted=900)
    alone = control.choose(20)
    assert control.choose(20, [(640, 620), (64, 60)]) >= 4
    assert 0 <= control.choose(20, [(640, 620), (64, 8)]) < alone
    assert control.choose(20, [(6400, 0), (64, 60)]) == 0


def test_costs_are_read_from_the_seconds_of_rounds_without_what_was_read() -> None:
    control = AdaptiveGamma()
    assert control.choose(8) == 0
    with pytest.raises(ValueError, match=r"relative_costs must come after .*, got 0 plain rounds and 0 other gammas"):
        control.relative_costs(3)
    control.observe(0, 1.0, looked=0, accepted=0)
    control.observe_reading(3.0, 30)
    control.observe(3, 2.2 + 5 * 0.1, looked=3, accepted=3, unread=5)
    assert control.relative_costs(6)[6] == pytest.approx(3.4)
    control.observe(1, 1.9, looked=1, accepted=1)
    assert control.relative_costs(2)[2] == pytest.approx(2.05), "a line through those that were tried"


@pytest.mark.parametrize(("reading", "probes"), [(0.0, True), (0.02, True), (0.05, False)])
def test_a_drafter_that_reads_slowly_is_not_tried_again(reading: float, probes: bool) -> None:
    """First half of the drafts are accepted, at a cost of 0.1 in rounds of about 1 s; then none."""
    control = AdaptiveGamma()
    for _ in range(2):
        control.observe(0, 1.0, looked=0, accepted=0)
    control.observe_reading(10 * reading, 10)
    for gamma, accepted in ((1, 0.5), (3, 1.5), (3, 0)):
        for _ in range(100):
            control.observe(gamma, 1.1 + 0.1 * gamma, looked=gamma, accepted=accepted)
    found = []
    for unread in range(150):
        found.append(control.choose(300, unread=unread))
        control.observe(0, 1.0, looked=0, accepted=0)
    assert (sum(found) > 0) == probes
    assert not any(found[:32])
