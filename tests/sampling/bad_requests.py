"""Requests that must be refused, with what is said of each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy
import torch


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
    "typical_p": ("lie in [2**-126, 1]", "1 to switch"),
    "epsilon_cutoff": ("be 0 or lie in [2**-126, 1]", "0 to switch"),
    "eta_cutoff": ("be 0 or lie in [2**-126, 1]", "0 to switch"),
    "top_a": ("be 0 or lie in [2**-126, 1]", "0 to switch"),
    "top_n_sigma": (f"be 0 or lie in {NORMAL}", "0 to switch"),
    "xtc_probability": ("be 0 or lie in [2**-126, 1]", "0 to switch"),
    "xtc_threshold": ("lie in [2**-126, 1]", "xtc_probability=0"),
    "mirostat_tau": ("be 0 or lie in [2**-126, 64]", "0 to switch mirostat off"),
    "mirostat_eta": ("be 0 or lie in [2**-126, 1]", "0 for a bound that stays"),
    "adaptive_decay": ("lie in [0, 0.99]", "0 for the last token alone"),
}
OUT_OF_RANGE = {
    "temperature": (-0.1, 1e-40, 5e-324, 1e39, 3.5e38, numpy.float32(-1)),
    "top_p": (0, 0.0, -0.5, 1.0000001, 2, 1e-46, 1e-39),
    "min_p": (-1e-9, 1.5, 1e-40),
    "repetition_penalty": (0, -1.0, 1e-39, 1e300),
    "presence_penalty": (-2.1, 2.0000001, 100),
    "frequency_penalty": (-3, 2.5),
    "typical_p": (0, 1.5),
    "epsilon_cutoff": (-1e-9, 1.5),
    "eta_cutoff": (-1e-9, 1.5),
    "top_a": (-1e-9, 1.5),
    "top_n_sigma": (-1.0, 1e-40, 1e39),
    "xtc_probability": (-1e-9, 1.5),
    "xtc_threshold": (0.0, 1.5),
    "mirostat_tau": (-1, 64.1),
    "mirostat_eta": (-0.1, 1.1),
    "adaptive_decay": (-0.1, 0.999),
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
    of_value("adaptive_target_1.1", "adaptive_target", 1.1, "lie in [0, 1]", "1.1", "None to switch adaptive-p off"),
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
    of_value("logprob_ids_beyond", "logprob_ids", [0, 2**20], "hold ids in [0, 1048576)", "1048576", "model's own"),
    of_type("logprob_ids_text", "logprob_ids", "Yes", "be a sequence of ids", "'Yes'", "lists of ints"),
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
            ("0d_tensor", torch.tensor(3), "be a collection", "a tensor of torch.int64 []", "a list of ints"),
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
        )
    ),
    of_type("bad_ids_rows", "bad_ids", torch.tensor([[3, 4]]), "hold ints", "[3, 4]", "vocabulary ids"),
    of_type("bad_ids_float", "bad_ids", torch.tensor([3.0]), "hold ints", "3.0", "vocabulary ids"),
    of_value("bad_ids_there", "bad_ids", torch.ones(2, device="meta"), "be on the host", "a tensor", "tolist()"),
    # Rules that look at the text.
    *(
        of_type(f"{field}_{name}", field, value, rule, shown, remedy)
        for field in ("bad_words", "dry_sequence_breakers")
        for name, value, rule, shown, remedy in (
            ("int", 3, "be a collection of sequences of ids", "3", "a list of lists"),
            ("str", "no", "be a collection of sequences of ids", "'no'", "a list of lists"),
            ("none", None, "be a collection of sequences of ids", "None", "a list of lists"),
            ("0d_array", numpy.array(3), "be a collection of sequences of ids", "array(3)", "a list of lists"),
            ("0d_tensor", torch.tensor(3), "be a collection of sequences", "a tensor of", "a list of lists"),
            ("of_str", [[3, 4], "no"], "hold sequences of ids", "'no'", "must be tokenized"),
            ("of_float", [1.5], "hold sequences of ids", "1.5", "must be tokenized"),
            ("of_bool", [[3, True]], "hold ints", "True", "vocabulary ids"),
        )
    ),
    *(
        of_value(f"{field}_{name}", field, value, rule, shown, remedy)
        for field in ("bad_words", "dry_sequence_breakers")
        for name, value, rule, shown, remedy in (
            ("empty", [[3], []], "hold sequences of at least one id", "[]", "Leave it out"),
            ("negative", [[3, -1]], "hold ids in [0, 1048576)", "-1", "model's own vocabulary"),
        )
    ),
    # One sequence of two ids, or two of one each? Breakers, which mostly are single ids, are the latter.
    *(
        of_value(
            f"{field}_{name}", field, value, "be a list of lists, or of one id", shown, "[3, 4]] for one sequence, [["
        )
        for field in ("bad_words", "stop_sequences")
        for name, value, shown in (
            ("flat", [3, 4], "[3, 4]"),
            ("flat_array", numpy.array([3, 4]), "[3, 4]"),
            ("flat_tensor", torch.tensor([3, 4]), "[3, 4]"),
        )
    ),
    of_value("ngram_negative", "no_repeat_ngram_size", -1, "be an int in [0, 2**31 - 1]", "-1", "0 to switch it off"),
    of_value("window_0", "no_repeat_ngram_window", 0, "be an int in [1, 2**31 - 1]", "0", "None for the whole text"),
    of_value("thinking_negative", "thinking_budget", -1, "be an int in [0, 2**31 - 1]", "-1", "None for thoughts"),
    *(
        of_type(f"thinking_{name}", "thinking_start", value, rule, shown, remedy)
        for name, value, rule, shown, remedy in (
            ("str", "<think>", "be a sequence of ids", "'<think>'", "must be tokenized"),
            ("set", {1}, "be a sequence of ids", "{1}", "give lists of ints"),
            ("of_str", ["<think>"], "hold ints", "'<think>'", "vocabulary ids"),
        )
    ),
    of_value("dry_length_0", "dry_allowed_length", 0, "be an int in [1, 2**31 - 1]", "0", "1 for the shortest"),
    of_value("dry_range_0", "dry_range", 0, "be an int in [1, 2**31 - 1]", "0", "None for the whole text"),
    of_value("dry_base_below_1", "dry_base", 0.99, "lie in [1, 3.40282e+38]", "0.99", "1 for the same penalty"),
    of_value("dry_negative", "dry_multiplier", -0.5, f"be 0 or lie in {NORMAL}", "-0.5", "0 to switch DRY off"),
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
            ("bad_words", [[1, 10]]),
            ("dry_sequence_breakers", [10]),
            ("no_repeat_ngram_whitelist", [10]),
            ("thinking_closing", [10, 2]),
            ("logit_bias", {10: 1.0}),
        )
    ),
    *(
        BadRequest(f"thinking_{name}", {"thinking_budget": 9, **asked}, ValueError, says)
        for name, asked, says in (
            (
                "alone",
                {},
                (": thinking_start must name at least one id beside thinking_budget", "got (). ", "the tags"),
            ),
            (
                "without_end",
                {"thinking_start": 1},
                (": thinking_end must name at least one id beside thinking_budget", "got (). ", "the tags"),
            ),
            (
                "ends_as_it_starts",
                {"thinking_start": 1, "thinking_end": [1]},
                (": thinking_end must be another sequence than thinking_start", "got (1,). ", "the tag that closes"),
            ),
            (
                "closes_with_another",
                {"thinking_start": 1, "thinking_end": [2, 3], "thinking_closing": [2, 3, 4]},
                (": thinking_closing must end with thinking_end, (2, 3)", "got (2, 3, 4). ", "Append that"),
            ),
            (
                "bad",
                {"thinking_start": 1, "thinking_end": 2, "bad_ids": [2]},
                (": thinking_end must hold only ids that allowed_ids, bad_ids and", "got 2. ", "allow it"),
            ),
            (
                "not_allowed",
                {"thinking_start": 1, "thinking_end": 2, "thinking_closing": [4, 2], "allowed_ids": [1, 2, 3]},
                (": thinking_closing must hold only ids that allowed_ids", "got 4. ", "allow it"),
            ),
            (
                "stops",
                {"thinking_start": 1, "thinking_end": 2, "stop_ids": [2], "min_tokens": 3},
                (": thinking_end must hold only ids that allowed_ids", "got 2. ", "where the budget ends"),
            ),
            (
                "adaptive",
                {"thinking_start": 1, "thinking_end": 2, "adaptive_target": 0.5},
                (": min_p must be above 0 beside thinking_budget and adaptive_target", "got 0.0. ", "adaptive-p draws"),
            ),
        )
    ),
    BadRequest(
        "window_below_the_size",
        {"no_repeat_ngram_size": 4, "no_repeat_ngram_window": 3},
        ValueError,
        (": no_repeat_ngram_window must be at least no_repeat_ngram_size, 4", "got 3. ", "None for the whole text"),
    ),
    BadRequest(
        "logprob_ids_beyond_vocabulary",
        {"logprob_ids": [3, 10], "vocab_size": 10},
        ValueError,
        (": logprob_ids must hold ids in [0, 10)", "got 10. ", "ids of the model"),
    ),
    BadRequest(
        "logprobs_beyond_vocabulary",
        {"logprobs": 11, "vocab_size": 10},
        ValueError,
        (": logprobs must be an int in [0, 10]", "got 11. ", "10 for all"),
    ),
]
