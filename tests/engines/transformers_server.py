"""transformers' server with the sampling layer's draws, and `generate`, on the same checkpoint."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from mixed_requests import PROMPTS
from serving import MODEL, Answer, Server, serving
from transformers import AutoModelForCausalLM, AutoTokenizer

from ascend_sample.integrations.transformers import fused_sampling

OPTIONS: Final = (str(MODEL), "--host", "127.0.0.1", "--device", "cpu", "--dtype", "float32")
SERVED: Final = (sys.executable, "-m", "ascend_sample.integrations.transformers_server", *OPTIONS)
SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {"temperature": 0.9, "top_k": 0},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 0},
    {"temperature": 1.1, "top_k": 50, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 0.9, "repetition_penalty": 1.2},
)
TOKENS: Final = 24


def request(place: int, **more: Any) -> dict[str, Any]:
    settings = SETTINGS[place % len(SETTINGS)] | {"do_sample": True, "max_new_tokens": TOKENS}
    asked = {"prompt": PROMPTS[place % len(PROMPTS)], "generation_config": json.dumps(settings)}
    return asked | {"seed": 40 + place} | more


SEEDED: Final = [request(place) for place in range(16)]


def ask(server: Server, body: dict[str, Any]) -> Answer:
    return server.post("/v1/chat/completions" if "messages" in body else "/v1/completions", body)


def texts(server: Server, requests: Sequence[dict[str, Any]], at_once: int) -> list[str]:
    with ThreadPoolExecutor(at_once) as threads:
        answers = list(threads.map(lambda body: ask(server, body), requests))
    assert [answer.status for answer in answers] == [200] * len(requests), answers
    return [answer.texts[0] for answer in answers]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("served") / "log", command=SERVED) as found:
        yield found


@pytest.fixture(scope="module")
def together(server: Server) -> list[str]:
    return texts(server, SEEDED, 16)


def test_a_seed_decides_alone_and_among_sixteen(server: Server, together: list[str]) -> None:
    assert texts(server, SEEDED, 1) == together
    assert len(set(together)) == 16


def test_texts_are_those_of_generate(together: list[str]) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(MODEL), AutoTokenizer.from_pretrained(MODEL)
    for body, text in zip(SEEDED, together, strict=True):
        inputs = tokenizer(body["prompt"], return_tensors="pt")
        settings = json.loads(body["generation_config"])
        drawn = model.generate(**inputs, **settings, custom_generate=fused_sampling, seeds=[body["seed"]])
        assert tokenizer.decode(drawn[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True) == text


def test_a_seed_decides_after_a_restart_and_in_pieces(together: list[str], tmp_path: Path) -> None:
    with serving(tmp_path / "log", command=SERVED) as again:
        pieces = [streamed(again, body) for body in SEEDED[:5]]
    assert pieces == together[:5]


def streamed(server: Server, body: dict[str, Any]) -> str:
    """Returns the text of a completion that comes in pieces."""
    events = map(json.loads, server.events(body | {"stream": True}))
    return "".join(event["choices"][0].get("text", "") for event in events)


def test_requests_without_a_seed_are_other_texts_also_behind_one_with_it(server: Server) -> None:
    unseeded = request(0, seed=None)
    found = [texts(server, [SEEDED[0], unseeded], 1)[1] for _ in range(3)]
    assert len(set(found)) == 3


def test_a_wrong_seed_is_refused_by_name_and_the_next_is_served(server: Server, together: list[str]) -> None:
    for seed in ("seven", 2**64):
        answer = ask(server, request(0, seed=seed))
        assert answer.status == 400
        assert "seed must" in answer.body
    assert texts(server, SEEDED[:1], 1) == together[:1]


def test_stop_strings_and_chats(server: Server, together: list[str]) -> None:
    end = together[1].strip().split()[1]
    stopped = texts(server, [SEEDED[1] | {"stop": end}], 1)[0]
    assert stopped == together[1][: together[1].index(end) + len(end)]
    chat = {name: value for name, value in SEEDED[2].items() if name != "prompt"}
    chat |= {"messages": [{"role": "user", "content": SEEDED[2]["prompt"]}]}
    assert texts(server, [chat] * 4, 4) == texts(server, [chat], 1) * 4
