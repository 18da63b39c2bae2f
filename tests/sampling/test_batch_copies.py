"""Batches that are copied or pickled draw on as they would have, apart from each other."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ascend_sample.sampling import Ended, Sampler, SamplingBatch, SamplingParams

VOCAB_SIZE = 300
REQUESTS = (
    {},
    {"temperature": 0.0, "logprobs": 2},
    {"top_p": 0.9, "temperature": 0.7},
    {"logit_bias": {3: 2.0}, "suppress_token_ids": [1, 2]},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "top_k": 20},
    {"min_tokens": 3, "stop_token_ids": [4, 5]},
    {"allowed_token_ids": range(0, 300, 7)},
    {"dry_multiplier": 0.8, "no_repeat_ngram_size": 2},
    {"stop_sequences": [[7, 8]], "typical_p": 0.9},
    {"mirostat_tau": 3.0},
    {"adaptive_target": 0.3},
)
COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda it: pickle.loads(pickle.dumps(it)),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_draws_on(copied: Callable[[Any], Any], device: str) -> None:
    generator = torch.Generator().manual_seed(5)
    batch, sampler = SamplingBatch(VOCAB_SIZE, device, generator=generator), Sampler()
    prompts = [[1, 2, 3, row] for row in range(len(REQUESTS))]
    batch.extend([SamplingParams(**request, seed=row) for row, request in enumerate(REQUESTS)], prompts)
    steps = (4 * torch.randn(6, len(REQUESTS) + 1, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))).to(device)
    for step in steps[:3]:
        sampler(step[:-1], batch)
    batch.remove(2)
    twin = copied(batch)
    texts: dict[str, list[list[int]]] = {}
    for name, each in {"own": batch, "twin": twin}.items():
        each.extend([SamplingParams(top_k=9, seed=50, logit_bias={9: -1.0}), SamplingParams(seed=51)], [[4], [5]])
        texts[name] = [sampler(step, each).token_ids.tolist() for step in steps[3:]]
        assert each.position.tolist() == each.host.position.tolist()
        assert each.position.tolist() == [4 + 6] * (len(REQUESTS) - 1) + [1 + 3] * 2
    assert texts["twin"] == texts["own"]
    assert twin.states[9] == batch.states[9]
    assert twin.states[9] is not None


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_has_the_tokens_that_arrive_late(copied: Callable[[Any], Any], late: str) -> None:
    batch = SamplingBatch(VOCAB_SIZE, late)
    batch.add(SamplingParams(stop_sequences=[[3]]))
    batch.append(torch.tensor([3]).to(late))
    assert [each.ended() for each in (copied(batch), batch)] == [[Ended(0, (3,), 1)]] * 2
