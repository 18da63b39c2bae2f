"""Sampling and ranking: worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.decoding.strategies.sampled import sample, sample_and_rank
from ascend_sample.sampling import SamplingParams, exponential_noise
from ascend_sample.sampling.requests.seeds import derive_seeds
from tests.decoding.chi_square import SMALLEST_P_VALUE, p_value
from tests.decoding.table_models import probability_table, table_model

COIN = table_model(probability_table([[0.5, 0.5], [0.5, 0.5]]))
# After 0: 0.5, 0.25, 0.25; after 1: 2 for sure, nearly; after 2: 0.1, 0.1, 0.8.
TABLE = probability_table([[0.5, 0.25, 0.25], [0.01, 0.01, 0.98], [0.1, 0.1, 0.8]])


@pytest.mark.parametrize(("seed", "bits"), [(7, 7), (2**64 - 3, -3)])
def test_a_draw_by_hand(seed: int, bits: int) -> None:
    """Two tokens of one half each: the one with the smaller noise at the lane of its id."""
    tokens = sample(COIN, torch.tensor([[0, 1, 1]]), SamplingParams(seed=seed), max_new_tokens=9).sequences[0]
    noise = exponential_noise(torch.tensor([bits]).expand(9), torch.arange(3, 12), 2)
    assert tokens.tolist() == noise.argmin(dim=1).tolist()
    assert len(set(tokens.tolist())) == 2


def test_scores_are_those_of_the_model_alone() -> None:
    options: dict[str, Any] = {"logits_processor": [lambda ids, scores: scores + torch.tensor([0.0, 5.0, 0.0])]}
    params = SamplingParams(suppress_token_ids=[2], top_k=1)
    output = sample(table_model(TABLE), torch.tensor([[1]]), params, max_new_tokens=2, **options)
    assert output.to_lists() == [[1, 1]]
    torch.testing.assert_close(output.sequences_scores.exp(), torch.tensor([1e-4]))


def test_copies_have_seeds_of_their_own() -> None:
    prompts = torch.tensor([[0], [0]])
    params = [SamplingParams(seed=3), SamplingParams(seed=4)]
    texts = sample(COIN, prompts, params, max_new_tokens=30, num_return_sequences=20).to_lists()
    assert len(set(map(tuple, texts))) == 40
    alone = [SamplingParams(seed=seed) for seed in derive_seeds(3, 20)]
    assert sample(COIN, torch.zeros(20, 1, dtype=torch.int64), alone, max_new_tokens=30).to_lists() == texts[:20]


def test_the_joint_distribution_of_two_tokens() -> None:
    table, copies = TABLE.double().exp(), 6_000
    options: dict[str, Any] = {"max_new_tokens": 2, "num_return_sequences": copies}
    output = sample(table_model(TABLE), torch.tensor([[0]]), SamplingParams(seed=1), **options)
    counts = torch.bincount(output.sequences[:, 0] * 3 + output.sequences[:, 1], minlength=9)
    assert p_value(counts.numpy(), (table[0][:, None] * table).flatten().numpy()) > SMALLEST_P_VALUE


def test_kept_scores_are_what_was_drawn_from() -> None:
    params = [
        SamplingParams(temperature=0.5, top_k=2, seed=1),
        SamplingParams(suppress_token_ids=[0], seed=1),
        SamplingParams(top_p=0.6, seed=1),
        SamplingParams(min_p=0.2, seed=1),
    ]
    prompts = torch.tensor([[2], [0], [0], [2]])
    output = sample(table_model(TABLE), prompts, params, max_new_tokens=1, return_scores=True)
    assert output.scores is not None
    expected = torch.tensor([[1 / 65, 0.0, 64 / 65], [0.0, 0.5, 0.5], [2 / 3, 1 / 3, 0.0], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(output.scores[0].softmax(dim=1), expected)


def test_ranking_by_hand() -> None:
    """The texts are [1, 2] after 0, or [0], and so on: ranked by the mean log-probability, stop token included."""
    model, prompt, params = table_model(TABLE), torch.tensor([[0, 0, 0]]), SamplingParams(seed=2)
    options: dict[str, Any] = {"max_new_tokens": 3, "eos_token_id": 2}
    drawn = sample(model, prompt, params, num_return_sequences=12, **options)
    table = TABLE.log_softmax(dim=1)
    for penalty in (0.0, 1.0, 2.0):
        scored = []
        for text in drawn.to_lists():
            pairs = zip([0, *text[:-1]], text, strict=True)
            scored.append((sum(float(table[before, after]) for before, after in pairs) / len(text) ** penalty, text))
        scored.sort(key=lambda it: -it[0])
        options |= {"num_samples": 12, "num_return_sequences": 5, "length_penalty": penalty}
        ranked = sample_and_rank(model, prompt, params, **options)
        torch.testing.assert_close(ranked.sequences_scores, torch.tensor([score for score, _ in scored[:5]]))
        assert len(ranked.to_lists()[0]) == len(scored[0][1])
        assert ranked.sequences.shape[1] == int(ranked.lengths.max())


def test_top_p_0_is_refused_and_the_smallest_keeps_the_best_token() -> None:
    with pytest.raises(ValueError, match="top_p must lie in"):
        SamplingParams(top_p=0.0)
    output = sample(table_model(TABLE), torch.tensor([[0]]), SamplingParams(top_p=2**-126, seed=1), max_new_tokens=3)
    assert output.to_lists() == [[0, 0, 0]]


def test_a_row_without_candidates_is_named() -> None:
    def only_token_1(input_ids: Tensor, scores: Tensor) -> Tensor:
        return torch.full_like(scores, -torch.inf).index_copy(1, torch.tensor([1]), scores[:, 1:2])

    params = [SamplingParams(allowed_token_ids=[0, 2], seed=1), SamplingParams(top_k=3, seed=1)]
    options: dict[str, Any] = {"max_new_tokens": 2, "logits_processor": [only_token_1]}
    with pytest.warns(RuntimeWarning, match=r"sample: in the rows \[0\] some step had no token left to choose"):
        output = sample(table_model(TABLE), torch.tensor([[0], [0]]), params, **options)
    assert output.sequences_scores.isneginf().tolist() == [True, False]
    assert output.to_lists()[1] == [1, 1]  # fewer candidates than top-k: never one without probability


def test_seed_0_is_a_seed_and_each_position_has_its_own_noise() -> None:
    first, again = (
        sample(COIN, torch.tensor([[0]]), SamplingParams(seed=0), max_new_tokens=40).to_lists() for _ in range(2)
    )
    assert first == again
    assert len(set(first[0])) == 2


def test_a_processor_does_not_change_the_model() -> None:
    def write_into(input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.fill_(0.0)

    options: dict[str, Any] = {"max_new_tokens": 1, "logits_processor": [write_into]}
    output = sample(table_model(TABLE), torch.tensor([[1]]), SamplingParams(top_k=1), **options)
    torch.testing.assert_close(output.sequences_scores.exp(), torch.tensor([0.01]))
