"""Continuous batching, as examples/serve.py shows it: texts that do not depend on the batch, and faults that would."""

from __future__ import annotations

import re
import sys

import pytest
import torch
from tqdm import tqdm

from ascend_sample.sampling import SamplingBatch, SamplingParams
from tests.support.user_process import EXAMPLES, TRAINING_LIMIT_SECONDS, run_as_user, skip_beside_a_real_cann

pytest.importorskip("tokenizers", reason="the language model's subword vocabulary needs the tokenizers package")

import serve
import serving_engine
from language_model import END_OF_TEXT_ID, LanguageModel, ModelConfig
from language_model.tokenizer import train_tokenizer
from serving_engine import Arrival, Request

TINY = ModelConfig(vocab_size=512, context_size=64, width=32, layers=2, heads=2, feed_forward_width=64)
MOST_TOKENS = 9
DOCUMENTS = [f"The value of item {index} is returned. Raise an error if the method was called." for index in range(99)]


@pytest.fixture
def model() -> LanguageModel:
    torch.manual_seed(3)
    return LanguageModel(TINY).eval()


@pytest.fixture
def requests() -> list[Request]:
    ids = list(range(100, 300))
    wanted = (
        SamplingParams(temperature=0),
        SamplingParams(seed=1),
        SamplingParams(seed=1, top_p=0.9),
        SamplingParams(seed=2, top_k=20, temperature=0.7, logprobs=2),
        SamplingParams(seed=3, min_p=0.1, repetition_penalty=1.5, frequency_penalty=0.5),
        SamplingParams(seed=4, allowed_token_ids=ids, logit_bias={100: 3.0}),
        SamplingParams(seed=5, min_tokens=MOST_TOKENS, stop_token_ids=[END_OF_TEXT_ID], top_k=300, top_p=0.99),
    )
    return [
        Request(f"{index} request", [5 + index, 7, 11][: 1 + index % 3], params, MOST_TOKENS - index % 4)
        for index, params in enumerate(wanted)
    ]


@pytest.fixture
def schedules(requests: list[Request]) -> list[serve.Schedule]:
    strangers = [
        Request("s", [9, 9, 9], SamplingParams(temperature=2.0), 4),
        Request("t", [8], SamplingParams(seed=1, presence_penalty=2.0), 12),
    ]
    return serve.make_schedules(requests, strangers)


def serve_all(model: LanguageModel, schedules: list[serve.Schedule]) -> list[serve.Answers]:
    return [serve.serve(model, schedule, tqdm(disable=True)).answers for schedule in schedules]


def test_texts_do_not_depend_on_the_batch(
    model: LanguageModel, requests: list[Request], schedules: list[serve.Schedule], device: str
) -> None:
    alone, *others = serve_all(model.to(device), schedules)
    assert [len(alone[request.name].token_ids) for request in requests] == [
        request.most_tokens for request in requests
    ]  # the model is too new to end a text
    assert len({tuple(answer.token_ids) for answer in alone.values()}) == len(requests)
    for answers in others:
        assert serve.compare(answers, alone, logits_must_agree=True)
    assert all(100 <= token_id < 300 for token_id in alone["5 request"].token_ids)
    assert len(alone["3 request"].logprobs) == requests[3].most_tokens


@pytest.mark.parametrize("is_right", [True, False])
def test_exit_status(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_right: bool
) -> None:
    """Also of a batch that gives its rows the noise of their places."""
    tokenizer = train_tokenizer(DOCUMENTS, 300)
    monkeypatch.setattr(serve, "load_or_train", lambda: (model, tokenizer))
    monkeypatch.setattr(sys, "argv", ["serve.py", "--tokens", "6", "--device", "cpu"])
    if not is_right:
        seeds = property(lambda batch: batch.row_tensor("seed") + torch.arange(len(batch)))
        monkeypatch.setattr(serving_engine, "SamplingBatch", type("Faulty", (SamplingBatch,), {"seed": seeds}))
    assert serve.main() == (0 if is_right else 1)
    assert f"The texts {'are THE SAME' if is_right else 'DIFFER'}" in capsys.readouterr().out


def test_launches_are_those_of_sampling_alone(model: LanguageModel, npu: str) -> None:
    skip_beside_a_real_cann()
    greedy = Request("greedy", [5, 7], SamplingParams(temperature=0), 4)
    schedule = serve.Schedule("alone", [[Arrival(0, greedy)]], 1)
    served = serve.serve(model.to(npu), schedule, tqdm(disable=True))
    assert len(served.launches) == len(served.timeline)
    assert set(served.launches[1:]) == {6}, "the budget of a greedy step; the first one plans"
    assert serve.serve(model.cpu(), schedule, tqdm(disable=True)).launches == []


V1_ALONE = ("-m", "hostcann", "run", "--without", "aclnnTopKTopPSampleV2", sys.executable)


@pytest.mark.long
@pytest.mark.timeout(TRAINING_LIMIT_SECONDS + 60)
@pytest.mark.parametrize(
    ("launcher", "tokens", "routes"),
    [
        ((), "10", "4 by fused_v2, 4 by segments, 2 by greedy, 2 by fused_segments, 1 by sorted_segments"),
        (V1_ALONE, "5", "4 by segments, 3 by sorted_segments, 2 by greedy, 2 by top_k, 2 by fused"),
    ],
    ids=["both operators", "the first alone"],
)
def test_as_a_user_runs_it(npu: str, launcher: tuple[str, ...], tokens: str, routes: str) -> None:
    skip_beside_a_real_cann()
    output = run_as_user(*launcher, str(EXAMPLES / "serve.py"), "--tokens", tokens, seconds=TRAINING_LIMIT_SECONDS)
    assert f"npu:0, EMULATED, bfloat16 logits; routes of the requests: {routes}" in output
    assert len(re.findall("13 of 13 texts are the same, token by token", output)) == 2 * 6 - 1
    assert len(re.findall(r"^    sampling launches [\d.]+ kernels a step, \d+ at most$", output, re.MULTILINE)) == 6
    assert "The texts are THE SAME in every batch and on every device." in output
