"""The parameters of a request: what is taken, what is refused and how, and what a request keeps."""

from __future__ import annotations

import copy
import cProfile
import dataclasses
import json
import math
import pickle
import re
from typing import Any

import numpy
import pytest
import torch

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.requests.checks import FORMER, LARGEST
from ascend_sample.sampling.requests.params import DEFAULTS, FIELDS, SamplingParams

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
    "thinking_token_budget": ((-1,), "be an int in [0, 2**31 - 1]", "None for thoughts"),
    "dry_allowed_length": ((0,), "be an int in [1, 2**31 - 1]", "1 for the shortest"),
    "dry_penalty_last_n": ((0,), "be an int in [1, 2**31 - 1]", "None for the whole text"),
}
"""Values, the rule, and the remedy."""
BAD_VALUES: list[tuple[str, Any, str, str, str]] = [
    *((field, value, rule, repr(value), says) for field, (bad, rule, says) in OUT_OF_RANGE.items() for value in bad),
    *(("top_a", value, "be finite, be 0 or", repr(value), "0 to switch") for value in (math.nan, math.inf, -math.inf)),
    ("temperature", 10**400, "be finite", "an int of 1329 bits. ", "0 for greedy"),
    ("seed", 10**5000, "be an int in [0, ", "an int of 16610 bits. ", "seed % 2**64"),
    ("logprob_token_ids", [0, 2**20], "hold ids in [0, 1048576)", "1048576", "model's own"),
    ("suppress_token_ids", [3, -1], "hold ids in [0, 1048576)", "-1", "model's own vocabulary"),
    ("allowed_token_ids", [1, numpy.int64(2**40)], "hold ids in [0, ", "1099511627776", "model's own vocabulary"),
    ("suppress_token_ids", torch.ones(2, device="meta"), "be on the host", "a tensor", "tolist()"),
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
        for value in (True, "0.5", None, numpy.array(0.5))
    ),
    *(("top_k", value, "be an int in [", repr(value), "int()") for value in (True, 3.0, "3", numpy.array(3), [3])),
    *(
        ("stop_token_ids", value, "be a collection of vocabulary ids", shown, "a list of ints")
        for value, shown in ((3, "3"), ("3", "'3'"), ({3: 1}, "{3: 1}"), (iter([3]), "<list_iter"))
    ),
    ("suppress_token_ids", torch.tensor(3), "be a collection", "a tensor of torch.int64 []", "a list of ints"),
    *(
        ("allowed_token_ids", value, "hold ints", shown, IDS)
        for value, shown in (([1, True], "True"), ([1.0], "1.0"), (["a", 2], "'a'"), (torch.tensor([[3, 4]]), "[3, 4]"))
    ),
    ("logprob_token_ids", "Yes", "be a sequence of ids", "'Yes'", "lists of ints"),
    ("bad_words", "no", "be a collection of sequences of ids", "'no'", "a list of lists"),
    ("bad_words", [[3, 4], "no"], "hold sequences of ids", "'no'", "must be tokenized"),
    ("dry_sequence_breakers", [[3, True]], "hold ints", "True", IDS),
    ("thinking_start_ids", "<think>", "be a sequence of ids", "'<think>'", "must be tokenized"),
    ("thinking_end_ids", ["<think>"], "hold ints", "'<think>'", IDS),
    ("logit_bias", [(3, 1.0)], "be a mapping of vocabulary ids to floats", "[(3, 1.0)]", "Give a dict"),
    ("logit_bias", {"3": 1.0}, "hold ints", "'3'", IDS),
]
BAD_BIASES = [
    *(
        (bias, ValueError, says)
        for bias, says in (
            (math.nan, "suppress_token_ids"),
            (math.inf, "allowed_token_ids"),
            (1e39, "suppress_token_ids"),
        )
    ),
    *((bias, TypeError, "float()") for bias in ("1", True, None)),
]
THINKING = {"thinking_token_budget": 9, "thinking_start_ids": 1, "thinking_end_ids": 2}
CONTRADICTIONS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"allowed_token_ids": []}, "allowed_token_ids must name at least one", "()", "None"),
    ({"allowed_token_ids": [3, 5], "suppress_token_ids": [5, 4, 3]},
     "allowed_token_ids must name at least one id that is not in suppress_token_ids",
     "(3, 5)", "None to allow all"),
    ({"min_tokens": 2}, "min_tokens must be 0 where", "2", "stop_token_ids"),
    ({"allowed_token_ids": [3, 5], "suppress_token_ids": [5], "stop_token_ids": [3, 9], "min_tokens": 1},
     "min_tokens must be 0 where nothing but stop_token_ids may be drawn", "1", "Allow an id"),
    ({"thinking_token_budget": 9}, "thinking_start_ids must name at least one id beside thinking_token_budget", "()",
     "the tags"),
    (THINKING | {"thinking_end_ids": []}, "thinking_end_ids must name at least one id beside thinking_token_budget",
     "()",
     "the tags"),
    (THINKING | {"thinking_end_ids": [1]}, "thinking_end_ids must be another sequence than thinking_start_ids", "(1,)",
     "the tag that closes"),
    (THINKING | {"thinking_end_message_ids": [2, 3]}, "thinking_end_message_ids must end with thinking_end_ids, (2,)",
     "(2, 3)",
     "Append that"),
    (THINKING | {"suppress_token_ids": [2]},
     "thinking_end_ids must hold only ids that allowed_token_ids, suppress_token_ids and", "2", "allow it"),
    (THINKING | {"thinking_end_message_ids": [4, 2], "allowed_token_ids": [1, 2, 3]},
     "thinking_end_message_ids must hold only ids that", "4",
     "allow it"),
    (THINKING | {"stop_token_ids": [2], "min_tokens": 3}, "thinking_end_ids must hold only ids that allowed_token_ids",
     "2",
     "where the budget ends"),
    (THINKING | {"adaptive_target": 0.5}, "min_p must be above 0 beside thinking_token_budget and adaptive_target",
     "0.0",
     "adaptive-p draws"),
    ({"no_repeat_ngram_size": 4, "no_repeat_ngram_window": 3},
     "no_repeat_ngram_window must be at least no_repeat_ngram_size, 4", "3", "None for the whole text"),
]  # fmt: skip
BESIDE_A_VOCABULARY: list[tuple[int, dict[str, Any], str, str, str]] = [
    (
        3,
        {"suppress_token_ids": [0], "stop_token_ids": [1, 2], "min_tokens": 1},
        "min_tokens must be 0 where nothing but",
        "1",
        "Allow",
    ),
    (
        3,
        {"suppress_token_ids": [0, 1, 2]},
        "suppress_token_ids must leave at least one of the 3 ids",
        "(0, 1, 2)",
        "Forbid fewer",
    ),
    *(
        (10, {field: value}, f"{field} must hold ids in [0, 10)", "10", "ids of the model")
        for field, value in {
            "allowed_token_ids": [1, 10],
            "stop_token_ids": {10},
            "bad_words": [[1, 10]],
            "dry_sequence_breakers": [10],
            "no_repeat_ngram_whitelist": [10],
            "thinking_end_message_ids": [10, 2],
            "logit_bias": {10: 1.0},
            "logprob_token_ids": [3, 10],
        }.items()
    ),
    (10, {"logprobs": 11}, "logprobs must be an int in [0, 10]", "11", "10 for all"),
]


