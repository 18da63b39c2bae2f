"""With as many beams as there are sequences the search finds the best one of all, which a table of all of them says."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.decoding.beams.beam import beam_search
from ascend_sample.decoding.models.module_model import ModuleModel
from tests.decoding.table_models import TinyCausal

END = 0
SIZES = [(2, 4), (3, 3), (4, 3), (5, 2), (3, 4)]
"""Vocabulary and length."""
PENALTIES = [0.0, 1.0, -0.5, 2.0]
"""Of the length."""


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


@pytest.mark.parametrize("models", [range(20), pytest.param(range(20, 120), marks=pytest.mark.long)], ids=len)
@pytest.mark.parametrize("finished", ["pool", "in_beam"])
def test_enough_beams_find_the_best_two_of_all(finished: Any, models: range) -> None:
    found_lengths = set()
    for seed in models:
        (vocab_size, steps), penalty = SIZES[seed % 5], PENALTIES[seed // 5 % 4]
        model, prompts = TinyCausal(vocab_size, seed, sharpness=1.0), torch.tensor([[1, 0], [1, 1]])
        # Of the ways to stop early "never" alone misses nothing where longer ones may be better.
        early_stopping = "never" if finished == "pool" else False
        options: dict[str, Any] = {"finished": finished, "early_stopping": early_stopping, "length_penalty": penalty}
        options |= {"num_beams": vocab_size**steps, "num_return_sequences": 2, "eos_token_id": END}
        found = beam_search(ModuleModel(model), prompts, max_new_tokens=steps, **options)
        for row, prompt in enumerate(prompts):
            rows = slice(2 * row, 2 * row + 2)
            sequences, sums = hypotheses(model, prompt, vocab_size, steps)
            counts = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.float64)
            best = (sums / (counts if finished == "pool" else (5 + counts) / 6) ** penalty).topk(2)
            assert found.to_lists()[rows] == [sequences[place] for place in best.indices]
            torch.testing.assert_close(found.sequences_scores[rows].double(), best.values, atol=1e-5, rtol=0)
            found_lengths.add(len(sequences[int(best.indices[0])]))
    assert found_lengths == {1, 2, 3, 4}, "the best ones must have all lengths"
