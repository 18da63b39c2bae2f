"""Experiments beside a row's counts: the rare tail, the flat vocabulary, pairs of draws, batches put together anew."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from draws import Case, count, draw, machine
from gate import Integers, RowGate, Verdict, binomial_test, worst, z_test
from torch import Tensor

from ascend_sample.sampling import Purpose, Sampler, SamplerOutput, SamplingBatch, SamplingParams

LARGE_VOCAB_SIZE: Final = 128_256
HEAD: Final = 77_777
HEAD_NATS: Final = 18.0
LAUNCH: Final = 20_000  # draws of a large row between two looks at the counts

PAIRED: Final = Case("eight tokens", torch.tensor([0.0, 0.5, -0.5, 1.0, 0.25, -1.0, 0.75, 0.0]), SamplingParams())
"""Few tokens, so that each pair of them is frequent."""
LAGS: Final = (1, 2, 3, 4, 7, 8, 16, 32, 64)
SEED_LAGS: Final = (1, 2, 16, 2**16, 2**31, 2**32, 2**48)


def heavy_tail(dtype: torch.dtype = torch.float32) -> Case:
    """One token 18 nats above 128255 others, which are drawn once in 512 times together."""
    logits = torch.zeros(LARGE_VOCAB_SIZE)
    logits[HEAD] = HEAD_NATS
    return Case("heavy tail", logits.to(dtype), SamplingParams())


def tail_probability() -> float:
    """Of all tokens but the head."""
    tail = (LARGE_VOCAB_SIZE - 1) * math.exp(-HEAD_NATS)
    return tail / (1 + tail)


def judge_heavy_tail(draws: int, *, on: str = "native", key: int = 1, dtype: torch.dtype = torch.float32) -> Verdict:
    """How often the tail is drawn, and whether in its upper half, its lower half and every stretch of it alike."""
    token_ids = draw_in_parts(heavy_tail(dtype), draws, on=on, key=key)
    tail = token_ids[token_ids != HEAD]
    hits = len(tail)
    verdicts = [binomial_test(hits, draws, tail_probability(), "tail")]
    if hits > 0:
        lower = int((tail < LARGE_VOCAB_SIZE // 2).sum())
        verdicts.append(binomial_test(lower, hits, (LARGE_VOCAB_SIZE // 2) / (LARGE_VOCAB_SIZE - 1), "lower half"))
    return worst(verdicts)


def nearly_flat(dtype: torch.dtype = torch.float32) -> Case:
    """128256 tokens within a few tenths of a nat, so that most draws are the first of their token."""
    values = 0.1 * np.random.default_rng(1).normal(size=LARGE_VOCAB_SIZE)
    return Case("nearly flat", torch.from_numpy(values).to(dtype), SamplingParams())


def judge_nearly_flat(draws: int, *, on: str = "native", key: int = 1, dtype: torch.dtype = torch.float32) -> Verdict:
    """Counts in bins along the probabilities and along the vocabulary, and how many tokens were drawn at all."""
    case = nearly_flat(dtype)
    counts = count(draw_in_parts(case, draws, on=on, key=key), case.vocab_size)
    gate = case.gate(draws)
    return worst([gate.judge(counts), coverage_test(gate, counts)])


def coverage_test(gate: RowGate, counts: Integers) -> Verdict:
    """The number of tokens that were drawn, against its mean and variance: normal in the limit of many rare tokens."""
    p, n = gate.target, gate.draws
    absent = np.exp(n * np.log1p(-p))
    # Cov(i absent, j absent) is -n p_i p_j absent_i absent_j up to terms of 1 / n: draws taken by i are none of j's.
    variance = float((absent * (1 - absent)).sum() - n * (p * absent).sum() ** 2)
    return z_test(int((counts > 0).sum()), float((1 - absent).sum()), variance, "coverage")


def draw_in_parts(case: Case, draws: int, *, on: str, key: int) -> Tensor:
    """Seeds of their own for each draw, at one position: rows of a large vocabulary."""
    seed = key * 2**40 + torch.arange(draws)
    parts = [draw(case, part, torch.full_like(part, 17), on=on) for part in seed.split(LAUNCH)]
    return torch.cat(parts)


def judge_pairs(first: Tensor, second: Tensor, what: str) -> Verdict:
    """Whether two draws of `PAIRED` have nothing to do with each other: all pairs of tokens, and their correlation."""
    target = PAIRED.target()
    size = len(target)
    pairs = count(first * size + second, size * size)
    mean = float(target @ np.arange(size))
    variance = float(target @ (np.arange(size) - mean) ** 2)
    product = float(((first - mean) * (second - mean)).sum())
    table = RowGate(np.outer(target, target).ravel(), len(first)).judge(pairs)
    verdict = worst([table, z_test(product / variance, 0.0, len(first), "correlation")])
    return Verdict(verdict.p_value, f"{what}: {verdict.reason}", verdict.tests)


def judge_lags(draws: int, *, on: str = "native", key: int = 1) -> Verdict:
    """Tokens of one request at positions that are a lag apart, in pairs that share no draw."""
    positions = torch.arange(4 * max(LAGS))
    seeds = key * 2**32 + torch.arange(math.ceil(draws / len(positions)))
    token_ids = draw(PAIRED, seeds.repeat_interleave(len(positions)), positions.repeat(len(seeds)), on=on)
    token_ids = token_ids.view(len(seeds), len(positions))
    verdicts = []
    for lag in LAGS:
        whole = len(positions) // (2 * lag) * 2 * lag
        blocks = token_ids[:, :whole].reshape(len(seeds), -1, 2, lag)
        verdicts.append(judge_pairs(blocks[:, :, 0].flatten(), blocks[:, :, 1].flatten(), f"positions {lag} apart"))
    return worst(verdicts)


def judge_seeds(draws: int, *, on: str = "native", key: int = 1) -> Verdict:
    """Tokens of two requests at the same position: seeds that differ by a little, or in one bit; and seed and position
    exchanged."""
    verdicts = []
    for lag in SEED_LAGS:
        number = torch.arange(draws // 2)
        # Seeds without the bit of the lag, so that no seed is in two pairs.
        seed = number % lag + (number // lag) * 2 * lag if lag < draws else number
        seed, position = seed + key * 2**52, number % 50
        pair = [draw(PAIRED, each, position, on=on) for each in (seed, seed + lag)]
        verdicts.append(judge_pairs(pair[0], pair[1], f"seeds {lag} apart"))
    side = math.isqrt(draws)
    smaller, larger = torch.triu_indices(side, side, offset=1) + 1000 * key
    exchanged = [draw(PAIRED, smaller, larger, on=on), draw(PAIRED, larger, smaller, on=on)]
    return worst([*verdicts, judge_pairs(exchanged[0], exchanged[1], "seed and position exchanged")])


def judge_purposes(draws: int, *, on: str = "native", key: int = 1) -> Verdict:
    """Tokens of one request and position for two purposes."""
    seed = key * 2**32 + torch.arange(draws)
    position = torch.arange(draws) % 1000
    drawn = {purpose: draw(PAIRED, seed, position, on=on, purpose=purpose) for purpose in Purpose}
    return worst(
        [
            judge_pairs(drawn[first], drawn[second], f"purposes {first.name} and {second.name}")
            for first in Purpose
            for second in Purpose
            if first < second
        ]
    )


def seeded(case: Case, seed: int) -> SamplingParams:
    """The case's request with a seed."""
    return SamplingParams.from_mapping(case.params.to_mapping() | {"seed": seed})


