"""The model without a cache: padding on any side, ragged appends and rollbacks mean the tokens alone."""

from __future__ import annotations

import torch
from torch import Tensor

from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.places import ROLLBACKS_BEFORE_TRIM
from ascend_sample.decoding.strategies.greedy import greedy_search
from tests.decoding.table_models import random_table, tiny_model


def test_padding_anywhere_and_what_it_holds_do_not_matter() -> None:
    model = tiny_model()
    alone = model.prefill(torch.tensor([[3, 7]]))
    padded = model.prefill(
        torch.tensor([[3, 7, 9, 9], [9, -100, 3, 7], [9, 3, 9, 7], [1, 2, 3, 4]]),
        torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 1]]),
    )
    torch.testing.assert_close(padded.logits[:3], alone.logits.expand(3, -1))
    assert alone.hidden_states is not None
    assert padded.hidden_states is not None
    torch.testing.assert_close(padded.hidden_states[1, 2:], alone.hidden_states[0])
    torch.testing.assert_close(padded.hidden_states[2, [1, 3]], alone.hidden_states[0])


PLACES = torch.randn(16, 7, generator=torch.Generator().manual_seed(1))
TABLE = random_table(7, spread=1.0)


def test_a_module_sees_no_more_places_than_its_longest_row_has() -> None:
    """Whatever the padding was: row 1 goes on where row 0 has ended."""
    model = ModuleModel(lambda ids: TABLE[ids] + PLACES[torch.arange(ids.shape[1])])
    prompts, mask = torch.tensor([[1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 1]]), torch.tensor([[1] * 6, [0] * 5 + [1]])
    found = greedy_search(model, prompts, attention_mask=mask, max_new_tokens=[11, 16])
    assert found.to_lists()[1] == greedy_search(model, prompts[1:, 5:], max_new_tokens=16).to_lists()[0]


def test_padding_in_every_row_needs_no_place() -> None:
    """A table of 5 places, and prompts of at most 2 tokens in 8 columns."""
    model = ModuleModel(lambda ids: (TABLE[ids] + PLACES[:5][torch.arange(ids.shape[1])], TABLE[ids]))
    prompts, mask = torch.zeros(2, 8, dtype=torch.int64), torch.zeros(2, 8, dtype=torch.bool)
    prompts[0, 2:4], prompts[1, 7] = torch.tensor([3, 4]), 5
    mask[0, 2:4] = mask[1, 7] = True
    padded = model.prefill(prompts, mask)
    for row, alone in enumerate((model.prefill(prompts[:1, 2:4]), model.prefill(prompts[1:, 7:]))):
        assert padded.logits[row].equal(alone.logits[0])
        assert padded.hidden_states is not None
        assert alone.hidden_states is not None
        assert padded.hidden_states.shape == (2, 8, 7)
        assert padded.hidden_states[row, mask[row]].equal(alone.hidden_states[0])


def test_what_was_taken_back_is_not_read_for_ever(device: str) -> None:
    """A module may have a limit of tokens: rounds whose drafts all go must not lead beyond it."""
    widths: list[int] = []

    def module(input_ids: Tensor) -> Tensor:
        widths.append(input_ids.shape[1])
        return torch.zeros(*input_ids.shape, 5, device=input_ids.device)

    model = ModuleModel(module)
    cache = model.prefill(torch.tensor([[1, 2], [3, 4]], device=device)).cache
    for length in range(2, 30):
        cache = model.rollback(cache, torch.tensor([length, length - 1], device=device))
        cache = model.decode(torch.ones(2, 5, dtype=torch.int64, device=device), cache).cache
    most = 5 if device == "cpu" else 5 * ROLLBACKS_BEFORE_TRIM
    assert max(widths) <= 30 + most
