"""Beam sample: the exact distribution of what it draws and of what it returns, seeds, and what is refused."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

from ascend_sample.decoding.beams.run import NOTHING
from ascend_sample.decoding.beams.sampled_beam import beam_sample, draw
from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.sampling import SamplingParams, filter_logits
from ascend_sample.sampling.draws import placed_noise
from tests.decoding.chi_square import SMALLEST_P_VALUE, p_value
from tests.decoding.table_models import random_table, table_model

DRAWS = 20_000


def plackett_luce(weights: dict[Any, float], chosen: Iterable[Any]) -> float:
    """The probability that drawing without replacement gives this set."""
    total, found = sum(weights.values()), 0.0
    for order in itertools.permutations(chosen):
        rest, probability = total, 1.0
        for one in order:
            probability *= weights[one] / rest
            rest -= weights[one]
        found += probability
    return found


def assert_distributed(counts: Counter[Any], probabilities: dict[Any, float]) -> None:
    assert not set(counts) - set(probabilities), "something impossible was returned"
    assert sum(probabilities.values()) == pytest.approx(1.0)
    found = np.array([counts[outcome] for outcome in probabilities])
    assert p_value(found, np.array(list(probabilities.values()))) > SMALLEST_P_VALUE


def test_what_has_no_probability_is_not_drawn_even_where_too_few_have_one() -> None:
    log_probs = torch.tensor([[[0.0, -torch.inf, -200.0, -torch.inf]]]).expand(500, 1, 4)
    drawn = draw(torch.zeros(500, 1), log_probs, torch.arange(500), torch.zeros(500, dtype=torch.int64), 3)
    assert drawn.tokens[:, :2].tolist() == [[0, 2]] * 500
    assert (drawn.scores[:, 2] == NOTHING).all()
    # Two hypotheses and no third, though three candidates were asked for.
    table = torch.tensor([[0.5, 0.5, 0, 0]] * 4)
    model = ModuleModel(lambda input_ids: table.log()[input_ids])
    found = beam_sample(model, torch.tensor([[0]]), max_new_tokens=1, num_beams=3, num_return_sequences=3)
    assert sorted(found.to_lists()) == [[], [0], [1]]
    assert found.sequences_scores[2] == -torch.inf


def returned(table: torch.Tensor, temperature: float, top_k: int, num_beams: int) -> dict[tuple[int, ...], float]:
    """The exact distribution of the best sequence of two steps after token 0, by enumeration."""
    rows = filter_logits(
        table,
        temperature=torch.full((len(table),), temperature),
        top_k=torch.full((len(table),), top_k, dtype=torch.int32),
    ).double()
    found: Counter[tuple[int, ...]] = Counter()
    first = {token: float(score) for token, score in enumerate(rows[0]) if score > -math.inf}
    for some in itertools.combinations(first, 2 * num_beams):
        beams = sorted(some, key=lambda token: -first[token])[:num_beams]
        probability = plackett_luce({token: math.exp(score) for token, score in first.items()}, some)
        second = {
            (beam, token): first[beam] + float(score)
            for beam in beams
            for token, score in enumerate(rows[beam])
            if score > -math.inf
        }
        weights = {pair: math.exp(score) for pair, score in second.items()}
        for pairs in itertools.combinations(second, 2 * num_beams):
            best = max(pairs, key=lambda pair: second[pair])
            found[best] += probability * plackett_luce(weights, pairs)
    return dict(found)


@pytest.mark.parametrize(("temperature", "top_k", "num_beams"), [(0.6, 6, 1), (0.8, 5, 2)])
def test_the_best_of_two_steps_is_exactly_distributed(temperature: float, top_k: int, num_beams: int) -> None:
    table = random_table(6, seed=2, spread=1.0).log_softmax(dim=1)
    params = [SamplingParams(temperature=temperature, top_k=top_k, seed=seed) for seed in range(DRAWS)]
    prompts = torch.zeros(DRAWS, 1, dtype=torch.int64)
    found = beam_sample(table_model(table), prompts, params, max_new_tokens=2, num_beams=num_beams)
    counts = Counter(map(tuple, found.to_lists()))
    assert_distributed(counts, returned(table, temperature, top_k, num_beams))


def test_a_score_is_the_sum_of_what_temperature_and_filters_made() -> None:
    table = random_table(7, seed=4).log_softmax(dim=1)
    params = SamplingParams(temperature=0.5, top_k=4, top_p=0.9, seed=3)
    found = beam_sample(
        table_model(table), torch.tensor([[1]]), params, max_new_tokens=4, num_beams=2, length_penalty=2.0
    )
    path = [1, *found.to_lists()[0]]
    score = sum(2 * float(table[a, b]) for a, b in itertools.pairwise(path)) / 4**2
    assert found.sequences_scores.item() == pytest.approx(score, abs=1e-5)


def test_a_stop_token_that_is_named_twice_is_one() -> None:
    model, prompt = table_model(random_table(11, seed=3)), torch.tensor([[1]])
    for seed in range(9):
        options: dict[str, Any] = {"params": SamplingParams(seed=seed), "max_new_tokens": 5, "num_beams": 2}
        once, thrice = (beam_sample(model, prompt, eos_token_id=ids, **options) for ids in (3, [3, 3, 3]))
        assert once.to_lists() == thrice.to_lists()


def test_processors_come_before_the_filters() -> None:
    def forbid_the_best(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(scores == scores.amax(dim=1, keepdim=True), -torch.inf)

    table = random_table(8, seed=6)
    options: dict[str, Any] = {"max_new_tokens": 1, "num_beams": 1, "logits_processor": [forbid_the_best]}
    found = beam_sample(table_model(table), torch.tensor([[0]]), SamplingParams(top_k=1, seed=0), **options)
    assert found.to_lists() == [[int(table[0].argsort(descending=True)[1])]]


@pytest.mark.parametrize("most_sent", [placed_noise.MOST_SENT, 0], ids=["sent", "made there"])
def test_the_devices_draw_the_same(npu: str, monkeypatch: pytest.MonkeyPatch, most_sent: int) -> None:
    monkeypatch.setattr(placed_noise, "MOST_SENT", most_sent)
    table, prompts = random_table(200, seed=5, spread=1.0), torch.tensor([[3], [4], [3], [4]])
    filters: list[dict[str, Any]] = [{}, {"top_k": 9, "min_p": 0.01}, {"top_p": 0.9, "top_k": 60}, {"temperature": 0.9}]
    params = [SamplingParams(seed=seed, **each) for seed, each in enumerate(filters)]
    options: dict[str, Any] = {"max_new_tokens": 4, "num_beams": 3, "eos_token_id": 7}
    found = beam_sample(table_model(table, npu), prompts.to(npu), params, **options)
    expected = beam_sample(table_model(table), prompts, params, **options)
    assert torch.equal(found.sequences.cpu(), expected.sequences)
    torch.testing.assert_close(found.sequences_scores.cpu(), expected.sequences_scores)
