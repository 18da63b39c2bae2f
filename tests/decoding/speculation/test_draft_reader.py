"""Drafts that the target reads together with the prompts: a pass less, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.decoding import ModelDrafter, ModuleModel, NGramDrafter, speculative_sample
from ascend_sample.sampling import SamplingParams
from tests.decoding.every_strategy import GREEDY
from tests.decoding.speculation.test_speculative import MASK, PROMPTS
from tests.decoding.tiny_transformers import encoder_inputs, recomputing_model, step_model


def no_listener(tokens: Tensor, counts: Tensor) -> None:
    """Hears, and does nothing."""


@pytest.mark.parametrize("kind", ["llama", "bloom"])
def test_drafts_are_read_with_the_prompts_where_that_changes_nothing(kind: str) -> None:
    """A pass less, unless somebody waits for the first token; the same tokens, for ragged prompts padded anywhere."""
    given: dict[str, Any] = {"attention_mask": MASK, "max_new_tokens": 20, "eos_token_id": [12]}
    greedy = speculative_sample(recomputing_model(kind), PROMPTS, GREEDY, drafter=NGramDrafter(), gamma=0, **given)
    longest = int(greedy.lengths.max())
    for seed in (0, 1):
        drafter = step_model(kind, seed)
        for listener, passes in ((None, -(-longest // 4) - 1), (no_listener, -(-(longest - 1) // 4))):
            options: dict[str, Any] = {"drafter": drafter, "gamma": 3, "on_tokens": listener, **given}
            output = speculative_sample(step_model(kind), PROMPTS, GREEDY, **options)
            assert output.to_lists() == greedy.to_lists()
            torch.testing.assert_close(output.sequences_scores, greedy.sequences_scores, atol=1e-4, rtol=1e-4)
            assert output.stats is not None
            assert seed or (output.stats.acceptance_rate(), output.stats.target_passes) == (1.0, passes)


def test_elsewhere_the_prompts_are_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*inputs: Tensor) -> None:
        raise AssertionError("drafts were read with the prompts")

    changes: list[dict[str, Any]] = [
        {"params": SamplingParams(seed=3)}, {"max_new_tokens": [5, 5, 4, 5]}, {"gamma": 0}, {"gamma": "adaptive"},
        {"on_tokens": no_listener}, {"kind": "t5"},
    ]  # fmt: skip
    for changed in changes:
        kind = changed.pop("kind", "llama")
        target = step_model(kind)
        monkeypatch.setattr(target, "prefill_with_drafts", fail, raising=False)
        given: dict[str, Any] = {"params": GREEDY, "max_new_tokens": 5, "gamma": 3, "attention_mask": MASK, **changed}
        given |= {"encoder": encoder_inputs(kind, len(PROMPTS)), "drafter": ModelDrafter(step_model(kind, 1))}
        assert speculative_sample(target, PROMPTS, **given).lengths.max() == 5


def test_a_drafter_of_another_vocabulary_is_refused_before_the_target_reads_its_drafts() -> None:
    drafter = ModelDrafter(ModuleModel(lambda ids: torch.nn.functional.one_hot(ids + 90, 100) * 1.0))
    with pytest.raises(ValueError, match="drafter must have the model's vocabulary of"):
        speculative_sample(step_model("llama"), PROMPTS, GREEDY, drafter=drafter, max_new_tokens=5, attention_mask=MASK)
