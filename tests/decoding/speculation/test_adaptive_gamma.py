"""Adaptive gamma: the best by the formula where costs are known, and never much worse than plain decoding."""

from __future__ import annotations

import random

import pytest

from ascend_sample.decoding.speculation.adaptive_gamma import AdaptiveGamma

TOKENS = 300


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


def test_costs_are_read_from_the_seconds_of_rounds() -> None:
    control = AdaptiveGamma()
    assert [control.choose(8)] == [0]
    for gamma, seconds in ((0, 1.0), (0, 1.0), (3, 2.2), (3, 2.2)):
        control.observe(gamma, seconds, looked=gamma, accepted=gamma)
    assert control.relative_costs(1)[0] == 1
    assert control.relative_costs(6)[6] == pytest.approx(3.4), (
        "a line from a plain step through the one gamma that was tried"
    )
    control.observe(1, 1.9, looked=1, accepted=1)
    assert control.relative_costs(2)[2] == pytest.approx(2.05), "a line through those that were tried"


def simulate(acceptance: float, cost: float, verification: float, noise: float, seed: int) -> tuple[float, float]:
    """Speed beside plain decoding, and that of the best fixed gamma, of rounds whose times are disturbed."""
    generator = random.Random(seed)
    control = AdaptiveGamma()
    tokens = seconds = 0.0
    while tokens < TOKENS:
        gamma = control.choose(TOKENS)
        accepted = 0
        while accepted < gamma and generator.random() < acceptance:
            accepted += 1
        true = 1.0 if gamma == 0 else verification + gamma * cost
        seconds += true
        control.observe(gamma, true * generator.uniform(1, 1 + noise), min(accepted + 1, gamma), accepted)
        tokens += accepted + 1
    best = max(
        1.0, *(sum(acceptance**i for i in range(gamma + 1)) / (verification + gamma * cost) for gamma in range(1, 9))
    )
    return tokens / seconds, best


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_never_much_slower_than_plain_decoding_and_close_to_the_best(noise: float) -> None:
    for acceptance in (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.97):
        for cost, verification in ((0.29, 1.0), (0.29, 1.4), (0.1, 1.1), (0.8, 1.0), (0.0, 1.05), (0.29, 3.0)):
            speeds = [simulate(acceptance, cost, verification, noise, seed) for seed in range(3)]
            mean = sum(speed for speed, _ in speeds) / len(speeds)
            assert mean > 0.95, (acceptance, cost, verification)
            assert mean > 0.85 * speeds[0][1], (acceptance, cost, verification)


def test_of_several_rows_the_slowest_counts() -> None:
    control = AdaptiveGamma(cost=0.2)
    control.observe(4, seconds=0.0, looked=1000, accepted=900)
    assert control.acceptance_of_slowest([(64, 8)]) == control.acceptance()
    assert control.acceptance_of_slowest([(0, 0), (0, 0)]) == pytest.approx(control.acceptance())
    slow = control.acceptance_of_slowest([(640, 620), (64, 8), (64, 60)])
    assert slow == pytest.approx((8 + 16 * control.acceptance()) / 80)
    alone = control.choose(20)
    assert control.choose(20, [(640, 620), (64, 60)]) >= 4
    assert 0 <= control.choose(20, [(640, 620), (64, 8)]) < alone
    assert control.choose(20, [(6400, 0), (64, 60)]) == 0


def after_plain_rounds(reading: float, rounds: int) -> AdaptiveGamma:
    """Of a drafter with half of its tokens accepted, at a cost of 0.1, in rounds of about 1 s; then plain rounds.

    The drafter read 10 tokens in 10 times reading seconds.
    """
    control = AdaptiveGamma()
    for _ in range(2):
        control.observe(0, 1.0, looked=0, accepted=0)
    control.observe_reading(10 * reading, 10)
    for gamma in (1, 3):
        for _ in range(100):
            control.observe(gamma, 1.1 + 0.1 * gamma, looked=gamma, accepted=gamma / 2)
    for _ in range(rounds):
        control.observe(0, 1.0, looked=0, accepted=0)
    return control


def test_drafting_begins_again_only_where_it_makes_up_for_what_has_to_be_read() -> None:
    control = after_plain_rounds(reading=0.05, rounds=20)
    gamma = control.choose(200, unread=0)
    assert gamma >= 1
    assert control.choose(200, unread=20) == gamma
    assert control.choose(6, unread=20) == 0, "a step of reading is more than half of what 6 tokens would win"
    assert control.choose(6, unread=0) >= 1
    assert after_plain_rounds(reading=0.0, rounds=20).choose(6, unread=20) >= 1


@pytest.mark.parametrize(("reading", "probes"), [(0.0, True), (0.02, True), (0.05, False)])
def test_a_drafter_that_reads_slowly_is_not_tried_again(reading: float, probes: bool) -> None:
    control = after_plain_rounds(reading, rounds=0)
    for _ in range(100):
        control.observe(3, 1.4, looked=3, accepted=0)
    found = []
    for unread in range(150):
        found.append(control.choose(300, unread=unread))
        control.observe(0, 1.0, looked=0, accepted=0)
    assert (sum(found) > 0) == probes
    assert not any(found[:32])


def test_reading_is_no_cost_of_a_round() -> None:
    control = AdaptiveGamma()
    control.observe(0, 1.0, looked=0, accepted=0)
    control.observe_reading(3.0, 30)
    control.observe(2, 1.6 + 5 * 0.1, looked=2, accepted=2, unread=5)
    assert control.relative_costs(2)[2] == pytest.approx(1.6)
