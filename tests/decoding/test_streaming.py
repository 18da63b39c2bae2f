"""Tokens as they come: to functions, and to the streamers of transformers as its own generate() gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TextStreamer

from ascend_sample.decoding import greedy_search, speculative_sample
from ascend_sample.decoding.output import DecodeOutput
from tests.decoding import launch_counts
from tests.decoding.every_strategy import GREEDY, STRATEGIES, names
from tests.decoding.table_models import SUCCESSOR, UNCALLED, table_model
from tests.decoding.tiny_transformers import START, encoder_inputs, step_model, tiny_transformer

STREAMED = names(is_streamed=True)
WORDS = ["nought ", "one ", "two ", "three", "-teen ", "line\n", "six ", "seven", "ty ", "nine ", "ten ", "la", " di "]


def greedily(name: str, model: Any, *given: Any, **options: Any) -> DecodeOutput:
    strategy = STRATEGIES[name]
    return strategy.search(model, *given, **{**(strategy.greedy or {}), **strategy.drafted_by(model), **options})


class Words:
    """What a streamer needs of a tokenizer."""

    def decode(self, tokens: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        tokens = [tokens] if isinstance(tokens, int) else tokens  # transformers 5.24 asks for single ones
        return "".join(WORDS[token] for token in tokens if not (skip_special_tokens and token == 0))


class Recorder:
    """A streamer that keeps what it is told, and after which of the others."""

    def __init__(self, order: list[tuple[Any, Any]] | None = None) -> None:
        self.told: list[Any] = []
        self.order = [] if order is None else order

    def put(self, value: Tensor) -> None:
        assert (value.device.type, value.dtype) == ("cpu", torch.int64)
        self._note(value.tolist())

    def end(self) -> None:
        self._note("end")

    def _note(self, what: Any) -> None:
        self.told.append(what)
        self.order.append((self, what))

    def tokens(self) -> list[int]:
        return [token for part in self.told[1:-1] for token in part]


class Texts(TextStreamer):  # type: ignore[misc]
    """Keeps the texts that a TextStreamer prints."""

    def __init__(self, **options: Any) -> None:
        super().__init__(Words(), **options)
        self.parts: list[tuple[str, bool]] = []

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self.parts.append((text, stream_end))


@pytest.mark.parametrize("name", STREAMED)
def test_each_row_gets_its_prompt_its_tokens_and_one_end(name: str, device: str) -> None:
    prompts = torch.tensor([[7, 8, 0], [9, 0, 1], [4, 2, 9]], device=device)
    mask = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 1, 0]], device=device)
    rows = [Recorder(), Recorder(), Recorder()]
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": [9, 1, 4], "eos_token_id": [2, 99]}
    model = table_model(torch.eye(10).roll(1, dims=1) * 90.0, device)
    output = greedily(name, model, prompts, on_tokens=rows, **options)
    assert output.to_lists() == [[9, 0, 1, 2], [2], [3, 4, 5, 6]]
    assert [row.told[0] for row in rows] == [[[7, 8]], [[0, 1]], [[2]]]
    assert [row.tokens() for row in rows] == output.to_lists()
    assert [row.told.count("end") for row in rows] == [1, 1, 1]
    assert [row.told[-1] for row in rows] == ["end"] * 3


def test_a_row_is_told_as_soon_as_it_is_known() -> None:
    """Step by step, row by row; a row that is done hears nothing more; of a round several tokens come together."""
    order: list[tuple[Any, Any]] = []
    first, second = rows = [Recorder(order), Recorder(order)]
    greedy_search(SUCCESSOR, torch.tensor([[5], [1]]), max_new_tokens=3, eos_token_id=2, on_tokens=rows)
    expected = [(first, [[5]]), (second, [[1]]), (first, [6]), (second, [2]), (second, "end"), (first, [7])]
    assert order == [*expected, (first, [8]), (first, "end")]
    row = Recorder()
    options: dict[str, Any] = {"drafter": SUCCESSOR, "gamma": 3, "max_new_tokens": 9, "eos_token_id": 7}
    speculative_sample(SUCCESSOR, torch.tensor([[0]]), GREEDY, on_tokens=row, **options)
    assert row.told == [[[0]], [1], [2, 3, 4, 5], [6, 7], "end"]


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
@pytest.mark.parametrize("options", [{"skip_prompt": True}, {"skip_special_tokens": True}])
def test_a_text_streamer_prints_what_generate_prints(kind: str, options: dict[str, Any]) -> None:
    """The same parts in the same order, stop token and end included; unstopped, stopped at once, and in between."""
    encoder = encoder_inputs(kind, 1)
    given = {name.removeprefix("encoder_"): value for name, value in encoder.items()}
    prompts = torch.tensor([[START]]) if encoder else torch.tensor([[9, 3, 1]])
    inputs = given if encoder else {"input_ids": prompts, "attention_mask": torch.ones_like(prompts)}
    model = tiny_transformer(kind)
    endless = greedy_search(step_model(kind), prompts, encoder=encoder, max_new_tokens=12).to_lists()[0]
    for stop in (None, endless[0], endless[6]):
        expected = Texts(**options)
        asked: dict[str, Any] = {"max_new_tokens": 12, "eos_token_id": stop, "pad_token_id": 0}
        model.generate(**inputs, streamer=expected, do_sample=False, **asked)
        for name in STREAMED:
            found = Texts(**options)
            greedily(name, step_model(kind), prompts, encoder=encoder, on_tokens=found, **asked)
            if name == "speculative_sample":  # in larger parts
                assert "".join(text for text, _ in found.parts) == "".join(text for text, _ in expected.parts)
                assert [is_end for _, is_end in found.parts].count(True) == 1
            else:
                assert found.parts == expected.parts


def test_an_error_is_no_end() -> None:
    """As in transformers: whoever waits is given a timeout."""
    row = Recorder()

    def fail(input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[1] > 2:
            raise RuntimeError("no more")
        return scores

    with pytest.raises(RuntimeError, match="no more"):
        greedy_search(SUCCESSOR, torch.tensor([[5]]), max_new_tokens=4, logits_processor=[fail], on_tokens=row)
    assert row.told == [[[5]], [6], [7]]


@pytest.mark.parametrize("name", STRATEGIES)
def test_who_may_listen(name: str) -> None:
    """One streamer for each row; nobody where no token is sure before the end."""
    if name in STREAMED:
        for given, count in ((Recorder(), 1), ([Recorder() for _ in range(3)], 3)):
            message = rf"^{name}: on_tokens must be one streamer for each of 2 rows, got {count}\. G"
            with pytest.raises(ValueError, match=message):
                STRATEGIES[name].search(UNCALLED, torch.tensor([[1], [2]]), max_new_tokens=2, on_tokens=given)
        return
    message = rf"^{name.split()[0]}: on_tokens must be None, got .*\. No token is sure to be returned .* greedy_search"
    for listener in (print, Recorder(), [Recorder()]):
        with pytest.raises(ValueError, match=message):
            STRATEGIES[name].search(UNCALLED, torch.tensor([[1]]), max_new_tokens=2, on_tokens=listener)


@pytest.mark.parametrize("name", ["greedy_search", "contrastive_search"])
def test_a_step_is_read_once_for_all_streamers_and_not_for_a_function(counting: None, npu: str, name: str) -> None:
    for listener, reads in ((lambda tokens, counts: None, 0), ([Recorder() for _ in range(launch_counts.PROMPTS)], 1)):
        run = launch_counts.Run(name, {"on_tokens": listener}, 0, eos_token_id=())
        cost = launch_counts.counted(run, 100)[1]
        assert (cost.d2h, cost.waits) == (reads, reads * launch_counts.waits_of_one_read())
