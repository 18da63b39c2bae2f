"""Speculative sampling is exact: the joint distribution of the first tokens is the target's, by enumeration."""

from __future__ import annotations

import pytest
import torch

from ascend_sample.decoding.model import StepModel
from ascend_sample.decoding.speculation.adaptive_gamma import AdaptiveGamma
from ascend_sample.decoding.speculation.drafters import Drafter, NGramDrafter
from ascend_sample.decoding.speculation.speculative import speculative_sample
from ascend_sample.sampling.drafts.arguments import Rule
from tests.decoding.speculation.speculative_worlds import (
    SMALLEST_P_VALUE,
    TOKENS,
    World,
    counts_of,
    exact_joint,
    make_worlds,
    p_value,
    rows_of,
    table_model,
)

ROWS_EACH = 4000


def assert_exact(
    worlds: list[World], gamma: int | AdaptiveGamma, drafter: Drafter | None, rows_each: int, rule: Rule = "standard"
) -> None:
    rows = rows_of(worlds, rows_each)
    draft: StepModel | Drafter = drafter or table_model(torch.stack([world.draft for world in worlds]))
    output = speculative_sample(
        table_model(torch.stack([world.target for world in worlds])),
        rows.input_ids,
        attention_mask=rows.attention_mask,
        encoder={"world": rows.world},
        drafter=draft,
        params=rows.params,
        gamma=gamma,
        max_new_tokens=rows.max_new_tokens,
        rule=rule,
    )
    assert output.lengths.equal(rows.max_new_tokens)
    for number, world in enumerate(worlds):
        exact = exact_joint(world.target, world.params, world.prompt)
        counts = counts_of(output.sequences[rows.world == number, :TOKENS])
        assert counts.sum() == rows_each
        assert p_value(counts, exact) > SMALLEST_P_VALUE, world.name


@pytest.mark.parametrize("gamma", [1, 2, 4])
def test_joint_distribution_is_the_targets(gamma: int) -> None:
    assert_exact(make_worlds(), gamma, None, ROWS_EACH)


@pytest.mark.parametrize("gamma", [1, 3])
def test_joint_distribution_with_a_deterministic_drafter(gamma: int) -> None:
    assert_exact(make_worlds(), gamma, NGramDrafter(longest=2), ROWS_EACH // 2)


@pytest.mark.parametrize("rule", ["match", "block"])
def test_joint_distribution_by_other_rules(rule: Rule) -> None:
    """By block a draft that goes has decided with those that stay: the next round must not know of it."""
    assert_exact(make_worlds(), 3, None, ROWS_EACH, rule)


def test_joint_distribution_by_block_with_a_deterministic_drafter() -> None:
    assert_exact(make_worlds(), 3, NGramDrafter(longest=2), ROWS_EACH, "block")


def test_joint_distribution_with_adaptive_gamma() -> None:
    assert_exact(make_worlds(), AdaptiveGamma(4, cost=0.1), None, ROWS_EACH // 2)


def test_the_test_has_power() -> None:
    """Draws from the draft's distribution do not pass for the target's."""
    world = make_worlds()[1]
    exact = exact_joint(world.target, world.params, world.prompt)
    near = exact_joint(world.draft, world.params, world.prompt)
    assert p_value((exact * ROWS_EACH).round(), exact) > 0.9
    assert p_value((near * ROWS_EACH).round(), exact) < SMALLEST_P_VALUE
