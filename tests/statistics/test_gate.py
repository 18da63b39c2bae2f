"""The gate itself: its tails against closed forms, its false alarms and its power against simulations."""

from __future__ import annotations

import math

import gate
import numpy as np
import pytest
import torch
from experiments import HEAD_NATS, LARGE_VOCAB_SIZE, PAIRED, judge_pairs, tail_probability
from gate import ALPHA, RowGate

HAND_WORKED = np.array([0.1, 0.2, 0.3, 0.4])
LEAST_POWER = 0.999


def closed_form(statistic: float, degrees: int) -> float:
    """Of an even number of degrees: a Poisson sum."""
    half = statistic / 2
    return math.fsum(math.exp(count * math.log(half) - half - math.lgamma(count + 1)) for count in range(degrees // 2))


class TestTails:
    @pytest.mark.parametrize("degrees", [2, 4, 10, 50, 200, 1000, 2000])
    @pytest.mark.parametrize("alpha", [1e-3, 1e-6, 1e-8, 1e-9, ALPHA, 1e-12])
    def test_chi_square(self, degrees: int, alpha: float) -> None:
        critical = gate.critical_value(degrees, alpha)
        assert gate.chi_square_tail(critical, degrees) == pytest.approx(alpha, rel=1e-6)
        assert closed_form(critical, degrees) == pytest.approx(alpha, rel=1e-6)

    def test_one_degree_is_a_squared_normal(self) -> None:
        assert gate.chi_square_tail(36.0, 1) == pytest.approx(gate.normal_tail(6.0), rel=1e-9)

    @pytest.mark.parametrize(
        ("hits", "draws", "probability"), [(0, 40, 0.1), (3, 40, 0.1), (17, 40, 0.4), (40, 40, 0.9)]
    )
    @pytest.mark.parametrize("upper", [False, True])
    def test_binomial(self, hits: int, draws: int, probability: float, upper: bool) -> None:
        counts = range(hits, draws + 1) if upper else range(hits + 1)
        exact = math.fsum(math.comb(draws, n) * probability**n * (1 - probability) ** (draws - n) for n in counts)
        assert gate.binomial_tail(hits, draws, probability, upper=upper) == pytest.approx(exact, rel=1e-9)

    def test_binomial_with_rare_hits_is_poisson(self) -> None:
        assert gate.binomial_tail(1, 10**8, 39e-8, upper=False) == pytest.approx(40 * math.exp(-39), rel=1e-5)

    def test_power_by_formula_is_power_by_simulation(self) -> None:
        gate_, generator = RowGate(HAND_WORKED, 200_000), np.random.default_rng(0)
        biased = HAND_WORKED * [1, 1, 1, 1.04]
        biased /= biased.sum()
        formula = gate_.power(biased)
        stopped = [not gate_.judge(generator.multinomial(200_000, biased)).passed for _ in range(2000)]
        assert 0.5 < formula < 0.99
        assert np.mean(stopped) == pytest.approx(formula, abs=4 * math.sqrt(0.25 / 2000))


class TestRows:
    def test_right_counts_pass(self) -> None:
        assert RowGate(HAND_WORKED, 1000).judge(np.array([100, 200, 300, 400])).p_value == 1

    def test_by_hand(self) -> None:
        """(120 - 100)^2 / 100 + (180 - 200)^2 / 200 = 6, of 3 degrees."""
        verdict = RowGate(HAND_WORKED, 1000).judge(np.array([120, 180, 300, 400]))
        assert verdict.reason == "bins: chi-square 6 of 3 degrees"
        assert verdict.p_value == pytest.approx(gate.chi_square_tail(6.0, 3), rel=0.02)

    def test_one_forbidden_draw_is_too_much(self) -> None:
        verdict = RowGate(np.array([0.0, 1.0]), 10**6).judge(np.array([1, 10**6 - 1]))
        assert not verdict.passed
        assert "forbidden: 1 draws, of id 0" in verdict.reason

    def test_an_id_that_never_comes_is_missing(self) -> None:
        target = np.full(1000, 1e-3)
        counts = np.full(1000, 100)
        counts[[7, 8]] = 0, 200
        verdict = RowGate(target, 100_000).judge(counts)
        assert not verdict.passed
        assert "missing: 1 ids, 100 expected" in verdict.reason

    def test_pools(self) -> None:
        """Ids 2 to 5 are expected 60 times each: two go together, and what is left goes with the last ones."""
        target = np.array([0.3, 0.4, 0.06, 0.06, 0.06, 0.06, 0.06, 0.0])
        by_probability, by_id = RowGate(target, 1000).bins
        assert by_probability.tolist() == [1, 0, 2, 2, 3, 3, 3, gate.FORBIDDEN]
        assert by_id.tolist() == [0, 1, 2, 2, 3, 3, 3, gate.FORBIDDEN]

    def test_ids_in_doubt_are_neither_forbidden_nor_missing(self) -> None:
        gate_ = RowGate(np.array([0.5, 0.5, 0.0]), 1000, np.array([True, True, True]))
        assert gate_.judge(np.array([500, 500, 0])).passed
        assert gate_.judge(np.array([500, 499, 1])).passed

    def test_false_alarms_are_as_frequent_as_promised(self) -> None:
        """At a thousandth, where frequencies can be counted; a pooled row of 300 ids with a long tail."""
        target = np.arange(1, 301, dtype=np.float64) ** -1.5
        gate_, generator = RowGate(target / target.sum(), 10_000), np.random.default_rng(0)
        alarms = 0
        for _ in range(20_000):
            verdict = gate_._judge_bins(gate_.bins[0], generator.multinomial(10_000, gate_.target))
            alarms += verdict.p_value < 1e-3
        assert gate.binomial_test(alarms, 20_000, 1e-3, "alarms").p_value > 1e-4

    def test_a_share_of_the_mass_that_is_never_drawn_is_seen_where_a_cosine_is_blind(self) -> None:
        """5 million draws over 128256 ids that leave out the least likely ones, a tenth of the mass."""
        generator, draws = np.random.default_rng(0), 5_000_000
        target = np.exp(generator.normal(size=128_256))
        target /= target.sum()
        order = np.argsort(target)
        wrong = target.copy()
        wrong[order[: np.searchsorted(np.cumsum(target[order]), 0.1)]] = 0
        counts = generator.multinomial(draws, wrong / wrong.sum())
        cosine = counts @ target / np.linalg.norm(counts) / np.linalg.norm(target)
        assert cosine > 0.98
        assert not RowGate(target, draws).judge(counts).passed

    def test_counts_that_scatter_too_little_or_too_much_are_stopped(self) -> None:
        gate_, generator = RowGate(HAND_WORKED, 10_000), np.random.default_rng(0)
        many = [generator.multinomial(10_000, HAND_WORKED) for _ in range(200)]
        means = 10_000 * HAND_WORKED
        assert gate_.judge_scatter(many).passed
        for factor in (0.5, 2.0):
            stretched = [np.round(means + factor * (counts - means)).astype(np.int64) for counts in many]
            assert not gate_.judge_scatter(stretched).passed

    def test_detectable_bias(self) -> None:
        gate_ = RowGate(HAND_WORKED, 200_000)
        bias = gate_.detectable_bias(3)
        wrong = HAND_WORKED * [1, 1, 1, 1 + bias]
        assert gate_.power(wrong / wrong.sum()) == pytest.approx(0.99, abs=1e-3)
        assert 0.04 < bias < 0.045


class TestPower:
    """What each gate is sure to stop, of as many draws as the long run makes: laws that engines have drawn from."""

    def test_three_percent_more_of_one_token(self) -> None:
        wrong = HAND_WORKED * [1, 1, 1, 1.03]
        assert RowGate(HAND_WORKED, 1_000_000).power(wrong / wrong.sum()) > LEAST_POWER

    @pytest.mark.parametrize("top_p", [0.9, 0.999])
    def test_a_top_p_rounded_to_bfloat16(self, top_p: float) -> None:
        """0.8984 for 0.9, and 1 for 0.999."""
        weights = np.exp(-np.arange(200) / 20)

        def nucleus(bound: float) -> np.ndarray:
            before = np.cumsum(weights) - weights
            kept = np.where(before <= bound * weights.sum(), weights, 0)
            return kept / kept.sum()

        rounded = float(torch.tensor(top_p, dtype=torch.bfloat16))
        assert RowGate(nucleus(top_p), 200_000).power(nucleus(rounded)) > LEAST_POWER

    def test_a_tail_that_uniforms_of_24_bits_cannot_draw(self) -> None:
        """One of the 128255 lanes is at the lowest step, 2^-24, and the head's noise exceeds e^18 of that."""
        steps = np.arange(1, 40) * 2.0**-24
        lanes = LARGE_VOCAB_SIZE - 1
        first_at = np.exp(-lanes * (steps - 2.0**-24)) - np.exp(-lanes * steps)  # the least noise of the tail
        rate = float((first_at * np.exp(-math.exp(HEAD_NATS) * steps)).sum())
        assert gate.binomial_power(30_000, tail_probability(), rate) > LEAST_POWER

    def test_an_eps_of_1e_8_beside_the_noise(self) -> None:
        """The tail wins where its noise is below e^-18 of the head's, less eps: an exponential one above eps e^18."""
        rate = tail_probability() * math.exp(-1e-8 * math.exp(HEAD_NATS))
        assert gate.binomial_power(200_000, tail_probability(), rate) > LEAST_POWER

    def test_pairs_of_which_a_few_are_one_draw(self) -> None:
        generator, draws = np.random.default_rng(0), 100_000
        first, second = (torch.from_numpy(generator.choice(8, draws, p=PAIRED.target())) for _ in range(2))
        assert judge_pairs(first, second, "independent").passed
        repeated = torch.where(torch.from_numpy(generator.random(draws) < 0.05), first, second)
        assert not judge_pairs(first, repeated, "one in twenty").passed
