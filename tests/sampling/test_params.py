"""The parameters of a request: what is taken, what is refused and how, and what a request keeps."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import math
import pickle
from dataclasses import dataclass
from typing import Any

import numpy
import pytest

from ascend_sample.sampling import params as params_module
from ascend_sample.sampling.fields import to_fraction
from ascend_sample.sampling.params import SamplingParams


@dataclass(frozen=True)
class BadRequest:
    """Fields that must be refused.

    Attributes:
        name: what is wrong.
        fields: the arguments.
        error: the error's type.
        says: what its message says, in this order: the field, the rule, the value, the remedy.
    """

    name: str
    fields: dict[str, Any]
    error: type[Exception]
    says: tuple[str, ...]


def of_value(name: str, field: str, value: object, rule: str, shown: str, remedy: str) -> BadRequest:
    return BadRequest(name, {field: value}, ValueError, (f": {field} must {rule}", f"got {shown}", remedy))


def of_type(name: str, field: str, value: object, rule: str, shown: str, remedy: str) -> BadRequest:
    return BadRequest(name, {field: value}, TypeError, (f": {field} must {rule}", f"got {shown}", remedy))


NORMAL = "[2**-126, 3.40282e+38]"
GREEDY, NO_TOP_P, NO_MIN_P, NO_PENALTY = "0 for greedy", "1 to switch top-p off", "0 to switch min-p off", "1 to switch"
REAL_FIELDS = {
    "temperature": (f"be 0 or lie in {NORMAL}", GREEDY),
    "top_p": ("lie in [2**-126, 1]", NO_TOP_P),
    "min_p": ("be 0 or lie in [2**-126, 1]", NO_MIN_P),
    "repetition_penalty": (f"lie in {NORMAL}", NO_PENALTY),
    "presence_penalty": ("lie in [-2, 2]", "0 to switch"),
    "frequency_penalty": ("lie in [-2, 2]", "0 to switch"),
}
OUT_OF_RANGE = {
    "temperature": (-0.1, 1e-40, 5e-324, 1e39, 3.5e38, numpy.float32(-1)),
    "top_p": (0, 0.0, -0.5, 1.0000001, 2, 1e-46, 1e-39),
    "min_p": (-1e-9, 1.5, 1e-40),
    "repetition_penalty": (0, -1.0, 1e-39, 1e300),
    "presence_penalty": (-2.1, 2.0000001, 100),
    "frequency_penalty": (-3, 2.5),
}
BAD_REQUESTS = [
    *(
        of_value(f"{field}_of_{value!r}", field, value, rule, repr(value), remedy)
        for field, (rule, remedy) in REAL_FIELDS.items()
        for value in OUT_OF_RANGE[field]
    ),
    *(
        of_value(f"{field}_{value}", field, value, f"be finite, {rule}", repr(value), remedy)
        for field, (rule, remedy) in REAL_FIELDS.items()
        for value in (math.nan, math.inf, -math.inf)
    ),
    of_value("temperature_beyond_float", "temperature", 10**400, "be finite", "an int of 1329 bits. ", GREEDY),
    *(
        of_type(f"{field}_{type(value).__name__}", field, value, "be a float, ", repr(value), "float()")
        for field in REAL_FIELDS
        for value in (True, "0.5", None)
    ),
    of_value("seed_unprintable", "seed", 10**5000, "be an int in [0, ", "an int of 16610 bits. ", "seed % 2**64"),
    of_type("complex", "temperature", 1j, "be a float", "1j", "float()"),
    of_type("array_for_float", "top_p", numpy.array(0.5), "be a float", "array(0.5)", "float()"),
    of_type("numpy_bool_for_float", "min_p", numpy.True_, "be a float", "np.True_", "float()"),
    # Integers.
    of_value("top_k_0", "top_k", 0, "be an int in [1, 2**64 - 1]", "0", "None to switch top-k off"),
    of_value("top_k_negative", "top_k", -1, "be an int in [1, ", "-1", "None to switch top-k off"),
    of_value("top_k_huge", "top_k", 2**64, "be an int in [1, ", "18446744073709551616", "None"),
    of_value("min_tokens_negative", "min_tokens", -1, "be an int in [0, 2**31 - 1]", "-1", "0 for no minimum"),
    of_value("min_tokens_huge", "min_tokens", 2**31, "be an int in [0, ", "2147483648", "0 for no minimum"),
    of_value("seed_negative", "seed", -1, "be an int in [0, 2**64 - 1]", "-1", "seed % 2**64"),
    of_value("seed_huge", "seed", 2**64, "be an int in [0, 2**64 - 1]", "18446744073709551616", "seed % 2**64"),
    of_value("logprobs_negative", "logprobs", -1, "be an int in [0, 1048576]", "-1", "1048576 for all"),
    of_value("logprobs_huge", "logprobs", 2**20 + 1, "be an int in [0, 1048576]", "1048577", "None for none"),
    of_value("vocab_size_0", "vocab_size", 0, "be an int in [1, 1048576]", "0", "columns of the logits"),
    of_value("vocab_size_huge", "vocab_size", 2**20 + 1, "be an int in [1, 1048576]", "1048577", "columns"),
    *(
        of_type(f"{field}_of_{value!r}", field, value, "be an int in [", repr(value), "int()")
        for field in ("top_k", "min_tokens", "seed", "logprobs", "vocab_size")
        for value in (True, 3.0, "3", numpy.float32(3.0), numpy.True_, numpy.array(3), [3])
    ),
    of_type("min_tokens_none", "min_tokens", None, "be an int in [", "None", "int()"),
    # Collections of ids.
    *(
        of_type(f"{field}_{name}", field, value, rule, shown, remedy)
        for field in ("allowed_ids", "bad_ids", "stop_ids")
        for name, value, rule, shown, remedy in (
            ("int", 3, "be a collection of vocabulary ids", "3", "a list of ints"),
            ("str", "3", "be a collection of vocabulary ids", "'3'", "a list of ints"),
            ("bytes", b"\x03", "be a collection", "b'\\x03'", "a list of ints"),
            ("dict", {3: 1}, "be a collection", "{3: 1}", "a list of ints"),
            ("iterator", iter([3]), "be a collection", "<list_iterator", "a list of ints"),
            ("of_bool", [1, True], "hold ints", "True", "vocabulary ids"),
            ("of_float", [1.0], "hold ints", "1.0", "vocabulary ids"),
            ("of_str", ["a", 2], "hold ints", "'a'", "vocabulary ids"),
            ("of_lists", [[1], [2]], "hold ints", "[1]", "vocabulary ids"),
            ("of_none", [None], "hold ints", "None", "vocabulary ids"),
            ("array_of_floats", numpy.array([1.0]), "hold ints", "1.0", "vocabulary ids"),
            ("array_of_bool", numpy.array([True]), "hold ints", "True", "vocabulary ids"),
            ("matrix", numpy.array([[1]]), "hold ints", "[1]", "vocabulary ids"),
        )
    ),
    of_type("bad_ids_none", "bad_ids", None, "be a collection", "None", "a list of ints"),
    *(
        of_value(f"{field}_{name}", field, value, rule, shown, remedy)
        for field in ("allowed_ids", "bad_ids", "stop_ids")
        for name, value, rule, shown, remedy in (
            ("negative", [3, -1], "hold ids in [0, 1048576)", "-1", "model's own vocabulary"),
            ("huge", [2**20], "hold ids in [0, 1048576)", "1048576", "model's own vocabulary"),
            ("huge_numpy", [1, numpy.int64(2**40)], "hold ids in [0, ", "1099511627776", "model's own vocabulary"),
            ("duplicated", [7, 3, 7], "name each id once", "7", "Remove the duplicates"),
            ("duplicated_numpy", [3, numpy.int32(3)], "name each id once", "3", "Remove the duplicates"),
        )
    ),
    # Bias.
    of_type("bias_none", "logit_bias", None, "be a mapping of vocabulary ids to floats", "None", "Give a dict"),
    of_type("bias_list", "logit_bias", [(3, 1.0)], "be a mapping", "[(3, 1.0)]", "Give a dict"),
    of_type("bias_str_key", "logit_bias", {"3": 1.0}, "hold ints", "'3'", "vocabulary ids"),
    of_type("bias_float_key", "logit_bias", {3.0: 1.0}, "hold ints", "3.0", "vocabulary ids"),
    of_type("bias_bool_key", "logit_bias", {True: 1.0}, "hold ints", "True", "vocabulary ids"),
    of_value("bias_negative_key", "logit_bias", {-1: 1.0}, "hold ids in [0, 1048576)", "-1", "own vocabulary"),
    of_value("bias_huge_key", "logit_bias", {2**20: 1.0}, "hold ids in [0, 1048576)", "1048576", "own vocabulary"),
    *(
        BadRequest(f"bias_{bias}", {"logit_bias": {3: bias}}, error, (": logit_bias[3] must ", f"got {bias!r}. ", says))
        for bias, error, says in (
            (math.nan, ValueError, "bad_ids"),
            (math.inf, ValueError, "allowed_ids"),
            (-math.inf, ValueError, "bad_ids"),
            (1e39, ValueError, "bad_ids"),
            (-3.5e38, ValueError, "bad_ids"),
            ("1", TypeError, "float()"),
            (True, TypeError, "float()"),
            (None, TypeError, "float()"),
        )
    ),
]
CONTRADICTIONS = [
    BadRequest(
        "nothing_allowed", {"allowed_ids": []}, ValueError, (": allowed_ids must name at least one", "()", "None")
    ),
    BadRequest(
        "allowed_all_bad",
        {"allowed_ids": [3, 5], "bad_ids": [5, 4, 3]},
        ValueError,
        (": allowed_ids must name at least one id that is not in bad_ids", "got (3, 5). ", "None to allow all"),
    ),
    BadRequest(
        "min_tokens_alone", {"min_tokens": 2}, ValueError, (": min_tokens must be 0 where", "got 2. ", "stop_ids")
    ),
    BadRequest(
        "only_stop_ids",
        {"allowed_ids": [3, 5], "bad_ids": [5], "stop_ids": [3, 9], "min_tokens": 1},
        ValueError,
        (": min_tokens must be 0 where nothing but stop_ids may be drawn", "got 1. ", "Allow an id"),
    ),
    BadRequest(
        "only_stop_ids_of_vocabulary",
        {"vocab_size": 3, "bad_ids": [0], "stop_ids": [1, 2], "min_tokens": 1},
        ValueError,
        (": min_tokens must be 0 where nothing but stop_ids may be drawn", "got 1. ", "Allow an id"),
    ),
    BadRequest(
        "vocabulary_all_bad",
        {"vocab_size": 3, "bad_ids": [0, 1, 2]},
        ValueError,
        (": bad_ids must leave at least one of the 3 ids", "got (0, 1, 2). ", "Forbid fewer"),
    ),
    BadRequest(
        "bias_of_bad_id",
        {"logit_bias": {3: 1.0, 4: 2.0}, "bad_ids": [4]},
        ValueError,
        (": logit_bias must bias only ids that allowed_ids and bad_ids allow", "got 4. ", "Drop the bias"),
    ),
    BadRequest(
        "bias_of_id_not_allowed",
        {"logit_bias": {3: 1.0, 4: 2.0}, "allowed_ids": [4, 5]},
        ValueError,
        (": logit_bias must bias only ids that allowed_ids and bad_ids allow", "got 3. ", "allow the id"),
    ),
    *(
        BadRequest(
            f"{field}_beyond_vocabulary",
            {field: value, "vocab_size": 10},
            ValueError,
            (f": {field} must hold ids in [0, 10)", "got 10. "),
        )
        for field, value in (
            ("allowed_ids", [1, 10]),
            ("bad_ids", [10]),
            ("stop_ids", {10}),
            ("logit_bias", {10: 1.0}),
        )
    ),
    BadRequest(
        "logprobs_beyond_vocabulary",
        {"logprobs": 11, "vocab_size": 10},
        ValueError,
        (": logprobs must be an int in [0, 10]", "got 11. ", "10 for all"),
    ),
]


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
        ({"bad_ids": range(3)}, "bad_ids", (0, 1, 2)),
        ({"bad_ids": numpy.array([4, 1], dtype=numpy.uint16)}, "bad_ids", (1, 4)),
        ({"bad_ids": numpy.array([])}, "bad_ids", ()),
        ({"bad_ids": [numpy.int64(4), 1]}, "bad_ids", (1, 4)),
        ({"bad_ids": [2**20 - 1]}, "bad_ids", (2**20 - 1,)),
        ({"stop_ids": [9], "vocab_size": 10}, "stop_ids", (9,)),
        ({"min_tokens": 2**31 - 1, "stop_ids": [1]}, "min_tokens", 2**31 - 1),
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
        assert {type(entry) for entry in kept} <= {int}


def test_defaults_filter_nothing() -> None:
    assert SamplingParams().to_mapping() == {
        "temperature": 1.0,
        "top_k": None,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "allowed_ids": None,
        "bad_ids": (),
        "min_tokens": 0,
        "stop_ids": (),
        "seed": None,
        "logprobs": None,
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
    ],
)
def test_a_mapping_with_a_wrong_field(values: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        SamplingParams.from_mapping(values)
    assert message in str(caught.value)


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


def test_the_examples_of_the_docstrings() -> None:
    assert doctest.testmod(params_module).failed == 0
