"""Scores by parts of the vocabulary: those of whole logits, bit for bit, and what travels for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from shard_ranks import Counted, on_threads, part_of, shards_of
from split_texts import Text, random_text, same_scores, score_on_rank, score_whole
from test_groups import on_processes

from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams, score, scoring
from ascend_sample.sampling.vocabulary_parallel import Exchange, VocabularyShard, chunks, reported, split_scores
from tests.decoding.planting import Trap, noticed

TEXTS = 60


def check(text: Text, pieces: list[int] | None = None) -> None:
    expected = score_whole(text)
    for found in on_threads(len(text.widths), lambda exchange: score_on_rank(text, exchange, pieces)):
        assert same_scores(found, expected), text.widths


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_scores_of_whole_logits(size: int) -> None:
    for number in range(TEXTS):
        check(random_text(1000 * size + number, size))


def test_chunks_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "ROWS_AT_ONCE", 7)
    for pieces in ([24], [1, 20, 0, 3], [8] * 3):
        check(random_text(1, 3), pieces)


def test_what_is_no_id() -> None:
    text = random_text(7, 3)
    text.token_ids[::5], text.token_ids[1::5] = -100, text.logits.shape[1]
    check(text)


def test_no_places() -> None:
    text = random_text(3, 2)
    check(text._replace(logits=text.logits[:0], token_ids=text.token_ids[:0]))


def test_a_rank_alone_scores_as_if_there_were_no_shard() -> None:
    text = random_text(4, 2)
    padded = text._replace(widths=(text.logits.shape[1] + 3,))
    check(padded)


def test_they_are_what_a_split_step_reports() -> None:
    vocab_size, rows = 5000, 6
    logits = torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(0)).bfloat16()

    def on_rank(exchange: Exchange) -> None:
        shard = shards_of((3000, 2000), vocab_size, exchange)
        batch, part = SamplingBatch(vocab_size), part_of(logits, shard)
        batch.extend([SamplingParams(seed=row, logprobs=4) for row in range(rows)])
        output = Sampler(shard=shard)(part, batch)
        found = score(part, output.token_ids, 4, shard=shard)
        assert output.logprobs is not None
        assert torch.equal(found.logprobs, output.logprobs.values[:, 0])
        assert torch.equal(found.best_logprobs, output.logprobs.values[:, 1:])
        assert torch.equal(found.best_ids, output.logprobs.token_ids[:, 1:])
        assert torch.equal(found.ranks, output.logprobs.ranks)

    on_threads(2, on_rank)


# ---- what travels ----

BORDERS, COMPARED = 24, 8
PLACES, LARGE, BEST = 16, 40000, 5


def said_of(text: Text) -> list[list[int]]:
    """The bytes of each collective of two ranks."""

    def on_rank(exchange: Exchange) -> list[int]:
        counted = Counted(exchange)
        score_on_rank(text, counted)
        return counted.sent

    return on_threads(2, on_rank)


@pytest.mark.parametrize("entropy", [False, True])
def test_collectives_and_bytes(entropy: bool) -> None:
    logits = (4 * torch.randn(PLACES, LARGE, generator=torch.Generator().manual_seed(3))).bfloat16()
    text = Text(logits, torch.arange(PLACES), BEST, entropy, (LARGE // 2,) * 2)
    first, second = said_of(text)
    assert first == second
    borders, compared, told, counted = first
    assert (borders, compared) == (BORDERS, COMPARED)
    of_chunks = (16 if entropy else 12) * -(-LARGE // 2 // 1024)
    assert told <= PLACES * (8 * BEST + 4 + of_chunks + 2 * 1023) + 8
    assert counted == 4 * PLACES


def test_what_the_best_tell_is_not_counted() -> None:
    logits = torch.arange(300.0).flip(0).expand(3, 300)
    text = Text(logits, torch.zeros(3, dtype=torch.int64), 2, False, (100, 200))
    assert [len(sent) for sent in said_of(text)] == [3] * 2


# ---- wrong calls ----

DIFFERENT: dict[str, Callable[[Text, int], Text]] = {
    "ids": lambda text, rank: text._replace(token_ids=(text.token_ids + rank) % text.logits.shape[1]),
    "what is no id": lambda text, rank: text._replace(token_ids=text.token_ids.clamp(max=0) - rank),
    "n": lambda text, rank: text._replace(n=rank),
    "entropies": lambda text, rank: text._replace(entropy=bool(rank)),
    "dtypes": lambda text, rank: text._replace(logits=text.logits.to((torch.float16, torch.bfloat16)[rank])),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_ranks_that_are_asked_something_else_are_named(what: str) -> None:
    text = random_text(5, 2)
    says = "score: the call must be the same on all ranks of the shard, got another one on rank 1 than on rank 0 (this"
    with pytest.raises(ValueError, match=re.escape(says)):
        on_threads(2, lambda exchange: score_on_rank(DIFFERENT[what](text, exchange.rank), exchange))


def test_chunks_of_other_lengths_are_named() -> None:
    with pytest.raises(ValueError, match="the call must be the same on all ranks"):
        on_threads(2, lambda exchange: score_on_rank(random_text(6, 2), exchange, [[20, 4], [4, 20]][exchange.rank]))


class OneOfTwo:
    """A rank whose calls are refused before anything is sent."""

    rank, size = 0, 2

    def all_gather(self, message: torch.Tensor) -> torch.Tensor:
        told = torch.tensor([[0, 3, 5], [3, 3, 5]]) if message.numel() == BORDERS else None
        assert told is not None, "nothing is sent"
        return told.view(torch.uint8)


@pytest.mark.parametrize(
    ("logits", "token_ids", "options", "says"),
    [
        (torch.zeros(2, 5), [0, 1], {}, "logits must have the width of the shard, 3, got 5. Give the part that"),
        (torch.zeros(2, 3), [0, 1], {"n": 6}, "n must be in [0, 5], got 6"),
    ],
)
def test_wrong_calls(logits: torch.Tensor, token_ids: list[int], options: dict[str, Any], says: str) -> None:
    shard = VocabularyShard(0, 3, 5, OneOfTwo())
    with pytest.raises(ValueError, match="^score: " + re.escape(says)):
        score(logits, torch.tensor(token_ids), shard=shard, **options)


def test_logits_of_a_device_are_refused(npu: str) -> None:
    shard = VocabularyShard(0, 3, 5, OneOfTwo())
    with pytest.raises(ValueError, match=r"^score: logits must be on the CPU where there is a shard, got npu"):
        score(torch.zeros(1, 3).to(npu), torch.zeros(1, dtype=torch.int64).to(npu), shard=shard)


# ---- processes ----


def test_processes_of_gloo_score_the_same() -> None:
    assert "40 texts have the same scores in 3 processes" in on_processes("--texts", "40")


# ---- planted faults ----


def some_texts() -> None:
    for number in range(6):
        check(random_text(2000 + number, 2)._replace(entropy=True))


TRAPS = (
    Trap(
        "distances of the first rank's chunks",
        chunks,
        "= of_ranks[rank, :, : len(whole)]",
        "= of_ranks[0 if numbers.dtype == torch.float32 else rank, :, : len(whole)]",
        some_texts,
    ),
    Trap(
        "no distances of shared chunks",
        chunks,
        "zip(of_rows, found[: len(told)], strict=True)",
        "zip(of_rows[:2], found, strict=False)",
        some_texts,
    ),
    Trap("padding scored", split_scores, "logits[:, : len(ids)]", "logits", some_texts),
    Trap(
        "counts of one rank",
        reported,
        'told["report_counts"].sum(0, dtype=torch.int64)',
        'told["report_counts"][0].long()',
        some_texts,
    ),
    Trap("ids of the part", reported, "named[:, 1:] + ids.start", "named[:, 1:]", some_texts),
)

test_trap = noticed(TRAPS)
