"""What a model's generation_config says of possible tokens and ends: what transformers' generate() makes of it."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    GenerationMixin,
    NoRepeatNGramLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from ascend_sample.decoding import (
    CausalModel,
    EncoderDecoderModel,
    ModuleModel,
    contrastive_search,
    greedy_search,
    speculative_sample,
)
from ascend_sample.decoding.request import check_request
from tests.decoding.every_strategy import GREEDY, STRATEGIES
from tests.decoding.generate_parity import up_to_stop
from tests.decoding.tiny_transformers import KINDS, PAD, START, VOCAB_SIZE, adapted, encoder_inputs, tiny_transformer

STOPS = [2, 5, 12]
"""Which the models say."""
ROOM = [6, 4, 7]
SETTINGS: dict[str, dict[str, Any]] = {
    "sequence_bias": {"sequence_bias": [[[4], -8.0], [[7], 3.0], [[3, 9], 4.0]]},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 4.0},
    "repetition_penalty": {"repetition_penalty": 4.0},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1},
    "bad_words_ids": {"bad_words_ids": [[1], [3, 7], [9], [11], [2]]},
    "min_length": {"min_length": 6},
    "min_new_tokens": {"min_new_tokens": 4},
    "forced_bos_token_id": {"forced_bos_token_id": 6},
    "forced_eos_token_id": {"forced_eos_token_id": 5},
    "forced_eos_token_id of 0": {"forced_eos_token_id": 0},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (1, 1.8)},
    "suppress_tokens": {"suppress_tokens": [1, 3, 6, 8, 10]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [1, 3, 6, 8, 10, 12, 4]},
    "many": {
        "repetition_penalty": 1.5,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": [[1], [3, 7]],
        "min_new_tokens": 2,
        "forced_eos_token_id": 5,
        "suppress_tokens": [8],
        "begin_suppress_tokens": [2, 5],
    },
}
WITHOUT_EFFECT = (("gpt2", "forced_bos_token_id"), ("marian", "encoder_no_repeat_ngram_size"))
"""No text there begins as that needs, or has a token that the source has."""


def configured(kind: str, seed: int = 0, **settings: Any) -> Any:
    """A tiny model whose generation_config has settings beside its stop tokens."""
    model = copy.deepcopy(tiny_transformer(kind, seed, 0.7))
    tokens = {"pad_token_id": PAD, "eos_token_id": STOPS, "decoder_start_token_id": START}
    model.generation_config = GenerationConfig(**{**tokens, **settings})
    return model


def ragged(kind: str, seed: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Prompts padded on any side, with ids that no vocabulary has, and what the encoder takes."""
    rows = len(ROOM)
    if KINDS[kind].has_encoder:
        start = torch.full((rows, 1), START)
        return start, torch.ones_like(start), encoder_inputs(kind, rows, seed)
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0], [1, 0, 0, 0]])
    tokens = torch.randint(1, VOCAB_SIZE, mask.shape, generator=torch.Generator().manual_seed(seed))
    return tokens.where(mask == 1, -100), mask, {}


def generated_alone(model: Any, kind: str, seed: int, beams: int) -> list[list[int]]:
    """What generate() makes of each prompt alone, without its padding."""
    input_ids, mask, encoder = ragged(kind, seed)
    texts = []
    for row, room in enumerate(ROOM):
        if "encoder_input_features" in encoder:
            given = {"input_features": encoder["encoder_input_features"][row : row + 1]}
        elif encoder:
            given = {"input_ids": encoder["encoder_input_ids"][row : row + 1, encoder["encoder_attention_mask"][row]]}
        else:
            given = {"input_ids": input_ids[row : row + 1, mask[row] == 1]}
        length = 1 if encoder else int(mask[row].sum())
        # Of Whisper, without what its own generate() does around this one.
        output = GenerationMixin.generate(model, **given, max_new_tokens=room, num_beams=beams, do_sample=False)
        texts.append(up_to_stop(output[0, length:].tolist(), STOPS))
    return texts


def found(model: Any, kind: str, search: str = "greedy_search", seed: int = 0, **options: Any) -> list[list[int]]:
    input_ids, mask, encoder = ragged(kind, seed)
    options = {"attention_mask": mask, "encoder": encoder, "max_new_tokens": ROOM, **options}
    return STRATEGIES[search].search(adapted(model), input_ids, **options).to_lists()


