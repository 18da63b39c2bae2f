"""Random texts that are scored as a whole, and by ranks that each have a part of the vocabulary."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

import torch
from mixed_rows import random_widths
from run_rows import random_logits
from shard_ranks import part_of, shards_of
from torch import Tensor

from ascend_sample.sampling import Scores, score
from ascend_sample.sampling.vocabulary_parallel import Exchange


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
    given: Tensor | Iterable[Tensor] = part if chunks is None else iter(part.split(chunks))
    return score(given, text.token_ids, text.n, entropy=text.entropy, shard=shard)


def score_whole(text: Text) -> Scores:
    return score(text.logits, text.token_ids, text.n, entropy=text.entropy)


def same_scores(one: Scores, other: Scores) -> bool:
    """Bit for bit."""
    return (one.entropy is None) == (other.entropy is None) and all(
        torch.equal(mine, others) for mine, others in zip(one, other, strict=True) if mine is not None
    )
