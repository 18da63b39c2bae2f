"""Random batches of every kind of row, drawn whole and by ranks that each have a part."""

from __future__ import annotations

import dataclasses
import random
from typing import NamedTuple

import torch
from row_edits import packed
from run_rows import random_logits, random_request
from shard_ranks import Counted, on_threads, part_of, shards_of
from torch import Tensor

from ascend_sample.sampling import Sampler, SamplerOutput, SamplingBatch, SamplingParams
from ascend_sample.sampling.step.logprobs import Logprobs
from ascend_sample.sampling.vocabulary_parallel import Exchange

MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")


class Case(NamedTuple):
    """A step, and how its vocabulary is split."""

    logits: Tensor
    params: list[SamplingParams]
    prompts: list[list[int]]
    bitmask: Tensor | None
    widths: tuple[int, ...]
    options: dict[str, object]

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[1]


def random_widths(rng: random.Random, vocab_size: int, size: int) -> tuple[int, ...]:
    """Even, uneven, of one id, or all padding."""
    kind = rng.choice(("even", "uneven", "one", "padding"))
    if kind == "even" or vocab_size < size:
        return (-(-vocab_size // size),) * size
    if kind == "uneven":
        borders = sorted(rng.sample(range(1, vocab_size), size - 1))
        widths = [end - start for start, end in zip([0, *borders], [*borders, vocab_size], strict=True)]
    elif kind == "one":
        widths = [1] * (size - 1) + [vocab_size - size + 1]
        rng.shuffle(widths)
    else:
        widths = [vocab_size + 3, *[5] * (size - 1)]
    widths[-1] += rng.choice((0, 1, 60))
    return tuple(widths)


def random_case(number: int, size: int, rows: int = 24) -> Case:
    rng, generator = random.Random(number), torch.Generator().manual_seed(number)
    vocab_size = rng.choice((2, 7, 64, 255, 256, 257, 500, 1500, 3000, 9000))
    logits = random_logits(generator, rng, (rows, vocab_size), odd=(torch.nan, torch.inf))
    if rng.random() < 0.3:
        logits[: rows // 4] = -torch.inf
    logits = logits.to(rng.choice((torch.float32, torch.float16, torch.bfloat16)))
    wants = rng.random() < 0.3
    params = [
        dataclasses.replace(
            random_request(rng, vocab_size), logprobs=rng.choice((None, 0, min(2, vocab_size))) if wants else None
        )
        for _ in range(rows)
    ]
    prompts = [[rng.randrange(vocab_size) for _ in range(rng.randrange(30))] for _ in range(rows)]
    bitmask = None
    if rng.random() < 0.4:
        allowed = torch.rand(rows, vocab_size, generator=generator) < rng.choice((0.02, 0.5, 0.98))
        bitmask = packed(list(allowed), vocab_size)
    options = {"keep_ties": rng.random() < 0.1, "logprobs_mode": rng.choice(MODES)}
    return Case(logits, params, prompts, bitmask, random_widths(rng, vocab_size, size), options)


def batch_of(case: Case, device: str = "cpu") -> SamplingBatch:
    batch = SamplingBatch(case.vocab_size, device)
    batch.extend(case.params, case.prompts)
    return batch


def whole(case: Case, steps: int = 2, device: str = "cpu") -> list[SamplerOutput]:
    """What a step that is not split gives, and the next."""
    batch, sampler, logits = batch_of(case, device), Sampler(**case.options), case.logits.to(device)
    return [on_cpu(sampler(logits, batch, bitmask=case.bitmask)) for _ in range(steps)]


def on_cpu(output: SamplerOutput) -> SamplerOutput:
    """The same output, where a test can look at it."""
    logprobs = output.logprobs
    if logprobs is not None:
        logprobs = Logprobs(logprobs.rows, *(tensor.cpu() for tensor in logprobs[1:]))
    return SamplerOutput(output.token_ids.cpu(), output.status.cpu(), logprobs)


class Found(NamedTuple):
    """What a rank has found, and said."""

    outputs: list[SamplerOutput]
    sent: list[int]


def on_rank(case: Case, exchange: Exchange, steps: int = 2, device: str = "cpu") -> Found:
    counted = Counted(exchange)
    shard = shards_of(case.widths, case.vocab_size, counted)
    batch, sampler = batch_of(case, device), Sampler(**case.options, shard=shard)
    part = part_of(case.logits, shard).to(device)
    outputs = [on_cpu(sampler(part, batch, bitmask=case.bitmask)) for _ in range(steps)]
    return Found(outputs, counted.sent)


def split(case: Case, device: str = "cpu", steps: int = 2) -> list[Found]:
    return on_threads(len(case.widths), lambda exchange: on_rank(case, exchange, steps, device))


def same(first: SamplerOutput, second: SamplerOutput) -> bool:
    """Whether two steps gave the same, bit for bit."""
    one, other = ([*output[:2], *(output.logprobs or ())] for output in (first, second))
    return len(one) == len(other) and all(
        torch.equal(mine.view(torch.uint8), its.view(torch.uint8)) if isinstance(mine, Tensor) else mine == its
        for mine, its in zip(one, other, strict=True)
    )


def differences(case: Case, found: SamplerOutput, expected: SamplerOutput) -> list[str]:
    """The rows whose token or status is another one; "logprobs" where these alone differ."""
    differs = (found.token_ids != expected.token_ids) | (found.status != expected.status)
    rows = [
        f"row {row}: {found.token_ids[row]}, {found.status[row]} for {expected.token_ids[row]}, {expected.status[row]}"
        f": {case.params[row]} {case.logits.dtype} {case.widths}"
        for row in differs.nonzero().view(-1).tolist()
    ]
    return rows or ([] if same(found, expected) else ["logprobs"])


def check_split(case: Case, device: str = "cpu") -> None:
    """Raises unless every rank finds what the step that is not split finds, and in the next step as well."""
    expected = whole(case, device=device)
    for rank, found in enumerate(split(case, device)):
        for output, wanted in zip(found.outputs, expected, strict=True):
            assert differences(case, output, wanted) == [], f"rank {rank}"


def draw_on_rank(exchange: Exchange, rows: int, first: int, device: str = "cpu") -> int:
    """Draws so many rows, or a few more; returns how many, or ends with an error where one is not the whole step's."""
    drawn, number = 0, first
    while drawn < rows:
        case = random_case(number, exchange.size)
        found = on_rank(case, exchange, device=device).outputs
        for output, wanted in zip(found, whole(case, device=device), strict=True):
            if wrong := differences(case, output, wanted):
                raise SystemExit(f"case {number}, rank {exchange.rank}: {wrong}")
            drawn += len(case.params)
        number += 1
    return drawn
