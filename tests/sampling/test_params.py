"""The parameters of a request: what is taken, what is refused and how, and what a request keeps."""

from __future__ import annotations

import copy
import cProfile
import dataclasses
import json
import math
import pickle
from typing import Any

import numpy
import pytest
import torch

from ascend_sample.sampling.requests.checks import LARGEST
from ascend_sample.sampling.requests.fields import to_fraction
from ascend_sample.sampling.requests.params import SamplingParams
from tests.sampling.bad_requests import BAD_REQUESTS, CONTRADICTIONS, BadRequest


@pytest.mark.parametrize("bad", BAD_REQUESTS + CONTRADICTIONS, ids=lambda bad: bad.name)
def test_a_bad_request_is_refused_with_field_rule_value_and_remedy(bad: BadRequest) -> None:
    with pytest.raises(bad.error) as caught:
        SamplingParams(**bad.fields)
    assert type(caught.value) is bad.error
    message = str(caught.value)
    assert message.startswith("SamplingParams: ")
    assert message.endswith(".")
    position = 0
    for part in bad.says:
        assert part in message[position:], f"{part!r} is missing in {message!r}"
        position = message.index(part, position)


def test_the_table_is_long_enough_and_its_names_are_distinct() -> None:
    names = [bad.name for bad in BAD_REQUESTS + CONTRADICTIONS]
    assert len(names) >= 50
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("bad", CONTRADICTIONS, ids=lambda bad: bad.name)
def test_what_needs_the_vocabulary_is_refused_by_the_batch_otherwise(bad: BadRequest) -> None:
    fields = dict(bad.fields)
    vocab_size = fields.pop("vocab_size", None)
    if vocab_size is None:
        return  # refused at construction already
    params = SamplingParams(**fields)
    with pytest.raises(ValueError, match="must") as caught:
        params.check_vocab_size(vocab_size)
    assert all(part in str(caught.value) for part in bad.says)


def test_another_vocabulary_than_the_batch_has() -> None:
    params = SamplingParams(vocab_size=10)
    params.check_vocab_size(10)
    with pytest.raises(ValueError, match=r"vocab_size must be the batch's, 11, got 10\. "):
        params.check_vocab_size(11)


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"temperature": 0}, "temperature", 0.0),
        ({"temperature": -0.0}, "temperature", 0.0),
        ({"temperature": 2.0**-126}, "temperature", 2.0**-126),
        ({"temperature": 3.4028234663852886e38}, "temperature", 3.4028234663852886e38),
        ({"temperature": numpy.float32(0.7)}, "temperature", 0.699999988079071),
        ({"temperature": numpy.float16(0.5)}, "temperature", 0.5),
        ({"temperature": numpy.int64(2)}, "temperature", 2.0),
        ({"top_p": 1}, "top_p", 1.0),
        ({"top_p": 2.0**-126}, "top_p", 2.0**-126),
        ({"min_p": 1}, "min_p", 1.0),
        ({"min_p": 0}, "min_p", 0.0),
        ({"repetition_penalty": 0.5}, "repetition_penalty", 0.5),
        ({"presence_penalty": -2}, "presence_penalty", -2.0),
        ({"frequency_penalty": 2}, "frequency_penalty", 2.0),
        ({"top_k": 1}, "top_k", 1),
        ({"top_k": 2**64 - 1}, "top_k", 2**64 - 1),
        ({"top_k": numpy.int32(50)}, "top_k", 50),
        ({"seed": 2**64 - 1}, "seed", 2**64 - 1),
        ({"seed": 0}, "seed", 0),
        ({"seed": numpy.uint64(2**64 - 1)}, "seed", 2**64 - 1),
        ({"logprobs": 0}, "logprobs", 0),
        ({"logprobs": 10, "vocab_size": 10}, "logprobs", 10),
        ({"allowed_ids": (9, 2)}, "allowed_ids", (2, 9)),
        ({"allowed_ids": {9, 2}}, "allowed_ids", (2, 9)),
        ({"allowed_ids": [9, 2, 9, numpy.int64(2)]}, "allowed_ids", (2, 9)),
        ({"bad_ids": [7, 3, 7]}, "bad_ids", (3, 7)),
        ({"bad_words": [[3, 4], (3, 4), [4, 3]]}, "bad_words", ((3, 4), (4, 3))),
        ({"allowed_ids": [4, 5], "bad_ids": [5], "logit_bias": {3: 1.0, 5: 2.0}}, "logit_bias", {3: 1.0, 5: 2.0}),
        ({"bad_ids": range(3)}, "bad_ids", (0, 1, 2)),
        ({"bad_ids": numpy.array([4, 1], dtype=numpy.uint16)}, "bad_ids", (1, 4)),
        ({"bad_ids": numpy.array([])}, "bad_ids", ()),
        ({"bad_ids": torch.tensor([4, 1], dtype=torch.int32)}, "bad_ids", (1, 4)),
        ({"logprob_ids": torch.tensor([4, 1])}, "logprob_ids", (4, 1)),
        ({"bad_ids": [numpy.int64(4), 1]}, "bad_ids", (1, 4)),
        ({"bad_ids": [2**20 - 1]}, "bad_ids", (2**20 - 1,)),
        ({"stop_ids": [9], "vocab_size": 10}, "stop_ids", (9,)),
        ({"min_tokens": 2**31 - 1, "stop_ids": [1]}, "min_tokens", 2**31 - 1),
        ({"no_repeat_ngram_size": 3, "no_repeat_ngram_window": 3}, "no_repeat_ngram_window", 3),
        ({"no_repeat_ngram_whitelist": {9, 2}}, "no_repeat_ngram_whitelist", (2, 9)),
        ({"dry_base": 1, "dry_multiplier": 2**-126}, "dry_base", 1.0),
        ({"logit_bias": {numpy.int64(5): 1, 2: -100.0}}, "logit_bias", {2: -100.0, 5: 1.0}),
        ({"allowed_ids": [1, 2], "bad_ids": [2], "logit_bias": {1: 3.0}}, "allowed_ids", (1, 2)),
        ({"allowed_ids": [1, 2], "stop_ids": [2], "min_tokens": 4}, "min_tokens", 4),
    ],
)
def test_values_at_the_edges_are_taken_and_normalised(fields: dict[str, Any], name: str, value: object) -> None:
    kept = getattr(SamplingParams(**fields), name)
    assert kept == value
    assert type(kept) in (float, int, tuple) or dict(kept) == value
    assert not isinstance(kept, float) or math.copysign(1.0, kept) == math.copysign(1.0, value)  # type: ignore[arg-type]
    if isinstance(kept, tuple):
        assert {type(entry) for entry in kept} <= {int, tuple}


