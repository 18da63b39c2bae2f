"""What a newcomer may do wrong with any strategy: what was wrong is named, and no error of torch is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation import BaseStreamer

from ascend_sample.decoding import (
    ModelDrafter,
    NGramDrafter,
    StepOutput,
    beam_search,
    greedy_search,
    speculative_sample,
)
from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.models.transformer_decoder import Decoder, DecoderConfig
from ascend_sample.decoding.request import check_request
from ascend_sample.decoding.speculation.drafters import Draft
from tests.decoding.every_strategy import EACH, GREEDY, PROCESSED, STRATEGIES
from tests.decoding.table_models import UNCALLED, WithoutCache, random_table, table_model, tiny_model
from tests.decoding.tiny_transformers import step_model, tiny_transformer

IDS = torch.tensor([[1, 2], [3, 0]])
TABLE = random_table()
MODEL = table_model(TABLE)
IDS_AS_DICT = {"input_ids": IDS, "attention_mask": IDS > 0}
ONE_OR_EACH = "max_new_tokens must be an int, or one for each of 2 prompts, got"
ENDS = "eos_token_id must be an int, or a list of them, got"
LISTENER = "on_tokens must be a function of tokens and counts, a streamer .*, got"
REQUESTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"model": torch.nn.Linear(1, 1)}, TypeError, "model must be a StepModel, got Linear without prefill, decode, "),
    ({"model": ModuleModel}, TypeError, "model must be a StepModel, got the class ModuleModel"),
    ({"input_ids": [[1, 2]]}, TypeError, "input_ids must be an int64 tensor, got list"),
    ({"input_ids": IDS_AS_DICT}, TypeError, r"input_ids must be .*, got dict (?=.*by name: search\(model, \*\*tokens)"),
    ({"input_ids": IDS.int()}, TypeError, r"input_ids must .* torch.int32 \[2, 2\](?=\. Convert .*dtype=torch.int64)"),
    ({"input_ids": -IDS}, ValueError, r"input_ids must be at least 0, got \[-3, -2, -1\] in the rows \[0, 1\]"),
    ({"input_ids": IDS[0]}, ValueError, r"input_ids must be \[batch, length\] and not empty, got \[2\]"),
    ({"attention_mask": IDS * 1j}, TypeError, "attention_mask must be a bool or int64 tensor"),
    ({"attention_mask": IDS[:1]}, ValueError, r"attention_mask must have the shape of input_ids, \[2, 2\]"),
    ({"attention_mask": torch.tensor([[0, 0], [1, 1]])}, ValueError,
     r"attention_mask must leave each row a token, got none in the rows \[0\]"),
    ({"attention_mask": torch.tensor([[1, 1], [2, -1]])}, ValueError,
     r"attention_mask must be 0 or 1, got \[-1, 2\] in the rows \[1\]"),
    ({"encoder": IDS}, TypeError, r"encoder must be a dict of tensors, got a tensor of torch.int64 \[2, 2\]"),
    ({"encoder": {"encoder_attention_mask": IDS}}, ValueError, r"encoder\['enc.*'\] must be 0 or 1, got \[0, 1, 2, "),
    ({"encoder": {"memory": torch.ones(3, 1)}}, ValueError, r"encoder\['memory'\] must be a tensor \[2, ...\]"),
    ({"max_new_tokens": 0}, ValueError, "max_new_tokens must be at least 1, got 0"),
    ({"max_new_tokens": [3]}, ValueError, f"{ONE_OR_EACH} 1 values"),
    ({"max_new_tokens": 1.5}, TypeError, f"{ONE_OR_EACH} float 1.5"),
    ({"max_new_tokens": [3, "3"]}, TypeError, "max_new_tokens must be an int, got str '3'"),
    ({"eos_token_id": -1}, ValueError, "eos_token_id must be at least 0, got -1"),
    ({"eos_token_id": "</s>"}, TypeError, f"{ENDS} str '</s>'"),
    ({"logits_processor": print}, TypeError, "logits_processor must be a list of callables"),
    ({"stopping_criteria": [1]}, TypeError, "stopping_criteria must be a list of callables"),
    ({"on_tokens": [print, print]}, TypeError, f"{LISTENER} list"),
    ({"on_tokens": BaseStreamer}, TypeError, "on_tokens must be a function .*, got type <class .*BaseStreamer'>"),
    ({"on_tokens": [BaseStreamer()] * 2}, ValueError, "on_tokens must be a streamer of its own for each row, got Base"),
    ({"return_scores": "no"}, TypeError, "return_scores must be True or False, got str"),
    ({"eos": 3, "return_score": True}, TypeError,
     "options must be parameters of its own, or attention_mask, encoder, .*, return_scores, got eos, return_score"),
    ({"temperature": 0.7, "top_k": 3}, TypeError,
     r"options must be .*, got temperature, top_k(?=\. Put temperature, top_k into params=SamplingParams\()"),
    ({"streamer": BaseStreamer()}, TypeError,
     r"options must be .*, got streamer(?=\. Give it as on_tokens to greedy_search, sample, contr)"),
]  # fmt: skip


def test_what_is_wrong_with_a_request_is_said(subtests: pytest.Subtests) -> None:
    for wrong, error, message in REQUESTS:
        with subtests.test(msg=str(wrong)), pytest.raises(error, match=rf"^search: {message}.*\. [A-Z]"):
            check_request("search", **{"model": UNCALLED, "input_ids": IDS, "max_new_tokens": 4, **wrong})


def test_what_is_derived() -> None:
    mask = torch.tensor([[1, 1], [1, 0]])
    request = check_request("search", UNCALLED, IDS, [2, 5], attention_mask=mask, eos_token_id=(7, 8))
    assert (request.max_steps, request.pad_token_id, request.batch_size) == (5, 7, 2)
    assert request.prompt_lengths().tolist() == [2, 1]
    assert request.is_eos(torch.tensor([[6, 7], [8, 9]])).tolist() == [[False, True], [True, False]]
    for lengths in (3, torch.tensor(3), torch.tensor([3, 3]), (3, 3)):
        assert check_request("search", UNCALLED, IDS, lengths).max_new_tokens.tolist() == [3, 3]
    none = check_request("search", UNCALLED, IDS, 1)
    assert none.pad_token_id == 0
    assert not none.is_eos(IDS).any()


class Returns(WithoutCache):
    """A `StepModel` whose passes return what they are told to."""

    def __init__(self, prefill: Any = None, decode: Any = None) -> None:
        self.of_prefill = StepOutput(torch.zeros(2, 11), None, torch.zeros(2, 2, 3)) if prefill is None else prefill
        self.of_decode = decode

    def prefill(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return self.of_prefill

    def decode(self, tokens: Tensor, cache: Any) -> Any:
        return self.of_decode


def of_last(input_ids: Tensor) -> Tensor:
    return TABLE[input_ids[:, -1]]


MODELS: list[tuple[Callable[[], Any], dict[str, Any], type[Exception], str]] = [
    (lambda: ModuleModel(of_last), {}, ValueError,
     r"^ModuleModel: module of_last must return logits \[2, 2, vocab_size\], .*, got a tensor of .* \[2, 11\]"),
    (lambda: ModuleModel(lambda input_ids: (TABLE[input_ids], TABLE)), {}, ValueError,
     r"^ModuleModel: module <lambda> must return hidden states \[2, 2, hidden_size\], .*, got a .* \[11, 11\]"),
    (lambda: ModuleModel(tiny_transformer("gpt2")), {}, TypeError,
     r"^ModuleModel: module GPT2LMHeadModel must return logits .*, got CausalLM(?=.*into CausalModel\.$)"),
    (lambda: Returns(torch.zeros(2, 11)), {}, TypeError,
     r"^{name}: model Returns must return a StepOutput, got a tensor of torch.float32 \[2, 11\]"),
    (lambda: Returns(StepOutput(torch.zeros(2, 11), None, torch.zeros(2, 1, 3))), {}, ValueError,
     r"^{name}: model Returns must return hidden states \[2, 2, hidden_size\] or None, got .* \[2, 1, 3\]"),
    (lambda: Returns(decode=StepOutput(torch.zeros(2, 11), None)), {}, ValueError,
     r"^{name}: model Returns must return real logits \[\d+, \d+, 11\], got a tensor of .* \[2, 11\]"),
    (lambda: Returns(StepOutput(torch.zeros(2, 11, device="meta"), None)), {}, ValueError,
     "^{name}: input_ids must be on the device of what Returns returns, meta, got cpu"),
    (lambda: ModuleModel(lambda input_ids: TABLE[input_ids + 9]), {}, ValueError,
     "^{name}: input_ids must be what ModuleModel can read, got tokens up to 3 in 2 columns, and IndexError: index"),
    (lambda: MODEL, {"encoder": {"memory": IDS}}, ValueError,
     r"^ModuleModel: encoder must be what <lambda> takes, \(input_ids\), got \['memory'\]: got an unexpected keyword"),
    (lambda: MODEL, {"encoder": {"input_ids": IDS}}, ValueError, "^ModuleModel: encoder must .*: multiple values"),
    (Returns, {"encoder": {"memory": IDS}}, ValueError, "^{name}: encoder must be what Returns takes, .*unexpected"),
    (lambda: step_model("gpt2"), {"encoder": {"input_ids": IDS}}, TypeError,
     r"^CausalModel: encoder must be empty, got \['input_ids'\]"),
    (lambda: step_model("gpt2"), {"encoder": {"attention_mask": IDS > 0}}, TypeError,
     r"^CausalModel: encoder must be empty, got \['attention_mask'\]"),
    (lambda: step_model("t5"), {"encoder": {"input_ids": IDS, "attention_mask": IDS > 0}}, TypeError,
     r"^EncoderDecoderModel: encoder must name inputs as encoder_input_ids .*, got \['input_ids', 'attention_mask'\]"),
    (lambda: step_model("t5"), {}, TypeError, "^EncoderDecoderModel: encoder must name inputs as .*, got nothing"),
]  # fmt: skip


@EACH
def test_what_is_wrong_with_a_model_is_said(name: str, subtests: pytest.Subtests) -> None:
    for make, options, error, message in MODELS:
        whole = message.replace("{name}", name.split()[0]) + r".*\. [A-Z]"
        with subtests.test(msg=message), pytest.raises(error, match=whole):
            STRATEGIES[name].search(make(), IDS, max_new_tokens=3, **options)


def test_prompts_on_another_device_than_the_model(npu: str) -> None:
    message = "^greedy_search: input_ids must be on the device of ModuleModel, npu:0, got cpu. Move all inputs"
    with pytest.raises(ValueError, match=message):
        greedy_search(ModuleModel(torch.nn.Embedding(11, 11, device=npu)), IDS, max_new_tokens=1)
    with pytest.raises(ValueError, match=r"^beam_search: input_ids must be on .* of ModuleModel, cpu, got npu:0"):
        beam_search(ModuleModel(torch.nn.Embedding(11, 11)), IDS.to(npu), max_new_tokens=1, num_beams=2)


RESULTS: list[tuple[str, Callable[..., Any], type[Exception], str]] = [
    ("logits_processor", lambda ids, scores: None, TypeError, r"<lambda> must return scores \[\d+, 11\], got NoneType"),
    ("logits_processor", lambda ids, scores: scores[:, 0], ValueError, r".* must return scores .*, got a .* \[\d\]"),
    ("stopping_criteria", lambda ids, scores: None, TypeError, r".* must return a bool, or .* \[\d+\], got None"),
    ("stopping_criteria", lambda ids, scores: [True], TypeError, r"<lambda> must return a bool.*, got list \[True\]"),
    ("stopping_criteria", lambda ids, scores: torch.zeros(len(ids)), ValueError, r".*, got a .* of torch.float32 \["),
    ("stopping_criteria", lambda ids, scores: torch.ones(1) > 0, ValueError, r".*, got a tensor of torch.bool \[1\]"),
]  # fmt: skip


@PROCESSED
def test_what_a_callback_returns_is_checked(name: str, subtests: pytest.Subtests) -> None:
    for option, callback, error, message in RESULTS:
        whole = rf"^{name.split()[0]}: {option} {message}.*\. [A-Z]"
        with subtests.test(msg=message), pytest.raises(error, match=whole):
            STRATEGIES[name].search(MODEL, IDS, max_new_tokens=3, **{option: [callback]})


def test_a_drafter_must_be_a_drafter_or_a_model() -> None:
    for drafter, got in ((ModuleModel, "the class ModuleModel"), ("ngram", "str without prefill, decode, expand, re")):
        with pytest.raises(
            TypeError, match=f"^speculative_sample: drafter must be a StepModel or a Drafter, got {got}"
        ):
            speculative_sample(MODEL, IDS, drafter=drafter, max_new_tokens=2)
        with pytest.raises(TypeError, match=f"^ModelDrafter: model must be a StepModel, got {got}"):
            ModelDrafter(drafter)


def test_what_a_drafting_model_returns_is_checked() -> None:
    with pytest.raises(ValueError, match=r"^ModelDrafter: model Returns must return .*got a tensor"):
        speculative_sample(MODEL, IDS, drafter=Returns(decode=StepOutput(torch.zeros(2, 11), None)), max_new_tokens=4)


def test_a_prompt_beyond_the_embeddings_is_refused_unless_it_is_padding(device: str) -> None:
    decoder = Decoder(DecoderConfig(vocab_size=11, hidden_size=8, heads=2, layers=1)).eval().to(device)
    prompt, memory = torch.tensor([[11, 3, 5]], device=device), {"memory": torch.zeros(1, 2, 8, device=device)}
    with pytest.raises(ValueError, match=r"input_ids must be in \[0, 11\), .* got \[11\] in the rows \[0\]"):
        greedy_search(decoder, prompt, max_new_tokens=2, encoder=memory)
    padded = greedy_search(decoder, prompt, max_new_tokens=2, encoder=memory, attention_mask=prompt < 11)
    assert padded.to_lists() == greedy_search(decoder, prompt[:, 1:], max_new_tokens=2, encoder=memory).to_lists()


@pytest.mark.parametrize("gamma", [2, "adaptive"])
def test_a_drafter_of_fewer_tokens_is_refused_before_it_reads_what_it_does_not_know(gamma: Any) -> None:
    """It can read the prompts, which say how many tokens it has; but not token 12, which follows everything."""
    model = ModuleModel(lambda ids: torch.nn.functional.one_hot(0 * ids + 12, 13) * 90.0)
    drafter = ModuleModel(lambda ids: torch.zeros(10, 10)[ids])
    message = "^speculative_sample: drafter must have the model's vocabulary of 13 tokens, got 10"
    with pytest.raises(ValueError, match=message):
        speculative_sample(model, IDS, drafter=drafter, gamma=gamma, max_new_tokens=9)


class Changes(NGramDrafter):
    """Changes what it would propose."""

    def __init__(self, change: Callable[[Draft], Any]) -> None:
        super().__init__()
        self.change = change

    def draft(self, state: Any, texts: Any) -> Any:
        draft, state = super().draft(state, texts)
        return self.change(draft), state


BAD_DRAFTS: list[tuple[Callable[[Draft], Any], type[Exception], str]] = [
    (lambda it: None, TypeError, "return a Draft and the next state, got NoneType None"),
    # These have once given other texts than the model's, without a word, to rows that want fewer drafts than others.
    (lambda it: it._replace(tokens=it.tokens[:, :1]), ValueError, r"return tokens \[2, 2\] of .* \[2, 1\]"),
    (lambda it: it._replace(tokens=it.tokens.repeat(1, 2)), ValueError, r"return tokens \[2, 2\] of .* \[2, 4\]"),
    (lambda it: it._replace(counts=[1] * 2), TypeError, r"return counts \[2\] of torch.int64, got list"),
    # This one has run for ever.
    (lambda it: it._replace(counts=it.counts * 0 - 1), ValueError, "return counts from 0 to 2, got -1"),
    (lambda it: it._replace(counts=it.counts * 0 + 3), ValueError, "return counts from 0 to 2, got 3"),
    (lambda it: it._replace(probabilities=torch.ones(2, 2, 13).half()), ValueError, r"return probabilities .*, got a"),
]  # fmt: skip


@pytest.mark.parametrize("rule", ["standard", "match"])
def test_what_a_drafter_returns_is_checked(rule: Any, subtests: pytest.Subtests) -> None:
    options: dict[str, Any] = {"rule": rule, "params": GREEDY, "gamma": 2, "max_new_tokens": 5}
    for change, error, message in BAD_DRAFTS:
        whole = rf"^speculative_sample: drafter Changes must {message}.*\. [A-Z]"
        with subtests.test(msg=message), pytest.raises(error, match=whole):
            speculative_sample(tiny_model(), IDS, drafter=Changes(change), **options)