def step(
    cases: Sequence[Case], seeds: Sequence[int], dtype: torch.dtype, purpose: Purpose = Purpose.DRAW
) -> SamplerOutput:
    """One step of the `Sampler` for a batch of these requests, with positions that depend on their seeds alone."""
    batch = SamplingBatch(cases[0].vocab_size)
    batch.extend(
        [seeded(case, seed) for case, seed in zip(cases, seeds, strict=True)],
        [case.prompt_ids for case in cases],
        output_ids=[case.output_ids for case in cases],
        positions=[100 + seed % 7 for seed in seeds],
    )
    logits = torch.stack([case.logits.to(dtype) for case in cases])
    masked = {row: case.bitmask for row, case in enumerate(cases) if case.bitmask is not None}
    grammars = {"bitmask": torch.stack(list(masked.values())), "bitmask_rows": list(masked)} if masked else {}
    return Sampler()(logits, batch, purpose=purpose, advance=False, **grammars)


def judge_batches(cases: Sequence[Case], *, on: str = "native", key: int = 1) -> Verdict:
    """A batch permuted, a part of it, one row of it changed, one row alone: each request draws the same token."""
    generator = np.random.default_rng(key)
    seeds = (key * 1000 + np.arange(len(cases))).tolist()

    def differs(tokens: Tensor, chosen: Sequence[int], dtype: torch.dtype) -> bool:
        again = step([cases[place] for place in chosen], [seeds[place] for place in chosen], dtype)
        return not torch.equal(tokens[torch.tensor(chosen)], again.token_ids)

    with machine(on):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            tokens = step(cases, seeds, dtype).token_ids
            orders: dict[str, Sequence[int]] = {
                "permuted": generator.permutation(len(cases)).tolist(),
                "halved": list(range(0, len(cases), 2)),
                "doubled": [*range(len(cases)), *range(len(cases))],
                "alone": [int(generator.integers(len(cases)))],
            }
            for what, chosen in orders.items():
                if differs(tokens, chosen, dtype):
                    return Verdict(0.0, f"a batch {what} draws other tokens, {dtype}")
            changed = list(cases)
            place = int(generator.integers(len(cases)))
            changed[place] = Case("changed", cases[place].logits.flip(0), SamplingParams(top_p=0.7))
            again = step(changed, seeds, dtype).token_ids
            again[place] = tokens[place]
            if not torch.equal(tokens, again):
                return Verdict(0.0, f"one changed row changes another, {dtype}")
    return Verdict(1.0, "the same tokens, bit for bit")


JUDGES: Final[dict[str, Callable[..., Verdict]]] = {
    "positions": judge_lags,
    "seeds": judge_seeds,
    "purposes": judge_purposes,
}
"""Of pairs of draws that have something in common."""
