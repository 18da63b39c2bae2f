"""What a group of ranks says and how much of it, and what becomes of a group whose ranks differ."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mixed_rows import random_case, split
from shard_ranks import Counted, on_threads, said_in_a_step

from ascend_sample.sampling import Sampler, SamplerOutput, SamplingBatch, SamplingParams
from ascend_sample.sampling.batch import MOST_PLANS
from ascend_sample.sampling.vocabulary_parallel import Exchange, VocabularyShard
from tests.support.warm_python import run_warm

VOCAB_SIZE, ROWS = 20000, 32
FIXED = 64 + 8
"""Bytes of a message beside its rows: the digests, and what fills it up to a multiple of 8."""
HISTOGRAM = 256 * 8
RACE = 88 + 4
"""Three leads, and a maximum."""
SAID = {
    # collectives a step, bytes a row
    "greedy": (SamplingParams(temperature=0), 1, 8),
    "top-k": (SamplingParams(top_k=50, seed=1), 1, 8 * 50),
    "top-k, top-p, temperature": (SamplingParams(top_k=20, top_p=0.9, temperature=0.7, seed=1), 1, 8 * 20),
    "no filter": (SamplingParams(seed=1), 1, RACE),
    "penalty": (SamplingParams(presence_penalty=1.0, seed=1), 1, RACE),
    "min-p": (SamplingParams(min_p=0.1, seed=1), 2, 4 + RACE),
    "top-p": (SamplingParams(top_p=0.9, seed=1), 4, 4 + 2 * HISTOGRAM + RACE),
    "top-k above 1024": (SamplingParams(top_k=5000, seed=1), 4, 4 + 2 * HISTOGRAM + RACE),
}


def random_rows(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return (3 * torch.randn(ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))).to(dtype)


@pytest.mark.parametrize("kind", SAID)
def test_collectives_and_bytes_of_a_step(kind: str) -> None:
    params, collectives, bytes_of_row = SAID[kind]
    sent = said_in_a_step(random_rows(), params)
    assert len(sent) <= collectives
    assert sum(sent) <= FIXED * collectives + ROWS * (bytes_of_row + 1)  # a status


def test_float32_has_four_digits() -> None:
    assert len(said_in_a_step(random_rows(torch.float32), SamplingParams(top_p=0.9, seed=1))) <= 6


def test_mixed_rows_share_collectives() -> None:
    for number in range(6):
        first, second = split(random_case(400 + number, 2), steps=1)
        assert len(first.sent) == len(second.sent)
        # At first the borders, and whether the requests are the same; at last the rows whose race is too close.
        assert len(first.sent) <= 2 + 7 + 1


# ---- ranks that differ ----


def step_of(
    make: Callable[[int], SamplingBatch],
    bitmask: Callable[[int], torch.Tensor] | None = None,
    bitmask_rows: Callable[[int], list[int] | None] = lambda _: None,
) -> SamplerOutput:
    """Takes a step on two ranks, each with what is made for it."""

    def run(exchange: Exchange) -> SamplerOutput:
        shard = VocabularyShard(32 * exchange.rank, 32, 64, exchange)
        sampler = Sampler(shard=shard)
        mask = None if bitmask is None else bitmask(exchange.rank)
        batch = make(exchange.rank)
        return sampler(torch.zeros(len(batch), 32), batch, bitmask=mask, bitmask_rows=bitmask_rows(exchange.rank))

    return on_threads(2, run)[0]


def batch_of_rank(*params: SamplingParams, prompts: list[list[int]] | None = None) -> SamplingBatch:
    batch = SamplingBatch(64)
    batch.extend(list(params), prompts)
    return batch


USUAL = SamplingParams(seed=1)
OTHERS = {
    "seed": lambda rank: batch_of_rank(USUAL, SamplingParams(seed=rank)),
    "top_k": lambda rank: batch_of_rank(USUAL, SamplingParams(seed=1, top_k=5 + rank)),
    "a request more": lambda rank: batch_of_rank(*[USUAL] * (2 + rank)),
    "temperature": lambda rank: batch_of_rank(USUAL, SamplingParams(seed=1, temperature=1 + rank)),
    "bias": lambda rank: batch_of_rank(USUAL, SamplingParams(seed=1, logit_bias={3: 1.0 + rank})),
    "bans": lambda rank: batch_of_rank(USUAL, SamplingParams(seed=1, bad_ids=[3 + rank])),
    "prompt": lambda rank: batch_of_rank(
        USUAL, SamplingParams(seed=1, repetition_penalty=2.0), prompts=[[1], [5 + rank]]
    ),
}
NAMED = {"a request more": "seed", "bias": "request", "bans": "request", "prompt": "request"}


@pytest.mark.parametrize("what", OTHERS)
def test_ranks_with_other_requests_are_named(what: str) -> None:
    name = NAMED.get(what, what)
    with pytest.raises(ValueError, match=rf"must be the same on all ranks .*another .*{name}.* on rank 1 than"):
        step_of(OTHERS[what])


@pytest.mark.parametrize("output_ids", [[], [9, 0, 9]])
def test_the_same_requests_may_have_other_slots(output_ids: list[int]) -> None:
    """Where the first rank has seen a longer text go, and its rows move, the other one has begun anew."""
    asked = [SamplingParams(seed=seed, repetition_penalty=2.0) for seed in range(3)]
    prompts = [[*range(40)], [4, 5, 6], [3, 2]]

    def make(rank: int) -> SamplingBatch:
        batch = SamplingBatch(64)
        if rank:
            batch.extend(asked[:0:-1], prompts[:0:-1], output_ids=[output_ids] * 2)
            return batch
        batch.extend(asked, prompts)
        batch.flush()
        batch.remove(0)
        for token_id in output_ids:
            batch.append(torch.full((2,), token_id))
        return batch

    step_of(make)


FORCED = torch.tensor([[1, 0], [0, 1]], dtype=torch.int32)
OTHER_MASKS: dict[str, tuple[Callable[[int], torch.Tensor], Callable[[int], list[int] | None]]] = {
    "words": (lambda rank: torch.full((2, 2), 7 + rank, dtype=torch.int32), lambda _: None),
    "places of words": (lambda rank: FORCED[:, [rank, 1 - rank]], lambda _: None),
    "rows of masks": (lambda rank: FORCED[:1], lambda rank: [rank]),
}


@pytest.mark.parametrize("what", OTHER_MASKS)
def test_ranks_with_another_bitmask_are_named(what: str) -> None:
    with pytest.raises(ValueError, match="another bitmask on rank 1 than on rank 0"):
        step_of(lambda rank: batch_of_rank(USUAL, USUAL), *OTHER_MASKS[what])


def test_a_mask_on_one_rank_alone_is_named() -> None:
    """Also in a later step, whose messages are as long with it as without."""

    def run(exchange: Exchange) -> None:
        sampler = Sampler(shard=VocabularyShard(32 * exchange.rank, 32, 64, exchange))
        batch = batch_of_rank(USUAL, USUAL)
        sampler(torch.zeros(2, 32), batch)
        mask = torch.full((2, 2), 7, dtype=torch.int32) if exchange.rank else None
        sampler(torch.zeros(2, 32), batch, bitmask=mask)

    with pytest.raises(ValueError, match="another bitmask on rank 1 than on rank 0"):
        on_threads(2, run)


def test_masks_of_other_rows_in_each_step_cost_no_collective() -> None:
    """Requests are compared once, and of the plans few are kept."""

    def run(exchange: Exchange) -> tuple[list[int], int]:
        counted = Counted(exchange)
        sampler = Sampler(shard=VocabularyShard(32 * exchange.rank, 32, 64, counted))
        batch = batch_of_rank(*[USUAL] * 8)
        sampler(torch.zeros(8, 32), batch)
        counted.sent.clear()
        for step in range(1, 2 * MOST_PLANS):
            rows = [row for row in range(8) if step >> row & 1]
            mask = torch.full((len(rows), 2), -1, dtype=torch.int32)
            sampler(torch.zeros(8, 32), batch, bitmask=mask, bitmask_rows=rows)
        return counted.sent, len(batch.plans)

    for sent, plans in on_threads(2, run):
        assert len(sent) == 2 * MOST_PLANS - 1
        assert plans == MOST_PLANS


def test_requests_without_a_seed_get_the_first_ranks() -> None:
    def run(exchange: Exchange) -> list[list[int]]:
        torch.manual_seed(exchange.rank)
        batch, sampler = SamplingBatch(64), Sampler(shard=VocabularyShard(32 * exchange.rank, 32, 64, exchange))
        batch.extend([SamplingParams()] * 8)
        return [sampler(torch.zeros(8, 32), batch).token_ids.tolist() for _ in range(6)]

    first, second = on_threads(2, run)
    assert first == second
    assert len({token for step in first for token in step}) > 8


@pytest.mark.parametrize(
    ("params", "plans"),
    [(SamplingParams(), 2), (SamplingParams(top_k=5), 1), (SamplingParams(temperature=0), 1)],
    ids=["no filter", "top-k", "greedy"],
)
def test_seeds_that_are_told_change_little(params: SamplingParams, plans: int) -> None:
    """Requests are not compared again, and rows that need no seed in the first round are not planned again."""

    def run(exchange: Exchange) -> tuple[int, int]:
        counted = Counted(exchange)
        sampler = Sampler(shard=VocabularyShard(32 * exchange.rank, 32, 64, counted))
        batch = batch_of_rank(params, params)
        sampler(torch.zeros(2, 32), batch)
        counted.sent.clear()
        sampler(torch.zeros(2, 32), batch)
        return len(counted.sent), len(batch.plans)

    assert on_threads(2, run) == [(1, plans)] * 2


# ---- parts that are none ----


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([(0, 32, 64), (33, 32, 64)], "first_id must be 32 on rank 1, where the ranks before end, got 33"),
        ([(0, 32, 64), (32, 16, 64)], "width must add up to vocab_size, 64, at least, got 48"),
        ([(0, 32, 64), (32, 32, 63)], "vocab_size must be the same on all ranks"),
    ],
)
def test_parts_that_are_not_those_of_one_vocabulary(parts: list[tuple[int, int, int]], says: str) -> None:
    def run(exchange: Exchange) -> None:
        first, width, vocab_size = parts[exchange.rank]
        batch = SamplingBatch(vocab_size)
        batch.add(USUAL)
        Sampler(shard=VocabularyShard(first, width, vocab_size, exchange))(torch.zeros(1, width), batch)

    with pytest.raises(ValueError, match=says):
        on_threads(2, run)


def test_wrong_calls() -> None:
    class Alone:
        rank, size = 0, 1

        def all_gather(self, message: torch.Tensor) -> torch.Tensor:
            return message.unsqueeze(0)

    for first_id, width in ((0, 63), (1, 63), (64, 64)):  # of a rank that is alone
        with pytest.raises(ValueError, match=r"ids must be all of the vocabulary, range\(0, 64\), .*got range"):
            Sampler(shard=VocabularyShard(first_id, width, 64, Alone()))
    with pytest.raises(TypeError, match="VocabularyShard: width must be an int, got str '5'"):
        VocabularyShard(0, "5", 64, Alone())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="VocabularyShard: first_id must be in"):
        VocabularyShard(-1, 5, 64, Alone())
    with pytest.raises(TypeError, match="VocabularyShard: width must be an int, got bool True"):
        VocabularyShard(0, True, 64, Alone())
    shard = VocabularyShard(np.int32(0), np.uint8(70), np.int64(64), Alone())  # type: ignore[arg-type]
    assert {type(number) for number in (shard.first_id, shard.width, shard.vocab_size)} == {int}
    sampler, batch = Sampler(shard=shard), SamplingBatch(64)
    batch.add(USUAL)
    with pytest.raises(ValueError, match=re.escape("logits must have the shape of the batch, [1, 70], got [1, 64]")):
        sampler(torch.zeros(1, 64), batch)
    with pytest.raises(ValueError, match="batch must have the vocabulary of the shard, 64, got 65"):
        sampler(torch.zeros(1, 70), SamplingBatch(65))
    whole = Sampler()(torch.arange(64.0).expand(1, 64), batch, advance=False).token_ids
    assert torch.equal(sampler(torch.arange(70.0).expand(1, 70), batch).token_ids, whole)


def test_a_group_without_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch gives those who are not in a group has -1 ranks."""
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group: -1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: -1)
    group: Any = torch.distributed.GroupMember.NON_GROUP_MEMBER
    with pytest.raises(ValueError, match="VocabularyShard: group must have the caller among its ranks, got rank -1"):
        Sampler(shard=VocabularyShard(0, 64, 64, group))


# ---- processes ----


def on_processes(*options: str) -> str:
    program = str(Path(__file__).with_name("gloo_ranks.py"))
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    finished = run_warm([program, "--forks", "3", *options], environment, Path.cwd(), seconds=150)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_processes_of_gloo_draw_the_same() -> None:
    assert re.search(r"\d+ rows are the same in 3 processes", on_processes("--rows", "100"))


def test_processes_of_gloo_verify_the_same() -> None:
    assert on_processes("--drafts", "6").count(": 6 passes of drafts are the same") == 3


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [1, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("lost", [0, 2])
def test_when_a_rank_dies_the_others_name_it(lost: int, kills: int) -> None:
    """The first one, too, which has the store by which they found each other. Who said it may be named, too."""
    for _ in range(kills):
        printed = on_processes("--dies", str(lost))
        for rank in {0, 1, 2} - {lost}:
            says = f"rank {rank} says: VocabularyShard: the ranks must all take part in a step, got a failed collective"
            assert re.search(rf"{says} .* ranks? [\d, ]*\b{lost}\b[\d, ]* (is|are) gone: ", printed), printed
        assert f"rank {lost} says" not in printed
        assert re.search(r"\d+ rows are the same in 2 processes", printed), printed
