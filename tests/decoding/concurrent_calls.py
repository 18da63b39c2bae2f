"""Every strategy on one model from many threads at once: each call must find what it finds alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from ascend_sample.decoding.model import StepModel
from ascend_sample.decoding.output import DecodeOutput
from tests.decoding.every_strategy import STRATEGIES, drafted_by

THREADS = 8
MAX_NEW_TOKENS = [3, 2, 4]


class Prompts(NamedTuple):
    """A batch: int64 [rows, length], bool [rows, length], and what an encoder takes."""

    input_ids: Tensor
    attention_mask: Tensor
    encoder: dict[str, Tensor]


def ragged_prompts(seed: int, vocab_size: int) -> tuple[Tensor, Tensor]:
    """As many rows as MAX_NEW_TOKENS, of other lengths for each seed."""
    generator = torch.Generator().manual_seed(seed)
    rows, width = len(MAX_NEW_TOKENS), 5
    lengths = torch.randint(1, width + 1, (rows, 1), generator=generator)
    return torch.randint(vocab_size, (rows, width), generator=generator), torch.arange(width) < lengths


def check_concurrent_calls(model: StepModel, prompts: Callable[[int], Prompts], without: tuple[str, ...] = ()) -> None:
    """Call every strategy with prompts of its own, one after the other and in threads; compare."""

    def call(job: tuple[str, int]) -> DecodeOutput:
        name, seed = job
        given = prompts(seed)
        options = {"attention_mask": given.attention_mask, "encoder": given.encoder, **drafted_by(name, model)}
        return STRATEGIES[name](model, given.input_ids, max_new_tokens=MAX_NEW_TOKENS, eos_token_id=[3], **options)

    jobs = [(name, seed) for seed, name in enumerate(STRATEGIES) if name not in without]
    alone = [call(job) for job in jobs]
    with switching_often(), ThreadPoolExecutor(THREADS) as threads:
        together = list(threads.map(call, jobs))
    for job, expected, found in zip(jobs, alone, together, strict=True):
        assert found.to_lists() == expected.to_lists(), job
        assert found.sequences_scores.equal(expected.sequences_scores), job


@contextmanager
def switching_often() -> Iterator[None]:
    """Threads take turns after a tenth of a millisecond, rather than five."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
