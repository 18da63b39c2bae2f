"""What the server of transformers gets: draws in `generate` itself, with the seed of the request's config."""

from __future__ import annotations

import string
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_transformers import SAMPLING, VOCAB_SIZE, Recorder, make_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from transformers.generation.configuration_utils import GenerationConfig
from transformers.generation.utils import GenerationMixin

from ascend_sample.integrations.transformers import fused_sampling
from ascend_sample.integrations.transformers_server import SEED, draw_in_generate, keeping_seeds, main

PROMPT = torch.tensor([[1, 5, 9]])


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("_sample", "generate"):
        monkeypatch.setattr(GenerationMixin, name, getattr(GenerationMixin, name))  # to be restored
    made = make_model("llama")
    plain = made.generate(PROMPT, do_sample=False, num_beams=2, max_new_tokens=6, pad_token_id=0)
    draw_in_generate()
    yield made
    beams = made.generate(PROMPT, do_sample=False, num_beams=2, max_new_tokens=6, pad_token_id=0)
    assert torch.equal(beams, plain), "other modes are as they were"


def config_of(seed: int | None, **more: Any) -> GenerationConfig:
    config = GenerationConfig(**(SAMPLING | {"eos_token_id": []} | more))
    setattr(config, SEED, seed)
    return config


def drawn(model: Any, seed: int | None, **more: Any) -> Tensor:
    found: Tensor = model.generate(PROMPT, generation_config=config_of(seed, **more))
    return found


def test_the_seed_of_the_config_decides(model: Any) -> None:
    asked = {"generation_config": config_of(None), "custom_generate": fused_sampling, "seeds": [7]}
    expected = model.generate(PROMPT, **asked)
    torch.manual_seed(1)
    first = drawn(model, 7)
    torch.rand(3)
    assert torch.equal(first, expected)
    assert torch.equal(drawn(model, 7), expected)
    assert not torch.equal(drawn(model, 8), expected)


@pytest.mark.parametrize("mode", [{"num_beams": 3, "eos_token_id": None}, {"prompt_lookup_num_tokens": 3}])
def test_other_loops_draw_with_the_seed(mode: dict[str, Any], model: Any) -> None:
    torch.manual_seed(7)
    expected = drawn(model, None, **mode)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert torch.equal(drawn(model, 7, **mode), expected)
    assert torch.equal(torch.get_rng_state(), before), "torch's generator is left alone"
    assert not torch.equal(drawn(model, 8, **mode), expected)
    assert torch.equal(drawn(model, 7, **mode), expected)


def test_without_a_seed_torch_generator_gives_one(model: Any) -> None:
    texts = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        texts.append(drawn(model, None))
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


def letters() -> PreTrainedTokenizerFast:
    """Has a letter for each id."""
    vocabulary = {letter: token_id for token_id, letter in enumerate(string.ascii_letters[:VOCAB_SIZE])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_a_streamer_and_stop_strings_work(model: Any) -> None:
    text = drawn(model, 7)[0].tolist()
    length = PROMPT.shape[1]
    end = text[length + 2]
    streamer = Recorder()
    config = config_of(7, stop_strings=[string.ascii_letters[end]])
    found = model.generate(PROMPT, generation_config=config, tokenizer=letters(), streamer=streamer)
    expected = text[: text.index(end, length) + 1]
    assert found[0].tolist() == expected
    assert [token for part in streamer.received for token in part] == expected
    assert streamer.has_ended


class Refused(Exception):
    """Stands for fastapi's HTTPException."""


def test_a_request_hands_its_seed_to_its_config_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", SimpleNamespace(HTTPException=Refused))
    seen = []

    @keeping_seeds
    def build(handler: object, body: dict[str, Any]) -> GenerationConfig:
        seen.append(body)
        return GenerationConfig()

    body = {"seed": 7, "prompt": "a"}
    assert getattr(build(None, body), SEED) == 7
    assert getattr(build(None, {}), SEED) is None
    assert getattr(build(None, {"seed": -1}), SEED) == 2**64 - 1  # OpenAI's seeds may be negative
    assert [one.get("seed") for one in seen] == [None, None, None]
    assert body["seed"] == 7
    for seed in ("seven", True, 2**64, -(2**63) - 1):
        with pytest.raises(Refused) as refusal:
            build(None, {"seed": seed})
        status, message = refusal.value.args
        assert status == 400
        assert "seed must" in message


def test_the_extra_that_it_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.setattr("sys.argv", ["server", "--help"])
    with pytest.raises(SystemExit, match=r"must be installed.*Install it: pip install 'transformers\[serving\]'"):
        main()


def test_continuous_batching_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["server", "model", "--continuous-batching"])
    with pytest.raises(ValueError, match="--continuous-batching must be off"):
        main()
