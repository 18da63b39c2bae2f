"""Trees of drafts change nothing either: the tokens are those of plain decoding. Equality, not odds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from drafting import new_batch
from test_verify_drafts import operator_arguments

from ascend_sample.sampling import (
    RowStatus,
    SamplingParams,
    VerifiedDrafts,
    verify_drafts,
)
from ascend_sample.sampling.batch import MOST_PLANS
from ascend_sample.sampling.drafts.places import KeptPlaces
from ascend_sample.sampling.verify import MOST_KEPT

GREEDY = SamplingParams(temperature=0)


def verified_tree(
    logits: torch.Tensor, drafts: list[int], parents: list[int], device: str, params: SamplingParams = GREEDY
) -> VerifiedDrafts:
    """Verifies the drafts of one request."""
    batch = new_batch([params], [[]], logits.shape[1], device)
    given = (logits.to(device), torch.tensor(drafts, device=device), batch)
    return verify_drafts(*given, counts=[len(drafts)], parents=parents)


COUNTED = SamplingParams(temperature=0, frequency_penalty=1.0)
ENDING = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=[1])
BY_HAND: dict[str, tuple[torch.Tensor, SamplingParams, list[list[int]]]] = {
    # 0 leads to draft 2 (1 is wrong), that to 4, and there 3 follows.
    "the best": (
        torch.eye(5)[[2, 0, 1, 0, 3, 0]],
        GREEDY,
        [[1, 2, 4, 1, 0], [-1, 0, 0, 1, 2, 4], [2, 1, 3], [0, 2, 4]],
    ),
    # The third follows the second, which nobody comes to.
    "equal siblings": (torch.eye(4)[[1, 2, 3, 0]], GREEDY, [[1, 1, 3], [-1, 0, 0, 2], [1, 2], [0, 1]]),
    # Each 1 costs 1, so 1 wins twice and then 0. A sibling that is 1 too, and its 1, do not count.
    "penalties": (
        torch.tensor([[0.0, 1.5]] * 6),
        COUNTED,
        [[0, 1, 1, 1, 1], [-1, 0, 0, 1, 1, 2], [1, 1, 0], [0, 2, 5]],
    ),
    # The stop token 1 is the best, and allowed at the third place on the way, whatever its number is.
    "min_tokens": (torch.tensor([[0.0, 9.0, 1.0]] * 5), ENDING, [[0, 0, 2, 2], [-1, 0, 0, 0, 3], [2, 2, 1], [0, 3, 4]]),
}
"""Logits, the request; drafts, parents, and what comes of them: tokens and path."""


@pytest.mark.parametrize("case", BY_HAND)
def test_by_hand(case: str, device: str) -> None:
    logits, params, (drafts, parents, tokens, path) = BY_HAND[case]
    verified = verified_tree(logits, drafts, parents, device, params)
    assert [token for token in verified.token_ids[0].tolist() if token >= 0] == tokens
    assert verified.accepted.tolist() == [len(tokens) - 1]
    assert verified.path is not None
    assert [place for place in verified.path[0].tolist() if place >= 0] == path


def test_statuses_are_of_the_places_on_the_way(device: str) -> None:
    logits = torch.zeros(4, 3)
    logits[0, 1], logits[1, 2], logits[2] = torch.nan, torch.inf, -torch.inf  # the second is not reached
    verified = verified_tree(logits, [2, 0, 1], [-1, 0, 0, 1], device)
    assert verified.token_ids.tolist() == [[0, 0, -1]]
    assert verified.status.tolist() == [[RowStatus.NAN_SEEN, RowStatus.ALL_MASKED, RowStatus.OK]]


def test_each_call_has_a_tree_of_its_own(device: str) -> None:
    """Of the same batch and as many drafts."""
    batch = new_batch([GREEDY], [[]], 3, device)
    logits, drafts = torch.eye(3)[[1, 2, 0]].to(device), torch.tensor([1, 2]).to(device)
    for parents, tokens in (([-1, 0, 1], [1, 2, 0]), ([-1, 0, 0], [1, 2]), ([-1, 0, 1], [1, 2, 0])):
        verified = verify_drafts(logits, drafts, batch, counts=[2], parents=parents)
        assert verified.token_ids.tolist() == [tokens]


def test_trees_of_many_steps_do_not_pile_up() -> None:
    batch = new_batch([GREEDY], [[]], 3)
    for width in range(1, MOST_KEPT + 5):
        drafts = torch.zeros(width, dtype=torch.int64)
        verify_drafts(torch.zeros(width + 1, 3), drafts, batch, counts=[width], parents=[-1] + [0] * width)
    assert len(batch.plans.of(KeptPlaces, (), KeptPlaces)) == MOST_KEPT


def test_drafts_leave_the_number_of_plans_what_it_is() -> None:
    """A batch that has as many as it keeps: places are one of them."""
    batch = new_batch([GREEDY], [[]], 3)
    for step in range(MOST_PLANS + 5):
        batch.plans[step] = "a plan"
        if step >= MOST_PLANS:
            verify_drafts(torch.zeros(2, 3), torch.tensor([1]), batch, counts=[1])
    assert len(batch.plans) == MOST_PLANS


BAD = [
    ({"parents": [-1, 0, -1]}, ValueError, r"parents must be as many as there are places, 4, got 3\. A root has -1"),
    ({"parents": [0, 0, -1, 0]}, ValueError, "parents must be -1 .*, got 0 for place 0 of request 0"),
    (
        {"parents": [-1, 0, -1, 1]},
        ValueError,
        "parents must be .* an earlier place of it, got 1 for place 1 of request 1",
    ),
    ({"parents": [-1, -1, -1, 0]}, ValueError, "parents must be .*, got -1 for place 1 of request 0"),
    ({"parents": [-1.0, 0, -1, 0]}, TypeError, "parents must be ints"),
    ({"parents": np.array([-1, 0, -1, 0]).view(np.uint64)}, TypeError, "parents must be ints, got array"),
    ({"rule": "standard"}, ValueError, r"parents must be None for the rule 'standard', got a tree\. Its drafts are"),
    ({"rule": "block"}, ValueError, r"parents must be None for the rule 'block', got a tree\. Its drafts are chains"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD)
def test_bad_arguments(changes: dict[str, Any], error: type[Exception], message: str, device: str) -> None:
    """On devices nobody looks at them again, as the CPU's operator does."""
    batch = new_batch([SamplingParams()] * 2, [[], []], 5, device)
    logits, draft_ids = torch.zeros(4, 5, device=device), torch.tensor([1, 2], device=device)
    arguments = {"logits": logits, "draft_ids": draft_ids, "counts": [1, 1]}
    with pytest.raises(error, match=f"^verify_drafts: {message}"):
        verify_drafts(batch=batch, **arguments | {"parents": [-1, 0, -1, 0]} | changes)


