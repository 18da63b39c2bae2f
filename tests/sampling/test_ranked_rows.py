"""sample_ranked_rows: the tokens of sample_rows, and what row_logprobs reports of them, in one call of the kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.library import opcheck

import ascend_sample.sampling.step.serving
from ascend_sample.sampling import Sampler, SamplerOutput, SamplingBatch, SamplingParams
from ascend_sample.sampling.draws.noise import Purpose
from ascend_sample.sampling.edits.bitmask import placed_bitmask
from ascend_sample.sampling.step.distribution import undivided_logits
from ascend_sample.sampling.step.logprobs import LogprobsMode
from tests.decoding.planting import faults_beside, planted
from tests.support.code_paths import assert_same_on_all_code_paths

KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"top_k": 20, "top_p": 0.9, "temperature": 0.7},
    {},
    {"temperature": 1.3},
    {"top_p": 0.8},
    {"min_p": 0.05},
    {"top_k": 1500},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "top_k": 50},
    {"logit_bias": {3: 4.0, 77: -2.0}, "bad_ids": [9]},
    {"allowed_ids": [1, 5, 299], "top_k": 2},
    {"typical_p": 0.7},
    {"xtc_probability": 0.5, "top_p": 0.9},
)
FEW, MANY = 300, 2100
"""Vocabularies; neither is whole chunks."""


def batch_of(asking: Callable[[int], int | None], vocab_size: int) -> SamplingBatch:
    """A row of each kind, of which those ask whose number says so."""
    batch = SamplingBatch(vocab_size)
    params = [SamplingParams(**kind, seed=row, logprobs=asking(row)) for row, kind in enumerate(KINDS)]
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
    is_normalised: bool,
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
    values, ids, ranks, _ = torch.ops.ascend_sample.row_logprobs(*options, temperature=of_rows)
    assert torch.equal(output.logprobs.values.view(torch.int32), values.view(torch.int32))
    assert torch.equal(output.logprobs.token_ids, ids)
    assert torch.equal(output.logprobs.ranks, ranks)


ASKING: dict[str, Callable[[int], int | None]] = {
    "all": lambda row: 1 + row % 3,
    "some": lambda row: 5 if row % 3 == 1 else None,
    "the last": lambda row: 0 if row == len(KINDS) - 1 else None,
    "more than are sorted": lambda row: 1100 if row in (0, 7, 9) else None,
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many logprobs each call of the operator was asked for."""
    seen: list[int] = []
    serve = ascend_sample.sampling.step.serving._serve_ranked

    def noted(logits: Tensor, ranked: Any, *rest: Any) -> Any:
        seen.append(ranked.count)
        return serve(logits, ranked, *rest)

    monkeypatch.setattr(ascend_sample.sampling.step.serving, "_serve_ranked", noted)
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", list(LogprobsMode))
@pytest.mark.parametrize("asking", list(ASKING))
def test_a_step_is_two_operators_bit_for_bit(
    calls: list[int], asking: str, mode: LogprobsMode, dtype: torch.dtype
) -> None:
    check_steps(ASKING[asking], mode, dtype)
    assert len(calls) == 2


