"""Speculative sampling is exact: the joint distribution of the first tokens is the target's, by enumeration."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ascend_sample.decoding.speculation.adaptive_gamma import AdaptiveGamma
from ascend_sample.decoding.speculation.drafters import Drafter, NGramDrafter
from ascend_sample.decoding.speculation.speculative import speculative_sample
from ascend_sample.sampling.drafts.arguments import Rule
from tests.decoding.chi_square import SMALLEST_P_VALUE, p_value
from tests.decoding.speculation.speculative_worlds import (
    TOKENS,
    counts_of,
    exact_joint,
    make_worlds,
    rows_of,
    table_model,
)

ROWS_EACH = 4000
LONG = pytest.mark.long
CASES: list[Any] = [
    (2, None, 1500, "standard"),
    (3, NGramDrafter(longest=2), 1500, "standard"),
    (3, None, 1500, "block"),
    pytest.param(1, None, ROWS_EACH, "standard", marks=LONG),
    pytest.param(4, None, ROWS_EACH, "standard", marks=LONG),
    pytest.param(1, NGramDrafter(longest=2), ROWS_EACH // 2, "standard", marks=LONG),
    pytest.param(3, None, ROWS_EACH, "match", marks=LONG),
    pytest.param(3, NGramDrafter(longest=2), ROWS_EACH, "block", marks=LONG),
    pytest.param(AdaptiveGamma(4, cost=0.1), None, ROWS_EACH // 2, "standard", marks=LONG),
]


@pytest.mark.parametrize(("gamma", "drafter", "rows_each", "rule"), CASES)
def test_joint_distribution_is_the_targets(
    gamma: int | AdaptiveGamma, drafter: Drafter | None, rows_each: int, rule: Rule
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
        counts = counts_of(output.sequences[rows.world == number, :TOKENS])
        assert counts.sum() == rows_each
        assert p_value(counts, exact) > SMALLEST_P_VALUE, world.name


def test_the_test_has_power() -> None:
    """Draws from the draft's distribution do not pass for the target's."""
    world = make_worlds()[1]
    exact = exact_joint(world.target, world.params, world.prompt)
    near = exact_joint(world.draft, world.params, world.prompt)
    assert p_value((exact * ROWS_EACH).round(), exact) > 0.9
    assert p_value((near * ROWS_EACH).round(), exact) < SMALLEST_P_VALUE