def test_sequences_of_ids_are_kept_as_sorted_tuples() -> None:
    params = SamplingParams(bad_words=[[4, 2], numpy.array([1, 9])], dry_sequence_breakers=[7, [3, 1], (5,)])
    assert params.bad_words == ((1, 9), (4, 2))
    assert params.dry_sequence_breakers == ((3, 1), (5,), (7,))
    assert SamplingParams(dry_sequence_breakers=[7, 3]).dry_sequence_breakers == ((3,), (7,))
    assert SamplingParams(stop_sequences=torch.tensor([[4, 1], [3, 2]])).stop_sequences == ((3, 2), (4, 1))
    assert SamplingParams(stop_sequences=[torch.tensor([4, 1]), 3]).stop_sequences == ((3,), (4, 1))
    assert SamplingParams.from_mapping(params.to_mapping()) == params
    assert hash(params) == hash(SamplingParams.from_mapping(params.to_mapping()))


def test_bad_words_of_one_id_are_bad_ids() -> None:
    params = SamplingParams(bad_words=[[4, 2], [7], 3], bad_ids=[7, 1])
    assert params == SamplingParams(bad_words=[[4, 2]], bad_ids=[1, 3, 7])
    with pytest.raises(ValueError, match="bad_ids must leave at least one of the 2 ids"):
        SamplingParams(bad_words=[[0], [1]], vocab_size=2)


def test_defaults_filter_nothing() -> None:
    assert SamplingParams().to_mapping() == {
        "temperature": 1.0,
        "top_k": None,
        "top_p": 1.0,
        "min_p": 0.0,
        "typical_p": 1.0,
        "epsilon_cutoff": 0.0,
        "eta_cutoff": 0.0,
        "top_a": 0.0,
        "top_n_sigma": 0.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "mirostat_tau": 0.0,
        "mirostat_eta": 0.1,
        "adaptive_target": None,
        "adaptive_decay": 0.9,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "allowed_ids": None,
        "bad_ids": (),
        "bad_words": (),
        "no_repeat_ngram_size": 0,
        "no_repeat_ngram_window": None,
        "no_repeat_ngram_whitelist": (),
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_sequence_breakers": (),
        "dry_range": None,
        "thinking_budget": None,
        "thinking_start": (),
        "thinking_end": (),
        "thinking_closing": (),
        "min_tokens": 0,
        "stop_ids": (),
        "stop_sequences": (),
        "seed": None,
        "logprob_ids": (),
        "logprobs": None,
        "kept": False,
        "vocab_size": None,
    }


