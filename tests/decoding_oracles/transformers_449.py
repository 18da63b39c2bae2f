"""What generate() of transformers 4.49 finds with the tiny models of tests/decoding, and what it is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

import transformers
import transformers_models as tiny
from torch import Tensor
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

if transformers.__version__ != "4.49.0":
    raise ImportError(
        f"these tests must have transformers 4.49.0, got {transformers.__version__}. Run the make target."
    )

STOP_TOKENS: Sequence[list[int] | None] = ([2], [5, 2], [7, 3], None)
"""What there is to choose from as eos_token_id."""


class Found(NamedTuple):
    """What generate() returns, row by row.

    Attributes:
        sequences: what was generated, up to the first stop token.
        output: all of it.
    """

    sequences: list[list[int]]
    output: Any


def generate(name: str, given: tiny.Prompts, eos_token_id: list[int] | None, **options: Any) -> Found:
    """The decoder of an encoder-decoder starts with the prompts."""
    model, start = tiny.make(name), given.input_ids.shape[1]
    options |= {"eos_token_id": eos_token_id, "pad_token_id": tiny.PAD, "do_sample": False}
    options |= {"return_dict_in_generate": True, "output_scores": True}
    if given.encoder:
        inputs = {key.removeprefix("encoder_"): value for key, value in given.encoder.items()}
        prepare = _with_encoder_mask(model.prepare_inputs_for_generation)
        with patch.object(model, "prepare_inputs_for_generation", prepare):
            output = model.generate(**inputs, decoder_input_ids=given.input_ids, **options)
    else:
        output = model.generate(input_ids=given.input_ids, attention_mask=given.attention_mask, **options)
    rows = output.sequences[:, start:].tolist()
    return Found([_until_stop(row, eos_token_id or []) for row in rows], output)


def _until_stop(row: list[int], stop_tokens: list[int]) -> list[int]:
    ends = [place + 1 for place, token in enumerate(row) if token in stop_tokens]
    return row[: ends[0]] if ends else row


def _with_encoder_mask(prepare: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """4.49.0 drops the encoder's mask here, and so lets the decoder attend to the padding of the encoder's input."""

    def prepared(input_ids: Tensor, attention_mask: Tensor, **others: Any) -> dict[str, Any]:
        return {**prepare(input_ids, attention_mask=attention_mask, **others), "attention_mask": attention_mask}

    return prepared


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


def assert_all_endings(found: list[tuple[Any, list[list[int]]]], at_least: int) -> None:
    """Sequences have ended with the first and the second of the stop tokens, and at their greatest length."""
    endings: Counter[str] = Counter(first=0, second=0, length=0)
    for asked, sequences in found:
        stop_tokens = asked.eos_token_id or []
        for row in sequences:
            endings[("first", "second")[stop_tokens.index(row[-1])] if row[-1] in stop_tokens else "length"] += 1
    assert min(endings.values()) >= at_least, endings
