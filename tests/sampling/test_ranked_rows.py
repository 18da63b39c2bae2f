"""What sample_rows reports of tokens as it draws them, beside row_logprobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from ascend_sample.sampling import Sampler, SamplerOutput, SamplingBatch, SamplingParams
from ascend_sample.sampling.edits.bitmask import placed_bitmask
from ascend_sample.sampling.step import whole_steps
from ascend_sample.sampling.step.distribution import undivided_logits
from ascend_sample.sampling.step.logprobs import LogprobsMode
from ascend_sample.sampling.step.serving import Placement

KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"top_k": 20, "top_p": 0.9, "temperature": 0.7},
    {},
    {"temperature": 1.3},
    {"top_p": 0.8},
    {"min_p": 0.05},
    {"top_k": 1500},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "top_k": 50},
    {"logit_bias": {3: 4.0, 77: -2.0}, "suppress_token_ids": [9]},
    {"allowed_token_ids": [1, 5, 299], "top_k": 2},
    {"typical_p": 0.7},
    {"xtc_probability": 0.5, "top_p": 0.9},
)
FEW, MANY = 300, 2100
"""Vocabularies; neither is whole chunks."""
ASKING: dict[str, Callable[[int], int | None]] = {
    "none": lambda row: None,
    "all": lambda row: 1 + row % 3,
    "some": lambda row: 5 if row % 3 == 1 else None,
    "the last": lambda row: 0 if row == len(KINDS) - 1 else None,
    "more than are sorted": lambda row: 1100 if row in (0, 7, 9) else None,
}


def batch_of(asking: str, vocab_size: int) -> SamplingBatch:
    """A row of each kind, of which some ask."""
    batch = SamplingBatch(vocab_size)
    params = [SamplingParams(**kind, seed=row, logprobs=ASKING[asking](row)) for row, kind in enumerate(KINDS)]
    batch.extend(params, output_ids=[[row, 7, 299, 7] for row in range(len(KINDS))])
    return batch


def logits_of(vocab_size: int, dtype: torch.dtype) -> Tensor:
    """Some of the rows with what is no ordinary logit."""
    logits = torch.randn(len(KINDS), vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * 4
    logits[1, 3], logits[4, :5], logits[2, 50:] = torch.nan, torch.inf, -torch.inf
    logits[6] = logits[6].round()
    logits[7] = -torch.inf
    return logits.to(dtype)


def check(
    output: SamplerOutput,
    drawn: Tensor,
    logits: Tensor,
    batch: SamplingBatch,
    is_normalised: bool = True,
    temperature: Tensor | None = None,
) -> None:
    """The tokens are those of a step without logprobs; what is reported of them is what one operator says of logits."""
    assert torch.equal(output.token_ids, drawn)
    rows = numpy.flatnonzero(batch.host.logprobs >= 0)
    assert output.logprobs is not None
    assert output.logprobs.rows == rows.tolist()
    there, most = torch.from_numpy(rows), int(batch.host.logprobs.max())
    options = (logits, there, drawn[there], most, is_normalised)
    of_rows = None if temperature is None else temperature[there]
    values, ids, (ranks,) = torch.ops.ascend_sample.row_logprobs(*options, temperature=of_rows)
    assert torch.equal(output.logprobs.values.view(torch.int32), values.view(torch.int32))
    assert torch.equal(output.logprobs.token_ids, ids)
    assert torch.equal(output.logprobs.ranks, ranks)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many logprobs each call of the operator was asked for."""
    seen: list[int] = []
    draw = whole_steps.draw

    def noted(logits: Tensor, placement: Placement, *arguments: Any, **options: Any) -> Any:
        if "logprobs" in placement.wanted:
            seen.append(placement.wanted["logprobs"])
        return draw(logits, placement, *arguments, **options)

    monkeypatch.setattr(whole_steps, "draw", noted)
    return seen


@pytest.mark.parametrize("mode", list(LogprobsMode))
@pytest.mark.parametrize("asking", list(ASKING)[1:])
def test_a_step_is_two_operators_bit_for_bit(calls: list[int], asking: str, mode: LogprobsMode) -> None:
    for dtype, vocab_size in ((torch.float32, MANY), (torch.float16, MANY + 1), (torch.bfloat16, MANY)):
        vocab_size = vocab_size if asking == "more than are sorted" or dtype == torch.float32 else FEW
        logits = logits_of(vocab_size, dtype)
        batch, plain = batch_of(asking, vocab_size), batch_of("none", vocab_size)
        bitmask = torch.full((2, -(-vocab_size // 32)), 0x5A5A5A5A, dtype=torch.int32)
        options: dict[str, Any] = {"bitmask": bitmask, "bitmask_rows": [1, 5]}
        drawn = Sampler()(logits, plain, **options).token_ids
        reported, temperature = logits, None
        if mode.is_processed:
            allowed = placed_bitmask("Sampler", *options.values(), len(batch), vocab_size, batch.device)
            edits = batch.native_edits(allowed)
            reported, temperature = undivided_logits(logits, batch.row_parameters(), edits=edits), batch.temperature
        check(Sampler(mode.value)(logits, batch, **options), drawn, reported, batch, mode.is_normalised, temperature)
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("changes", "drawn_again"),
    [
        ({"return_sampling_mask": True, "top_k": 10}, False),
        ({"mirostat_tau": 3.0}, False),
        ({"adaptive_target": 0.1}, True),
    ],
)
def test_a_step_that_draws_again_is_ranked_after_that(
    calls: list[int], changes: dict[str, Any], drawn_again: bool
) -> None:
    """What such rows remember changes the token."""
    logits = torch.randn(4, FEW, generator=torch.Generator().manual_seed(0))
    params = [SamplingParams(seed=row, logprobs=2, **changes) for row in range(4)]
    batch, plain = SamplingBatch(FEW), SamplingBatch(FEW)
    batch.extend(params)
    plain.extend([replace(one, logprobs=None) for one in params])
    for _ in range(3):
        drawn = Sampler()(logits, plain).token_ids
        check(Sampler()(logits, batch), drawn, logits, batch)
    assert len(calls) == (0 if drawn_again else 3)


def test_operator_without_a_sampler() -> None:
    """Of rows in any order, of none, and of all."""
    logits, ones, ids = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)), torch.ones(3), torch.arange(3)
    requests = (ones, ids.int() * 7, ones, 0 * ones, ids, ids)
    drawn = torch.ops.ascend_sample.sample_rows(logits, None, *requests)[:2]
    for asking in (None, torch.tensor([0, 2]), torch.tensor([2, 0]), ids[:0]):
        wanted = {"logprobs": 2, "logprob_rows": asking}
        token_ids, status, _, found = torch.ops.ascend_sample.sample_rows(logits, None, *requests, **wanted)
        given = drawn[0] if asking is None else drawn[0][asking]
        values, ids, (ranks,) = torch.ops.ascend_sample.row_logprobs(logits, asking, given, 2, True)
        assert all(map(torch.equal, (token_ids, status, *found), (*drawn, values, ids, ranks)))