def says(rule: str, shown: str, remedy: str) -> str:
    """The pattern of a message: the field and its rule, the value, and the remedy, in this order."""
    return f"^SamplingParams: {re.escape(rule)}.*got {re.escape(shown)}.*{re.escape(remedy)}.*\\.$"


def test_bad_requests_are_refused_with_field_rule_value_and_remedy(subtests: pytest.Subtests) -> None:
    refused: list[tuple[dict[str, Any], type[Exception], str, str, str]] = [
        *(({field: value}, ValueError, f"{field} must {rule}", *rest) for field, value, rule, *rest in BAD_VALUES),
        *(({field: value}, TypeError, f"{field} must {rule}", *rest) for field, value, rule, *rest in BAD_TYPES),
        *(
            ({"logit_bias": {3: bias}}, error, "logit_bias[3] must ", repr(bias), more)
            for bias, error, more in BAD_BIASES
        ),
        *((fields, ValueError, *rest) for fields, *rest in CONTRADICTIONS),
        *((fields | {"vocab_size": size}, ValueError, *rest) for size, fields, *rest in BESIDE_A_VOCABULARY),
    ]
    for fields, error, *rest in refused:
        with subtests.test(msg=rest[0]), pytest.raises(error, match=says(*rest)):
            SamplingParams(**fields)