@pytest.mark.parametrize("kind", ["gpt2", "marian"])
def test_a_row_has_the_text_that_generate_gives_it_alone(kind: str, subtests: pytest.Subtests) -> None:
    without = found(configured(kind, eos_token_id=None), kind)
    for name, settings in SETTINGS.items():
        with subtests.test(msg=name):
            model = configured(kind, **settings)
            texts = found(model, kind)
            assert texts == generated_alone(model, kind, 0, 1)
            assert texts != without or (kind, name) in WITHOUT_EFFECT


@pytest.mark.parametrize(
    ("kind", "name"), [("marian", "encoder_no_repeat_ngram_size"), ("marian", "many"), ("gpt2", "many")]
)
def test_other_strategies_as_well(kind: str, name: str) -> None:
    model = configured(kind, **SETTINGS[name])
    beams = found(model, kind, "beam_search", num_beams=3, num_return_sequences=1)
    assert beams == generated_alone(model, kind, 0, 3)
    assert found(model, kind, "sample", params=GREEDY) == found(model, kind)


def test_whisper_as_well() -> None:
    """Rules about a source are left aside where it is no text, as generate() does."""
    model = configured("whisper", 1, **SETTINGS["many"])
    assert found(model, "whisper", seed=1) == generated_alone(model, "whisper", 1, 1)
    model = configured("whisper", encoder_repetition_penalty=4.0, encoder_no_repeat_ngram_size=1)
    start, _, encoder = ragged("whisper", 0)
    assert check_request("", EncoderDecoderModel(model), start, ROOM, encoder=encoder).logits_processor == []


def test_min_new_tokens_takes_the_place_of_min_length() -> None:
    stops = [token for token in range(VOCAB_SIZE) if token != 7]
    for least in (0, 1, None):
        model = configured("gpt2", 0, min_length=8, min_new_tokens=least, eos_token_id=stops)
        assert found(model, "gpt2") == generated_alone(model, "gpt2", 0, 1)


def test_what_the_caller_says_wins() -> None:
    model = configured("gpt2", 0, no_repeat_ngram_size=1, suppress_tokens=[1], min_new_tokens=2)
    assert max(map(len, found(model, "gpt2", eos_token_id=()))) == max(ROOM)
    stops = [token for token in range(VOCAB_SIZE) if token != 7]
    texts = found(configured("gpt2", 0, min_new_tokens=2), "gpt2", eos_token_id=stops)
    assert all(len(text) > 2 and set(text[:-1]) == {7} for text in texts)  # no stop token of the caller's before that
    # Of the same class, the caller's; all others stay.
    processors = [NoRepeatNGramLogitsProcessor(3), SuppressTokensLogitsProcessor([4])]
    mine = found(model, "gpt2", logits_processor=processors)
    model.generation_config.update(no_repeat_ngram_size=3, suppress_tokens=[4])
    assert mine == found(model, "gpt2")


def test_the_adapter_may_be_told_to_leave_it_aside() -> None:
    model = configured("gpt2", 0, suppress_tokens=list(range(1, VOCAB_SIZE)))
    prompt = torch.tensor([[3, 4]])
    assert greedy_search(CausalModel(model), prompt, max_new_tokens=3).to_lists() == [[0, 0, 0]]
    bare = greedy_search(CausalModel(model, generation_config=False), prompt, max_new_tokens=3)
    assert bare.to_lists() != [[0, 0, 0]]
    assert bare.lengths.tolist() == [3]
    first = int(bare.sequences[0, 0])
    other = CausalModel(model, generation_config=GenerationConfig(eos_token_id=first, pad_token_id=9))
    output = greedy_search(other, prompt.repeat(2, 1), max_new_tokens=[3, 3])
    assert output.to_lists() == [[first]] * 2
    with pytest.raises(
        TypeError, match=r"CausalModel: generation_config must be a GenerationConfig .*, got dict\. Use"
    ):
        CausalModel(model, generation_config={"eos_token_id": 3})


def test_padding_is_the_models_unless_said() -> None:
    model = configured("gpt2", 0, pad_token_id=11, eos_token_id=None)
    prompts = torch.tensor([[3, 4], [5, 6]])
    output = greedy_search(CausalModel(model), prompts, max_new_tokens=[1, 2])
    assert output.sequences[0, 1] == 11
    assert greedy_search(CausalModel(model), prompts, max_new_tokens=[1, 2], pad_token_id=7).sequences[0, 1] == 7
    model.generation_config.update(pad_token_id=-1, eos_token_id=-1)  # as some say that there is none
    assert greedy_search(CausalModel(model), prompts, max_new_tokens=[1, 2]).sequences[0, 1] == 0


