"""Bad input of the strategies: each message names the strategy, the argument, the rule, the value and the remedy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.generation import BaseStreamer

from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.request import check_request

IDS = torch.tensor([[1, 2], [3, 0]])
MODEL = ModuleModel(lambda input_ids: torch.zeros(*input_ids.shape, 9))
BAD = [
    ({"model": torch.nn.Linear(1, 1)}, TypeError, "model must be a StepModel, got Linear without prefill, decode, "),
    ({"model": ModuleModel}, TypeError, "model must be a StepModel, got the class ModuleModel"),
    ({"input_ids": [[1, 2]]}, TypeError, "input_ids must be an int64 tensor, got list"),
    (
        {"input_ids": {"input_ids": IDS, "attention_mask": IDS > 0}},
        TypeError,
        r"input_ids must be an int64 tensor, got dict (?=.*\. Give .* by name: search\(model, \*\*tokens)",
    ),
    ({"input_ids": IDS.float()}, TypeError, "input_ids must be an int64 tensor, got a tensor of torch.float32"),
    ({"input_ids": -IDS}, ValueError, r"input_ids must be at least 0, got \[-3, -2, -1\] in the rows \[0, 1\]"),
    (
        {"input_ids": IDS.int()},
        TypeError,
        r"input_ids must be .*, got a tensor of torch.int32 \[2, 2\](?=\. Convert it with .*, dtype=torch.int64\)\.)",
    ),
    ({"input_ids": IDS[0]}, ValueError, r"input_ids must be \[batch, length\] and not empty, got \[2\]"),
    ({"input_ids": IDS[:, :0]}, ValueError, r"input_ids must be \[batch, length\] and not empty, got \[2, 0\]"),
    ({"attention_mask": IDS.float()}, TypeError, "attention_mask must be a bool or int64 tensor"),
    ({"attention_mask": IDS * 1j}, TypeError, "attention_mask must be a bool or int64 tensor"),
    ({"encoder": {1: IDS}}, TypeError, "the name of an input of encoder must be a str, got int 1"),
    ({"attention_mask": IDS[:1]}, ValueError, r"attention_mask must have the shape of input_ids, \[2, 2\]"),
    (
        {"attention_mask": torch.tensor([[0, 0], [1, 1]])},
        ValueError,
        r"attention_mask must leave each row a token, got none in the rows \[0\]",
    ),
    (
        {"attention_mask": torch.tensor([[1, 1], [2, -1]])},
        ValueError,
        r"attention_mask must be 0 or 1, got \[-1, 2\] in the rows \[1\]",
    ),
    ({"encoder": IDS}, TypeError, r"encoder must be a dict of tensors, got a tensor of torch.int64 \[2, 2\]"),
    ({"encoder": {"memory": [1, 2]}}, ValueError, r"encoder\['memory'\] must be a tensor \[2, ...\], got list"),
    (
        {"encoder": {"encoder_attention_mask": IDS}},
        ValueError,
        r"encoder\['encoder_attention_mask'\] must be 0 or 1, got \[0, 1, 2, 3\]",
    ),
    ({"encoder": {"memory": torch.ones(3, 1)}}, ValueError, r"encoder\['memory'\] must be a tensor \[2, ...\]"),
    ({"max_new_tokens": 0}, ValueError, "max_new_tokens must be at least 1, got 0"),
    ({"max_new_tokens": [3, 0]}, ValueError, "max_new_tokens must be at least 1, got 0"),
    ({"max_new_tokens": [3]}, ValueError, "max_new_tokens must be an int, or one for each of 2 prompts, got 1 values"),
    ({"max_new_tokens": 1.5}, TypeError, "max_new_tokens must be an int, or one for each of 2 prompts, got float 1.5"),
    ({"max_new_tokens": "3"}, TypeError, "max_new_tokens must be an int, or one for each of 2 prompts, got str '3'"),
    ({"max_new_tokens": None}, TypeError, "max_new_tokens must be an int, or one for each of 2 prompts, got NoneType"),
    ({"max_new_tokens": True}, TypeError, "max_new_tokens must be an int, or one for each of 2 prompts, got bool True"),
    ({"max_new_tokens": [3, "3"]}, TypeError, "max_new_tokens must be an int, got str '3'"),
    ({"max_new_tokens": torch.tensor(2.5)}, TypeError, "max_new_tokens must be an int, or one for each of 2 prompts"),
    ({"eos_token_id": -1}, ValueError, "eos_token_id must be at least 0, got -1"),
    ({"eos_token_id": "</s>"}, TypeError, "eos_token_id must be an int, or a list of them, got str '</s>'"),
    ({"eos_token_id": ""}, TypeError, "eos_token_id must be an int, or a list of them, got str ''"),
    ({"eos_token_id": {1, 2}}, TypeError, r"eos_token_id must be an int, or a list of them, got set \{1, 2\}"),
    ({"eos_token_id": [1, "2"]}, TypeError, "eos_token_id must be an int, got str '2'"),
    ({"pad_token_id": -1}, ValueError, "pad_token_id must be at least 0, got -1"),
    ({"logits_processor": print}, TypeError, "logits_processor must be a list of callables"),
    ({"stopping_criteria": [1]}, TypeError, "stopping_criteria must be a list of callables"),
    ({"on_tokens": 1}, TypeError, "on_tokens must be a function of tokens and counts, a streamer .*, got int 1"),
    ({"on_tokens": []}, TypeError, r"on_tokens must be a function of tokens and counts, a streamer .*, got list \[\]"),
    ({"on_tokens": BaseStreamer}, TypeError, "on_tokens must be a function .*, got type <class .*BaseStreamer'>"),
    ({"on_tokens": [print, print]}, TypeError, "on_tokens must be a function of tokens and counts, .*, got list"),
    ({"on_tokens": [BaseStreamer()] * 2}, ValueError, "on_tokens must be a streamer of its own for each row, got Base"),
    ({"progress": 1}, TypeError, "progress must be True or False, got int 1"),
    ({"return_scores": "no"}, TypeError, "return_scores must be True or False, got str"),
    (
        {"eos": 3, "return_score": True},
        TypeError,
        "options must be parameters of its own, or attention_mask, encoder, .*, return_scores, got eos, return_score",
    ),
    (
        {"temperature": 0.7, "top_k": 3},
        TypeError,
        r"options must be .*, got temperature, top_k(?=\. Put temperature, top_k into params=SamplingParams\()",
    ),
    (
        {"streamer": BaseStreamer()},
        TypeError,
        r"options must be .*, got streamer(?=\. Give it as on_tokens to greedy_search, sample, contr)",
    ),
]


@pytest.mark.parametrize(("wrong", "error", "message"), BAD)
def test_bad_input_is_named(wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {"model": MODEL, "input_ids": IDS, "max_new_tokens": 4, **wrong}
    with pytest.raises(error, match=rf"^search: {message}.*\. [A-Z]"):
        check_request("search", **arguments)


def test_what_is_derived() -> None:
    request = check_request(
        "search", MODEL, IDS, [2, 5], attention_mask=torch.tensor([[1, 1], [1, 0]]), eos_token_id=(7, 8)
    )
    assert (request.max_steps, request.pad_token_id, request.batch_size) == (5, 7, 2)
    assert request.prompt_lengths().tolist() == [2, 1]
    assert request.is_eos(torch.tensor([[6, 7], [8, 9]])).tolist() == [[False, True], [True, False]]
    for lengths in (torch.tensor(3), torch.tensor([3, 3]), (3, 3)):
        assert check_request("search", MODEL, IDS, lengths).max_new_tokens.tolist() == [3, 3]
    none = check_request("search", MODEL, IDS, 1)
    assert none.pad_token_id == 0
    assert not none.is_eos(IDS).any()
