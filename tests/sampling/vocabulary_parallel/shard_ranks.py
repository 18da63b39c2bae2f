"""Ranks as threads of this process, or as processes of gloo, and a wrapper that counts what they say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams
from ascend_sample.sampling.vocabulary_parallel import Exchange, VocabularyShard

Result = TypeVar("Result")


class Room:
    """Where the threads of a group leave their messages."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=60)
        self.messages: list[Tensor] = [torch.empty(0)] * size


class ThreadRank:
    """A rank that is a thread."""

    def __init__(self, room: Room, rank: int) -> None:
        self._room, self.rank, self.size = room, rank, room.size

    def all_gather(self, message: Tensor) -> Tensor:
        self._room.messages[self.rank] = message
        self._room.barrier.wait()
        gathered = torch.stack(self._room.messages)
        self._room.barrier.wait()
        return gathered


class Counted:
    """Counts the collectives of another exchange, and the bytes that this rank sends."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.rank, self.size = exchange.rank, exchange.size
        self.sent: list[int] = []

    def all_gather(self, message: Tensor) -> Tensor:
        self.sent.append(message.numel())
        return self._exchange.all_gather(message)


def on_threads(size: int, run: Callable[[Exchange], Result]) -> list[Result]:
    """Runs every rank of a group; a rank that fails ends the others."""
    room = Room(size)

    def one(rank: int) -> Result:
        try:
            return run(ThreadRank(room, rank))
        except BaseException:
            room.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(one, rank) for rank in range(size)]
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]


def shards_of(widths: Sequence[int], vocab_size: int, exchange: Exchange) -> VocabularyShard:
    """The part of one rank, where all have these widths."""
    return VocabularyShard(sum(widths[: exchange.rank]), widths[exchange.rank], vocab_size, exchange)


def part_of(logits: Tensor, shard: VocabularyShard) -> Tensor:
    """The logits of a part: what is padding would win every row."""
    own = logits[:, shard.ids.start : shard.ids.stop]
    rest: Any = logits.new_full((len(logits), shard.width - own.shape[1]), 1e4)
    return torch.cat((own, rest), 1)


def said_in_a_step(logits: Tensor, params: SamplingParams, *sampler_options: Any) -> list[int]:
    """Returns the bytes of each collective of a step on two ranks, the second after the borders are known.

    Args:
        logits: of the whole vocabulary.
        params: of all requests.
        sampler_options: of `Sampler`.
    """
    rows, vocab_size = logits.shape

    def run(exchange: Exchange) -> list[int]:
        counted = Counted(exchange)
        shard = shards_of((vocab_size // 2,) * 2, vocab_size, counted)
        batch, sampler = SamplingBatch(vocab_size), Sampler(*sampler_options, shard=shard)
        batch.extend([params] * rows)
        part = part_of(logits, shard)
        sampler(part, batch)
        counted.sent.clear()
        sampler(part, batch)
        return counted.sent

    first, second = on_threads(2, run)
    assert first == second
    return first
