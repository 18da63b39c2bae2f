"""What a step of each strategy may ask of an NPU beyond its model: launches, copies, and one wait where it may end.

The budget is 20 launches for greedy search and sampling, and 40 for the others, at 8 prompts with 4 beams each. What is
beyond that is held where it is, with the reason; docs/decoding.md says so too.
"""

from __future__ import annotations

import pytest
import torch

from ascend_sample import hostcann
from tests.decoding import launch_counts
from tests.decoding.launch_counts import RUNS

VOCAB_SIZE = 32000

WITHIN = {
    "greedy_search": 20,
    "sample, greedy rows": 20,
    "sample, top-k": 20,
    "sample, top-k, top-p, temperature": 20,
    "sample, no filter": 20,
    "contrastive_search": 40,
    "beam_search, pool": 40,
    "beam_search, in_beam": 40,
    "beam_sample": 40,
    "speculative_sample, greedy, gamma 1": 40,
    "speculative_sample, greedy, gamma 4": 40,
}
BEYOND = {
    # The sampler takes 18 of them, its own budget being 28.
    "sample, top-p": (21, 20),
    # 11 of them filter the log-probabilities of whole rows.
    "beam_sample, top-k, temperature": (50, 40),
    # Each group waits for what the groups before it have chosen.
    "group_beam_search, 2 groups": (71, 40),
    "group_beam_search, 4 groups": (132, 40),
    # 27 look for the last tokens in the text.
    "speculative_sample, greedy, n-grams": (59, 40),
    # Two distributions a place are compared, and two tokens drawn after them: one stays.
    "speculative_sample, drawn, gamma 1": (68, 40),
    "speculative_sample, drawn, gamma 4": (80, 40),
    "speculative_sample, drawn, n-grams": (90, 40),
}
DRAWS = ("sample, top", "sample, no filter", "beam_sample", "speculative_sample, drawn")
"""Beginnings of the names of what draws, and therefore needs noise."""


@pytest.fixture
def counting(npu: str) -> None:
    if not hostcann.is_active():
        pytest.skip("the emulated device counts, a real one does not")


def check(name: str, limit: int, reads: float) -> None:
    cost = launch_counts.cost_of(name, VOCAB_SIZE)
    assert cost.launches <= limit, cost
    assert (cost.d2h, cost.waits) == (1, reads), "it asks once whether all rows are done, and waits for nothing else"
    assert cost.h2d == (1 if name.startswith(DRAWS) else 0), "noise alone is sent, in one copy that nobody waits for"


@pytest.fixture
def waits_of_one_read(counting: None, npu: str) -> int:
    value = torch.ones(1, device=npu)
    with hostcann.profile() as counters:
        value.item()
    return counters.totals.waits


@pytest.mark.parametrize("name", WITHIN)
def test_within_the_budget(waits_of_one_read: int, name: str) -> None:
    check(name, WITHIN[name], waits_of_one_read)


@pytest.mark.parametrize("name", BEYOND)
def test_beyond_the_budget_and_no_further(waits_of_one_read: int, name: str) -> None:
    limit, budget = BEYOND[name]
    check(name, limit, waits_of_one_read)
    assert limit > budget, "it belongs among those within"


def test_each_run_has_its_limit() -> None:
    assert set(RUNS) == {*WITHIN, *BEYOND}
