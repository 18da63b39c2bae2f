"""Requests of every kind that ask for kept sets, and rows for them."""

from __future__ import annotations

from typing import Any

import torch
from kept_oracle import Race, judge
from torch import Tensor

from ascend_sample.sampling import KeptSets, Sampler, SamplerOutput, SamplingBatch, SamplingParams

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BY_HAND = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
INF, NAN = torch.inf, torch.nan
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "one": {"top_k": 1},
    "few": {"top_k": 50},
    "few, top-p": {"top_k": 50, "top_p": 0.9, "temperature": 0.7},
    "many": {"top_k": 700},
    "many, min-p": {"top_k": 1000, "min_p": 0.01, "temperature": 1.3},
    "more than a segment race ranks": {"top_k": 1500},
    "top-p": {"top_p": 0.9},
    "nearly all": {"top_p": 0.999, "temperature": 1.5},
    "top-p, min-p": {"top_p": 0.95, "min_p": 0.02, "temperature": 0.8},
    "min-p": {"min_p": 0.05},
    "as good as the best": {"min_p": 1.0},
    "nothing": {},
    "temperature": {"temperature": 0.6},
    "penalties": {"presence_penalty": 0.5, "repetition_penalty": 1.2, "top_p": 0.9},
    "bans": {"suppress_token_ids": [3, 4], "logit_bias": {9: 2.0}, "top_k": 20},
    "allowed": {"allowed_token_ids": range(40, 90), "top_p": 0.8},
    "few of what is allowed": {"allowed_token_ids": range(40, 90), "top_k": 20, "temperature": 0.8},
    "typical": {"typical_p": 0.7, "top_k": 300},
    "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.01, "top_p": 0.9},
}


def params_of(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"seed": 7, "return_sampling_mask": True} | changes)


def new_batch(params: list[SamplingParams], vocab_size: int, device: str = "cpu") -> SamplingBatch:
    batch = SamplingBatch(vocab_size, device)
    batch.extend(params, [[5, 9]] * len(params))
    return batch


def rows_of(count: int, vocab_size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Rows of a language model's kind: a few likely ids above a broad rest; every other one is rounded."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, vocab_size, generator=generator) * 2
    logits[:, torch.randperm(vocab_size, generator=generator)[:30]] += 7
    logits[1::2] = logits[1::2].round()
    return logits.to(dtype)


def sets_of(output: SamplerOutput) -> KeptSets:
    assert output.kept is not None
    return KeptSets(*(tensor.cpu() for tensor in output.kept))


def drawn_sets(logits: Tensor, params: list[SamplingParams], device: str = "cpu", **options: Any) -> KeptSets:
    batch = new_batch(params, logits.shape[1], device)
    return sets_of(Sampler(**options)(logits.to(device), batch, advance=False))


def check_rows(logits: Tensor, params: list[SamplingParams], device: str = "cpu", **options: Any) -> int:
    """Judges each row by the reference; returns of how many it is rounding that chose the set."""
    batch = new_batch(params, logits.shape[1], device)
    output = Sampler(**options)(logits.to(device), batch, advance=False)
    kept, tokens, status = sets_of(output), output.token_ids.tolist(), output.status.tolist()
    near = 0
    for row, one in enumerate(params):
        race = Race(logits[row].double().numpy(), one, 2, (5, 9), (), options.get("keep_ties", False))
        judged = judge(kept, row, race, tokens[row], status[row])
        assert judged.wrong is None, (row, one, judged.wrong)
        near += judged.is_near
    return near
