"""vLLM's server with the plugin: 500 mixed requests, seeds alone, together, in pieces and after a new start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import mixed_requests
import pytest
from requests_with_seeds import BATCHED_TOKENS, BLOCKS, SHORT
from serving import CONTEXT, MOST_REQUESTS, Answer, Server, serving
from tqdm import tqdm

MIXED: Final = 500
CHUNKED: Final = ("--max-num-batched-tokens", str(BATCHED_TOKENS), "--no-enable-prefix-caching")
SCARCE: Final = ("--num-gpu-blocks-override", str(BLOCKS))
PLAIN_JSON: Final = (
    *("--structured-outputs-config.backend", "xgrammar"),
    *("--structured-outputs-config.disable_any_whitespace", "true"),
)
"""Else JSON may have any number of spaces, and end nowhere."""


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


class TestSeeds:
    def test_among_sixteen(self, server: Server, alone: list[list[int]]) -> None:
        assert ids_of(server.ask_together(SHORT)) == alone
        assert len({tuple(ids) for ids in alone}) == MOST_REQUESTS

    def test_among_others(self, server: Server, alone: list[list[int]]) -> None:
        """Beside requests without a seed, and with other ones, that come and go."""
        others = [{"prompt": "If", "max_tokens": 7 + place, "temperature": 1.0} for place in range(MOST_REQUESTS)]
        mixed = [body for pair in zip(others, SHORT, strict=True) for body in pair]
        assert ids_of(server.ask_together(mixed))[1::2] == alone

    def test_streamed(self, server: Server, alone: list[list[int]]) -> None:
        for body, expected in zip(SHORT[:4], alone, strict=False):
            pieces = server.stream(**body)
            assert len(pieces) > 1
            assert [token for piece in pieces for token in piece.get("token_ids") or []] == expected

    def test_started_again(self, logs: Path, alone: list[list[int]]) -> None:
        """In another process, which reads prompts as a whole and has room for all of them."""
        with serving(logs / "again") as again:
            assert ids_of(again.ask_together(SHORT)) == alone
            assert again.counted()["served"] == again.counted()["sampled"]


def test_the_log_says_that_it_is_on(server: Server, logs: Path) -> None:
    assert server.ask(**SHORT[0]).status == 200
    log = (logs / "server").read_text()
    assert "ascend_sample draws the tokens of vLLM 0.32.0" in log
    assert "ascend_sample has drawn a step in this process" in log


def test_too_long_a_prompt_is_refused(server: Server) -> None:
    assert server.ask(prompt="value " * CONTEXT, max_tokens=1).status == 400
    assert server.ask(**SHORT[0]).status == 200
