"""Contrastive search: worked by hand, and beside a plain loop over single texts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.strategies.contrastive import contrastive_search
from tests.decoding.table_models import random_table, table_model, tiny_model
from tests.decoding.tiny_transformers import encoder_inputs, recomputing_model, step_model

LOGITS = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()


SEEN_BEFORE = table_model(LOGITS.expand(4, 4))
"""The same probabilities everywhere; the cosine is 1 with a token that was seen before, else 0."""


def test_by_hand() -> None:
    """With alpha 0.5 a token costs 1 once it was seen: 0, 1, 2, then all of the three were seen and 0 is best."""
    output = contrastive_search(SEEN_BEFORE, torch.tensor([[3], [0]]), max_new_tokens=4, top_k=3, penalty_alpha=0.5)
    assert output.to_lists() == [[0, 1, 2, 0], [1, 2, 0, 0]]
    expected = torch.tensor([0.5 * 0.3 * 0.15 * 0.5, 0.3 * 0.15 * 0.5 * 0.5])
    torch.testing.assert_close(output.sequences_scores.exp(), expected)
    # With alpha 0.1 the first of them is worth its penalty: 0.9 * 0.5 - 0.1 > 0.9 * 0.3.
    output = contrastive_search(SEEN_BEFORE, torch.tensor([[0]]), max_new_tokens=2, top_k=3, penalty_alpha=0.1)
    assert output.to_lists() == [[0, 0]]


def test_padding_is_no_context() -> None:
    """Token 0 stands in the padding, and is not seen; the states there are large."""
    prompts, mask = torch.tensor([[0, 3], [3, 0], [0, 3]]), torch.tensor([[0, 1], [1, 0], [1, 1]])
    output = contrastive_search(SEEN_BEFORE, prompts, max_new_tokens=2, top_k=3, penalty_alpha=0.5, attention_mask=mask)
    assert output.to_lists() == [[0, 1], [0, 1], [1, 2]]


def test_a_forbidden_token_is_not_taken_for_being_new() -> None:
    """With alpha 1 probability counts for nothing, and 0 was seen; but 1 and 2 are forbidden."""

    def forbid(input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.index_fill(1, torch.tensor([1, 2]), -torch.inf)

    options: dict[str, Any] = {"max_new_tokens": 2, "top_k": 4, "penalty_alpha": 1.0, "logits_processor": [forbid]}
    assert contrastive_search(SEEN_BEFORE, torch.tensor([[0, 3]]), **options).to_lists() == [[0, 0]]


def one_text(
    model: Any, prompt: Tensor, encoder: dict[str, Tensor], new_tokens: int, asked: dict[str, Any]
) -> tuple[list[int], float]:
    """The definition: a text without padding and cache, candidate by candidate."""
    ids, total, text, alpha = prompt[None], 0.0, [], asked["penalty_alpha"]
    for _ in range(new_tokens):
        probabilities = model.prefill(ids, None, **encoder).logits.softmax(dim=1)[0]
        scored = []
        for token in probabilities.argsort(descending=True, stable=True)[: asked["top_k"]].tolist():
            longer = torch.cat((ids, torch.tensor([[token]])), dim=1)
            states = model.prefill(longer, None, **encoder).hidden_states[0]
            penalty = max(float(torch.cosine_similarity(states[-1], state, dim=0)) for state in states[:-1])
            scored.append(((1 - alpha) * float(probabilities[token]) - alpha * penalty, token))
        token = max(scored, key=lambda it: it[0])[1]
        total += float(probabilities[token].log())
        text.append(token)
        ids = torch.cat((ids, torch.tensor([[token]])), dim=1)
        if token in ENDS:
            break
    return text, total


PROMPTS = torch.tensor([[0, 0, 5, 1], [7, 2, 9, 4], [6, 0, 3, 0]])
MASK = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [1, 0, 1, 0]])
NEW_TOKENS = [6, 4, 5]
ENDS = [2, 8]


@pytest.mark.parametrize("kind", ["tiny", "gpt2", "llama", "t5", "bart"])
def test_the_texts_of_a_loop_over_single_texts(kind: str) -> None:
    tried = itertools.product((2, 4), (0.4, 0.8)) if kind == "tiny" else ((3, 0.4), (2, 0.8))
    for seed, (top_k, alpha) in enumerate(tried):
        if kind == "tiny":
            cached: Any = tiny_model(seed=seed)
            plain: Any = cached
        else:
            cached, plain = step_model(kind, seed % 2), recomputing_model(kind, seed % 2)
        encoder = {} if kind == "tiny" else encoder_inputs(kind, 3, seed)
        options: dict[str, Any] = {"top_k": top_k, "penalty_alpha": alpha, "encoder": encoder, "attention_mask": MASK}
        output = contrastive_search(cached, PROMPTS, max_new_tokens=NEW_TOKENS, eos_token_id=ENDS, **options)
        for row in range(3):
            own = {name: value[row : row + 1] for name, value in encoder.items()}
            prompt = PROMPTS[row, MASK[row].bool()]
            text, total = one_text(plain, prompt, own, NEW_TOKENS[row], options)
            assert output.to_lists()[row] == text
            torch.testing.assert_close(float(output.sequences_scores[row]), total, atol=1e-4, rtol=0)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_token_without_probability_is_not_taken_for_being_new() -> None:
    """With alpha 1 probability counts for nothing, and 3 was seen; but it has the whole mass."""
    table = random_table(7)
    table[:, 3] = torch.inf
    output = contrastive_search(table_model(table), torch.tensor([[3]]), max_new_tokens=2, penalty_alpha=1.0)
    assert output.to_lists() == [[3, 3]]
    assert output.sequences_scores.tolist() == [0.0]


def test_a_model_without_hidden_states_is_refused() -> None:
    model = ModuleModel(lambda input_ids: LOGITS.expand(*input_ids.shape, 4))
    message = r"contrastive_search: model must return hidden states, got none\. Make it with hidden_states=True"
    with pytest.raises(ValueError, match=message):
        contrastive_search(model, torch.tensor([[0]]), max_new_tokens=2)
