"""`LLM.generate` of vLLM with the plugin, in both runners, and without: each in a process of its own."""

from __future__ import annotations

import ascend_sample  # isort: skip  the first to import torch, safely

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import mixed_requests
import pytest
import torch
from requests_with_seeds import BATCHED_TOKENS, BLOCKS, LONG, SHORT
from serving import MODEL, MOST_REQUESTS, VARIABLES, Answer
from transformers import StableLmForCausalLM

from ascend_sample.sampling import sample_rows

ALONE: Final = 6
"""So many requests are served alone too."""
GREEDY: Final = tuple(body | {"temperature": 0.0} for body in SHORT[:ALONE])
OF_SERVERS: Final = {"messages", "response_format"}
REPORTED: Final = tuple(
    body | asked | {"temperature": 0.0, "max_tokens": 6, "logprobs": 3}
    for body, asked in zip(SHORT, ({}, {"prompt_logprobs": 2}, {"repetition_penalty": 1.5}), strict=False)
)
"""Greedy requests, with logprobs of what they get, of a prompt, and of logits that are penalised afterwards."""
KINDS: Final = [
    mixed
    for mixed in mixed_requests.mixed_requests(2 * len(mixed_requests.KINDS))
    if not OF_SERVERS & mixed.body.keys()
]
OPTIONS: Final = {
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    "enable_prefix_caching": False,
}
SCARCE: Final = OPTIONS | {"max_num_batched_tokens": BATCHED_TOKENS, "num_gpu_blocks_override": BLOCKS}
V2: Final = {"VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1"}
WITHOUT: Final = {"switched off": {"ASCEND_SAMPLE_VLLM": "0"}, "not loaded": {"VLLM_PLUGINS": ""}}


def start(folder: Path, job: dict[str, Any], **variables: str) -> subprocess.CompletedProcess[str]:
    """Lets an engine do a job; its result is ``folder / "result"``."""
    (folder / "job").write_text(json.dumps(job | {"interpreted": "TRITON_INTERPRET" in variables}))
    command = (sys.executable, Path(__file__).with_name("generating.py"), folder / "job", folder / "result")
    environment = os.environ | VARIABLES | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)


def results(folder: Path, *batches: Any, options: dict[str, Any] = OPTIONS, **variables: str) -> Any:
    """Returns what an engine answers to batches of requests, and what was counted."""
    finished = start(folder, {"options": options, "batches": batches}, **variables)
    assert finished.returncode == 0, finished.stderr[-4000:]
    found = json.loads((folder / "result").read_text())
    found["answers"] = [[Answer(200, body) for body in batch] for batch in found["answers"]]
    return found


def ids_of(batch: list[Answer]) -> list[list[int]]:
    return [answer.token_ids[0] for answer in batch]


@pytest.fixture(scope="module", params=["V1", "V2"])
def runner(request: pytest.FixtureRequest) -> dict[str, str]:
    return V2 if request.param == "V2" else {}