def test_what_a_decoder_starts_with() -> None:
    model = configured("t5")
    adapter = EncoderDecoderModel(model)
    assert adapter.start(2).tolist() == [[START], [START]]
    assert adapter.start(2).dtype == torch.int64
    model.generation_config.decoder_start_token_id = [3, 4]
    assert adapter.start(2).tolist() == [[3], [4]]
    with pytest.raises(
        ValueError, match=r"start: generation_config must name one .*each of 3 rows, got \[3, 4\]\. Give"
    ):
        adapter.start(3)
    model.generation_config.update(decoder_start_token_id=None, bos_token_id=7)
    assert adapter.start(1).tolist() == [[7]]
    with pytest.raises(ValueError, match=r"must name one decoder_start_token_id, .*, got \[\]\."):
        EncoderDecoderModel(model, generation_config=False).start(2)


def test_speculation_takes_ends_and_refuses_rules() -> None:
    """What a drafter's configuration says does not matter."""
    model, drafter = configured("gpt2"), configured("gpt2", 3, repetition_penalty=1.5)
    options = {"params": GREEDY, "drafter": CausalModel(drafter)}
    assert found(model, "gpt2", "speculative_sample", **options) == found(model, "gpt2")
    model.generation_config.update(repetition_penalty=1.5, suppress_tokens=[4])
    message = (
        r"speculative_sample: model must ask for no rules in its generation_config, got repetition_penalty=1.5, "
        r"suppress_tokens=\[4\]\. .*generation_config"
    )
    with pytest.raises(ValueError, match=message):
        found(model, "gpt2", "speculative_sample", **options)


def test_positions_beyond_the_model_are_refused_at_the_start() -> None:
    model, drafter = CausalModel(tiny_transformer("gpt2"), hidden_states=True), ModuleModel(lambda ids: 1 / 0)
    prompts, mask = torch.ones(2, 90, dtype=torch.int64), torch.ones(2, 90, dtype=torch.int64)
    mask[0, 3:] = 0
    greedy = functools.partial(greedy_search, model, prompts, attention_mask=mask)
    assert greedy(max_new_tokens=[94, 7]).lengths.tolist() == [94, 7]
    message = (
        r"greedy_search: max_new_tokens must need at most the 96 positions of model, got 97, for {}\. Generate fewer"
    )
    with pytest.raises(ValueError, match=message.format("95 after the 3 of prompt 0")):
        greedy(max_new_tokens=[95, 7])
    with pytest.raises(ValueError, match=message.format("8 after the 90 of prompt 1")):
        greedy(max_new_tokens=[94, 8])
    # Contrastive search reads the candidates for the last token; a drafter has positions of its own.
    contrastive = functools.partial(contrastive_search, model, prompts, attention_mask=mask, top_k=2)
    assert contrastive(max_new_tokens=[1, 6]).lengths.tolist() == [1, 6]
    with pytest.raises(ValueError, match=r"contrastive_search: .* the 96 positions of model, got 97, for 7 after"):
        contrastive(max_new_tokens=[1, 7])
    drafter.max_positions = 95  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"speculative_sample: .* the 95 positions of drafter, got 96, for 7 after"):
        speculative_sample(model, prompts, drafter=drafter, attention_mask=mask, max_new_tokens=7)


@pytest.mark.parametrize("kind", ["gpt2", "bart", "marian", "pegasus", "whisper", "mpt"])
def test_the_last_position_is_the_last(kind: str) -> None:
    model = adapted(tiny_transformer(kind), generation_config=False)
    assert model.max_positions == 96
    cache = model.prefill(torch.ones(1, 90, dtype=torch.int64), **encoder_inputs(kind, 1)).cache
    output = model.decode(torch.ones(1, 6, dtype=torch.int64), cache)
    with pytest.raises((IndexError, RuntimeError)):
        model.decode(torch.ones(1, 1, dtype=torch.int64), output.cache)


def test_each_row_ends_at_its_own_maximum() -> None:
    texts = found(configured("gpt2", 0, eos_token_id=None, forced_eos_token_id=5), "gpt2")
    assert [(len(text), text[-1]) for text in texts] == [(room, 5) for room in ROOM]
