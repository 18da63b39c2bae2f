"""vLLM's server with the plugin: 500 mixed requests, seeds, structured outputs, streams; again; switched off."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import mixed_requests
import pytest
from requests_with_seeds import BATCHED_TOKENS, BLOCKS, LONG, SHORT
from serving import CONTEXT, MOST_REQUESTS, Answer, Server, serving
from tqdm import tqdm

MIXED: Final = 500
STRUCTURED: Final = 100
CHUNKED: Final = ("--max-num-batched-tokens", str(BATCHED_TOKENS), "--no-enable-prefix-caching")
SCARCE: Final = ("--num-gpu-blocks-override", str(BLOCKS))
PLAIN_JSON: Final = (
    *("--structured-outputs-config.backend", "xgrammar"),
    *("--structured-outputs-config.disable_any_whitespace", "true"),
)
"""Else JSON may have any number of spaces, and end nowhere."""
ROUNDS: Final = 5
"""Requests are preempted only while many are served at once: beside other work on the machine some come too late."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def server(logs: Path) -> Iterator[Server]:
    with serving(logs / "server", *CHUNKED, *SCARCE, *PLAIN_JSON) as found:
        yield found


def ids_of(answers: list[Answer]) -> list[list[int]]:
    assert [answer.status for answer in answers] == [200] * len(answers), answers
    return [answer.token_ids[0] for answer in answers]


@pytest.fixture(scope="module")
def alone(server: Server) -> list[list[int]]:
    """The tokens of the short requests, of which no two were ever served together."""
    return ids_of([server.ask(**body) for body in tqdm(SHORT, "alone", mininterval=5)])


@pytest.fixture(scope="module")
def long_alone(server: Server) -> list[list[int]]:
    return ids_of([server.ask(**body) for body in tqdm(LONG, "alone, read in chunks", mininterval=5)])


def test_mixed_requests(server: Server) -> None:
    """None fails, each is what was asked for, and whatever vLLM sampled was drawn by the plugin."""
    before = server.counted()
    asked = [*mixed_requests.mixed_requests(MIXED)]
    answers = server.ask_together([mixed.body for mixed in asked], "mixed")
    assert [answer for answer in answers if answer.status != 200] == []
    wrong = mixed_requests.wrong(asked, answers)
    assert not wrong, (len(wrong), wrong[:3])

    after = server.counted()
    found = {name: {key: after[name][key] - before[name][key] for key in after[name]} for name in after}
    tokens = sum(len(ids) for answer in answers for ids in answer.token_ids)
    print(f"{MIXED} requests, {tokens} tokens: {found}")
    assert found["served"] == found["sampled"]
    assert found["served"]["rows"] >= tokens * 0.9  # those of greedy requests alone are not drawn


def test_structured_outputs(server: Server) -> None:
    asked = [*mixed_requests.structured(STRUCTURED)]
    answers = server.ask_together([body for body, _ in asked], "structured")
    assert [answer.status for answer in answers] == [200] * STRUCTURED
    for (_, check), answer in zip(asked, answers, strict=True):
        check(answer.texts[0])


