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
from shard_ranks import Counted, on_threads, said_in_a_step

from ascend_sample.sampling import Sampler, SamplerOutput, SamplingBatch, SamplingParams
from ascend_sample.sampling.batch import MOST_PLANS
from ascend_sample.sampling.vocabulary_parallel import Exchange, VocabularyShard
from tests.support.warm_python import run_warm

VOCAB_SIZE, ROWS = 20000, 32
FIXED = 60 + 8
"""Bytes of a message beside its rows: the digests, and what fills it up to a multiple of 8."""
RACE = 4 + 12
"""The largest number without NaN, and in the second collective a score and an id."""
WHOLE = 2 * VOCAB_SIZE // 2
SAID: dict[str, tuple[dict[str, Any], int, int]] = {
    # collectives a step, bytes a row of bfloat16; 2 and, after edits, 4 of them are the largest number with NaN
    "greedy": ({"temperature": 0}, 1, 6 + 2),
    "top-k": ({"top_k": 50}, 1, 6 * 50 + 2),
    "top-k, top-p, temperature": ({"top_k": 20, "top_p": 0.9, "temperature": 0.7}, 1, 6 * 20 + 2),
    "no filter": ({}, 2, 2 * 255 + 2 + RACE),
    "no filter, no seed": ({"seed": None}, 2, 2 * 255 + 2 + RACE),
    "top-k, no seed": ({"seed": None, "top_k": 50}, 1, 6 * 50 + 2),
    "penalty": ({"presence_penalty": 1.0}, 2, 4 * 255 + 4 + RACE),
    "penalty, top-k": ({"presence_penalty": 1.0, "top_k": 50}, 1, 8 * 50 + 4),
    "min-p": ({"min_p": 0.1}, 2, 2 * 255 + 2 + RACE),
    "top-p": ({"top_p": 0.9}, 1, WHOLE),
    "top-k above 1024": ({"top_k": 5000}, 1, WHOLE),
    "typical-p": ({"typical_p": 0.9}, 1, WHOLE),
    "kept": ({"top_k": 50, "return_sampling_mask": True}, 1, WHOLE),
    "raw_logprobs": ({"top_k": 50, "logprobs": 5}, 1, WHOLE),
    "processed_logprobs": ({"top_k": 50, "logprobs": 5}, 1, WHOLE),
}


def random_rows(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return (3 * torch.randn(ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))).to(dtype)


@pytest.mark.parametrize("kind", SAID)
def test_collectives_and_bytes_of_a_step(kind: str) -> None:
    params, collectives, bytes_of_row = SAID[kind]
    mode = (kind,) if "logprobs" in params else ()
    sent = said_in_a_step(random_rows(), SamplingParams(**{"seed": 1, **params}), *mode)
    assert len(sent) == collectives
    assert sum(sent) <= FIXED * collectives + ROWS * bytes_of_row


def test_rows_of_a_batch_share_collectives() -> None:
    """Of several ranges of k each sends as many candidates as its largest k."""

    def run(exchange: Exchange) -> list[int]:
        counted = Counted(exchange)
        batch = SamplingBatch(VOCAB_SIZE)
        batch.extend([SamplingParams(seed=1, **each) for each in ({"top_k": 3}, {"top_k": 60}, {"top_k": 1000}, {})])
        sampler = Sampler(shard=VocabularyShard(10000 * exchange.rank, 10000, VOCAB_SIZE, counted))
        for _ in range(2):
            counted.sent.clear()
            sampler(torch.zeros(4, 10000, dtype=torch.float16), batch)
        return counted.sent

    first, second = on_threads(2, run)
    assert first == second
    assert len(first) == 2
    assert sum(first) <= 2 * FIXED + 6 * (60 + 60 + 1000) + 3 * 2 + 2 * 255 + 2 + RACE


# ---- ranks that differ ----


def steps_of(make: Callable[[int], SamplingBatch], *masks: Callable[[int], dict[str, Any]]) -> SamplerOutput:
    """Takes a step on two ranks for each of the masks, or one without any; each rank has what is made for it."""

    def run(exchange: Exchange) -> SamplerOutput:
        sampler = Sampler(shard=VocabularyShard(32 * exchange.rank, 32, 64, exchange))
        batch = make(exchange.rank)
        logits = torch.zeros(len(batch), 32)
        return [sampler(logits, batch, **mask(exchange.rank)) for mask in masks or [lambda _: {}]][-1]

    return on_threads(2, run)[0]


def batch_of(*params: dict[str, Any], prompts: list[list[int]] | None = None) -> SamplingBatch:
    batch = SamplingBatch(64)
    batch.extend([SamplingParams(**{"seed": 1, **each}) for each in params], prompts)
    return batch


