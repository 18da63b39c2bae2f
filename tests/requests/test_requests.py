"""Requests of other engines: what becomes of every field, and that none is dropped in silence."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from transformers import GenerationConfig

from ascend_sample import requests
from ascend_sample.requests import DIALECTS
from ascend_sample.requests.llama_cpp import SAMPLERS
from ascend_sample.sampling import SamplingParams
from ascend_sample.sampling.requests.checks import SMALLEST_POSITIVE
from tests.requests.tables import DOCUMENT, replace_tables

SEED_OF_MINUS_TWO = 2**64 - 2
LLAMA_CPP = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
READ: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("openai", {}, {}),
    ("openai", {"temperature": 0, "top_p": 0.5, "presence_penalty": 1, "frequency_penalty": -1, "n": 3}, {
        "temperature": 0.0, "top_p": 0.5, "presence_penalty": 1.0, "frequency_penalty": -1.0}),
    ("openai", {"logit_bias": {"7": -100, "9": 2}, "seed": -2, "stop": [[5, 6], "END"]}, {
        "logit_bias": {7: -100.0, 9: 2.0}, "seed": SEED_OF_MINUS_TWO, "stop_sequences": ((5, 6),)}),
    ("openai", {"logprobs": True, "top_logprobs": 4}, {"logprobs": 4}),
    ("openai", {"logprobs": True}, {"logprobs": 0}),
    ("openai", {"logprobs": 5}, {"logprobs": 5}),
    ("openai", {"top_p": 0, "stop": "END"}, {"top_p": SMALLEST_POSITIVE}),
    ("vllm", {"temperature": 0, "top_k": 0, "logprobs": True}, {"temperature": 0.0, "logprobs": 1}),
    ("vllm", {"temperature": 2e-5, "top_k": -1, "seed": -1, "logprobs": 3}, {"temperature": 0.01, "logprobs": 3}),
    ("vllm", {"logprob_token_ids": [9, 5, 9]}, {"logprob_token_ids": (9, 5, 9), "logprobs": 0}),
    ("vllm", {"logprob_token_ids": [9, 5], "logprobs": 2}, {"logprob_token_ids": (9, 5), "logprobs": 0}),
    ("vllm", {"logprob_token_ids": [], "logprobs": 2}, {"logprobs": 2}),
    ("vllm", {"watermarking": True, "thinking_token_budget": -1, "extra_args": {}, "bad_words": []}, {}),
    ("vllm", {"allowed_token_ids": [3, 1, 3], "logit_bias": {1: 2.0, 7: 1.0}, "bad_words": [[4, 5], [4, 5], [3]]}, {
        "allowed_token_ids": (1, 3), "logit_bias": {1: 2.0, 7: 1.0}, "bad_words": [[4, 5]], "suppress_token_ids": [3]}),
    ("vllm", {"min_tokens": 4, "stop_token_ids": [5, 5]}, {"min_tokens": 4, "stop_token_ids": [5]}),
    ("vllm", {"min_tokens": 4, "ignore_eos": True, "stop": [[5, 6], [5, 6]]}, {
        "min_tokens": 4, "stop_sequences": ((5, 6),)}),
    ("vllm", {"min_tokens": 4, "ignore_eos": True}, {}),
    ("vllm", {"stop": ["END", [5, 6], [7]], "stop_token_ids": []}, {"stop_sequences": ((5, 6), (7,))}),
    ("sglang", {"stop": [[5, 6]], "stop_token_ids": [4], "ignore_eos": True}, {"stop_sequences": ((4,), (5, 6))}),
    ("sglang", {"temperature": 9e-7, "top_k": -1}, {"temperature": 0.0}),
    ("sglang", {"top_k": 5, "sampling_seed": -2, "logit_bias": {"3": 1}}, {
        "top_k": 5, "seed": SEED_OF_MINUS_TWO, "logit_bias": {3: 1.0}}),
    ("sglang", {"min_new_tokens": 4, "stop_token_ids": {5}}, {"min_tokens": 4, "stop_token_ids": [5]}),
    ("generation_config", {"temperature": 0.7, "top_k": 9, "typical_p": 0.9, "eta_cutoff": 2e-3}, {"temperature": 0.0}),
    ("generation_config", {"do_sample": True, "top_p": 0.0}, {"top_k": 50, "top_p": SMALLEST_POSITIVE}),
    ("generation_config", {"do_sample": True, "top_k": 0, "temperature": 0.7, "top_p": 0.5, "min_p": 0.1}, {
        "temperature": 0.7, "top_p": 0.5, "min_p": 0.1}),
    ("generation_config", {"do_sample": True, "typical_p": 0.9, "epsilon_cutoff": 1e-3, "eta_cutoff": 2e-3}, {
        "top_k": 50, "typical_p": 0.9, "epsilon_cutoff": 1e-3, "eta_cutoff": 2e-3}),
    ("generation_config", {"bad_words_ids": [[3], [4, 5], [2], [9], [4, 5]], "suppress_tokens": [3, 8],
        "eos_token_id": 9, "no_repeat_ngram_size": 3, "repetition_penalty": 1.3}, {"temperature": 0.0,
        "stop_token_ids": [9], "suppress_token_ids": [3, 8], "bad_words": [[4, 5]], "no_repeat_ngram_size": 3,
        "repetition_penalty": 1.3}),
    ("generation_config", {"sequence_bias": {(4,): -1.5}}, {"temperature": 0.0, "logit_bias": {4: -1.5}}),
    ("generation_config", {"min_new_tokens": 4, "eos_token_id": [9], "sequence_bias": {frozenset({4}): -1.5}}, {
        "temperature": 0.0, "min_tokens": 4, "stop_token_ids": (2, 9), "logit_bias": {4: -1.5}}),
    ("llama_cpp", {}, LLAMA_CPP),
    ("llama_cpp", {"temperature": -1, "top_k": 0, "top_p": 1, "min_p": 0}, {"temperature": 0.0}),
    ("llama_cpp", {"seed": 2**32 - 1, "logprobs": 5, "dry_sequence_breakers": ["\n"]}, LLAMA_CPP | {"logprobs": 5}),
    ("llama_cpp", {"repeat_penalty": 1.1, "presence_penalty": 1, "frequency_penalty": 1, "repeat_last_n": -1}, LLAMA_CPP
        | {"repetition_penalty": 1.1, "presence_penalty": 1.0, "frequency_penalty": 1.0}),
    ("llama_cpp", {"typical_p": 0.9, "top_n_sigma": 1.5, "xtc_probability": 0.5, "xtc_threshold": 0.2}, LLAMA_CPP | {
        "typical_p": 0.9, "top_n_sigma": 1.5, "xtc_probability": 0.5, "xtc_threshold": 0.2}),
    ("llama_cpp", {"mirostat": 2, "top_k": 5, "presence_penalty": 1, "seed": 3, "n_probs": 2, "logit_bias": [[5, 1]]}, {
        "temperature": 0.8, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "seed": 3, "logprobs": 2, "logit_bias": {5: 1}}),
    ("llama_cpp", {"adaptive_target": 0, "adaptive_decay": 1.5, "samplers": [*SAMPLERS, "adaptive_p"]}, LLAMA_CPP | {
        "adaptive_target": 0.0, "adaptive_decay": 0.99}),
    ("llama_cpp", {"adaptive_target": 0.5, "samplers": SAMPLERS}, LLAMA_CPP),
    ("llama_cpp", {"adaptive_target": 0.5, "mirostat": 2, "temperature": 1}, {"temperature": 1.0, "mirostat_tau": 5.0}),
    ("llama_cpp", {"repeat_penalty": 1.0, "repeat_last_n": 1, "dry_multiplier": 0, "dry_penalty_last_n": 1}, LLAMA_CPP),
    ("llama_cpp", {"repeat_penalty": 1.5, "presence_penalty": 1, "repeat_last_n": 0}, LLAMA_CPP),
    ("llama_cpp", {"dry_multiplier": 0.5, "dry_base": 1.5, "dry_allowed_length": 3, "dry_penalty_last_n": -1,
        "dry_sequence_breakers": [13, [4, 5]]}, LLAMA_CPP | {"dry_multiplier": 0.5, "dry_base": 1.5,
        "dry_allowed_length": 3, "dry_sequence_breakers": [13, [4, 5]]}),
    ("llama_cpp", {"dry_multiplier": 0.5, "dry_base": 0.9, "dry_sequence_breakers": []}, LLAMA_CPP | {
        "dry_multiplier": 0.5, "dry_base": 1.75, "dry_penalty_last_n": 64}),
    ("llama_cpp", {"logit_bias": [[5, 1.5], ["6", False], [2, 9]], "ignore_eos": True, "stop": [[5, 6]]}, LLAMA_CPP | {
        "logit_bias": {2: 9.0, 5: 1.5}, "suppress_token_ids": (2, 6), "stop_sequences": ((5, 6),)}),
]  # fmt: skip
ODD: list[Any] = [
    *(5, -3, 1.5, 10**400, math.nan, math.inf, 1j, True, "x", "", b"x", object()),
    *([], [1], [1.5], [None], ["x"], [[]], [[1, 2, 3]], [[1, "x"]], [["x", 1]], [{1: 2}], {1}, {}, {"a": 1}, {1: "x"}),
    *(numpy.array([1, 2]), numpy.array([[1, 2]]), numpy.array(3), torch.tensor([1, 2]), torch.tensor(3)),
]
"""Values of all kinds, most of which no field takes."""
BESIDE_ODD: dict[str, list[dict[str, Any]]] = {
    "openai": [{}, {"logprobs": True}],
    "vllm": [{}, {"min_tokens": 3}, {"min_p": 0.1, "top_p": 0.5}],
    "sglang": [{}, {"min_new_tokens": 3}, {"top_k": 5, "top_p": 0.5}],
    "generation_config": [{}, {"do_sample": True}, {"min_new_tokens": 3, "do_sample": True, "typical_p": 0.5}],
    "llama_cpp": [
        *({}, {"mirostat": 2}, {"dry_multiplier": 1.0, "dry_sequence_breakers": []}, {"adaptive_target": 0.5}),
        {"repeat_penalty": 1.2, "repeat_last_n": -1, "typical_p": 0.4},
    ],
}
"""What makes a dialect look at other fields."""
STRICTLY_REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("vllm", {"min_p": 0.1, "top_p": 0.9}, "min_p before top_p"),
    ("vllm", {"bad_words": [[4, 5]]}, "in the output alone"),
    ("sglang", {"top_k": 5, "top_p": 0.9}, "over all ids"),
    ("sglang", {"repetition_penalty": 1.1}, "in the output alone"),
    ("llama_cpp", {}, "before it divides by the temperature"),
    ("llama_cpp", {"temperature": 0.7, "top_p": 1, "min_p": 0, "typical_p": 0.9}, "before it divides"),
    ("llama_cpp", {"temperature": 1.0, "typical_p": 0.9}, "among what top_n_sigma and top_k keep"),
    ("llama_cpp", {"temperature": 1.0, "top_k": 0, "typical_p": 0.9, "logit_bias": [[3, False]]}, "from a NaN"),
    ("generation_config", {"do_sample": True, "typical_p": 0.9, "eta_cutoff": 1e-3}, "applies typical_p"),
    ("generation_config", {"do_sample": True, "top_k": 0, "typical_p": 0.9, "eta_cutoff": 1e-3}, "look at the same"),
    ("llama_cpp", {"temperature": 1.0, "presence_penalty": 0.5, "repeat_last_n": -1}, "counts the prompt"),
    ("llama_cpp", {"temperature": 1.0, "repeat_penalty": 1.5, "repeat_last_n": -1, "dry_multiplier": 1.0,
        "dry_sequence_breakers": []}, "after the repetition penalty"),
]  # fmt: skip
STRICTLY_TAKEN: list[tuple[str, dict[str, Any]]] = [
    ("vllm", {"bad_words": [[4], 5]}),
    ("vllm", {"top_k": 5, "top_p": 0.9}),
    ("sglang", {"top_p": 0.9}),
    ("generation_config", {"do_sample": True, "top_p": 0.9, "min_p": 0.1}),
    ("generation_config", {"do_sample": True, "top_k": 0, "typical_p": 0.9}),
    ("llama_cpp", {"temperature": 1.0}),
    ("llama_cpp", {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "xtc_probability": 0.5}),
    ("llama_cpp", {"temperature": 0.7, "top_p": 1.0, "min_p": 0.0}),
    ("llama_cpp", {"mirostat": 2}),
]
BAD: list[tuple[str, Any, type[Exception], str]] = [
    ("openai", {"top_k": 5}, ValueError, "the name of a field must be one of OpenAI's API .* got 'top_k'"),
    ("openai", {"temprature": 1}, ValueError, "got 'temprature'. Did you mean 'temperature'"),
    ("openai", {"top_logprobs": 3}, ValueError, "top_logprobs must be 0 or left out unless logprobs is true, got 3"),
    ("openai", {5: 1}, ValueError, "the name of a field must be one of OpenAI's API .* got 5"),
    ("llama_cpp", {"ignore_eos": "false"}, TypeError, "ignore_eos must be True or False, got str 'false'"),
    ("llama_cpp", {"logit_bias": [[3, 1], ["3", 2]]}, ValueError, "logit_bias must name each id once"),
    ("openai", {"logit_bias": {"the": 1}}, ValueError, "logit_bias must have integers as its ids"),
    ("vllm", {"logit_bias": {1.7: 1}}, ValueError, "logit_bias must have integers as its ids, got 1.7"),
    ("openai", {"logit_bias": {"3": 1, 3: 2}}, ValueError, "logit_bias must name each id once"),
    ("openai", {"logit_bias": [1]}, TypeError, "logit_bias must be a mapping of ids to numbers"),
    ("openai", {"top_p": 2}, ValueError, "^from_openai: top_p must lie in"),
    ("vllm", {"allowed_token_ids": [-1]}, ValueError, "^from_vllm: allowed_token_ids must hold ids in"),
    ("vllm", {"allowed_token_ids": []}, ValueError, "from_vllm: allowed_token_ids must name at least one id, got"),
    ("vllm", {"stop": [[-1]], "stop_token_ids": [3]}, ValueError, "from_vllm: stop must hold ids in"),
    ("sglang", {"sampling_seed": 2**64}, ValueError, "sglang: sampling_seed must be an int .* Use sampling_seed %"),
    ("llama_cpp", {"logit_bias": [[-1, False]]}, ValueError, "from_llama_cpp: logit_bias must hold ids in"),
    ("generation_config", {"sequence_bias": [[[5], math.inf]]}, ValueError, r"sequence_bias\[5\] must be finite"),
    ("vllm", {"logprobs": -1}, ValueError, "logprobs must be 0 or more where vocab_size is not given"),
    ("vllm", {"logprob_token_ids": [9, 5], "logprobs": 5}, ValueError, "logprobs must be 2, as many as logprob_token"),
    ("vllm", {"logprob_token_ids": ["Yes"]}, TypeError, "logprob_token_ids must be a list of ids"),
    ("vllm", {"bad_words": ["no"]}, TypeError, r"bad_words must be .* ids, got list \['no'\]. Texts must be tokenized"),
    ("llama_cpp", {"dry_multiplier": 1}, ValueError, "dry_sequence_breakers must name ids beside dry_multiplier, got"),
    ("llama_cpp", {"samplers": ["top_k", "adaptive_p"]}, ValueError, "samplers must be .'penalties'.* with or without"),
    ("llama_cpp", {"mirostat": 1}, ValueError, "mirostat must be 0 or 2, got 1. Version 1 fits"),
    ("llama_cpp", {"mirostat": 2, "mirostat_tau": 0}, ValueError, "mirostat_tau must be above 0 beside mirostat"),
    ("generation_config", {"sequence_bias": {(1, 2): 1.0}}, ValueError, "sequence_bias must hold sequences of one id"),
    ("llama_cpp", {"repeat_penalty": 1.1}, ValueError, "repeat_last_n must be 0, -1 or .* beside a penalty, got 64"),
    ("llama_cpp", {"dry_multiplier": 1, "dry_penalty_last_n": -2}, ValueError, "dry_penalty_last_n must be -1 or more"),
    (
        "vllm",
        {"thinking_token_budget": 9},
        ValueError,
        "thinking_start_ids must .* id beside thinking_token_budget, got",
    ),
    ("vllm", 5, TypeError, "request must be a mapping or the engine's object, got 5"),
    # What is forbidden at the end of a text must be known.
    ("vllm", {"min_tokens": 3, "stop_token_ids": [7]}, ValueError, "min_tokens must be 0 .* got 3"),
    ("sglang", {"min_new_tokens": 3, "stop_token_ids": [7]}, ValueError, "min_new_tokens must be 0 .* got 3"),
    ("generation_config", {"min_new_tokens": 3}, ValueError, "min_new_tokens must be 0 .* got 3"),
    ("llama_cpp", {"ignore_eos": True}, ValueError, "ignore_eos must be False .* got True"),
]


def read(dialect: str, request: object, **context: Any) -> SamplingParams:
    params = getattr(requests, f"from_{dialect}")(request, **context)
    assert isinstance(params, SamplingParams)
    return params


def test_what_is_taken_becomes_ours(subtests: pytest.Subtests) -> None:
    for dialect, request, ours in READ:
        with subtests.test(msg=f"{dialect} {request}"):
            ends = () if request.get("ignore_eos") else (2,)
            ours_and_ends = ours | {"stop_token_ids": (*ours.get("stop_token_ids", ()), *ends)}
            assert read(dialect, request, eos_ids=[2]) == SamplingParams(**ours_and_ends)


def test_the_tags_of_thoughts_are_given_beside_a_request() -> None:
    tags = {"thinking_start_ids": [5, 6], "thinking_end_ids": [7], "thinking_end_message_ids": [4, 7]}
    assert read("vllm", {"thinking_token_budget": 0}, **tags) == SamplingParams(thinking_token_budget=0, **tags)
    assert read("vllm", {"top_k": 3}, **tags) == SamplingParams(top_k=3)


def test_none_is_what_was_not_given() -> None:
    for name, dialect in DIALECTS.items():
        assert read(name, dict.fromkeys(dialect.fields)) == read(name, {})


@pytest.mark.parametrize("name", DIALECTS)
def test_a_refused_field_is_named_and_its_off_values_pass(name: str) -> None:
    refused = {field_name: field for field_name, field in DIALECTS[name].fields.items() if field.verdict == "refused"}
    for field_name, field in refused.items():
        message = f"^from_{name}: {field_name} must .*, got 'asked for'. {re.escape(field.note)}$"
        with pytest.raises(ValueError, match=message):
            read(name, {field_name: "asked for"})
        for off in field.off:
            assert read(name, {field_name: off}) == read(name, {})
    assert refused or name == "openai"


def test_what_cannot_be_read(subtests: pytest.Subtests) -> None:
    for dialect, request, error, says in BAD:
        with subtests.test(msg=f"{dialect} {request}"), pytest.raises(error, match=says):
            read(dialect, request)


@pytest.mark.parametrize("name", DIALECTS)
def test_a_value_of_any_kind_is_taken_or_refused_by_name(name: str) -> None:
    read = getattr(requests, f"from_{name}")
    tries: Iterator[tuple[dict[str, Any], dict[str, Any]]] = itertools.chain(
        (
            ({**beside, field: odd}, {"eos_ids": eos_ids, "strict": strict})
            for beside, odd, eos_ids, strict in itertools.product(BESIDE_ODD[name], ODD, ((), (2,)), (False, True))
            for field, declared in DIALECTS[name].fields.items()
            if declared.verdict != "engine"
        ),
        (({}, {argument: odd}) for odd in ODD for argument in ("eos_ids", "vocab_size", "max_model_len", "strict")),
    )
    taken = 0
    for request, context in tries:
        try:
            read(request, **context)
        except (TypeError, ValueError) as error:
            assert str(error).startswith(f"from_{name}: "), (request, context)  # noqa: PT017
        else:
            taken += 1
    assert taken > len(ODD)


def test_arrays_are_lists() -> None:
    def of(array: Callable[[list[int]], Any]) -> SamplingParams:
        request = {"stop_token_ids": array([7, 9]), "min_tokens": 3, "logprob_token_ids": array([4, 2])}
        return read("vllm", request, eos_ids=array([2]))

    assert of(numpy.array) == of(torch.tensor) == of(list)


def test_a_model_may_have_no_eos() -> None:
    held = read("vllm", {"min_tokens": 3, "stop_token_ids": [7]}, eos_ids=[])
    assert held == SamplingParams(min_tokens=3, stop_token_ids=[7])
    assert read("vllm", {"min_tokens": 3, "stop": [[5, 6]]}, eos_ids=[]).min_tokens == 3
    assert read("llama_cpp", {"ignore_eos": True}, eos_ids=[]) == SamplingParams(**LLAMA_CPP)
    with pytest.raises(ValueError, match="min_tokens must be 0 where eos_ids and stop are empty, got 3"):
        read("vllm", {"min_tokens": 3}, eos_ids=[])


def test_a_window_is_the_whole_text_where_no_text_is_longer() -> None:
    request = {"repeat_penalty": 1.5, "repeat_last_n": 4096}
    assert read("llama_cpp", request, max_model_len=4096) == SamplingParams(**LLAMA_CPP, repetition_penalty=1.5)
    with pytest.raises(ValueError, match=r"repeat_last_n must be 0, -1 or at least max_model_len .*, got 4"):
        read("llama_cpp", request, max_model_len=4097)


def test_strict_refuses_what_the_engine_draws_otherwise() -> None:
    for dialect, request, says in STRICTLY_REFUSED:
        assert read(dialect, request) == read(dialect, request, strict=False)
        with pytest.raises(ValueError, match=f"strict must be False for this request, got True. .*{says}"):
            read(dialect, request, strict=True)
    for dialect, request in STRICTLY_TAKEN:
        assert read(dialect, request, strict=True) == read(dialect, request)


def test_ignored_ends_are_not_held_back() -> None:
    for dialect, held in (("vllm", "min_tokens"), ("sglang", "min_new_tokens")):
        request = {held: 4, "stop_token_ids": [5], "ignore_eos": True}
        assert read(dialect, request, eos_ids=[2]) == SamplingParams(min_tokens=4, stop_token_ids=[5])
        assert read(dialect, request, eos_ids=[], strict=True) == SamplingParams(min_tokens=4, stop_token_ids=[5])
        with pytest.raises(ValueError, match=r"strict must be False .* holds ignored eos_ids back too"):
            read(dialect, request, eos_ids=[2], strict=True)


def test_the_vocabulary_checks_ids() -> None:
    with pytest.raises(ValueError, match=r"logit_bias must .*got 10"):
        read("openai", {"logit_bias": {"10": 1}}, vocab_size=10)
    assert read("vllm", {"logprobs": -1}, vocab_size=10).logprobs == 10


# ---- the real classes ----


def test_every_field_of_transformers_is_known() -> None:
    public = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert public == set(DIALECTS["generation_config"].fields)
    read("generation_config", GenerationConfig(do_sample=True, temperature=0.5, max_new_tokens=3))


def test_objects_are_read_by_their_fields() -> None:
    @dataclasses.dataclass
    class Request:
        temperature: float = 0.25
        seed: int | None = None
        _private: int = 5

    assert read("vllm", Request()) == SamplingParams(temperature=0.25)


def test_fields_that_pydantic_allows_beside_those_of_a_class_are_read() -> None:
    class Request:
        def __init__(self) -> None:
            self.temperature = 0.25
            object.__setattr__(self, "__pydantic_extra__", {"top_k": 5})

        def __getattr__(self, name: str) -> Any:  # as pydantic's models do
            return getattr(types.SimpleNamespace(**self.__pydantic_extra__), name)

    assert read("vllm", Request()) == SamplingParams(temperature=0.25, top_k=5)
    with pytest.raises(ValueError, match=r"the name of a field must be one of OpenAI's API .* got 'top_k'"):
        read("openai", Request())


# ---- what people read ----


def test_the_document_has_the_tables_of_the_code() -> None:
    document = DOCUMENT.read_text()
    assert document == replace_tables(document), "run python -m tests.requests.tables"


def test_a_request_shows_what_differs_from_the_defaults() -> None:
    assert repr(SamplingParams()) == "SamplingParams()"
    params = SamplingParams(temperature=0.5, logit_bias={3: 1.0}, suppress_token_ids=[7], seed=0)
    assert repr(params) == "SamplingParams(temperature=0.5, logit_bias={3: 1.0}, suppress_token_ids=(7,), seed=0)"
    assert eval(repr(params)) == params
