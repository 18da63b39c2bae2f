"""What generate() of transformers 4.49 finds with the tiny models, and what it is asked for in both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import transformers_models as tiny
from torch import Tensor
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

END_TOKENS = ([2], [5, 2], [7, 3], None)
"""Stop tokens to ask for."""


def generate_449(name: str, given: tiny.Prompts, **options: Any) -> Any:
    """transformers' own output; the decoder of an encoder-decoder starts with the prompt."""
    model = tiny.make(name)
    options = {"pad_token_id": tiny.PAD, "do_sample": False, **options}
    options |= {"return_dict_in_generate": True, "output_scores": True}
    if not given.encoder:
        return model.generate(input_ids=given.input_ids, attention_mask=given.attention_mask, **options)
    inputs = {key.removeprefix("encoder_"): value for key, value in given.encoder.items()}
    with patch.object(model, "prepare_inputs_for_generation", _with_encoder_mask(model.prepare_inputs_for_generation)):
        return model.generate(**inputs, decoder_input_ids=given.input_ids, **options)


def _with_encoder_mask(prepare: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """4.49.0 drops the encoder's mask here, and so lets the decoder attend to the padding of the encoder's input."""

    def prepared(input_ids: Tensor, attention_mask: Tensor, **others: Any) -> dict[str, Any]:
        return {**prepare(input_ids, attention_mask=attention_mask, **others), "attention_mask": attention_mask}

    return prepared


def generated_tokens(sequences: Tensor, given: tiny.Prompts, eos_token_id: list[int] | None) -> list[list[int]]:
    """The rows of an output without the prompt, and without what follows their first stop token."""
    rows = []
    for row in sequences[:, given.input_ids.shape[1] :].tolist():
        ends = [place + 1 for place, token in enumerate(row) if token in (eos_token_id or [])]
        rows.append(row[: ends[0]] if ends else row)
    return rows


def processors(asked: Any, given: tiny.Prompts) -> list[Any]:
    """Those that generate() makes, in its order."""
    found: list[Any] = []
    if asked.repetition_penalty != 1.0:
        found.append(RepetitionPenaltyLogitsProcessor(asked.repetition_penalty))
    if asked.no_repeat_ngram_size:
        found.append(NoRepeatNGramLogitsProcessor(asked.no_repeat_ngram_size))
    if asked.min_new_tokens and asked.eos_token_id:
        start = given.input_ids.shape[1]
        found.append(MinNewTokensLengthLogitsProcessor(start, asked.min_new_tokens, asked.eos_token_id))
    return found