def test_what_needs_the_vocabulary_is_refused_beside_the_batchs() -> None:
    for vocab_size, fields, *rest in (
        *BESIDE_A_VOCABULARY,
        (11, {"vocab_size": 10}, "vocab_size must be the", "10", ""),
    ):
        with pytest.raises(ValueError, match=says(*rest)):
            SamplingParams(**fields).check_vocab_size(vocab_size)
    SamplingParams(vocab_size=10).check_vocab_size(10)


EDGES: list[tuple[dict[str, Any], Any]] = [
    *(
        ({"temperature": given}, kept)
        for given, kept in ((0, 0.0), (-0.0, 0.0), (numpy.float32(0.7), 0.699999988079071))
    ),
    *(({"temperature": edge}, edge) for edge in (2.0**-126, 3.4028234663852886e38)),
    *(({name: 1}, 1.0) for name in ("top_p", "min_p", "dry_base")),
    *(({"top_k": given}, int(given)) for given in (1, 2**64 - 1, numpy.int32(50))),
    *(({"seed": given}, int(given)) for given in (0, 2**64 - 1, numpy.uint64(2**64 - 1))),
    *(({"allowed_token_ids": given}, (2, 9)) for given in ((9, 2), {9, 2}, [9, 2, 9, numpy.int64(2)])),
    *(
        ({"suppress_token_ids": given}, (1, 4))
        for given in (numpy.array([4, 1], numpy.uint16), torch.tensor([4, 1]).int())
    ),
    ({"suppress_token_ids": range(3)}, (0, 1, 2)),
    ({"suppress_token_ids": numpy.array([])}, ()),
    ({"logprob_token_ids": torch.tensor([4, 1])}, (4, 1)),
    ({"bad_words": [[4, 2], numpy.array([1, 9]), (4, 2)]}, ((1, 9), (4, 2))),
    ({"dry_sequence_breakers": [7, [3, 1], (5,)]}, ((3, 1), (5,), (7,))),
    ({"stop_sequences": torch.tensor([[4, 1], [3, 2]])}, ((3, 2), (4, 1))),
    ({"logit_bias": {numpy.int64(5): 1, 2: -100.0}}, {2: -100.0, 5: 1.0}),
    ({"logprobs": 10, "vocab_size": 10}, 10),
    ({"no_repeat_ngram_window": 3, "no_repeat_ngram_size": 3}, 3),
    ({"min_tokens": 4, "allowed_token_ids": [1, 2], "stop_token_ids": [2]}, 4),
]
"""Fields, and what the first of them is kept as."""


def test_values_at_the_edges_are_taken_and_normalised() -> None:
    for fields, value in EDGES:
        kept = getattr(SamplingParams(**fields), next(iter(fields)))
        assert kept == value, fields
        assert type(kept) in (float, int, tuple) or dict(kept) == value, fields
        assert not isinstance(kept, float) or math.copysign(1.0, kept) == 1.0, fields
        assert not isinstance(kept, tuple) or {type(entry) for entry in kept} <= {int, tuple}, fields


def test_sequences_of_one_id_are_ids() -> None:
    params = SamplingParams(bad_words=[[4, 2], [7], 3], suppress_token_ids=[7, 1])
    assert params == SamplingParams(bad_words=[[4, 2]], suppress_token_ids=[1, 3, 7])
    params = SamplingParams(stop_token_ids=[7], stop_sequences=[[5, 6], [3], 2])
    assert (params.stop_token_ids, params.stop_sequences) == ((2, 3, 7), ((5, 6),))


