"""With as many beams as there are sequences the search finds the best one of all, which a table of all of them says."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.decoding.beams.beam import beam_search
from ascend_sample.decoding.models.module_model import ModuleModel
from tests.decoding.tiny_models import TinyCausal

MODELS = 120
"""Of each way to treat what has ended; each model with two prompts."""
END = 0


def sizes(seed: int) -> tuple[int, int]:
    """Vocabulary and length."""
    return [(2, 4), (3, 3), (4, 3), (5, 2), (3, 4)][seed % 5]


def penalty_of(seed: int) -> float:
    """Of the length."""
    return [0.0, 1.0, -0.5, 2.0][seed // 5 % 4]


@torch.no_grad()
def hypotheses(model: TinyCausal, prompt: Tensor, vocab_size: int, steps: int) -> tuple[list[list[int]], Tensor]:
    """Every hypothesis, up to its end, and its log-probability, float64."""
    tokens = torch.tensor(list(itertools.product(range(vocab_size), repeat=steps)))
    whole = torch.cat((prompt.expand(len(tokens), -1), tokens), dim=1)
    log_probs = model(whole)[0].double().log_softmax(dim=2)[:, len(prompt) - 1 : -1].gather(2, tokens[:, :, None])
    found = {}
    for row, each in zip(tokens.tolist(), log_probs.squeeze(2), strict=True):
        length = row.index(END) + 1 if END in row else steps
        found[tuple(row[:length])] = each[:length].sum()
    return [list(row) for row in found], torch.stack(list(found.values()))


def assert_best_two(finished: Any, seed: int) -> set[int]:
    """Search with one model; returns the lengths of the best hypotheses."""
    vocab_size, steps = sizes(seed)
    penalty = penalty_of(seed)
    model = TinyCausal(vocab_size, seed, sharpness=1.0)
    prompts = torch.tensor([[1, 0], [1, 1]])
    found = beam_search(
        ModuleModel(model),
        prompts,
        max_new_tokens=steps,
        num_beams=vocab_size**steps,
        num_return_sequences=2,
        finished=finished,
        length_penalty=penalty,
        # Of the ways to stop early the only one that never misses anything, where longer ones may be better.
        early_stopping="never" if finished == "pool" else False,
        eos_token_id=END,
    )
    lengths = set()
    for row, prompt in enumerate(prompts):
        rows = slice(2 * row, 2 * row + 2)
        sequences, sums = hypotheses(model, prompt, vocab_size, steps)
        counts = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.float64)
        scores = sums / (counts if finished == "pool" else (5 + counts) / 6) ** penalty
        best = scores.topk(2)
        assert found.to_lists()[rows] == [sequences[place] for place in best.indices]
        torch.testing.assert_close(found.sequences_scores[rows].double(), best.values, atol=1e-5, rtol=0)
        lengths.add(len(sequences[int(best.indices[0])]))
    return lengths


@pytest.mark.parametrize("finished", ["pool", "in_beam"])
def test_enough_beams_find_the_best_two_of_all(finished: Any) -> None:
    lengths = set().union(*(assert_best_two(finished, seed) for seed in range(MODELS)))
    assert lengths == {1, 2, 3, 4}, "the best ones must have all lengths"
