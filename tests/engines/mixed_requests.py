"""Requests of all kinds, each with what its answer must be like."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import jsonschema
from serving import Answer

PROMPTS: Final = (
    "Return a list of all the",
    "The default value is",
    "This method is called when the",
    "If the argument is",
    "The iterator returns the next",
    "Raised when a",
)
SCHEMA: Final = {
    "type": "object",
    "properties": {
        "function": {"type": "string", "pattern": "^[a-z_]{3,12}$"},
        "returns": {"enum": ["int", "str", "list", "None"]},
        "arguments": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,8}$"}, "maxItems": 3},
        "since": {"type": "integer", "minimum": 2, "maximum": 4},
        "deprecated": {"type": "boolean"},
    },
    "required": ["function", "returns", "arguments", "since", "deprecated"],
    "additionalProperties": False,
}
PATTERN: Final = "[a-z]{3,8}@[a-z]{3,8}\\.(org|net) [0-9]{2}"
CHOICES: Final = ("an error", "a list of strings", "nothing")
RESPONSE_FORMAT: Final = {"type": "json_schema", "json_schema": {"name": "function", "schema": SCHEMA}}
ALLOWED: Final = (*range(300, 340),)
FORCED: Final = 321
TOLERANCE: Final = 1e-3
"""Of the sum of probabilities."""


class Mixed(NamedTuple):
    """A request, and what looks at its answer, which raises an AssertionError."""

    kind: str
    body: dict[str, Any]
    check: Callable[[Answer], None]


def is_json(text: str) -> None:
    jsonschema.validate(json.loads(text), SCHEMA)


def is_pattern(text: str) -> None:
    assert re.fullmatch(PATTERN, text), text


def is_choice(text: str) -> None:
    assert text in CHOICES, text


def _every_text(check: Callable[[str], None]) -> Callable[[Answer], None]:
    def look(answer: Answer) -> None:
        for text in answer.texts:
            check(text)

    return look


def _is_long(answer: Answer) -> None:
    """As many tokens as were asked for, or fewer where the text ends."""
    for choice in answer.body["choices"]:
        assert 0 < len(choice["token_ids"]) <= 24
        assert choice["finish_reason"] in ("length", "stop")
        assert (choice["finish_reason"] == "length") == (len(choice["token_ids"]) == 24) or choice["token_ids"][-1] == 0


def _has_choices(count: int) -> Callable[[Answer], None]:
    def look(answer: Answer) -> None:
        assert [choice["index"] for choice in answer.body["choices"]] == [*range(count)]
        assert len({*answer.texts}) > 1, "all choices are the same"

    return look


def _is_allowed(answer: Answer) -> None:
    assert {*answer.token_ids[0]} <= {*ALLOWED}


def _is_forced(answer: Answer) -> None:
    assert {*answer.token_ids[0]} == {FORCED}


def _is_without_bad_words(answer: Answer) -> None:
    for word in (" the", " a", " of"):
        assert f"{word} " not in answer.texts[0]


def _is_stopped(answer: Answer) -> None:
    choice = answer.body["choices"][0]
    assert "e" not in choice["text"]
    assert choice["stop_reason"] == "e" or choice["finish_reason"] == "length" or choice["token_ids"][-1] == 0


def _has_least_tokens(answer: Answer) -> None:
    assert len(answer.token_ids[0]) >= 12
    assert 0 not in answer.token_ids[0][:11]


def _has_logprobs(answer: Answer) -> None:
    found = answer.body["choices"][0]["logprobs"]
    assert len(found["tokens"]) == len(found["token_logprobs"]) == len(answer.token_ids[0])
    for drawn, best in zip(found["token_logprobs"], found["top_logprobs"], strict=True):
        assert drawn <= 0
        assert drawn in best.values()
        assert sum(map(math.exp, best.values())) <= 1 + TOLERANCE
        assert 5 <= len(best) <= 6


def _is_best(answer: Answer) -> None:
    """With one token kept, or a tiny part of the probability, the drawn tokens are the best ones."""
    for drawn, best in zip(
        answer.body["choices"][0]["logprobs"]["token_logprobs"],
        answer.body["choices"][0]["logprobs"]["top_logprobs"],
        strict=True,
    ):
        assert drawn == max(best.values())


KINDS: Final[tuple[tuple[str, dict[str, Any], Callable[[Answer], None]], ...]] = (
    ("temperature", {"temperature": 1.2}, _is_long),
    ("seed", {"temperature": 0.9}, _is_long),
    ("top-k", {"top_k": 12}, _is_long),
    ("top-k of one", {"top_k": 1, "logprobs": 1}, _is_best),
    ("top-p", {"top_p": 0.8}, _is_long),
    ("top-p of one token", {"top_p": 1e-6, "logprobs": 1}, _is_best),
    ("top-k and top-p", {"temperature": 0.7, "top_k": 40, "top_p": 0.9}, _is_long),
    ("min-p", {"min_p": 0.1}, _is_long),
    ("min-p of one", {"min_p": 1.0, "logprobs": 1}, _is_best),
    ("penalties", {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2}, _is_long),
    ("bias", {"logit_bias": {str(FORCED): 100}, "ignore_eos": True}, _is_forced),
    ("allowed ids", {"allowed_token_ids": ALLOWED, "ignore_eos": True}, _is_allowed),
    ("bad words", {"bad_words": [" the", " a", " of"]}, _is_without_bad_words),
    ("n", {"n": 3, "temperature": 1.5}, _has_choices(3)),
    ("logprobs", {"logprobs": 5}, _has_logprobs),
    ("stop", {"stop": ["e"]}, _is_stopped),
    ("least tokens", {"min_tokens": 12, "temperature": 1.5}, _has_least_tokens),
    ("greedy", {"temperature": 0.0, "logprobs": 1}, _is_best),
    ("json", {"structured_outputs": {"json": SCHEMA}, "max_tokens": 120}, _every_text(is_json)),
    ("regex", {"structured_outputs": {"regex": PATTERN}, "max_tokens": 60}, _every_text(is_pattern)),
    ("choice", {"structured_outputs": {"choice": [*CHOICES]}, "max_tokens": 60}, _every_text(is_choice)),
    ("json by its format", {"response_format": RESPONSE_FORMAT, "max_tokens": 120}, _every_text(is_json)),
    ("chat", {"messages": [], "top_p": 0.9}, _is_long),
    ("chat with json", {"messages": [], "response_format": RESPONSE_FORMAT, "max_tokens": 120}, _every_text(is_json)),
)


def mixed_requests(count: int) -> Iterator[Mixed]:
    """Makes requests of all kinds in turn; every other one has a seed."""
    for place in range(count):
        kind, asked, check = KINDS[place % len(KINDS)]
        prompt = PROMPTS[place % len(PROMPTS)] + " value" * (place % 5)
        body: dict[str, Any] = {"max_tokens": 24} | asked
        if "messages" in asked:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if kind == "seed" or place // len(KINDS) % 2:
            body["seed"] = place
        yield Mixed(kind, body, check)


def wrong(asked: Iterable[Mixed], answers: Iterable[Answer]) -> list[tuple[str, dict[str, Any], Any, Exception]]:
    """Returns the requests whose answers are not what was asked for: the kind, the request, the answer, and why."""
    found = []
    for mixed, answer in zip(asked, answers, strict=True):
        try:
            mixed.check(answer)
        except (AssertionError, ValueError, jsonschema.ValidationError) as error:
            found.append((mixed.kind, mixed.body, answer.body, error))
    return found
