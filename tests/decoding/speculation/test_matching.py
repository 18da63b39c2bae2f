"""Under the rule "match" speculation changes nothing: texts and scores are those of `sample`, whatever is proposed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.speculation.drafters import Draft, Drafter, ModelDrafter, NGramDrafter, Round
from ascend_sample.decoding.speculation.speculative import speculative_sample
from ascend_sample.decoding.strategies.sampled import sample
from ascend_sample.sampling import SamplingParams
from tests.decoding.table_models import random_table, table_model

VOCAB_SIZE = 11
PROMPTS = torch.tensor([[1, 2, 3, 1], [2, 1, 0, 0], [0, 0, 0, 3], [0, 3, 0, 1]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 1], [0, 1, 1, 1]])


class Nonsense:
    """Proposes anything from first to last, and says how many of it counts."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.end = first, last + 1

    def start(self, input_ids: Tensor, attention_mask: Tensor | None, encoder: Any) -> None:
        return None

    def draft(self, state: None, given: Round) -> tuple[Draft, None]:
        tokens = torch.randint(self.first, self.end, (len(given.wanted), given.size)).to(given.wanted.device)
        return Draft(tokens, given.wanted - (given.wanted > 0).long()), None


DRAFTERS: dict[str, Callable[[str], Drafter]] = {
    "itself": lambda device: ModelDrafter(model_on(device)),
    "another": lambda device: ModelDrafter(model_on(device, seed=2)),
    "n-grams": lambda device: NGramDrafter(),
    "nonsense": lambda device: Nonsense(-1, VOCAB_SIZE),
    "foreign": lambda device: Nonsense(-(2**40), 2**40),
}


def model_on(device: str, seed: int = 1) -> ModuleModel:
    return table_model(random_table(VOCAB_SIZE, seed), device)


def params_of(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice((0.0, 0.7, 1.0, 1.0)),
        top_k=rng.choice((None, None, 3)),
        top_p=rng.choice((1.0, 0.9)),
        repetition_penalty=rng.choice((1.0, 1.3)),
        presence_penalty=rng.choice((0.0, 0.5)),
        frequency_penalty=rng.choice((0.0, -0.4)),
        logit_bias=rng.choice(({}, {1: 1.0})),
        suppress_token_ids=rng.choice(((), (0,))),
        min_tokens=rng.choice((0, 3)),
        stop_token_ids=[2],
        seed=rng.randrange(2**64),
        no_repeat_ngram_size=rng.choice((0, 0, 3)),
        dry_multiplier=rng.choice((0.0, 0.0, 0.8)),
        bad_words=rng.choice(((), [[1, 3], [3, 1, 1]])),
    )


@pytest.mark.parametrize("name", DRAFTERS)
def test_texts_and_scores_are_those_of_sample(name: str, device: str) -> None:
    for gamma in (0, 1, 3, "adaptive"):
        rng = random.Random(f"{name} {gamma}")
        model, drafter = model_on(device), DRAFTERS[name](device)
        params, prompts = [params_of(rng) for _ in PROMPTS], PROMPTS.to(device)
        ends = rng.choice(((), (2,)))
        if not ends:
            params = [replace(one, min_tokens=0, stop_token_ids=()) for one in params]
        common: dict[str, Any] = {"attention_mask": MASK.to(device), "max_new_tokens": [9, 4, 12, 7], "pad_token_id": 0}
        common["eos_token_id"] = ends
        plain = sample(model, prompts, params, **common)
        output = speculative_sample(model, prompts, params, drafter=drafter, gamma=gamma, rule="match", **common)
        assert torch.equal(output.sequences, plain.sequences), gamma
        assert torch.equal(output.lengths, plain.lengths)
        torch.testing.assert_close(output.sequences_scores, plain.sequences_scores)
        if name == "itself" and gamma == 3:
            assert output.stats is not None
            assert output.stats.target_passes < int(plain.lengths.max())


@pytest.mark.parametrize(("rule", "name"), [("standard", "another"), ("block", "another"), ("standard", "n-grams")])
def test_greedy_texts_are_those_of_sample_under_all_rules(rule: Any, name: str, device: str) -> None:
    """With penalties by place, biases, bans and `min_tokens`: a greedy row has one text, whatever the rule."""
    rng = random.Random(f"{rule} {name}")
    model, drafter = model_on(device), DRAFTERS[name](device)
    params = [replace(params_of(rng), temperature=0.0) for _ in PROMPTS]
    common: dict[str, Any] = {"attention_mask": MASK.to(device), "max_new_tokens": [9, 4, 12, 7], "pad_token_id": 0}
    common["eos_token_id"] = [2]
    plain = sample(model, PROMPTS.to(device), params, **common)
    # What is no id ends drafts on a device; on the CPU it is refused.
    for each in (drafter, DRAFTERS["foreign"](device)) if device != "cpu" else (drafter,):
        output = speculative_sample(model, PROMPTS.to(device), params, drafter=each, rule=rule, **common)
        assert torch.equal(output.sequences, plain.sequences)
