"""Models whose distributions can be enumerated: tables, several "worlds" of them in one batch, and exact joints."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.sampling import SamplingParams
from ascend_sample.sampling.reference.distribution import target_distribution

VOCAB_SIZE = 4
TOKENS = 3


class World(NamedTuple):
    """What rows of one kind have in common: a table of the target and one of the drafter, params and a prompt."""

    name: str
    target: Tensor
    draft: Tensor
    params: SamplingParams
    prompt: tuple[int, ...]


def random_table(seed: int, sharpness: float = 1.5) -> Tensor:
    """Logits of every context."""
    return torch.randn(VOCAB_SIZE, VOCAB_SIZE, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * sharpness


def table_model(tables: Tensor) -> ModuleModel:
    """A model of tables [worlds, vocab_size, vocab_size, vocab_size]; rows name theirs as encoder={"world": ...}."""

    def logits(input_ids: Tensor, world: Tensor) -> Tensor:
        before = torch.nn.functional.pad(input_ids, (1, 0))[:, :-1]
        return tables.to(input_ids.device)[world[:, None], before, input_ids]

    return ModuleModel(logits)


def make_worlds() -> list[World]:
    """Different models, the same model, models without a common token, and filters of all kinds."""
    target, other = random_table(1), random_table(2)
    split = torch.zeros_like(target)
    split[..., :2] = -torch.inf
    apart = torch.zeros_like(target)
    apart[..., 2:] = -torch.inf
    near = target + 0.3 * other
    return [
        World("different", target, other, SamplingParams(), (1, 2)),
        World("similar", target, near, SamplingParams(), (3, 0, 1)),
        World("the same", target, target, SamplingParams(), (2, 2)),
        World("disjoint", target + split, target + apart, SamplingParams(), (1, 3)),
        World("temperature", target, other, SamplingParams(temperature=0.6), (0, 0, 3)),
        World("top-k", target, other, SamplingParams(top_k=2), (1, 2)),
        World("top-k of 3, hot", target, near, SamplingParams(top_k=3, temperature=1.7), (1, 1)),
        World("top-p", target, near, SamplingParams(top_p=0.8), (2, 1)),
        World("min-p", target, near, SamplingParams(min_p=0.2), (2, 3)),
        World("all", target, near, SamplingParams(top_k=3, top_p=0.9, min_p=0.05, temperature=1.3), (0, 1, 2, 3)),
    ]


class Rows(NamedTuple):
    """A batch with a number of rows of each world, mixed."""

    input_ids: Tensor
    attention_mask: Tensor
    world: Tensor
    params: list[SamplingParams]
    max_new_tokens: Tensor


def rows_of(worlds: Sequence[World], rows_each: int, longest: int = TOKENS + 3, first_seed: int = 0) -> Rows:
    """Rows of all worlds in turn; the padding is on one side and the other, and lengths go from TOKENS to longest."""
    count = rows_each * len(worlds)
    width = max(len(world.prompt) for world in worlds)
    world = torch.arange(count) % len(worlds)
    number = torch.arange(count) // len(worlds)
    sides = []
    for padded_left in (False, True):
        rows = torch.full((len(worlds), width), VOCAB_SIZE - 1)
        mask = torch.zeros(len(worlds), width, dtype=torch.bool)
        for place, one in enumerate(worlds):
            start = width - len(one.prompt) if padded_left else 0
            rows[place, start : start + len(one.prompt)] = torch.tensor(one.prompt)
            mask[place, start : start + len(one.prompt)] = True
        sides.append((rows[world], mask[world]))
    is_left = (number % 2 == 1)[:, None]
    params = [with_seed(worlds[index % len(worlds)].params, first_seed + index) for index in range(count)]
    return Rows(
        torch.where(is_left, sides[1][0], sides[0][0]),
        torch.where(is_left, sides[1][1], sides[0][1]),
        world,
        params,
        TOKENS + number % (longest - TOKENS + 1),
    )


def with_seed(params: SamplingParams, seed: int) -> SamplingParams:
    """The same request with a seed, without checking it once more: there are tens of thousands."""
    copy = object.__new__(SamplingParams)
    copy.__dict__.update(params.__dict__, seed=seed)
    return copy


def exact_joint(table: Tensor, params: SamplingParams, prompt: Sequence[int]) -> np.ndarray:
    """float64 [vocab_size ** TOKENS]: the probability of each continuation, by enumeration."""
    distribution: dict[tuple[int, int], np.ndarray] = {}
    for context in itertools.product(range(VOCAB_SIZE), repeat=2):
        distribution[context] = target_distribution(table[context].numpy(), params)
    joint = np.ones(VOCAB_SIZE**TOKENS)
    for place, continuation in enumerate(itertools.product(range(VOCAB_SIZE), repeat=TOKENS)):
        text = [*prompt, *continuation]
        for end in range(len(prompt), len(text)):
            joint[place] *= distribution[text[end - 2], text[end - 1]][text[end]]
    return joint


def counts_of(sequences: Tensor) -> np.ndarray:
    """How often each continuation of [rows, tokens] occurs, in the order of `exact_joint`."""
    code = torch.zeros(len(sequences), dtype=torch.int64)
    for column in sequences.T:
        code = code * VOCAB_SIZE + column
    return torch.bincount(code, minlength=VOCAB_SIZE ** sequences.shape[1]).numpy()