def test_a_request_does_not_change_with_what_it_was_made_of() -> None:
    bias, bad_ids = {3: 1.0}, [7, 5]
    params = SamplingParams(logit_bias=bias, bad_ids=bad_ids)
    bias[3] = 9.0
    bad_ids.append(8)
    assert params.logit_bias == {3: 1.0}
    assert params.bad_ids == (5, 7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = 0.5  # type: ignore[misc]
    with pytest.raises(TypeError):
        params.logit_bias[3] = 9.0  # type: ignore[index]


def test_a_vocabularys_worth_of_ids_takes_no_more_calls_than_a_few() -> None:
    calls = []
    for count in (5, 5, 5000):  # the first has more: what `isinstance` finds out about abstract classes is kept
        ids = range(count, 0, -1)
        bias: dict[int, float] = {token_id: token_id / 7 for token_id in ids} | {1: -0.0, 2: -100, 3: LARGEST}
        profile = cProfile.Profile()
        params = profile.runcall(SamplingParams, logit_bias=bias, allowed_ids=ids, stop_ids=ids[1:], min_tokens=1)
        profile.runcall(params.check_vocab_size, count + 1)
        calls.append(sum(entry.callcount for entry in profile.getstats()))
        assert list(params.logit_bias.items()) == sorted(bias.items())
        assert set(map(type, params.logit_bias.values())) == {float}
        assert math.copysign(1, params.logit_bias[1]) == 1
    assert calls[1] == calls[2]


def test_equal_requests_are_equal_and_hash_alike() -> None:
    first = SamplingParams(logit_bias={3: 1.0, 1: 2.0}, bad_ids=[7, 5], seed=3)
    second = SamplingParams(logit_bias={1: 2.0, 3: 1.0}, bad_ids={5, 7}, seed=3)
    assert first == second
    assert hash(first) == hash(second)
    assert len({first, second, SamplingParams(seed=4)}) == 2


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_requests_travel_between_processes(duplicate: Any) -> None:
    params = SamplingParams(logit_bias={3: 1.0}, allowed_ids=[3, 4], seed=2**64 - 1, stop_ids=[4], min_tokens=2)
    assert duplicate(params) == params


def test_a_changed_copy_is_checked_again() -> None:
    params = SamplingParams(top_k=5, logit_bias={3: 1.0})
    assert dataclasses.replace(params, top_k=6) == SamplingParams(top_k=6, logit_bias={3: 1.0})
    with pytest.raises(ValueError, match="top_k must"):
        dataclasses.replace(params, top_k=0)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"temprature": 0.5}, ValueError, "'temprature' must be a known field. Did you mean 'temperature'?"),
        ({"topk": 5}, ValueError, "Did you mean 'top_k'?"),
        ({"stop_token_ids": [1]}, ValueError, "Did you mean 'stop_ids'?"),
        ({"allowed_token_ids": [1]}, ValueError, "Did you mean 'allowed_ids'?"),
        ({"Temperature": 1}, ValueError, "Did you mean 'temperature'?"),
        ({"zzz": 1}, ValueError, "The fields are temperature, top_k, "),
        ({3: 1}, TypeError, "the name of a field must be a str, got 3."),
        ([("top_k", 5)], TypeError, "the fields must be a mapping, got list. Give a dict."),
        ({"top_k": 0}, ValueError, "top_k must be an int in [1, 2**64 - 1], got 0."),
        ({"logit_bias": {"the": 1.0}}, ValueError, "logit_bias must have integers as its ids, got 'the'."),
        ({"logit_bias": {"5": 1.0, "-5": 1.0}}, ValueError, "logit_bias must have integers as its ids, got '-5'."),
        ({"logit_bias": {"5": 1.0, 5: 1.0}}, ValueError, "logit_bias must name each id once"),
    ],
)
def test_a_mapping_with_a_wrong_field(values: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        SamplingParams.from_mapping(values)
    assert message in str(caught.value)


def test_parsed_json_makes_the_same_request() -> None:
    params = SamplingParams(temperature=0.5, logit_bias={5: 1.0, 30: -2.5}, bad_words=[[3, 4]], stop_ids=[2])
    assert SamplingParams.from_mapping(json.loads(json.dumps(params.to_mapping()))) == params


def test_the_constructor_knows_the_nearest_name() -> None:
    message = "^SamplingParams: 'temprature' must be a known field. Did you mean 'temperature'?"
    with pytest.raises(TypeError, match=message):
        SamplingParams(temprature=0.7)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=message):
        dataclasses.replace(SamplingParams(), temprature=0.7)  # type: ignore[call-arg]


def test_a_mapping_makes_the_same_request() -> None:
    params = SamplingParams(temperature=0.5, logit_bias={3: 1.0}, allowed_ids=[3, 4])
    assert SamplingParams.from_mapping(params.to_mapping()) == params
    assert SamplingParams.from_mapping({}) == SamplingParams()


def test_a_whole_vocabulary_of_ids_takes_no_loop() -> None:
    params = SamplingParams(allowed_ids=range(200_000), vocab_size=200_000)
    assert len(params.allowed_ids or ()) == 200_000


@pytest.mark.parametrize(
    ("fraction", "float32"),
    [
        (1.0, 1.0),
        (1.0 - 2.0**-30, 1.0 - 2.0**-24),  # float32 would round it to 1, which is off
        (math.nextafter(1.0, 0.0), 1.0 - 2.0**-24),
        (0.9, float(numpy.float32(0.9))),
        (2.0**-126, 2.0**-126),
        (0.0, 0.0),
    ],
)
def test_a_fraction_below_1_stays_below_1_in_float32(fraction: float, float32: float) -> None:
    converted = to_fraction(fraction)
    assert converted.dtype == numpy.float32
    assert float(converted) == float32


def test_a_long_value_is_shortened_in_a_message() -> None:
    with pytest.raises(TypeError) as caught:
        SamplingParams(top_k=[0] * 1000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200
