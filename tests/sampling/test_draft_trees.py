"""Trees of drafts change nothing either: the tokens are those of plain decoding. Equality, not odds."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from drafting import new_batch, random_params
from test_verify_drafts import operator_arguments

from ascend_sample.sampling import (
    LogprobsMode,
    RowStatus,
    Sampler,
    SamplingBatch,
    SamplingParams,
    VerifiedDrafts,
    verify_drafts,
)
from ascend_sample.sampling.batch import MOST_PLANS
from ascend_sample.sampling.drafts.arguments import NAME
from ascend_sample.sampling.verify import MOST_KEPT

GREEDY = SamplingParams(temperature=0)


def verified_tree(
    logits: torch.Tensor, drafts: list[int], parents: list[int], device: str, params: SamplingParams = GREEDY
) -> VerifiedDrafts:
    """Verifies the drafts of one request."""
    batch = new_batch([params], [[]], logits.shape[1], device)
    given = (logits.to(device), torch.tensor(drafts, device=device), batch)
    return verify_drafts(*given, counts=[len(drafts)], parents=parents)


@pytest.mark.parametrize("mode", LogprobsMode)
def test_a_chain_that_is_given_as_a_tree_is_the_chain(mode: LogprobsMode, device: str) -> None:
    """Bit for bit: tokens, counts, statuses and logprobs."""
    rng = random.Random(7)
    counts = [3, 0, 1, 4, 2]
    params = [replace(random_params(rng, 50), logprobs=rng.choice((None, 0, 2))) for _ in counts]
    logits = torch.randn(sum(counts) + len(counts), 50).to(torch.bfloat16)
    logits[rng.randrange(len(logits)), 7] = torch.nan
    drafts = torch.randint(50, (sum(counts),))
    parents = [place - 1 for count in counts for place in range(count + 1)]
    sampler = Sampler(mode.value)
    for _ in range(3):
        batch = new_batch(params, [[1, 2]] * len(counts), 50, device)
        given = (logits.to(device), drafts.to(device), batch)
        as_chain, as_tree = (
            verify_drafts(*given, counts=counts, parents=one, sampler=sampler) for one in (None, parents)
        )
        assert as_chain.path is None
        assert all(map(torch.equal, as_chain[:3], as_tree[:3]))
        assert as_chain.logprobs is not None
        assert as_tree.logprobs is not None
        assert as_chain.logprobs.rows == as_tree.logprobs.rows
        first_place, compared = 0, []
        for count, accepted in zip(counts, as_chain.accepted.tolist(), strict=True):
            compared += range(first_place, first_place + accepted + 1)
            first_place += count + 1
        rows = [number for number, row in enumerate(as_chain.logprobs.rows) if row in compared]
        for of_chain, of_tree in zip(as_chain.logprobs[1:], as_tree.logprobs[1:], strict=True):
            assert torch.equal(of_chain[rows], of_tree[rows])
        reached = as_chain.token_ids >= 0
        columns = torch.arange(reached.shape[1], device=device).expand_as(reached)
        assert torch.equal(as_tree.path, columns.where(reached, -1))
        first_draft = 0
        for count, accepted, tokens in zip(
            counts, as_chain.accepted.tolist(), as_chain.token_ids.tolist(), strict=True
        ):
            if accepted < count:  # the next time one more stays
                drafts[first_draft + accepted] = tokens[accepted]
            first_draft += count
    assert as_chain.accepted.sum() >= 6


def one_hot(ids: list[int], vocab_size: int) -> torch.Tensor:
    return torch.eye(vocab_size)[ids]


COUNTED, ENDING = (
    SamplingParams(temperature=0, frequency_penalty=1.0),
    SamplingParams(temperature=0, min_tokens=2, stop_ids=[1]),
)
BY_HAND: dict[str, tuple[torch.Tensor, list[int], list[int], SamplingParams, list[int], list[int]]] = {
    # 0 leads to draft 2 (1 is wrong), that to 4, and there 3 follows.
    "the best": (
        one_hot([2, 0, 1, 0, 3, 0], 5),
        [1, 2, 4, 1, 0],
        [-1, 0, 0, 1, 2, 4],
        GREEDY,
        [2, 1, 3, -1],
        [0, 2, 4, -1],
    ),
    # The third follows the second, which nobody comes to.
    "equal siblings": (one_hot([1, 2, 3, 0], 4), [1, 1, 3], [-1, 0, 0, 2], GREEDY, [1, 2, -1], [0, 1, -1]),
    # Each 1 costs 1, so 1 wins twice and then 0. A sibling that is 1 too, and its 1, do not count.
    "penalties": (
        torch.tensor([[0.0, 1.5]]).repeat(6, 1),
        [0, 1, 1, 1, 1],
        [-1, 0, 0, 1, 1, 2],
        COUNTED,
        [1, 1, 0],
        [0, 2, 5],
    ),
    # The stop token 1 is the best, and allowed at the third place on the way, whatever its number is.
    "min_tokens": (
        torch.tensor([[0.0, 9.0, 1.0]]).repeat(5, 1),
        [0, 0, 2, 2],
        [-1, 0, 0, 0, 3],
        ENDING,
        [2, 2, 1],
        [0, 3, 4],
    ),
}
"""Logits, drafts, parents and the request; tokens and path. The best token after a place is known."""


@pytest.mark.parametrize("case", BY_HAND)
def test_by_hand(case: str, device: str) -> None:
    logits, drafts, parents, params, tokens, path = BY_HAND[case]
    verified = verified_tree(logits, drafts, parents, device, params)
    assert verified.token_ids.tolist() == [tokens]
    assert verified.accepted.tolist() == [sum(place > 0 for place in path)]
    assert verified.path is not None
    assert verified.path.tolist() == [path]


def test_statuses_are_of_the_places_on_the_way(device: str) -> None:
    logits = torch.zeros(4, 3)
    logits[0, 1], logits[1, 2], logits[2] = torch.nan, torch.inf, -torch.inf  # the second is not reached
    verified = verified_tree(logits, [2, 0, 1], [-1, 0, 0, 1], device)
    assert verified.token_ids.tolist() == [[0, 0, -1]]
    assert verified.status.tolist() == [[RowStatus.NAN_SEEN, RowStatus.ALL_MASKED, RowStatus.OK]]


def test_no_drafts_and_no_requests(device: str) -> None:
    batch = new_batch([GREEDY] * 2, [[], []], 3, device)
    none = torch.empty(0, dtype=torch.int64, device=device)
    verified = verify_drafts(torch.eye(3)[:2].to(device), none, batch, counts=[0, 0], parents=[-1, -1])
    assert verified.token_ids.tolist() == [[0], [1]]
    assert verified.accepted.tolist() == [0, 0]
    empty = verify_drafts(torch.zeros(0, 3, device=device), none, SamplingBatch(3, device), counts=[], parents=[])
    assert empty.path is not None
    assert empty.path.shape == (0, 1)


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
    assert len(batch.plans[NAME]) == MOST_KEPT


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
