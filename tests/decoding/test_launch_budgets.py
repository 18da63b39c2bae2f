"""What a step of each strategy may ask of an NPU beyond its model: launches, copies, and one wait where it may end.

The budget is 20 launches for greedy search and sampling, and 40 for the others, at 8 prompts with 4 beams each. What is
asked for is held exactly, and what is beyond its budget is named with the reason; docs/decoding.md says so too.
"""

from __future__ import annotations

import pytest

from tests.decoding import launch_counts
from tests.decoding.launch_counts import RUNS, waits_of_one_read

VOCAB_SIZE = 32000

FEW, MORE = 20, 40
LAUNCHES = {
    "greedy_search": (5, FEW),
    "sample, greedy rows": (9, FEW),
    "sample, top-k": (10, FEW),
    "sample, top-k, top-p, temperature": (14, FEW),
    "sample, no filter": (19, FEW),
    "sample, top-p": (20, FEW),
    "contrastive_search": (36, MORE),
    "beam_search, pool": (33, MORE),
    "beam_search, in_beam": (37, MORE),
    "beam_sample": (38, MORE),
    "beam_sample, top-k, temperature": (40, MORE),
    "group_beam_search, 2 groups": (69, MORE),
    "group_beam_search, 4 groups": (130, MORE),
    "speculative_sample, greedy, gamma 1": (30, MORE),
    "speculative_sample, greedy, gamma 4": (36, MORE),
    "speculative_sample, greedy, n-grams": (40, MORE),
    "speculative_sample, drawn, gamma 1": (67, MORE),
    "speculative_sample, drawn, gamma 4": (79, MORE),
    "speculative_sample, drawn, n-grams": (73, MORE),
}
"""What each asks for, and its budget."""
BEYOND = (
    "group_beam_search",  # each group waits for what the groups before it have chosen
    "speculative_sample, drawn",  # two distributions a place are compared, and two tokens drawn after: one stays
)
"""Beginnings of the names of what misses its budget."""
DRAWS = ("sample, top", "sample, no filter", "beam_sample", "speculative_sample, drawn")
"""Beginnings of the names of what draws, and therefore needs noise."""


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches_and_what_else_a_step_asks_for(counting: None, npu: str, name: str) -> None:
    cost = launch_counts.cost_of(name, VOCAB_SIZE)
    assert cost.launches == LAUNCHES[name][0], cost
    assert (cost.d2h, cost.waits) == (1, waits_of_one_read()), "it asks once if all rows are done, and waits no more"
    assert cost.h2d == (1 if name.startswith(DRAWS) else 0), "noise alone is sent, in one copy that nobody waits for"


@pytest.mark.parametrize("name", [name for name in LAUNCHES if not name.startswith("speculative")])
def test_where_nothing_can_end_early_nothing_is_read(
    counting: None, npu: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_counts, "_common", lambda steps: {"max_new_tokens": steps})
    cost = launch_counts.cost_of(name, VOCAB_SIZE)
    assert (cost.d2h, cost.waits) == (0, 0)
    if name in ("greedy_search", "sample, top-k", "sample, no filter"):
        # Log-probabilities that come at the end must be right whatever the logits were, which takes more launches.
        assert cost.launches == LAUNCHES[name][0] + 5


def test_rounds_without_drafts_wait_no_more(counting: None, npu: str) -> None:
    _, cost = launch_counts.counted(launch_counts.speculative(0, launch_counts.DRAWN), 100)
    assert (cost.d2h, cost.waits, cost.h2d) == (1, waits_of_one_read(), 1)


def test_each_run_has_its_count_and_what_misses_its_budget_is_named() -> None:
    assert set(RUNS) == set(LAUNCHES)
    missing = {name for name, (launches, budget) in LAUNCHES.items() if launches > budget}
    assert missing == {name for name in LAUNCHES if name.startswith(BEYOND)}
