"""Drafts that the target reads together with the prompts: a pass less, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.decoding import ModelDrafter, ModuleModel, NGramDrafter, StepOutput, speculative_sample
from ascend_sample.sampling import SamplingParams
from tests.decoding.every_strategy import GREEDY
from tests.decoding.speculation.test_speculative import MASK, PROMPTS
from tests.decoding.tiny_transformers import encoder_inputs, recomputing_model, step_model


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bloom"])
def test_drafts_are_read_with_the_prompts_where_that_changes_nothing(kind: str) -> None:
    """A pass less, unless somebody waits for the first token; the same tokens, for ragged prompts padded anywhere."""
    given: dict[str, Any] = {"attention_mask": MASK, "max_new_tokens": 20, "eos_token_id": [12]}
    greedy = speculative_sample(recomputing_model(kind), PROMPTS, GREEDY, drafter=NGramDrafter(), gamma=0, **given)
    for seed in (0, 1):
        target, draft = step_model(kind), step_model(kind, seed)
        output, told = (
            speculative_sample(target, PROMPTS, GREEDY, drafter=draft, gamma=3, on_tokens=listener, **given)
            for listener in (None, lambda tokens, counts: None)
        )
        assert output.to_lists() == told.to_lists() == greedy.to_lists()
        torch.testing.assert_close(output.sequences_scores, greedy.sequences_scores, atol=1e-4, rtol=1e-4)
        assert output.stats is not None
        assert told.stats is not None
        if seed == 0:
            assert output.stats.acceptance_rate() == 1.0
            longest = int(greedy.lengths.max())
            assert told.stats.target_passes == -(-(longest - 1) // 4)
            assert output.stats.target_passes == -(-longest // 4) - 1  # that of the prompts is not counted


@pytest.mark.parametrize(
    "changed",
    [
        {"params": SamplingParams(seed=3)},
        {"max_new_tokens": [5, 5, 4, 5]},
        {"gamma": 0},
        {"gamma": "adaptive"},
        {"on_tokens": lambda tokens, counts: None},
        {"kind": "t5"},
    ],
)
def test_elsewhere_the_prompts_are_read_alone(changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*inputs: Tensor) -> StepOutput:
        raise AssertionError("drafts were read with the prompts")

    kind = changed.get("kind", "llama")
    target = step_model(kind)
    monkeypatch.setattr(target, "prefill_with_drafts", fail, raising=False)
    given: dict[str, Any] = {"params": GREEDY, "max_new_tokens": 5, "gamma": 3, "attention_mask": MASK, **changed}
    given |= {"encoder": encoder_inputs(given.pop("kind", kind), len(PROMPTS))}
    output = speculative_sample(target, PROMPTS, drafter=ModelDrafter(step_model(kind, 1)), **given)
    assert output.lengths.max() == 5


def test_a_drafts_reader_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above forbids does happen elsewhere."""
    target, asked = step_model("llama"), []
    read = target.prefill_with_drafts
    monkeypatch.setattr(target, "prefill_with_drafts", lambda *inputs: asked.append(inputs) or read(*inputs))
    speculative_sample(target, PROMPTS, GREEDY, drafter=step_model("llama", 1), max_new_tokens=5, attention_mask=MASK)
    assert len(asked) == 1


def test_a_drafter_of_another_vocabulary_is_refused_before_the_target_reads_its_drafts() -> None:
    drafter = ModelDrafter(ModuleModel(lambda ids: torch.nn.functional.one_hot(ids + 90, 100) * 1.0))
    with pytest.raises(ValueError, match="drafter must have the model's vocabulary of"):
        speculative_sample(step_model("llama"), PROMPTS, GREEDY, drafter=drafter, max_new_tokens=5, attention_mask=MASK)
