"""What a step of each strategy may ask of an NPU beyond its model: launches, copies, and one wait where it may end.

The budget is 20 launches for greedy search and sampling, and 40 for the others, at 8 prompts with 4 beams each. What is
asked for is held exactly, and what is beyond its budget is named with the reason; docs/decoding.md says so too.
"""

from __future__ import annotations

import pytest

from tests.decoding.launch_counts import DRAWN, RUNS, Run, counted, waits_of_one_read

VOCAB_SIZE = 32000
BEYOND = (
    "group_beam_search",  # each group waits for what the groups before it have chosen
    "speculative_sample, drawn",  # `verify_drafts` judges requests of any kind
)
"""Beginnings of the names of what misses its budget."""


@pytest.mark.parametrize("name", RUNS)
def test_launches_and_what_else_a_step_asks_for(counting: None, npu: str, name: str) -> None:
    run = RUNS[name]
    cost = counted(run, VOCAB_SIZE)[1]
    assert cost.launches == run.launches, cost
    assert (run.launches > run.budget) == name.startswith(BEYOND)
    assert (cost.d2h, cost.waits) == (1, waits_of_one_read()), "it asks once if all rows are done, and waits no more"
    assert cost.h2d == run.sent, "nobody waits for what is sent"
    if run.strategy == "speculative_sample":
        return
    cost = counted(run._replace(eos_token_id=()), VOCAB_SIZE)[1]
    assert (cost.d2h, cost.waits) == (0, 0), "where nothing can end early nothing is read"
    if name in ("greedy_search", "sample, top-k", "sample, no filter"):
        # Log-probabilities that come at the end must be right whatever the logits were, which takes more launches.
        assert cost.launches == run.launches + 5


def test_rounds_without_drafts_wait_no_more(counting: None, npu: str) -> None:
    cost = counted(Run("speculative_sample", {"params": DRAWN, "gamma": 0}, 0, drafts_by_model=True), 100)[1]
    assert (cost.d2h, cost.waits, cost.h2d) == (1, waits_of_one_read(), 2)
