"""What torch's default type and device are in a process changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from ascend_sample.sampling import (
    Sampler,
    SamplingBatch,
    SamplingParams,
    StaticStep,
    filter_logits,
    score,
    verify_drafts,
)
from tests.sampling.test_batch_copies import REQUESTS, VOCAB_SIZE

ROWS = len(REQUESTS)


@pytest.fixture(params=["bfloat16", "float64", "meta"])
def default(request: pytest.FixtureRequest) -> Iterator[str]:
    """Another default type, or another device."""
    if request.param == "meta":
        torch.set_default_device("meta")
    else:
        torch.set_default_dtype(getattr(torch, request.param))
    yield request.param
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


def found(logits: Tensor, token_ids: Tensor, top_k: Tensor) -> list[list[Tensor]]:
    """What the layer makes of some logits, call by call."""
    batch, sampler = SamplingBatch(VOCAB_SIZE, "cpu", generator=torch.Generator("cpu").manual_seed(3)), Sampler()
    batch.extend([SamplingParams(**request) for request in REQUESTS], [[1, row] for row in range(ROWS)])
    results = []
    for step in logits:
        drawn = sampler(step, batch)
        reported = filter(lambda each: isinstance(each, Tensor), drawn.logprobs or ())
        results.append([drawn.token_ids, drawn.status, *reported])
    plain = SamplingBatch(VOCAB_SIZE, "cpu")
    plain.extend([SamplingParams(seed=row, return_sampling_mask=True, top_p=0.9) for row in range(ROWS)])
    kept = sampler(logits[0], plain).kept
    assert kept is not None
    results.append([kept.offsets, kept.ids, kept.logprobs])
    results.append(list(score(logits[0], token_ids, n=2, entropy=True))[:4])
    results.append([filter_logits(logits[0], top_k=top_k)])
    drafts = SamplingBatch(VOCAB_SIZE, "cpu")
    drafts.add(SamplingParams(seed=1))
    verified = verify_drafts(logits[0], token_ids[: ROWS - 1], drafts, counts=[ROWS - 1], sampler=sampler)
    results.append([verified.token_ids])
    static = StaticStep(ROWS, VOCAB_SIZE, torch.float32, "cpu", max_kept=VOCAB_SIZE, addends=8)
    static.prepare(plain)
    static.logits.copy_(logits[1])
    static.run()
    results.append([static.token_ids])
    return results


def test_results_are_the_same(default: str) -> None:
    generator = torch.Generator("cpu").manual_seed(1)
    given = {"dtype": torch.float32, "device": "cpu", "generator": generator}
    logits = 3 * torch.randn(3, ROWS, VOCAB_SIZE, **given)
    token_ids = torch.arange(ROWS, device="cpu")
    top_k = torch.full((ROWS,), 5, dtype=torch.int32, device="cpu")
    results = found(logits, token_ids, top_k)
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    for one, expected in zip(results, found(logits, token_ids, top_k), strict=True):
        for tensor, other in zip(one, expected, strict=True):
            assert tensor.dtype == other.dtype, default
            assert torch.equal(tensor, other), default
