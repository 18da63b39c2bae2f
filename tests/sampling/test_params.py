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

NORMAL = "[2**-126, 3.40282e+38]"
IDS = "vocabulary ids"
OUT_OF_RANGE: dict[str, tuple[tuple[Any, ...], str, str]] = {
    "temperature": ((-0.1, 5e-324, 3.5e38, numpy.float32(-1)), f"be 0 or lie in {NORMAL}", "0 for greedy"),
    "top_p": ((0, 1.0000001, 1e-39), "lie in [2**-126, 1]", "1 to switch top-p off"),
    "min_p": ((-1e-9, 1.5, 1e-40), "be 0 or lie in [2**-126, 1]", "0 to switch min-p off"),
    "repetition_penalty": ((0, -1.0, 1e300), f"lie in {NORMAL}", "1 to switch"),
    "presence_penalty": ((-2.1, 2.0000001), "lie in [-2, 2]", "0 to switch"),
    "frequency_penalty": ((-3, 2.5), "lie in [-2, 2]", "0 to switch"),
    "typical_p": ((0, 1.5), "lie in [2**-126, 1]", "1 to switch"),
    "epsilon_cutoff": ((-1e-9, 1.5), "be 0 or lie in [2**-126, 1]", "0 to switch"),
    "eta_cutoff": ((-1e-9, 1.5), "be 0 or lie in [2**-126, 1]", "0 to switch"),
    "top_a": ((-1e-9, 1.5), "be 0 or lie in [2**-126, 1]", "0 to switch"),
    "top_n_sigma": ((-1.0, 1e39), f"be 0 or lie in {NORMAL}", "0 to switch"),
    "xtc_probability": ((-1e-9, 1.5), "be 0 or lie in [2**-126, 1]", "0 to switch"),
    "xtc_threshold": ((0.0, 1.5), "lie in [2**-126, 1]", "xtc_probability=0"),
    "mirostat_tau": ((-1, 64.1), "be 0 or lie in [2**-126, 64]", "0 to switch mirostat off"),
    "mirostat_eta": ((-0.1, 1.1), "be 0 or lie in [2**-126, 1]", "0 for a bound that stays"),
    "adaptive_target": ((-0.1, 1.1), "lie in [0, 1]", "None to switch adaptive-p off"),
    "adaptive_decay": ((-0.1, 0.999), "lie in [0, 0.99]", "0 for the last token alone"),
    "dry_base": ((0.99,), "lie in [1, 3.40282e+38]", "1 for the same penalty"),
    "dry_multiplier": ((-0.5,), f"be 0 or lie in {NORMAL}", "0 to switch DRY off"),
    "top_k": ((0, -1, 2**64), "be an int in [1, 2**64 - 1]", "None to switch top-k off"),
    "min_tokens": ((-1, 2**31), "be an int in [0, 2**31 - 1]", "0 for no minimum"),
    "seed": ((-1, 2**64), "be an int in [0, 2**64 - 1]", "seed % 2**64"),
    "logprobs": ((-1, 2**20 + 1), "be an int in [0, 1048576]", "1048576 for all"),
    "vocab_size": ((0, 2**20 + 1), "be an int in [1, 1048576]", "columns of the logits"),
    "no_repeat_ngram_size": ((-1,), "be an int in [0, 2**31 - 1]", "0 to switch it off"),
    "no_repeat_ngram_window": ((0,), "be an int in [1, 2**31 - 1]", "None for the whole text"),
    "thinking_budget": ((-1,), "be an int in [0, 2**31 - 1]", "None for thoughts"),
    "dry_allowed_length": ((0,), "be an int in [1, 2**31 - 1]", "1 for the shortest"),
    "dry_range": ((0,), "be an int in [1, 2**31 - 1]", "None for the whole text"),
}
"""Values, the rule, and the remedy."""
BAD_VALUES: list[tuple[str, Any, str, str, str]] = [
    *((field, value, rule, repr(value), says) for field, (bad, rule, says) in OUT_OF_RANGE.items() for value in bad),
    *(("top_a", value, "be finite, be 0 or", repr(value), "0 to switch") for value in (math.nan, math.inf, -math.inf)),
    ("temperature", 10**400, "be finite", "an int of 1329 bits. ", "0 for greedy"),
    ("seed", 10**5000, "be an int in [0, ", "an int of 16610 bits. ", "seed % 2**64"),
    ("logprob_ids", [0, 2**20], "hold ids in [0, 1048576)", "1048576", "model's own"),
    ("bad_ids", [3, -1], "hold ids in [0, 1048576)", "-1", "model's own vocabulary"),
    ("allowed_ids", [1, numpy.int64(2**40)], "hold ids in [0, ", "1099511627776", "model's own vocabulary"),
    ("bad_ids", torch.ones(2, device="meta"), "be on the host", "a tensor", "tolist()"),
    ("bad_words", [[3], []], "hold sequences of at least one id", "[]", "Leave it out"),
    ("dry_sequence_breakers", [[3, -1]], "hold ids in [0, 1048576)", "-1", "model's own vocabulary"),
    # One sequence of two ids, or two of one each? Breakers, which mostly are single ids, are the latter.
    ("bad_words", [3, 4], "be a list of lists, or of one id", "[3, 4]", "[3, 4]] for one sequence, [["),
    ("stop_sequences", torch.tensor([3, 4]), "be a list of lists, or of one id", "[3, 4]", "[3, 4]] for one sequence"),
    ("logit_bias", {-1: 1.0}, "hold ids in [0, 1048576)", "-1", "own vocabulary"),
]
BAD_TYPES: list[tuple[str, Any, str, str, str]] = [
    *(
        ("temperature", value, "be a float, ", repr(value), "float()")
        for value in (True, "0.5", None, 1j, numpy.array(0.5), numpy.True_)
    ),
    *(
        ("top_k", value, "be an int in [", repr(value), "int()")
        for value in (True, 3.0, "3", numpy.float32(3.0), numpy.True_, numpy.array(3), [3])
    ),
    ("min_tokens", None, "be an int in [", "None", "int()"),
    *(
        ("stop_ids", value, "be a collection of vocabulary ids", shown, "a list of ints")
        for value, shown in ((3, "3"), ("3", "'3'"), (b"3", "b'3'"), ({3: 1}, "{3: 1}"), (iter([3]), "<list_iter"))
    ),
    ("bad_ids", torch.tensor(3), "be a collection", "a tensor of torch.int64 []", "a list of ints"),
    *(
        ("allowed_ids", value, "hold ints", shown, IDS)
        for value, shown in (
            *(([1, True], "True"), ([1.0], "1.0"), (["a", 2], "'a'"), ([[1], [2]], "[1]"), ([None], "None")),
            *((numpy.array([1.0]), "1.0"), (numpy.array([True]), "True"), (torch.tensor([[3, 4]]), "[3, 4]")),
        )
    ),
    ("logprob_ids", "Yes", "be a sequence of ids", "'Yes'", "lists of ints"),
    *(
        ("bad_words", value, "be a collection of sequences of ids", shown, "a list of lists")
        for value, shown in ((3, "3"), ("no", "'no'"), (None, "None"), (numpy.array(3), "array(3)"))
    ),
    ("bad_words", [[3, 4], "no"], "hold sequences of ids", "'no'", "must be tokenized"),
    ("dry_sequence_breakers", [1.5], "hold sequences of ids", "1.5", "must be tokenized"),
    ("dry_sequence_breakers", [[3, True]], "hold ints", "True", IDS),
    ("thinking_start", "<think>", "be a sequence of ids", "'<think>'", "must be tokenized"),
    ("thinking_start", {1}, "be a sequence of ids", "{1}", "give lists of ints"),
    ("thinking_end", ["<think>"], "hold ints", "'<think>'", IDS),
    ("logit_bias", [(3, 1.0)], "be a mapping of vocabulary ids to floats", "[(3, 1.0)]", "Give a dict"),
    *(("logit_bias", {key: 1.0}, "hold ints", repr(key), IDS) for key in ("3", 3.0, True)),
]
BAD_BIASES = [
    *((bias, ValueError, says) for bias, says in ((math.nan, "bad_ids"), (math.inf, "allowed_ids"), (1e39, "bad_ids"))),
    *((bias, TypeError, "float()") for bias in ("1", True, None)),
]
THINKING = {"thinking_budget": 9, "thinking_start": 1, "thinking_end": 2}
CONTRADICTIONS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"allowed_ids": []}, "allowed_ids must name at least one", "()", "None"),
    ({"allowed_ids": [3, 5], "bad_ids": [5, 4, 3]}, "allowed_ids must name at least one id that is not in bad_ids",
     "(3, 5)", "None to allow all"),
    ({"min_tokens": 2}, "min_tokens must be 0 where", "2", "stop_ids"),
    ({"allowed_ids": [3, 5], "bad_ids": [5], "stop_ids": [3, 9], "min_tokens": 1},
     "min_tokens must be 0 where nothing but stop_ids may be drawn", "1", "Allow an id"),
    ({"thinking_budget": 9}, "thinking_start must name at least one id beside thinking_budget", "()", "the tags"),
    (THINKING | {"thinking_end": []}, "thinking_end must name at least one id beside thinking_budget", "()",
     "the tags"),
    (THINKING | {"thinking_end": [1]}, "thinking_end must be another sequence than thinking_start", "(1,)",
     "the tag that closes"),
    (THINKING | {"thinking_closing": [2, 3]}, "thinking_closing must end with thinking_end, (2,)", "(2, 3)",
     "Append that"),
    (THINKING | {"bad_ids": [2]}, "thinking_end must hold only ids that allowed_ids, bad_ids and", "2", "allow it"),
    (THINKING | {"thinking_closing": [4, 2], "allowed_ids": [1, 2, 3]}, "thinking_closing must hold only ids that", "4",
     "allow it"),
    (THINKING | {"stop_ids": [2], "min_tokens": 3}, "thinking_end must hold only ids that allowed_ids", "2",
     "where the budget ends"),
    (THINKING | {"adaptive_target": 0.5}, "min_p must be above 0 beside thinking_budget and adaptive_target", "0.0",
     "adaptive-p draws"),
    ({"no_repeat_ngram_size": 4, "no_repeat_ngram_window": 3},
     "no_repeat_ngram_window must be at least no_repeat_ngram_size, 4", "3", "None for the whole text"),
]  # fmt: skip
BESIDE_A_VOCABULARY: list[tuple[int, dict[str, Any], str, str, str]] = [
    (3, {"bad_ids": [0], "stop_ids": [1, 2], "min_tokens": 1}, "min_tokens must be 0 where nothing but", "1", "Allow"),
    (3, {"bad_ids": [0, 1, 2]}, "bad_ids must leave at least one of the 3 ids", "(0, 1, 2)", "Forbid fewer"),
    *(
        (10, {field: value}, f"{field} must hold ids in [0, 10)", "10", "ids of the model")
        for field, value in {
            "allowed_ids": [1, 10],
            "stop_ids": {10},
            "bad_words": [[1, 10]],
            "dry_sequence_breakers": [10],
            "no_repeat_ngram_whitelist": [10],
            "thinking_closing": [10, 2],
            "logit_bias": {10: 1.0},
            "logprob_ids": [3, 10],
        }.items()
    ),
    (10, {"logprobs": 11}, "logprobs must be an int in [0, 10]", "11", "10 for all"),
]