def check_steps(asking: Callable[[int], int | None], mode: LogprobsMode, dtype: torch.dtype) -> None:
    for vocab_size in (MANY, MANY + 1 if asking(0) == 1100 else FEW):
        logits = logits_of(vocab_size, dtype)
        batch, plain = batch_of(asking, vocab_size), batch_of(lambda _: None, vocab_size)
        bitmask = torch.full((2, -(-vocab_size // 32)), 0x5A5A5A5A, dtype=torch.int32)
        options: dict[str, Any] = {"bitmask": bitmask, "bitmask_rows": [1, 5]}
        drawn = Sampler()(logits, plain, **options).token_ids
        reported, temperature = logits, None
        if mode.is_processed:
            allowed = placed_bitmask("Sampler", *options.values(), len(batch), vocab_size, batch.device)
            edits = batch.native_edits(allowed)
            reported, temperature = undivided_logits(logits, batch.row_parameters(), edits=edits), batch.temperature
        check(Sampler(mode.value)(logits, batch, **options), drawn, reported, batch, mode.is_normalised, temperature)


def test_threads_strides_and_rows_alone() -> None:
    wide = torch.zeros(2 * len(KINDS), 2 * MANY, dtype=torch.bfloat16)
    logits = wide[::2, 1::2]
    logits.copy_(logits_of(MANY, torch.bfloat16))
    batch = batch_of(ASKING["all"], MANY)
    expected = Sampler()(logits.contiguous(), batch, advance=False)
    assert expected.logprobs is not None
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            found = Sampler()(logits, batch, advance=False)
            check(found, expected.token_ids, logits, batch, is_normalised=True)
    finally:
        torch.set_num_threads(threads)
    for row, params in enumerate(batch.params):
        alone = SamplingBatch(MANY)
        alone.extend([params], output_ids=[[row, 7, 299, 7]])
        found = Sampler()(logits[row : row + 1], alone)
        assert found.token_ids.tolist() == expected.token_ids[row : row + 1].tolist()
        assert found.logprobs is not None
        width = found.logprobs.values.shape[1]
        for one, of_all in zip(found.logprobs[1:3], expected.logprobs[1:3], strict=True):
            assert torch.equal(one[0].view(torch.int32), of_all[row, :width].contiguous().view(torch.int32))


@pytest.mark.parametrize("changes", [{"kept": True, "top_k": 10}, {"mirostat_tau": 3.0}, {"adaptive_target": 0.1}])
def test_a_step_whose_draws_are_kept_is_ranked_after_them(calls: list[int], changes: dict[str, Any]) -> None:
    """What such rows remember may change the token."""
    logits = torch.randn(4, FEW, generator=torch.Generator().manual_seed(0))
    params = [SamplingParams(seed=row, logprobs=2, **changes) for row in range(4)]
    batch, plain = SamplingBatch(FEW), SamplingBatch(FEW)
    batch.extend(params)
    plain.extend([replace(one, logprobs=None) for one in params])
    for _ in range(3):
        drawn = Sampler()(logits, plain).token_ids
        check(Sampler()(logits, batch), drawn, logits, batch, is_normalised=True)
    assert calls == []


@pytest.mark.parametrize("mode", list(LogprobsMode))
def test_the_host_ranks_rows_after_it_has_drawn(calls: list[int], mode: LogprobsMode) -> None:
    logits = logits_of(FEW, torch.float32)
    drawn = Sampler()(logits, batch_of(lambda _: None, FEW)).token_ids
    found = Sampler(mode.value, host=True)(logits, batch_of(ASKING["some"], FEW))
    assert torch.equal(found.token_ids, drawn)
    assert found.logprobs is not None
    assert torch.equal(found.logprobs.token_ids[:, 0], drawn[found.logprobs.rows])
    assert calls == []


PROGRAM = """
import hashlib
import torch
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams
digest = hashlib.sha256()
kinds = ({"temperature": 0}, {"top_k": 50, "top_p": 0.9}, {"top_p": 0.9}, {}, {"bad_ids": [3], "typical_p": 0.5})
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for vocab_size in (300, 5000):
        logits = torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(1)).mul(4).to(dtype)
        batch = SamplingBatch(vocab_size)
        batch.extend([SamplingParams(seed=1, logprobs=row, **kind) for row, kind in enumerate(kinds)])
        for mode in ("raw_logprobs", "processed_logprobs", "processed_logits"):
            for tensor in Sampler(mode)(logits, batch, advance=False).logprobs[1:]:
                digest.update(tensor.numpy().tobytes())
print(digest.hexdigest())
"""


def test_bits_do_not_depend_on_the_instruction_set() -> None:
    assert_same_on_all_code_paths(PROGRAM)


ONE, IDS = torch.ones(3), torch.arange(3)
REQUESTS = (ONE, IDS.int() * 7, ONE, 0 * ONE, IDS, IDS, int(Purpose.DRAW))


@pytest.mark.parametrize("asking", [None, torch.tensor([0, 2]), torch.tensor([2, 0]), IDS[:0]])
def test_operator_and_its_fake_kernel(asking: Tensor | None) -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    operator = torch.ops.ascend_sample.sample_ranked_rows
    opcheck(operator.default, (logits, asking, 2, True, *REQUESTS))
    token_ids, status, *found = operator(logits, asking, 2, True, *REQUESTS)
    drawn = torch.ops.ascend_sample.sample_rows(logits, None, *REQUESTS)
    for one, expected in zip((token_ids, status), drawn, strict=True):
        assert torch.equal(one, expected)
    given = token_ids if asking is None else token_ids[asking]
    *alone, _ = torch.ops.ascend_sample.row_logprobs(logits, asking, given, 2, True)
    for one, expected in zip(found, alone, strict=True):
        assert torch.equal(one, expected)
    opcheck(operator.default, (logits, asking, 2, True, *REQUESTS), {"is_processed": True})


@pytest.mark.parametrize(
    ("asking", "count", "error", "message"),
    [
        (ONE, 1, TypeError, "asking must be .*, got .*"),
        (IDS[None], 1, ValueError, r"asking must have shape \[batch\]"),
        (IDS + 1, 1, ValueError, r"asking must be between 0 and the batch size of logits \(3\) - 1, got 3."),
        (IDS * 0, 1, ValueError, "asking must have each row once, got 0 twice. Leave out what is repeated"),
        (IDS, -1, ValueError, "count must be >= 0, got -1"),
        (IDS, 41, ValueError, r"count must be at most the vocabulary size of logits \(40\), got 41"),
    ],
)
def test_bad_arguments(asking: Tensor, count: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^sample_ranked_rows: {message}"):
        torch.ops.ascend_sample.sample_ranked_rows(torch.randn(3, 40), asking, count, True, *REQUESTS)


def check_rules() -> None:
    """What the faults beside this file are tried on."""
    test_a_step_whose_draws_are_kept_is_ranked_after_them([], {"adaptive_target": 0.1})
    for options in ({"host": True}, {"logprobs_mode": "processed_logprobs"}):
        logits, batch = logits_of(FEW, torch.float32), batch_of(ASKING["some"], FEW)
        sampler = Sampler(**options)
        found = sampler(logits, batch, advance=False)
        plan = sampler.whole.plan_of(logits, batch, None)
        alone = sampler.whole.logprobs_of(logits, batch, None, found.token_ids, plan)
        assert alone is not None
        assert found.logprobs is not None
        assert torch.equal(found.logprobs.values, alone.values)
    for mode in LogprobsMode:
        check_steps(ASKING["some"], mode, torch.float32)


FAULTS = faults_beside(__file__)


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_caught(name: str) -> None:
    with planted(*FAULTS[name]), pytest.raises((AssertionError, ValueError)):
        check_rules()
