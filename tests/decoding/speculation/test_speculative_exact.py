"""Speculative sampling is exact: the joint distribution of the first tokens is the target's, by enumeration.

Rows of several "worlds", tables whose distributions can be enumerated, make one batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.speculation.adaptive_gamma import AdaptiveGamma
from ascend_sample.decoding.speculation.drafters import Drafter, NGramDrafter
from ascend_sample.decoding.speculation.speculative import speculative_sample
from ascend_sample.sampling import SamplingParams
from ascend_sample.sampling.drafts.arguments import VerificationRule
from ascend_sample.sampling.reference.distribution import target_distribution
from tests.decoding.chi_square import SMALLEST_P_VALUE, p_value

VOCAB_SIZE = 4
TOKENS = 3
ROWS_EACH = 4000
LONG = pytest.mark.long
CASES: list[Any] = [
    (1, None, 1500, "standard"),
    (2, None, 1500, "standard"),
    (3, NGramDrafter(max_ngram=2), 1500, "standard"),
    (3, None, 1500, "block"),
    pytest.param(4, None, ROWS_EACH, "standard", marks=LONG),
    pytest.param(1, NGramDrafter(max_ngram=2), ROWS_EACH // 2, "standard", marks=LONG),
    pytest.param(3, None, ROWS_EACH, "match", marks=LONG),
    pytest.param(3, NGramDrafter(max_ngram=2), ROWS_EACH, "block", marks=LONG),
    pytest.param(AdaptiveGamma(4), None, ROWS_EACH // 2, "standard", marks=LONG),
]


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


def rows_of(worlds: Sequence[World], rows_each: int) -> Rows:
    """Rows of all worlds in turn; the padding is on one side and the other, and lengths go from TOKENS to 3 more."""
    count = rows_each * len(worlds)
    width = max(len(world.prompt) for world in worlds)
    world, number = torch.arange(count) % len(worlds), torch.arange(count) // len(worlds)
    rows = torch.full((2, len(worlds), width), -1)
    for place, one in enumerate(worlds):
        rows[0, place, : len(one.prompt)] = rows[1, place, width - len(one.prompt) :] = torch.tensor(one.prompt)
    input_ids = rows[number % 2, world]
    params = [with_seed(worlds[index % len(worlds)].params, index) for index in range(count)]
    return Rows(input_ids, input_ids >= 0, world, params, TOKENS + number % 4)


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


@pytest.mark.parametrize(("gamma", "drafter", "rows_each", "rule"), CASES)
def test_joint_distribution_is_the_targets(
    gamma: int | AdaptiveGamma, drafter: Drafter | None, rows_each: int, rule: VerificationRule
) -> None:
    """By block a draft that goes has decided with those that stay: the next round must not know of it."""
    worlds = make_worlds()
    rows = rows_of(worlds, rows_each)
    target, draft = (table_model(torch.stack([getattr(it, name) for it in worlds])) for name in ("target", "draft"))
    options: dict[str, Any] = {"attention_mask": rows.attention_mask, "encoder": {"world": rows.world}}
    options |= {"drafter": drafter or draft, "gamma": gamma, "max_new_tokens": rows.max_new_tokens, "rule": rule}
    output = speculative_sample(target, rows.input_ids, rows.params, **options)
    assert output.lengths.equal(rows.max_new_tokens)
    for number, world in enumerate(worlds):
        exact = exact_joint(world.target, world.params, world.prompt)
        codes = output.sequences[rows.world == number, :TOKENS] @ (VOCAB_SIZE ** torch.arange(TOKENS).flip(0))
        counts = torch.bincount(codes, minlength=VOCAB_SIZE**TOKENS).numpy()
        assert counts.sum() == rows_each
        assert p_value(counts, exact) > SMALLEST_P_VALUE, world.name
