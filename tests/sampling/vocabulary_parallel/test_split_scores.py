"""Scores by parts of the vocabulary: those of whole logits, bit for bit, and what is refused."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from mixed_rows import random_widths
from run_rows import random_logits
from shard_ranks import Counted, on_threads, part_of, shards_of
from torch import Tensor

from ascend_sample.sampling import Scores, score
from ascend_sample.sampling.vocabulary_parallel import Exchange, VocabularyShard, split_scores


class Text(NamedTuple):
    """A text, what is asked of it, and how its vocabulary is split."""

    logits: Tensor
    token_ids: Tensor
    n: int
    entropy: bool
    widths: tuple[int, ...]


def random_text(number: int, size: int, places: int = 24) -> Text:
    """With -inf, NaN, +inf and equals, and tokens that are the best of their places."""
    rng, generator = random.Random(number), torch.Generator().manual_seed(number)
    vocab_size = rng.choice((2, 7, 64, 257, 1024, 1500, 3000, 9000))
    logits = random_logits(generator, rng, (places, vocab_size), odd=(torch.nan, torch.inf))
    if rng.random() < 0.3:
        logits[: places // 4] = -torch.inf
    logits = logits.to(rng.choice((torch.float32, torch.float16, torch.bfloat16)))
    token_ids = torch.randint(vocab_size, (places,), generator=generator)
    token_ids[::3] = logits[::3].nan_to_num(nan=-torch.inf).argmax(1)
    n = rng.choice((0, 1, min(5, vocab_size), vocab_size))
    return Text(logits, token_ids, n, rng.random() < 0.7, random_widths(rng, vocab_size, size))


def score_on_rank(text: Text, exchange: Exchange, chunks: list[int] | None = None) -> Scores:
    """What a rank finds, of the logits of its part as a whole or in chunks."""
    shard = shards_of(text.widths, text.logits.shape[1], exchange)
    part = part_of(text.logits, shard)
    given = part if chunks is None else iter(part.split(chunks))
    return score(given, text.token_ids, text.n, entropy=text.entropy, shard=shard)


def check(text: Text, pieces: list[int] | None = None) -> None:
    """Raises unless all ranks have the bits of whole logits."""
    expected = score(text.logits, text.token_ids, text.n, entropy=text.entropy)
    for found in on_threads(len(text.widths), lambda exchange: score_on_rank(text, exchange, pieces)):
        for one, other in zip(found, expected, strict=True):
            assert one is other is None or torch.equal(one, other), text.widths  # type: ignore[arg-type]


def test_the_scores_of_whole_logits() -> None:
    for number in range(45):
        check(random_text(1000 + number, (2, 3, 5)[number % 3]))
    text = random_text(7, 3)
    text.token_ids[::5], text.token_ids[1::5] = -100, text.logits.shape[1]  # which are no ids
    check(text)
    check(text._replace(logits=text.logits[:0], token_ids=text.token_ids[:0]))
    check(text._replace(widths=(text.logits.shape[1] + 3,)))  # of a rank alone


def test_chunks_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_scores, "BLOCK_BYTES", 50_000)
    for pieces in ([24], [1, 20, 0, 3], [8] * 3):
        check(random_text(1, 3), pieces)


@pytest.mark.parametrize("entropy", [False, True])
def test_collectives_and_bytes(entropy: bool) -> None:
    places, vocab_size, best = 16, 40_000, 5
    logits = (4 * torch.randn(places, vocab_size, generator=torch.Generator().manual_seed(3))).bfloat16()
    text = Text(logits, torch.arange(places), best, entropy, (vocab_size // 2,) * 2)

    def on_rank(exchange: Exchange) -> list[int]:
        counted = Counted(exchange)
        score_on_rank(text, counted)
        return counted.sent

    first, second = on_threads(2, on_rank)
    assert first == second
    assert first == [24, 8, places * 2 * vocab_size // 2]  # borders, arguments, logits


DIFFERENT: dict[str, Callable[[Text, int], Text]] = {
    "ids": lambda text, rank: text._replace(token_ids=(text.token_ids + rank) % text.logits.shape[1]),
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


class OneOfTwo:
    """A rank whose calls are refused before anything is sent but the borders."""

    rank, size = 0, 2

    def all_gather(self, message: torch.Tensor) -> torch.Tensor:
        assert message.numel() == 24
        return torch.tensor([[0, 3, 5], [3, 3, 5]]).view(torch.uint8)


@pytest.mark.parametrize(
    ("logits", "token_ids", "options", "says"),
    [
        (torch.zeros(2, 5), [0, 1], {}, "logits must have the width of the shard, 3, got 5. Give the part that"),
        (torch.zeros(2, 3), [0, 1], {"n": 6}, "n must be in [0, 5], got 6"),
    ],
)
def test_wrong_calls(logits: torch.Tensor, token_ids: list[int], options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match="^score: " + re.escape(says)):
        score(logits, torch.tensor(token_ids), shard=VocabularyShard(0, 3, 5, OneOfTwo()), **options)


def test_logits_of_a_device(npu: str) -> None:
    text = random_text(8, 2)._replace(entropy=True)
    logits, token_ids = text.logits.to(npu), text.token_ids.to(npu)
    expected = score(logits, token_ids, text.n, entropy=True)

    def on_rank(exchange: Exchange) -> Scores:
        shard = shards_of(text.widths, logits.shape[1], exchange)
        return score(part_of(text.logits, shard).to(npu), token_ids, text.n, entropy=True, shard=shard)

    for found in on_threads(2, on_rank):
        assert all(torch.equal(one.cpu(), other.cpu()) for one, other in zip(found, expected, strict=True))
