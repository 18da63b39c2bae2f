"""Every kind of row, split over any number of ranks: the bits of the step that is not split."""

from __future__ import annotations

from typing import Any

import pytest
import run_split_rows
import torch
from mixed_rows import MODES, Case, check_split
from shard_ranks import on_threads, part_of, shards_of

from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams
from ascend_sample.sampling.vocabulary_parallel import Exchange

ROWS = 24


def test_a_split_step_is_the_step() -> None:
    """Some batches of `make test-shards`, on 1 to 8 ranks."""
    for number in range(20):
        assert run_split_rows.try_batch(number).wrong == []


def rows_of(*kinds: dict[str, Any]) -> list[SamplingParams]:
    return [SamplingParams(**{"seed": row, **kinds[row % len(kinds)]}) for row in range(ROWS)]


def logits_of(vocab_size: int, rounded: bool = False) -> torch.Tensor:
    logits = 2 * torch.randn(ROWS, vocab_size, generator=torch.Generator().manual_seed(vocab_size))
    return (logits.round() if rounded else logits).bfloat16()


KINDS: dict[str, tuple[list[SamplingParams], tuple[int, ...], bool]] = {
    "no filter": (rows_of({}), (300, 310), False),
    "top-k": (rows_of({"top_k": 20}), (300, 310), False),
    "greedy": (rows_of({"temperature": 0.0}), (300, 310), False),
    "several k": (rows_of({"top_k": 2, "temperature": 2.0}, {"top_k": 40, "temperature": 2.0}), (300, 310), False),
    "ties at the cut": (rows_of({"top_k": 1100}), (1000, 1000, 1010), True),
    "logprobs": (rows_of({"top_k": 20, "logprobs": 3}), (2000, 2548), False),
    "many logprobs": (rows_of(*({"top_k": k, "logprobs": 60 * k} for k in (1, 2, 4))), (7, 100, 203), True),
}
"""Requests and widths, of which the last ten columns are padding, and whether logits are of few values."""


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_kind(kind: str) -> None:
    params, widths, rounded = KINDS[kind]
    check_split(Case(logits_of(sum(widths) - 10, rounded), params, [[]] * ROWS, None, widths, {}))


ASKING: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"top_k": 50},
    {"top_k": 1, "temperature": 0.7},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.02, "temperature": 0.7},
    {"temperature": 1.3},
    {"min_p": 0.05, "temperature": 0.8},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"suppress_token_ids": list(range(2000))},
    {"top_p": 0.8},
    {"top_k": 2000},
    {"top_k": 50, "logprobs": 0},
    {"top_k": 50, "logprobs": None},
)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("widths", "dtype"),
    [((2500, 2500), torch.bfloat16), ((100, 200, 300, 100, 4300), torch.float32), ((5003, 5, 5), torch.float16)],
)
def test_logprobs(mode: str, widths: tuple[int, ...], dtype: torch.dtype) -> None:
    """Of rows with -inf, NaN, +inf and equals; of the last ranks some have padding alone."""
    params = [SamplingParams(**{"seed": row, "logprobs": 3, **ASKING[row // 4]}) for row in range(4 * len(ASKING))]
    generator = torch.Generator().manual_seed(len(widths))
    logits = 3 * torch.randn(len(params), 5000, generator=generator)
    logits[1::4] = logits[1::4].round()
    strange = torch.rand(len(params), 5000, generator=generator)[2::4]
    logits[2::4] = logits[2::4].masked_fill(strange < 0.5, -torch.inf).masked_fill(strange > 0.99, torch.nan)
    logits[3::8, 77::1000], logits[7::8] = torch.inf, -torch.inf
    prompts = [list(range(row % 30)) for row in range(len(params))]
    check_split(Case(logits.to(dtype), params, prompts, None, widths, {"logprobs_mode": mode}))


REPORTED: tuple[dict[str, Any], ...] = (
    {"return_sampling_mask": True, "top_k": 7},
    {"logprob_token_ids": [5, 590], "logprobs": 2, "top_p": 0.8},
    {"mirostat_tau": 3.0},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"top_k": 40},
    {},
)


def test_kept_sets_named_ids_and_states(device: str) -> None:
    """What whole rows alone tell is that of whole rows, and of requests without a seed it is the first rank's."""
    logits = logits_of(600)

    def steps(sampler: Sampler, logits: torch.Tensor, seed: int = 0, has_seeds: bool = True) -> list[Any]:
        batch, found = SamplingBatch(600, device, generator=torch.Generator().manual_seed(seed)), []
        batch.extend(rows_of(*({"seed": None, **each} if not has_seeds else each for each in REPORTED)))
        batch.flush()  # what edits rows has their own seeds then
        for _ in range(3):
            output = sampler(logits, batch)
            assert output.logprobs is not None
            assert output.kept is not None
            found += [*output[:2], *output.logprobs, *output.kept, [batch.states[row] for row in range(2, ROWS, 6)]]
        return found

    def same(one: list[Any], other: list[Any]) -> bool:
        each = zip(one, other, strict=True)
        return all(torch.equal(*pair) if isinstance(pair[0], torch.Tensor) else pair[0] == pair[1] for pair in each)

    def on_rank(exchange: Exchange) -> tuple[list[Any], list[Any]]:
        shard = shards_of((300, 310), 600, exchange)
        sampler, part = Sampler(shard=shard), part_of(logits, shard).to(device)
        return steps(sampler, part), steps(sampler, part, exchange.rank, has_seeds=False)

    (seeded, first), (also_seeded, second) = on_threads(2, on_rank)
    whole = steps(Sampler(), logits.to(device))
    assert same(seeded, whole)
    assert same(also_seeded, whole)
    assert same(first, second)


def test_a_batch_that_has_other_requests_in_the_next_step() -> None:
    """As many as before, with another top-k."""
    logits = logits_of(600)

    def steps(sampler: Sampler, logits: torch.Tensor) -> list[int]:
        batch = SamplingBatch(600)
        batch.extend(rows_of({"top_k": 2}))
        sampler(logits, batch)
        for _ in range(ROWS):
            batch.remove(0)
        batch.extend(rows_of({"top_k": 40}))
        return sampler(logits, batch).token_ids.tolist()

    def on_rank(exchange: Exchange) -> list[int]:
        shard = shards_of((300, 300), 600, exchange)
        return steps(Sampler(shard=shard), part_of(logits, shard))

    assert on_threads(2, on_rank) == [steps(Sampler(), logits)] * 2


def test_requests_without_a_seed_get_the_first_ranks() -> None:
    """In the step that tells them, and in the next ones."""

    def on_rank(exchange: Exchange) -> list[list[int]]:
        batch = SamplingBatch(600, generator=torch.Generator().manual_seed(exchange.rank))
        batch.extend([SamplingParams(top_k=40), SamplingParams()] * (ROWS // 2))
        shard = shards_of((300, 300), 600, exchange)
        sampler, part = Sampler(shard=shard), part_of(logits_of(600), shard)
        return [sampler(part, batch).token_ids.tolist() for _ in range(3)]

    first, second = on_threads(2, on_rank)
    assert first == second
    assert len({token for step in first for token in step}) > 8