@pytest.fixture(scope="module")
def served(runner: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What an engine with the plugin answers: together, alone, greedily, and requests of all kinds."""
    kinds = [mixed.body for mixed in KINDS]
    batches = (SHORT, *((body,) for body in SHORT[:ALONE]), GREEDY, kinds, REPORTED)
    return results(tmp_path_factory.mktemp("served"), *batches, **runner)


@pytest.fixture(scope="module")
def scarce(runner: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What an engine answers that reads prompts in chunks and has few blocks: together, and alone."""
    batches = (LONG, *((body,) for body in LONG[:ALONE]))
    return results(tmp_path_factory.mktemp("scarce"), *batches, options=SCARCE, **runner)


def test_it_is_the_installed_package() -> None:
    assert Path(sys.prefix) in Path(ascend_sample.__file__).parents


def test_whatever_is_sampled_is_drawn_by_the_plugin(served: Any, scarce: Any) -> None:
    for found in (served, scarce):
        print(found["counted"])
        assert found["counted"]["served"] == found["counted"]["sampled"]
        assert found["counted"]["served"]["rows"] > MOST_REQUESTS * 40


def test_alone_and_among_sixteen(served: Any) -> None:
    together, *others = served["answers"]
    assert [ids_of(batch)[0] for batch in others[:ALONE]] == ids_of(together)[:ALONE]


def test_preempted_and_read_in_chunks(scarce: Any) -> None:
    together, *alone = scarce["answers"]
    print(f"{scarce['preemptions']:.0f} preemptions")
    assert scarce["preemptions"] > 0
    assert [ids_of(batch)[0] for batch in alone] == ids_of(together)[:ALONE]


@torch.inference_mode()
def test_tokens_are_those_of_sample_rows(served: Any, runner: dict[str, str]) -> None:
    """Of the logits that transformers computes, without vLLM. V1 counts draws, V2 the tokens of the sequence."""
    model = StableLmForCausalLM.from_pretrained(MODEL).eval()
    for asked, answer in list(zip(SHORT, served["answers"][0], strict=True))[:3]:
        prompt, expected = answer.body["prompt_token_ids"], []
        first = len(prompt) - 1 if runner else 0
        for place in range(asked["max_tokens"]):
            logits = model(torch.tensor([prompt + expected])).logits[:, -1]
            drawn = sample_rows(
                logits / asked["temperature"] if runner else logits,  # V2 divides itself
                temperature=torch.tensor([1.0 if runner else asked["temperature"]]),
                top_k=torch.tensor([asked["top_k"]], dtype=torch.int32) if "top_k" in asked else None,
                top_p=torch.tensor([asked["top_p"]]) if "top_p" in asked else None,
                seed=torch.tensor([asked["seed"]]),
                position=torch.tensor([first + place]),
            )
            expected.append(int(drawn.token_ids))
        assert answer.token_ids[0] == expected, asked


def test_each_kind_is_what_was_asked_for(served: Any) -> None:
    wrong = mixed_requests.wrong(KINDS, served["answers"][-2])
    assert not wrong, wrong[:3]


@pytest.fixture(scope="module")
def without(runner: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What engines answer whose plugin is switched off, and not loaded: requests with seeds, greedy ones, logprobs."""
    # Triton's interpreter cannot run vLLM's kernel for top-k and top-p, which V2 calls without the plugin alone.
    seeded = [body for body in SHORT if not (runner and {"top_k", "top_p"} & body.keys())]
    folder = tmp_path_factory.mktemp("without")
    return seeded, [results(folder, seeded, GREEDY, REPORTED, **runner, **how) for how in WITHOUT.values()]


def test_without_the_plugin(served: Any, without: Any) -> None:
    """Nothing is drawn here, a seed gives what it gives where the plugin is not loaded; greedy texts stay the same."""
    seeded, found = without
    for engine in found:
        assert engine["counted"]["served"] == {"steps": 0, "rows": 0}
        assert engine["counted"]["sampled"]["steps"] > 0
    tokens = [[ids_of(batch) for batch in engine["answers"]] for engine in found]
    assert tokens[0] == tokens[1]
    assert tokens[0][1] == ids_of(served["answers"][1 + ALONE])  # GREEDY
    drawn_here = dict(zip((body["seed"] for body in SHORT), ids_of(served["answers"][0]), strict=True))
    assert all(ids != drawn_here[body["seed"]] for body, ids in zip(seeded, tokens[0][0], strict=True))


def test_logprobs_are_those_without_the_plugin(served: Any, without: Any) -> None:
    for body, found, expected in zip(REPORTED, served["answers"][-1], without[1][0]["answers"][-1], strict=True):
        ours, theirs = (
            [*answer.body["choices"][0]["logprobs"]["top_logprobs"], *filter(None, answer.body["prompt_logprobs"])]
            for answer in (found, expected)
        )
        assert len(ours) >= 6
        assert ("prompt_logprobs" in body) == (len(ours) > 6)
        for one, other in zip(ours, theirs, strict=True):
            assert one == pytest.approx(other, abs=1e-5)


def test_chunks_with_a_seed_end_vllm_without_the_plugin(tmp_path: Path) -> None:
    """What `CountedGenerator` is for; should vLLM learn it, this says so."""
    finished = start(tmp_path, {"options": SCARCE, "batches": [LONG]}, **WITHOUT["not loaded"])
    assert finished.returncode != 0
    assert "CPU Generator does not use offset" in finished.stderr + finished.stdout