@pytest.mark.parametrize(
    ("named", "make"),
    [
        ("seed", lambda rank: batch_of({}, {"seed": rank})),
        ("top_k", lambda rank: batch_of({}, {"top_k": 5 + rank})),
        ("seed", lambda rank: batch_of(*[{}] * (2 + rank))),
        ("temperature", lambda rank: batch_of({}, {"temperature": 1 + rank})),
        ("request", lambda rank: batch_of({}, {"logit_bias": {3: 1.0 + rank}})),
        ("request", lambda rank: batch_of({}, {"suppress_token_ids": [3 + rank]})),
        ("request", lambda rank: batch_of({}, {"repetition_penalty": 2.0}, prompts=[[1], [5 + rank]])),
    ],
    ids=["seed", "top_k", "one more", "temperature", "bias", "bans", "prompt"],
)
def test_ranks_with_other_requests_are_named(named: str, make: Callable[[int], SamplingBatch]) -> None:
    with pytest.raises(ValueError, match=rf"must be the same on all ranks .*another .*{named}.* on rank 1 than"):
        steps_of(make)


FORCED = torch.tensor([[1, 0], [0, 1]], dtype=torch.int32)


@pytest.mark.parametrize(
    "masks",
    [
        [lambda rank: {"bitmask": torch.full((2, 2), 7 + rank, dtype=torch.int32)}],
        [lambda rank: {"bitmask": FORCED[:, [rank, 1 - rank]]}],
        [lambda rank: {"bitmask": FORCED[:1], "bitmask_rows": [rank]}],
        # Also in a later step, whose messages are as long with it as without.
        [lambda rank: {}, lambda rank: {"bitmask": FORCED} if rank else {}],
    ],
    ids=["words", "places of words", "rows of masks", "on one rank alone"],
)
def test_ranks_with_another_bitmask_are_named(masks: list[Callable[[int], dict[str, Any]]]) -> None:
    with pytest.raises(ValueError, match="another bitmask on rank 1 than on rank 0"):
        steps_of(lambda rank: batch_of({}, {}), *masks)


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

    steps_of(make)


def test_masks_of_other_rows_in_each_step_cost_no_collective() -> None:
    """Requests are compared once, and of the plans few are kept."""

    def run(exchange: Exchange) -> tuple[list[int], int]:
        counted = Counted(exchange)
        sampler = Sampler(shard=VocabularyShard(32 * exchange.rank, 32, 64, counted))
        batch = batch_of(*[{"top_k": 2}] * 8)
        sampler(torch.zeros(8, 32), batch)
        counted.sent.clear()
        for step in range(1, 2 * MOST_PLANS):
            rows = [row for row in range(8) if step >> row & 1]
            mask = torch.full((len(rows), 2), -1, dtype=torch.int32)
            sampler(torch.zeros(8, 32), batch, bitmask=mask, bitmask_rows=rows)
        return counted.sent, len(batch.plans)

    for sent, plans in on_threads(2, run):
        assert len(sent) == 2 * MOST_PLANS - 1
        assert plans <= MOST_PLANS


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
        batch.add(SamplingParams(seed=1))
        Sampler(shard=VocabularyShard(first, width, vocab_size, exchange))(torch.zeros(1, width), batch)

    with pytest.raises(ValueError, match=says):
        on_threads(2, run)


class Alone:
    """A rank that has the whole vocabulary."""

    rank, size = 0, 1

    def all_gather(self, message: torch.Tensor) -> torch.Tensor:
        return message.unsqueeze(0)


@pytest.mark.parametrize(
    ("first_id", "width", "error", "says"),
    [
        (0, 63, ValueError, r"ids must be all of the vocabulary, range\(0, 64\), .*got range"),
        (1, 63, ValueError, r"ids must be all of the vocabulary, range\(0, 64\), .*got range"),
        (0, "5", TypeError, "VocabularyShard: width must be an int, got str '5'"),
        (-1, 5, ValueError, "VocabularyShard: first_id must be in"),
        (0, True, TypeError, "VocabularyShard: width must be an int, got bool True"),
    ],
)
def test_shards_that_are_none(first_id: Any, width: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Sampler(shard=VocabularyShard(first_id, width, 64, Alone()))


def test_a_rank_that_is_alone() -> None:
    """Its numbers may be numpy's, and its logits are padded."""
    shard = VocabularyShard(np.int32(0), np.uint8(70), np.int64(64), Alone())  # type: ignore[arg-type]
    assert {type(number) for number in (shard.first_id, shard.width, shard.vocab_size)} == {int}
    sampler, batch = Sampler(shard=shard), batch_of({})
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


@pytest.mark.long
def test_processes_of_gloo_verify_the_same() -> None:
    assert on_processes("--drafts", "6").count(": 6 passes of drafts are the same") == 3


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("lost", "kills"), [(2, 1), *(pytest.param(rank, 100, marks=pytest.mark.long) for rank in (0, 2))]
)
def test_when_a_rank_dies_the_others_say_so(lost: int, kills: int) -> None:
    """The first one, too, which has the store by which they found each other."""
    for _ in range(kills):
        printed = on_processes("--dies", str(lost))
        for rank in {0, 1, 2} - {lost}:
            says = f"rank {rank} says: VocabularyShard: the ranks must all take part in a step, got a failed collective"
            assert f"{says} on rank {rank} of 3: " in printed, printed
        assert f"rank {lost} says" not in printed
        assert re.search(r"\d+ rows are the same in 2 processes", printed), printed
