"""What a step of the sampler may cost on an NPU, in counts: launches, copies, synchronisations and memory.

The limits are asserted for CANN with the second operator, and for one with the first alone in a process of its own.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
import step_costs
from step_costs import BUDGETS, DTYPES, MOST_COPIES, ROUNDING, SIZES

import hostcann
from tests.support.warm_python import run_warm


def check(name: str, cost: dict[str, Any], times: int = 1) -> None:
    budget = BUDGETS[name]
    assert cost["launches"] <= times * budget.launches, (name, cost)
    assert cost["waits"] == 0, (name, cost)
    assert set(cost["copies"]) <= {"h2d"}, (name, cost)
    assert cost["copies"].get("h2d", 0) <= MOST_COPIES, (name, cost)


@pytest.mark.parametrize("name", BUDGETS)
def test_with_the_second_operator(counting: None, name: str) -> None:
    for batch_size, vocab_size, dtype in SIZES:
        cost = step_costs.measured(name, batch_size, vocab_size, DTYPES[dtype])
        check(name, cost)
        if batch_size == 64:
            assert cost["memory"] <= BUDGETS[name].memory * ROUNDING, cost


def test_with_the_first_operator_alone(counting: None) -> None:
    """Twice the launches at most."""
    here = Path(step_costs.__file__)
    path = os.pathsep.join([str(here.parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | hostcann.environment(without=["aclnnTopKTopPSampleV2"]) | {"PYTHONPATH": path}
    done = run_warm([str(here)], environment, here.parent, seconds=300)
    assert done.returncode == 0, done.stderr
    costs = json.loads(done.stdout.splitlines()[-1])
    for name, (batch_size, vocab_size, dtype) in itertools.product(BUDGETS, SIZES):
        check(name, costs[f"{name} {batch_size} {vocab_size} {dtype}"], times=2)


EXACT = {
    "top-k, top-p, temperature": (12, 11),
    "logprobs = 5, raw_logprobs": (31, 29),
    "logprobs = 5, processed_logprobs": (36, 34),
    "logprobs = 5 and 3 ids, raw_logprobs": (31, 29),
    "logprobs = 5 and 3 ids, processed_logprobs": (36, 34),
    "logprobs = 5, processed_logits": (34, 32),
}
"""Launches of bfloat16 and of float32 logits."""


def test_exact_launches(counting: None) -> None:
    for name, of_dtypes in EXACT.items():
        for dtype, launches in zip(("bfloat16", "float32"), of_dtypes, strict=True):
            assert step_costs.measured(name, 8, 32000, DTYPES[dtype])["launches"] == launches, name
    assert step_costs.measured("greedy", 8, 32000, DTYPES["bfloat16"])["copies"] == {}, "a greedy step makes no noise"
