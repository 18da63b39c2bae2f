"""What drafters propose: from the right distribution, for rows that are at different places, and from the text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.decoding.distributions import RowSampling
from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.speculation.adaptive_gamma import AdaptiveGamma
from ascend_sample.decoding.speculation.drafters import Draft, ModelDrafter, NGramDrafter, Round
from ascend_sample.decoding.speculation.speculative import speculative_sample
from ascend_sample.decoding.strategies.sampled import sample
from ascend_sample.sampling import SamplingParams
from tests.decoding.every_strategy import GREEDY
from tests.decoding.speculation.test_speculative import MASK, PROMPTS
from tests.decoding.table_models import random_table, table_model, tiny_model

SAMPLING = SamplingParams(temperature=0.9, top_k=6)
SEEDED = [replace(SAMPLING, seed=4 + row) for row in range(len(PROMPTS))]


class Checked(ModelDrafter):
    """Compares each draft with what the model gives when it reads the whole text anew."""

    def __init__(self) -> None:
        super().__init__(tiny_model(sharpness=3.0))
        self.drafts = 0

    def draft(self, state: Any, texts: Round) -> tuple[Draft, Any]:
        draft, after = super().draft(state, texts)
        assert draft.probabilities is not None
        assert draft.tokens.shape == (len(PROMPTS), texts.size)
        assert draft.counts.equal(texts.wanted)
        for row, (length, count) in enumerate(zip(texts.lengths.tolist(), draft.counts.tolist(), strict=True)):
            for place in range(count):
                text = torch.cat((texts.tokens[row, :length], draft.tokens[row, :place]))
                logits = self.model.prefill(text[None]).logits
                sampling = RowSampling([SAMPLING], logits.shape[1], logits.device)
                torch.testing.assert_close(draft.probabilities[row, place], sampling.probabilities(logits)[0])
                assert draft.probabilities[row, place, draft.tokens[row, place]] > 0
                self.drafts += 1
        return draft, after


@pytest.mark.parametrize("gamma", [1, 3])
def test_a_model_drafts_from_its_own_distribution_wherever_rows_are(gamma: int) -> None:
    drafter = Checked()
    options: dict[str, Any] = {"attention_mask": MASK, "max_new_tokens": [24, 9, 2, 17], "eos_token_id": 5}
    speculative_sample(tiny_model(), PROMPTS, SEEDED, drafter=drafter, gamma=gamma, **options)
    assert drafter.drafts > 5


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_by_block_a_place_is_drafted_anew_in_each_round(rule: Any) -> None:
    """A draft that went has decided then; under the other rules nobody has looked at it."""
    rows, vocab_size, begin = 300, 50, 2
    drafter = ModelDrafter(ModuleModel(lambda ids: torch.zeros(*ids.shape, vocab_size)))  # no text matters
    prompts = torch.zeros(rows, begin + 8, dtype=torch.int64)
    sampling = RowSampling([SamplingParams(seed=row) for row in range(rows)], vocab_size, prompts.device)
    state = drafter.start(prompts[:, : begin - 1], torch.ones(rows, begin - 1, dtype=torch.bool), {})
    drafts = []
    for lengths in (torch.full((rows,), begin), begin + 1 + torch.arange(rows) % 2):
        texts = Round(prompts, lengths, torch.full((rows,), 3), 3, False, sampling, rule)
        draft, state = drafter.draft(state, texts)
        drafts.append(draft.tokens)
    moved = (1 + torch.arange(rows) % 2)[:, None]  # so many places of the first round were kept
    same = drafts[0].gather(1, moved) == drafts[1][:, :1]
    assert same.all() if rule == "standard" else same.float().mean() < 3 / vocab_size


class Scripted(AdaptiveGamma):
    """Drafts of other lengths in each round."""

    def observe(self, looked: int, accepted: int) -> None:
        self.gamma = self.gamma % 5 + 1


def test_a_model_drafts_rounds_of_any_lengths() -> None:
    drafter = Checked()
    options: dict[str, Any] = {"attention_mask": MASK, "max_new_tokens": [30, 2, 25, 11]}
    output = speculative_sample(tiny_model(), PROMPTS, SEEDED, drafter=drafter, gamma=Scripted(), **options)
    assert output.lengths.tolist() == [30, 2, 25, 11]
    assert drafter.drafts > 20


def follow_up(text: list[int], longest: int, shortest: int, count: int) -> list[int]:
    """Prompt lookup of one row, naively."""
    for size in range(min(longest, len(text) - 1), shortest - 1, -1):
        for start in range(len(text) - size - 1, -1, -1):
            if text[start : start + size] == text[-size:]:
                grown = list(text)
                for _ in range(count):
                    grown.append(grown[start + size + len(grown) - len(text)])
                return grown[len(text) :]
    return []


@pytest.mark.parametrize(("longest", "shortest"), [(3, 1), (2, 2), (4, 3)])
def test_n_grams_are_the_latest_and_longest_ones(longest: int, shortest: int) -> None:
    generator = torch.Generator().manual_seed(longest)
    rows, capacity, size = 300, 14, 5
    tokens = torch.randint(3, (rows, capacity), generator=generator)
    lengths = torch.randint(1, capacity - 1, (rows,), generator=generator)
    wanted = torch.randint(0, size + 1, (rows,), generator=generator)
    before = tokens.clone()
    drafter = NGramDrafter(longest, shortest)
    state = drafter.start(tokens, torch.ones_like(tokens, dtype=torch.bool), {})
    draft, _ = drafter.draft(state, _texts(tokens, lengths, wanted, size))
    assert tokens.equal(before)
    assert draft.probabilities is None
    assert draft.passes == 0
    found = 0
    for row in range(rows):
        expected = follow_up(tokens[row, : lengths[row]].tolist(), longest, shortest, int(wanted[row]))
        assert draft.tokens[row, : draft.counts[row]].tolist() == expected
        found += bool(expected)
    assert found > 20


@pytest.mark.parametrize("rule", ["standard", "block", "match"])
def test_n_grams_end_before_what_the_model_never_says(rule: Any, device: str) -> None:
    """Prompts may have tokens that a model reads alone: of an image, of an embedding that is larger than the head."""
    table = random_table(20, seed=1)[:, :10].to(device)
    prompts = torch.tensor([[15, 2, 3, 15, 2, 3, 15], [2, 19, 4, 2, 19, 4, 2], [1, 2, 1, 2, 1, 2, 1]], device=device)
    for params in (GREEDY, SamplingParams(seed=5)):
        model, given = table_model(table), {"params": params, "max_new_tokens": 9, "eos_token_id": ()}
        output = speculative_sample(model, prompts, drafter=NGramDrafter(), rule=rule, **given)
        if rule == "match" or params is GREEDY:
            assert output.to_lists() == sample(model, prompts, **given).to_lists()
        assert int(output.sequences.max()) < 10


def _texts(tokens: Tensor, lengths: Tensor, wanted: Tensor, size: int) -> Round:
    sampling = RowSampling([SamplingParams()] * len(tokens), 9, tokens.device)
    return Round(tokens, lengths, wanted, size, True, sampling)
