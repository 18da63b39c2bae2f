"""Strategies beside generate() of transformers 4.49, which had them."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import transformers
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from tests.decoding.generate_parity import STOP_TOKENS, Comparison, Configuration, Found, Parity, Prompts

if transformers.__version__ != "4.49.0":
    raise ImportError(
        f"these tests must have transformers 4.49.0, got {transformers.__version__}. Run the make target."
    )

STOP_TOKENS_OR_NONE = (*STOP_TOKENS, None)


class Parity449(Parity):
    """As 4.49 does it."""

    def generate(self, model: Any, given: Prompts, **options: Any) -> Found:
        """With the encoder's mask, which 4.49.0 drops, and so lets the decoder attend to padding of the encoder's."""
        prepare = model.prepare_inputs_for_generation

        def with_mask(input_ids: Tensor, attention_mask: Tensor, **others: Any) -> dict[str, Any]:
            return {**prepare(input_ids, attention_mask=attention_mask, **others), "attention_mask": attention_mask}

        if not given.encoder:
            return super().generate(model, given, **options)
        with patch.object(model, "prepare_inputs_for_generation", with_mask):
            return super().generate(model, given, **options)

    def repetition_penalty(self, asked: Configuration, given: Prompts) -> RepetitionPenaltyLogitsProcessor:
        """Padding is a token like others."""
        return RepetitionPenaltyLogitsProcessor(asked.repetition_penalty)


def assert_all_endings(comparisons: list[Comparison], at_least: int) -> None:
    """Sequences have ended with the first and the second of the stop tokens, and at their greatest length."""
    endings: Counter[str] = Counter(first=0, second=0, length=0)
    for asked, _, found in comparisons:
        stop_tokens = asked.eos_token_id or []
        for row in found.to_lists():
            endings[("first", "second")[stop_tokens.index(row[-1])] if row[-1] in stop_tokens else "length"] += 1
    assert min(endings.values()) >= at_least, endings