def assert_refused(fields: dict[str, Any], error: type[Exception], rule: str, shown: str, remedy: str) -> None:
    with pytest.raises(error) as caught:
        SamplingParams(**fields)
    assert type(caught.value) is error
    assert_says(caught.value, rule, shown, remedy)


def assert_says(error: Exception, rule: str, shown: str, remedy: str) -> None:
    """The field and its rule, the value, and the remedy, in this order."""
    message = str(error)
    assert message.startswith(f"SamplingParams: {rule}"), message
    assert f"got {shown}" in message, (shown, message)
    assert remedy in message[message.index(f"got {shown}") :], (remedy, message)
    assert message.endswith(".")


def test_bad_requests_are_refused_with_field_rule_value_and_remedy(subtests: pytest.Subtests) -> None:
    for error, bad in ((ValueError, BAD_VALUES), (TypeError, BAD_TYPES)):
        for field, value, rule, shown, remedy in bad:
            with subtests.test(msg=f"{field} of {shown}"):
                assert_refused({field: value}, error, f"{field} must {rule}", shown, remedy)
    for bias, error, says in BAD_BIASES:
        with subtests.test(msg=f"a bias of {bias}"):
            assert_refused({"logit_bias": {3: bias}}, error, "logit_bias[3] must ", repr(bias), says)


def test_contradictions_are_refused(subtests: pytest.Subtests) -> None:
    """What needs the vocabulary is refused by the batch where the request does not know it."""
    for fields, *says in CONTRADICTIONS:
        with subtests.test(msg=says[0]):
            assert_refused(fields, ValueError, *says)
    for vocab_size, fields, *says in BESIDE_A_VOCABULARY:
        with subtests.test(msg=says[0]):
            assert_refused(fields | {"vocab_size": vocab_size}, ValueError, *says)
            with pytest.raises(ValueError, match="must") as caught:
                SamplingParams(**fields).check_vocab_size(vocab_size)
            assert_says(caught.value, *says)


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