class TestSeeds:
    def test_among_sixteen(self, server: Server, alone: list[list[int]]) -> None:
        assert ids_of(server.ask_together(SHORT)) == alone
        assert len({tuple(ids) for ids in alone}) == MOST_REQUESTS

    def test_among_others(self, server: Server, alone: list[list[int]]) -> None:
        """Beside requests without a seed, and with other ones, that come and go."""
        others = [{"prompt": "If", "max_tokens": 7 + place, "temperature": 1.0} for place in range(MOST_REQUESTS)]
        mixed = [body for pair in zip(others, SHORT, strict=True) for body in pair]
        assert ids_of(server.ask_together(mixed))[1::2] == alone

    def test_after_preemptions(self, server: Server, long_alone: list[list[int]]) -> None:
        before, preemptions = server.metric("num_preemptions_total"), 0.0
        for _ in range(ROUNDS):
            assert ids_of(server.ask_together(LONG)) == long_alone
            preemptions = server.metric("num_preemptions_total") - before
            if preemptions:
                break
        print(f"{preemptions:.0f} preemptions")
        assert preemptions > 0

    def test_of_several_choices(self, server: Server) -> None:
        """vLLM gives the choices of a request the seeds that come after one another."""
        body = SHORT[1]
        together = server.ask(**body, n=3).token_ids
        assert together == ids_of([server.ask(**body | {"seed": body["seed"] + place}) for place in range(3)])

    @pytest.mark.parametrize("seed", [0, 1, 2**32 + 7, 2**63 - 1, -5])
    def test_of_any_size(self, server: Server, seed: int) -> None:
        body = SHORT[0] | {"seed": seed, "max_tokens": 8}
        assert server.ask(**body).token_ids == server.ask(**body).token_ids

    def test_streamed(self, server: Server, alone: list[list[int]]) -> None:
        for body, expected in zip(SHORT[:4], alone, strict=False):
            pieces = server.stream(**body)
            assert len(pieces) > 1
            assert [token for piece in pieces for token in piece.get("token_ids") or []] == expected

    def test_logprobs_change_nothing(self, server: Server, alone: list[list[int]]) -> None:
        assert ids_of([server.ask(**body, logprobs=3) for body in SHORT[:2]]) == alone[:2]

    def test_started_again(
        self, server: Server, logs: Path, alone: list[list[int]], long_alone: list[list[int]]
    ) -> None:
        """In another process, which reads prompts as a whole and has room for all of them."""
        with serving(logs / "again") as again:
            assert ids_of(again.ask_together(SHORT)) == alone
            assert ids_of(again.ask_together(LONG[:6])) == long_alone[:6]
            assert again.counted()["served"] == again.counted()["sampled"]


def test_the_log_says_that_it_is_on(server: Server, logs: Path) -> None:
    assert server.ask(**SHORT[0]).status == 200
    log = (logs / "server").read_text()
    assert "ascend_sample draws the tokens of vLLM 0.32.0" in log
    assert "ascend_sample has drawn a step in this process" in log


def test_draws_without_a_seed_differ(server: Server) -> None:
    answers = server.ask_together([{"prompt": "The", "max_tokens": 12, "temperature": 1.0}] * 32)
    assert len({tuple(ids) for ids in ids_of(answers)}) > 28


def test_frequencies(server: Server) -> None:
    """The first token of many requests without a seed, beside the probabilities that vLLM reports."""
    body = {"prompt": "The default value", "max_tokens": 1, "temperature": 1.0, "top_k": 4, "logprobs": 4}
    count = 400
    answers = server.ask_together([body] * count)
    (best,) = answers[0].body["choices"][0]["logprobs"]["top_logprobs"]
    found = Counter(answer.body["choices"][0]["logprobs"]["tokens"][0] for answer in answers)
    weights = {token: math.exp(logprob) for token, logprob in best.items()}
    total = sum(sorted(weights.values())[-4:])
    for token, weight in weights.items():
        expected = count * weight / total
        assert abs(found[token] - expected) < 5 * max(expected, 1) ** 0.5 + 1, (token, found[token], expected)
    assert statistics.fsum(found[token] for token in weights) == count


def test_too_long_a_prompt_is_refused(server: Server) -> None:
    assert server.ask(prompt="value " * CONTEXT, max_tokens=1).status == 400
    assert server.ask(**SHORT[0]).status == 200


def test_switched_off(logs: Path) -> None:
    """Nothing is drawn here, and a seed gives what it gives where the plugin is not loaded."""
    found = []
    for variables in ({"ASCEND_SAMPLE_VLLM": "0"}, {"VLLM_PLUGINS": ""}):
        with serving(logs / "off", **variables) as off:
            found.append(ids_of([off.ask(**body) for body in SHORT]))
            counted = off.counted()
            assert counted["served"] == {"steps": 0, "rows": 0}
            assert counted["sampled"]["steps"] > 0
            assert "ascend_sample draws" not in (logs / "off").read_text()
    assert found[0] == found[1]
