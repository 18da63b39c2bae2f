"""Tokens as they come: to functions, and to the streamers of transformers as its own generate() gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TextIteratorStreamer, TextStreamer

from ascend_sample.decoding import streaming
from ascend_sample.decoding.beams.beam import beam_search
from ascend_sample.decoding.beams.group_beam import group_beam_search
from ascend_sample.decoding.beams.sampled_beam import beam_sample
from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.speculation.speculative import speculative_sample
from ascend_sample.decoding.strategies.contrastive import contrastive_search
from ascend_sample.decoding.strategies.greedy import greedy_search
from ascend_sample.decoding.strategies.sampled import sample, sample_and_rank
from ascend_sample.sampling import SamplingParams
from tests.decoding.planting import Trap, noticed
from tests.decoding.strategies.test_loop import counted, waits_of_one_read
from tests.decoding.table_models import UNCALLED, table_model
from tests.decoding.tiny_transformers import START, VOCAB_SIZE, encoder_inputs, step_model, tiny_transformer

GREEDY = SamplingParams(temperature=0)
STRATEGIES: dict[str, Callable[..., Any]] = {
    "greedy_search": greedy_search,
    "sample": lambda *given, **options: sample(*given, GREEDY, **options),
    "contrastive_search": lambda *given, **options: contrastive_search(*given, penalty_alpha=0.0, **options),
    "speculative_sample": lambda model, *given, **options: speculative_sample(
        model, *given, GREEDY, drafter=model, gamma=3, **options
    ),
}
WORDS = ["nought ", "one ", "two ", "three", "-teen ", "line\n", "six ", "seven", "ty ", "nine ", "ten ", "la", " di "]
SUCCESSOR = table_model(torch.eye(10).roll(1, dims=1) * 90.0)  # after t comes t + 1, after 9 comes 0


class Words:
    """What a streamer needs of a tokenizer."""

    def decode(self, tokens: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        tokens = [tokens] if isinstance(tokens, int) else tokens  # transformers 5.24 asks for single ones
        return "".join(WORDS[token] for token in tokens if not (skip_special_tokens and token == 0))


class Recorder:
    """A streamer that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[list[int] | list[list[int]] | str] = []

    def put(self, value: Tensor) -> None:
        assert (value.device.type, value.dtype) == ("cpu", torch.int64)
        self.told.append(value.tolist())

    def end(self) -> None:
        self.told.append("end")

    def tokens(self) -> list[int]:
        return [token for part in self.told[1:-1] for token in part]  # type: ignore[misc]


class Texts(TextStreamer):  # type: ignore[misc]
    """Keeps the texts that a TextStreamer prints."""

    def __init__(self, **options: Any) -> None:
        super().__init__(Words(), **options)
        self.parts: list[tuple[str, bool]] = []

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self.parts.append((text, stream_end))


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_row_gets_its_prompt_its_tokens_and_one_end(name: str, device: str) -> None:
    table, states = torch.eye(10).roll(1, dims=1).to(device) * 90.0, torch.eye(10, device=device)
    model = ModuleModel(lambda input_ids: (table[input_ids], states[input_ids]))
    prompts = torch.tensor([[7, 8, 0], [9, 0, 1], [4, 2, 9]], device=device)
    mask = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 1, 0]], device=device)
    rows = [Recorder(), Recorder(), Recorder()]
    output = STRATEGIES[name](
        model, prompts, attention_mask=mask, max_new_tokens=[9, 1, 4], eos_token_id=[2, 99], on_tokens=rows
    )
    assert output.to_lists() == [[9, 0, 1, 2], [2], [3, 4, 5, 6]]
    assert [row.told[0] for row in rows] == [[[7, 8]], [[0, 1]], [[2]]]
    assert [row.tokens() for row in rows] == output.to_lists()
    assert [row.told.count("end") for row in rows] == [1, 1, 1]
    assert [row.told[-1] for row in rows] == ["end"] * 3


def test_a_row_is_told_as_soon_as_it_is_known() -> None:
    """Step by step, row by row; a row that is done hears nothing more."""
    order: list[tuple[int, Any]] = []

    class Ordered(Recorder):
        def __init__(self, row: int) -> None:
            super().__init__()
            self.row = row

        def put(self, value: Tensor) -> None:
            order.append((self.row, value.tolist()))

        def end(self) -> None:
            order.append((self.row, "end"))

    greedy_search(
        SUCCESSOR, torch.tensor([[5], [1]]), max_new_tokens=3, eos_token_id=2, on_tokens=[Ordered(0), Ordered(1)]
    )
    assert order == [(0, [[5]]), (1, [[1]]), (0, [6]), (1, [2]), (1, "end"), (0, [7]), (0, [8]), (0, "end")]


def test_several_tokens_of_a_round_come_together() -> None:
    row = Recorder()
    speculative_sample(
        SUCCESSOR,
        torch.tensor([[0]]),
        GREEDY,
        drafter=SUCCESSOR,
        gamma=3,
        max_new_tokens=9,
        eos_token_id=7,
        on_tokens=row,
    )
    assert row.told == [[[0]], [1], [2, 3, 4, 5], [6, 7], "end"]