def test_parents_on_a_device_are_refused(npu: str) -> None:
    with pytest.raises(ValueError, match="parents must be on the host, got a tensor on npu:0"):
        verified_tree(torch.zeros(2, 5), [1], torch.tensor([-1, 0]).to(npu), npu)  # type: ignore[arg-type]


PARENTS = torch.tensor([-1, 0, -1, -1, 0, 0])


def test_places_that_are_not_reached_are_not_read() -> None:
    """What is not on the way may lie in memory that nobody may read; here NaN would give another status."""
    arguments = operator_arguments() | {"parents": PARENTS}
    plain = torch.ops.ascend_sample.verify_drafts(**arguments | {"draft_ids": torch.full((3,), -1)})[0]
    arguments["draft_ids"] = torch.tensor([-1, -1, int(plain[3])])
    arguments["logits"][[1, 4]] = torch.nan
    token_ids, status, accepted = torch.ops.ascend_sample.verify_drafts(**arguments)
    torch.use_deterministic_algorithms(True)  # new memory is filled, so that what nobody writes shows
    try:
        again = torch.ops.ascend_sample.verify_drafts(**arguments)
    finally:
        torch.use_deterministic_algorithms(False)
    assert [each.tolist() for each in again] == [token_ids.tolist(), status.tolist(), accepted.tolist()]
    assert accepted.tolist() == [0, 0, 1]
    assert (token_ids == -1).tolist() == [False, True, False, False, True, False]
    assert status.tolist() == [0] * 6
