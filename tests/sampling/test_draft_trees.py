"""Trees of drafts change nothing either: the tokens are those of plain decoding. Equality, not odds."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from drafting import DRAFTERS, ToyModel, decoded, decoded_with_drafts, new_batch, random_params
from test_verify_drafts import DTYPES, operator_arguments

from ascend_sample.sampling import LogprobsMode, RowStatus, Sampler, SamplingBatch, SamplingParams, verify_drafts
from ascend_sample.sampling.batch import MOST_PLANS
from ascend_sample.sampling.drafts.arguments import NAME
from ascend_sample.sampling.verify import MOST_KEPT

GREEDY = SamplingParams(temperature=0)


@pytest.mark.parametrize(
    ("drafter", "with_grammar", "size"),
    [
        ("oracle", False, 1),
        ("oracle", False, 6),
        ("oracle", True, 1),
        ("oracle", True, 64),
        ("nonsense", False, 1),
        ("nonsense", True, 6),
        ("often_right", False, 64),
        ("often_right", True, 6),
        ("n_grams", False, 6),
        ("n_grams", True, 1),
        ("adversarial", False, 6),
        ("adversarial", True, 1),
    ],
)
def test_texts_are_those_of_plain_decoding(drafter: str, with_grammar: bool, size: int, device: str) -> None:
    is_quick = device != "cpu" or size == 64
    rng = random.Random(f"{drafter} {size} {with_grammar}")
    model = ToyModel(rng.choice((40, 300)), rng.choice(DTYPES), with_grammar)
    params = [random_params(rng, model.vocab_size) for _ in range(size)]
    prompts = [[rng.randrange(20) for _ in range(rng.randrange(1, 9))] for _ in range(size)]
    sampler = Sampler(keep_ties=rng.randrange(4) == 0)
    plain = decoded(model, params, prompts, 5 if is_quick else 12, sampler, device)
    texts, kept = decoded_with_drafts(
        model, params, prompts, plain, DRAFTERS[drafter], rng.choice((1, 3, 8)), rng, sampler, device, with_trees=True
    )
    assert [text[: len(whole)] for text, whole in zip(texts, plain, strict=True)] == plain
    assert kept > 0 or drafter != "oracle"


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


def test_by_hand(device: str) -> None:
    """The best token after a place is known: 0 leads to draft 2 (1 is wrong), that to 4, and there 3 follows."""
    best = [2, 0, 1, 0, 3, 0]
    logits = torch.nn.functional.one_hot(torch.tensor(best), 5).float().to(device)
    drafts = torch.tensor([1, 2, 4, 1, 0]).to(device)
    verified = verify_drafts(
        logits, drafts, new_batch([GREEDY], [[]], 5, device), counts=[5], parents=[-1, 0, 0, 1, 2, 4]
    )
    assert verified.token_ids.tolist() == [[2, 1, 3, -1]]
    assert verified.accepted.tolist() == [2]
    assert verified.path is not None
    assert verified.path.tolist() == [[0, 2, 4, -1]]


def test_of_equal_siblings_the_first_leads(device: str) -> None:
    logits = torch.eye(4)[[1, 2, 3, 0]].to(device)
    drafts = torch.tensor([1, 1, 3]).to(device)  # the third follows the second, which nobody comes to
    verified = verify_drafts(logits, drafts, new_batch([GREEDY], [[]], 4, device), counts=[3], parents=[-1, 0, 0, 2])
    assert verified.token_ids.tolist() == [[1, 2, -1]]
    assert verified.path is not None
    assert verified.path.tolist() == [[0, 1, -1]]


def test_penalties_count_what_leads_to_a_place_alone(device: str) -> None:
    """By hand: each 1 costs 1, so 1 wins twice and then 0. A sibling that is 1 too, and its 1, do not count."""
    params = SamplingParams(temperature=0, frequency_penalty=1.0)
    logits = torch.tensor([[0.0, 1.5]]).repeat(6, 1).to(device)
    drafts = torch.tensor([0, 1, 1, 1, 1]).to(device)
    parents = [-1, 0, 0, 1, 1, 2]
    verified = verify_drafts(logits, drafts, new_batch([params], [[]], 2, device), counts=[5], parents=parents)
    assert verified.token_ids.tolist() == [[1, 1, 0]]
    assert verified.path is not None
    assert verified.path.tolist() == [[0, 2, 5]]


def test_min_tokens_are_counted_by_depth(device: str) -> None:
    """The stop token 1 is the best, and allowed at the third place on the way, whatever its number is."""
    params = SamplingParams(temperature=0, min_tokens=2, stop_ids=[1])
    logits = torch.tensor([[0.0, 9.0, 1.0]]).repeat(5, 1).to(device)
    drafts = torch.tensor([0, 0, 2, 2]).to(device)
    batch = new_batch([params], [[]], 3, device)
    for _ in range(2):
        verified = verify_drafts(logits, drafts, batch, counts=[4], parents=[-1, 0, 0, 0, 3])
        assert verified.token_ids.tolist() == [[2, 2, 1]]


def test_statuses_are_of_the_places_on_the_way(device: str) -> None:
    logits = torch.zeros(4, 3)
    logits[0, 1] = torch.nan
    logits[1, 2] = torch.inf  # not reached
    logits[2] = -torch.inf
    verified = verify_drafts(
        logits.to(device),
        torch.tensor([2, 0, 1]).to(device),
        new_batch([GREEDY], [[]], 3, device),
        counts=[3],
        parents=[-1, 0, 0, 1],
    )
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
    batch = new_batch([SamplingParams()], [[]], 5, npu)
    with pytest.raises(ValueError, match="parents must be on the host, got a tensor on npu:0"):
        verify_drafts(
            torch.zeros(2, 5).to(npu),
            torch.tensor([1]).to(npu),
            batch,
            counts=[1],
            parents=torch.tensor([-1, 0]).to(npu),
        )


PARENTS = torch.tensor([-1, 0, -1, -1, 0, 0])
BAD_OF_THE_OPERATOR = [
    (PARENTS, 1, ValueError, "parents must be None for the rule 1, got a tensor"),
    (PARENTS.abs(), 0, ValueError, "parents must be -1 .*, got 1 for place 0 of request 0"),
    (torch.tensor([-1, 0, -1, -1, 0, 2]), 0, ValueError, "parents must be .*, got 2 for place 2 of request 2"),
    (torch.tensor([-1, -1, -1, -1, 0, 0]), 0, ValueError, "parents must be .*, got -1 for place 1 of request 0"),
]


@pytest.mark.parametrize(("parents", "rule", "error", "message"), BAD_OF_THE_OPERATOR)
def test_bad_arguments_of_the_operator(parents: torch.Tensor, rule: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"verify_drafts: {message}"):
        torch.ops.ascend_sample.verify_drafts(**operator_arguments() | {"parents": parents, "rule": rule})


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