def test_copies_of_a_prompt_have_streamers_of_their_own() -> None:
    rows = [Recorder() for _ in range(4)]
    params = SamplingParams(seed=1)
    model = table_model(torch.zeros(10, 10))
    output = sample(
        model, torch.tensor([[3], [4]]), params, num_return_sequences=2, max_new_tokens=5, on_tokens=tuple(rows)
    )
    assert [row.told[0] for row in rows] == [[[3]], [[3]], [[4]], [[4]]]
    assert [row.tokens() for row in rows] == output.to_lists()


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
@pytest.mark.parametrize("options", [{}, {"skip_prompt": True}, {"skip_special_tokens": True}])
def test_a_text_streamer_prints_what_generate_prints(kind: str, options: dict[str, Any]) -> None:
    """The same parts in the same order, stop token and end included; unstopped, stopped at once, and in between."""
    encoder = encoder_inputs(kind, 1)
    given = {name.removeprefix("encoder_"): value for name, value in encoder.items()}
    prompts = torch.tensor([[START]]) if encoder else torch.tensor([[9, 3, 1]])
    inputs = given if encoder else {"input_ids": prompts, "attention_mask": torch.ones_like(prompts)}
    for seed in range(2):
        model = tiny_transformer(kind, seed)
        endless = greedy_search(step_model(kind, seed), prompts, encoder=encoder, max_new_tokens=12).to_lists()[0]
        for stop in (None, endless[0], endless[6]):
            expected = Texts(**options)
            model.generate(
                **inputs, streamer=expected, max_new_tokens=12, do_sample=False, eos_token_id=stop, pad_token_id=0
            )
            for name, strategy in STRATEGIES.items():
                found = Texts(**options)
                strategy(
                    step_model(kind, seed),
                    prompts,
                    encoder=encoder,
                    max_new_tokens=12,
                    eos_token_id=stop,
                    on_tokens=found,
                )
                if name == "speculative_sample":  # in larger parts
                    assert "".join(text for text, _ in found.parts) == "".join(text for text, _ in expected.parts)
                    assert [is_end for _, is_end in found.parts].count(True) == 1
                else:
                    assert found.parts == expected.parts


def test_iterators_of_several_rows_while_another_thread_generates() -> None:
    prompts = torch.tensor([[9, 3, 1], [4, 4, 2]])
    rows = [TextIteratorStreamer(Words(), skip_prompt=True, timeout=60) for _ in prompts]
    options: dict[str, Any] = {"max_new_tokens": 8, "on_tokens": rows}
    thread = Thread(target=greedy_search, args=(step_model("gpt2"), prompts), kwargs=options)
    thread.start()
    texts = ["".join(row) for row in rows]
    thread.join()
    expected = greedy_search(step_model("gpt2"), prompts, max_new_tokens=8)
    assert texts == [Words().decode(text) for text in expected.to_lists()]
    assert len(WORDS) == VOCAB_SIZE


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
def test_there_is_one_streamer_for_each_row(name: str) -> None:
    prompts = torch.tensor([[1], [2]])
    for given, count in ((Recorder(), 1), ([Recorder() for _ in range(3)], 3)):
        with pytest.raises(
            ValueError, match=rf"^{name}: on_tokens must be one streamer for each of 2 rows, got {count}\. G"
        ):
            STRATEGIES[name](UNCALLED, prompts, max_new_tokens=2, on_tokens=given)


AT_THE_END: dict[str, Callable[..., Any]] = {
    "beam_search": lambda *given, **options: beam_search(*given, num_beams=2, **options),
    "beam_sample": lambda *given, **options: beam_sample(*given, num_beams=2, **options),
    "group_beam_search": lambda *given, **options: group_beam_search(
        *given, num_beams=2, num_beam_groups=2, diversity_penalty=1.0, **options
    ),
    "sample_and_rank": sample_and_rank,
}


@pytest.mark.parametrize("name", AT_THE_END)
@pytest.mark.parametrize("listener", [print, Recorder(), [Recorder()]])
def test_what_is_known_at_the_end_alone_is_not_streamed(name: str, listener: Any) -> None:
    message = (
        rf"^{name}: on_tokens must be None, got .*\. No token is sure to be returned before the end: .* greedy_search"
    )
    with pytest.raises(ValueError, match=message):
        AT_THE_END[name](UNCALLED, torch.tensor([[1]]), max_new_tokens=2, on_tokens=listener)


@pytest.mark.parametrize("name", ["greedy_search", "contrastive_search"])
def test_a_step_is_read_once_for_all_streamers_and_not_for_a_function(counting: None, npu: str, name: str) -> None:
    listeners: tuple[tuple[Callable[[], Any], int], ...] = (
        (lambda: None, 0),
        (lambda: lambda tokens, counts: None, 0),
        (lambda: [Recorder() for _ in range(4)], 1),
    )
    for make, reads in listeners:
        few, many = (counted(STRATEGIES[name], npu, steps, on_tokens=make()) for steps in (3, 9))
        waits = [sum(counters.synchronizations.values()) for counters in (few, many)]
        assert waits[1] - waits[0] == 6 * reads * waits_of_one_read(npu)


def greedy_rows() -> None:
    test_each_row_gets_its_prompt_its_tokens_and_one_end("greedy_search", "cpu")


TRAPS = [
    Trap("rows that are done are told again", streaming, "del self._streamers[row]", "pass", greedy_rows),
    Trap("padding is streamed", streaming, "prompt[is_token][None]", "prompt[None]", greedy_rows),
    Trap("what is beyond a row's count is streamed", streaming, "facts[row, :count]", "facts[row, :-2]",
         lambda: test_each_row_gets_its_prompt_its_tokens_and_one_end("speculative_sample", "cpu")),
]  # fmt: skip


test_trap = noticed(TRAPS)