def test_defaults() -> None:
    """All are off: they are not checked again in each request, and no row has to be processed for them."""
    for name, declaration in FIELDS.items():
        if DEFAULTS[name] is not None and DEFAULTS[name] is not dataclasses.MISSING:
            assert declaration.check(DEFAULTS[name], name, None) == DEFAULTS[name]
    batch = SamplingBatch(9)
    batch.add(SamplingParams(seed=1))
    assert not batch.row_parameters().filters()
    assert not batch.host.is_processed.any()
    beside_others = ("xtc_threshold", "mirostat_eta", "adaptive_decay", "dry_base", "dry_allowed_length")
    assert [DEFAULTS[name] for name in beside_others] == [0.1, 0.1, 0.9, 1.75, 2]


def test_a_request_does_not_change_with_what_it_was_made_of() -> None:
    bias, suppress_token_ids = {3: 1.0}, [7, 5]
    params = SamplingParams(logit_bias=bias, suppress_token_ids=suppress_token_ids)
    bias[3] = 9.0
    suppress_token_ids.append(8)
    assert params.logit_bias == {3: 1.0}
    assert params.suppress_token_ids == (5, 7)
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
        params = profile.runcall(
            SamplingParams, logit_bias=bias, allowed_token_ids=ids, stop_token_ids=ids[1:], min_tokens=1
        )
        profile.runcall(params.check_vocab_size, count + 1)
        calls.append(sum(entry.callcount for entry in profile.getstats()))
        assert list(params.logit_bias.items()) == sorted(bias.items())
        assert set(map(type, params.logit_bias.values())) == {float}
        assert math.copysign(1, params.logit_bias[1]) == 1
    assert calls[1] == calls[2]


def test_equal_requests_are_equal_wherever_they_come_from() -> None:
    params = SamplingParams(
        logit_bias={3: 1.0, 1: -2.5}, bad_words=[[3, 4]], stop_token_ids=[4], min_tokens=2, seed=2**64 - 1
    )
    copies = [copy.copy(params), copy.deepcopy(params), pickle.loads(pickle.dumps(params))]
    copies += [SamplingParams.from_mapping(params.to_mapping())]
    copies += [SamplingParams.from_mapping(json.loads(json.dumps(params.to_mapping())))]
    copies += [dataclasses.replace(params, logit_bias={1: -2.5, 3: 1.0})]
    assert copies == [params] * 6
    assert len({params, *copies, SamplingParams(seed=4)}) == 2
    with pytest.raises(ValueError, match="top_k must"):
        dataclasses.replace(params, top_k=0)


WRONG_MAPPINGS: list[tuple[Any, type[Exception], str]] = [
    ({"temprature": 0.5}, ValueError, "'temprature' must be a known field. Did you mean 'temperature'?"),
    ({"topk": 5}, ValueError, "Did you mean 'top_k'?"),
    ({"stop_token_id": [1]}, ValueError, "Did you mean 'stop_token_ids'?"),
    ({"zzz": 1}, ValueError, "The fields are temperature, top_k, "),
    ({3: 1}, TypeError, "the name of a field must be a str, got 3."),
    ([("top_k", 5)], TypeError, "the fields must be a mapping, got list. Give a dict."),
    ({"logit_bias": {"5": 1.0, "-5": 1.0}}, ValueError, "logit_bias must have integers as its ids, got '-5'."),
    ({"logit_bias": {"5": 1.0, 5: 1.0}}, ValueError, "logit_bias must name each id once"),
]


def test_mappings_with_a_wrong_field() -> None:
    for values, error, message in WRONG_MAPPINGS:
        with pytest.raises(error, match=re.escape(message)):
            SamplingParams.from_mapping(values)


def test_former_names_are_refused_with_those_of_now() -> None:
    for name, now in FORMER.items():
        assert name not in FIELDS
        assert now in FIELDS
        with pytest.raises(TypeError, match=f"SamplingParams: '{name}' must be a known field. Its name is '{now}' now"):
            SamplingParams(**{name: 1})


def test_the_constructor_knows_the_nearest_name() -> None:
    message = "^SamplingParams: 'temprature' must be a known field. Did you mean 'temperature'?"
    with pytest.raises(TypeError, match=message):
        dataclasses.replace(SamplingParams(), temprature=0.7)  # type: ignore[call-arg]
