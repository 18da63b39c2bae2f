"""SGLang's engine and server with the backend, on a CPU: each engine in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
from mixed_requests import PATTERN, PROMPTS, SCHEMA
from serving import MODEL, Server, serving
from sglang_generating import OPTIONS

HERE: Final = Path(__file__).resolve().parent
VARIABLES: Final = {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {"temperature": 0.9},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.1, "top_k": 50, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 0.9, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "logit_bias": {"262": -2.0}},
)
SEEDED: Final = [SETTINGS[place % 5] | {"sampling_seed": 7 + place, "max_new_tokens": 24} for place in range(16)]
ASKED: Final = [PROMPTS[place % len(PROMPTS)] for place in range(16)]
ALONE: Final = 6
"""So many requests are served alone too."""


def call(prompt: str | list[str], params: Any, **named: Any) -> dict[str, Any]:
    return {"prompt": prompt, "sampling_params": params} | named


def answers(
    folder: Path, calls: list[dict[str, Any]], variables: dict[str, str] = VARIABLES, **options: Any
) -> list[Any]:
    """Returns what an engine answers to calls of `Engine.generate`."""
    (folder / "job").write_text(json.dumps({"options": options, "calls": calls}))
    command = (sys.executable, HERE / "sglang_generating.py", folder / "job", folder / "result")
    finished = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=1200)
    assert finished.returncode == 0, finished.stderr[-4000:]
    found: list[Any] = json.loads((folder / "result").read_text())
    return found


def ids_of(batch: list[Any]) -> list[list[int]]:
    return [answer["output_ids"] for answer in batch]


TOGETHER: Final = call(ASKED, SEEDED)
ONE_BY_ONE: Final = [call(ASKED[place], SEEDED[place]) for place in range(ALONE)]
GREEDY: Final = call(ASKED[:ALONE], {"temperature": 0, "max_new_tokens": 24})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    calls = [TOGETHER, *ONE_BY_ONE, GREEDY]
    return answers(tmp_path_factory.mktemp("served"), calls, sampling_backend="ascend_sample")


def test_a_seed_decides_alone_and_among_sixteen(served: list[Any]) -> None:
    together = ids_of(served[0])
    assert [answer["output_ids"] for answer in served[1 : 1 + ALONE]] == together[:ALONE]
    assert len({tuple(ids) for ids in together}) == 16


def test_a_seed_decides_after_a_restart_where_requests_wait_for_memory(served: list[Any], tmp_path: Path) -> None:
    retracting = VARIABLES | {"SGLANG_TEST_RETRACT": "1"}  # requests give their memory back in every third step
    (again,) = answers(tmp_path, [TOGETHER], retracting, sampling_backend="ascend_sample", chunked_prefill_size=4)
    assert max(answer["meta_info"]["num_retractions"] for answer in again) > 0
    for params, before, now in zip(SEEDED, ids_of(served[0]), ids_of(again), strict=True):
        # SGLang's penalties forget what a request has written when it has to wait, and know chunks of a prompt.
        assert "frequency_penalty" in params or now == before


def test_greedy_texts_are_those_of_sglang(served: list[Any], tmp_path: Path) -> None:
    greedy, seeded = answers(tmp_path, [GREEDY, TOGETHER], sampling_backend="pytorch")
    assert ids_of(greedy) == ids_of(served[1 + ALONE])
    assert ids_of(seeded) != ids_of(served[0]), "it would not be the backend that serves the seeds"


def test_structured_outputs_copies_stops_and_logprobs(tmp_path: Path) -> None:
    seeded = {"temperature": 0.9, "sampling_seed": 3, "max_new_tokens": 120}
    schema = {"json_schema": json.dumps(SCHEMA)}
    calls = [call(PROMPTS[0], seeded | schema | {"sampling_seed": seed}) for seed in range(10)]
    calls += [call(PROMPTS[1], seeded | {"regex": PATTERN, "sampling_seed": seed}) for seed in range(10)]
    calls += [call(PROMPTS[2], seeded | {"n": 4, "max_new_tokens": 16}), call(PROMPTS[3], seeded | {"stop": [" the"]})]
    calls += [call(PROMPTS[4], seeded | {"max_new_tokens": 16}, return_logprob=True, top_logprobs_num=3)]
    options = {"grammar_backend": "xgrammar", "constrained_json_disable_any_whitespace": True}
    *found, copies, stopped, reported = answers(tmp_path, calls, sampling_backend="ascend_sample", **options)
    for answer in found[:10]:
        jsonschema.validate(json.loads(answer["text"]), SCHEMA)
    for answer in found[10:]:
        assert re.fullmatch(PATTERN, answer["text"]), answer["text"]
    assert len({tuple(answer["output_ids"]) for answer in copies}) == 4
    assert " the" not in stopped["text"]
    drawn = reported["meta_info"]["output_token_logprobs"]
    assert [token for _, token, _ in drawn] == reported["output_ids"]
    assert all(logprob <= 0 for logprob, _, _ in drawn)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    given = [f"--{name.replace('_', '-')}" for name in ("disable_cuda_graph", "skip_server_warmup")]
    for name in ("device", "dtype", "attention_backend", "max_total_tokens"):
        given += [f"--{name.replace('_', '-')}", str(OPTIONS[name])]
    command = (sys.executable, HERE / "sglang_server.py", "--model-path", MODEL, "--served-model-name", "demo", *given)
    command += ("--sampling-backend", "ascend_sample", "--host", "127.0.0.1")
    with serving(tmp_path_factory.mktemp("server") / "log", command=command, **VARIABLES) as found:
        yield found


def test_the_server_serves_seeds_alone_and_together_and_in_pieces(server: Server) -> None:
    bodies = [
        {"prompt": PROMPTS[place % len(PROMPTS)], "max_tokens": 24, "seed": place} | SETTINGS[place % 4]
        for place in range(100)
    ]
    together = server.ask_together(bodies, "SGLang's server")
    assert [answer.status for answer in together] == [200] * 100
    for place in range(4):
        alone = server.ask(**bodies[place])
        assert alone.texts == together[place].texts
        assert "".join(piece["text"] for piece in server.stream(**bodies[place])) == alone.texts[0]
