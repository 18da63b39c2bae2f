"""Verified drafts change nothing: the tokens are those of plain decoding, whatever is proposed. Equality, not odds."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from typing import Any

import pytest
import run_drafts
import torch
from drafting import new_batch, random_params
from native_rows import Request, keys, lists, make_logits
from step_costs import BUDGETS, MOST_COPIES, PENALTIES

import hostcann
from ascend_sample.sampling import LogprobsMode, RowStatus, Sampler, SamplingBatch, SamplingParams, verify_drafts
from ascend_sample.sampling.edits.processing import words_of
from ascend_sample.sampling.requests.params import DEFAULTS

NO_DRAFTS = torch.empty(0, dtype=torch.int64)


@pytest.mark.parametrize("as_tree", [False, True])
@pytest.mark.parametrize("mode", LogprobsMode)
def test_logprobs_are_those_of_plain_decoding(mode: LogprobsMode, as_tree: bool, device: str) -> None:
    """Bit for bit, as tokens and statuses are; in chains, which may be given as trees."""
    rng = random.Random(5)
    params = [replace(random_params(rng, 50), logprobs=logprobs) for logprobs in (1, None, 3, 0)]
    logits, sampler = torch.randn(4, 4, 50).to(device), Sampler(mode.value)
    batch, drafted = (new_batch(params, [[7, 8]] * 4, 50, device) for _ in range(2))
    steps = [sampler(logits[:, place].contiguous(), batch) for place in range(4)]
    drafts = torch.stack([step.token_ids for step in steps[:3]], 1)
    drafts[2, 1] = -1  # the third request keeps one draft
    options: dict[str, Any] = {"counts": [3] * 4, "parents": [-1, 0, 1, 2] * 4 if as_tree else None}
    verified = verify_drafts(logits.flatten(0, 1), drafts.flatten(), drafted, sampler=sampler, **options)
    assert verified.accepted.tolist() == [3, 3, 1, 3]
    assert (verified.path is not None) == as_tree
    found = verified.logprobs
    assert found is not None
    assert found.rows == [0, 1, 2, 3, *range(8, 16)]
    for request, place in itertools.product(range(4), range(4)):
        if request == 2 and place > 1:
            continue  # not reached
        step = steps[place]
        assert verified.token_ids[request, place] == step.token_ids[request]
        assert verified.status[request, place] == step.status[request]
        assert not as_tree or verified.path[request, place] == place
        if request != 1:
            assert step.logprobs is not None
            number, of_step = found.rows.index(4 * request + place), step.logprobs.rows.index(request)
            pairs = zip(found[1:], step.logprobs[1:], strict=True)
            assert all(torch.equal(one[number], its[of_step]) for one, its in pairs)


def test_statuses_are_of_the_places_that_are_reached(device: str) -> None:
    logits = torch.zeros(5, 3)
    logits[0, 1] = torch.nan
    logits[1] = -torch.inf
    logits[2, 0] = torch.inf
    logits[4, 2] = torch.nan
    batch = new_batch([SamplingParams(temperature=0)] * 2, [[], []], 3, device)
    verified = verify_drafts(logits.to(device), torch.tensor([0, 0, 2]).to(device), batch, counts=[2, 1])
    assert verified.token_ids.tolist() == [[0, 0, 0], [0, -1, -1]]
    assert verified.status.tolist() == [[RowStatus.NAN_SEEN, RowStatus.ALL_MASKED, RowStatus.INF_SEEN], [0, 0, 0]]


def test_the_batch_stays_as_it_is_until_tokens_are_appended(device: str) -> None:
    """Also where `min_tokens` end among the drafts, which takes another list of addends for the call."""
    params = SamplingParams(
        temperature=0, min_tokens=2, stop_token_ids=[1], suppress_token_ids=[0], presence_penalty=0.5
    )
    batch = new_batch([params], [[]], 4, device)
    logits = torch.tensor([[9.0, 3.0, 2.0, 1.0]]).repeat(4, 1).to(device)
    taken = set()
    for _ in range(4):
        verified = verify_drafts(logits, torch.tensor([2, 2, 1]).to(device), batch, counts=[3])
        assert verified.token_ids.tolist() == [[2, 2, 1, 1]]  # 2 - 0.5 is still above 1; then 1 is allowed
        assert batch.host.position.tolist() == [0]
        assert batch.host.min_tokens_left.tolist() == [2]
        taken.add(batch.slot_bytes)
    assert len(taken) == 1  # what a call takes it gives back
    verified.append_to(batch, accepted=[3])
    assert batch.host.position.tolist() == [4]
    assert batch.host.min_tokens_left.tolist() == [0]
    assert batch.position.tolist() == [4]
    processed = batch.process(torch.zeros(1, 4, device=device))
    assert processed is not None
    assert processed.logits.tolist() == [[-math.inf, -0.5, -0.5, 0.0]]


def test_penalties_count_the_drafts_before_a_place(device: str) -> None:
    """By hand: each copy of id 1 costs 1, so that 0 wins at the third place alone; and drafts behind do not count."""
    batch = new_batch([SamplingParams(temperature=0, frequency_penalty=1.0)], [[]], 2, device)
    logits = torch.tensor([[0.0, 1.5]]).repeat(3, 1).to(device)
    assert verify_drafts(logits, torch.tensor([1, 1]).to(device), batch, counts=[2]).token_ids.tolist() == [[1, 1, 0]]


def test_no_requests(device: str) -> None:
    batch = SamplingBatch(5, device)
    verified = verify_drafts(torch.zeros(0, 5, device=device), NO_DRAFTS.to(device), batch, counts=[])
    assert verified.token_ids.shape == (0, 1)
    verified.append_to(batch)


def test_who_gets_the_tokens() -> None:
    batch = new_batch([SamplingParams()] * 2, [[], []], 5, "cpu")
    verified = verify_drafts(torch.zeros(4, 5), torch.tensor([1, 2]), batch, counts=[1, 1])
    with pytest.raises(ValueError, match="accepted must be less than the tokens of a request, 2, got 2"):
        verified.append_to(batch, accepted=[2, 0])
    with pytest.raises(ValueError, match="accepted must be at most 2147483647, got 9223372036854775807"):
        verified.append_to(batch, accepted=[2**63 - 1, 0])
    with pytest.raises(TypeError, match="batch must be a SamplingBatch, got NoneType"):
        verified.append_to(None)  # type: ignore[arg-type]
    assert batch.position.tolist() == [0, 0]


def drawn(probabilities: torch.Tensor) -> dict[str, Any]:
    return {"rule": "block", "draft_probabilities": probabilities}


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"counts": [1]}, ValueError, "counts must be as many as the batch has requests, 2, got 1"),
    ({"batch": None}, TypeError, "batch must be a SamplingBatch, got NoneType"),
    ({"counts": [-1, 2]}, ValueError, "counts must be at least 0, got -1"),
    ({"counts": [0.5, 1]}, TypeError, "counts must be ints"),
    ({"counts": 1}, TypeError, "counts must be ints, got 1"),
    ({"counts": [2**70, 1]}, TypeError, "counts must be ints"),
    ({"counts": [2**62, 1]}, ValueError, "counts must be at most 2147483647, got 4611686018427387904"),
    ({"sampler": 5}, TypeError, "sampler must be a Sampler, got int"),
    ({"logits": torch.zeros(2, 5)}, ValueError, r"logits must have the shape of the places, \[4, 5\]"),
    ({"logits": torch.zeros(4, 8)}, ValueError, r"got \[4, 8\]\. Cut the padding off, as with logits\[:, :5\]"),
    ({"logits": torch.zeros(4, 5).double()}, TypeError, "logits must be float32"),
    ({"draft_ids": torch.zeros(2)}, TypeError, "draft_ids must be an int64 tensor"),
    ({"draft_ids": torch.tensor([1])}, ValueError, r"draft_ids must have the shape of the counts' sum, \[2\]"),
    ({"sampler": Sampler(host=True)}, ValueError, "sampler must have host=False"),
    ({"rule": "any"}, ValueError, "rule must be one of match, standard, block, got 'any'"),
    ({"draft_probabilities": torch.zeros(2, 5)}, ValueError, "draft_probabilities must be None for the rule 'match'"),
    (
        drawn(torch.zeros(2, 6)),
        ValueError,
        r"a row for each draft, \[2, 5\], got \[2, 6\].* draft_probabilities\[:, :5\]",
    ),
    (drawn(torch.zeros(2, 5).double()), TypeError, "draft_probabilities must be a tensor of torch.float32"),
    ({"rule": "block", "draft_candidates": torch.zeros(2, 3).long()}, ValueError, "draft_candidates must come with"),
    ({"bitmask": torch.zeros(2, 1, dtype=torch.int32)}, ValueError, r"bitmask must have the shape \[4, 1\]"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD)
def test_bad_arguments(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    batch = new_batch([SamplingParams()] * 2, [[], []], 5)
    given: dict[str, Any] = {"logits": torch.zeros(4, 5), "draft_ids": torch.tensor([1, 2]), "counts": [1, 1]}
    with pytest.raises(error, match=message):
        verify_drafts(**given | {"batch": batch} | changes)


def operator_arguments() -> dict[str, Any]:
    """Three requests with 1, 0 and 2 drafts."""
    requests = [Request(1.0, 5, 0.9), Request(0.7, 0, 1.0, 0.05), *[Request(0.0)] * 4]
    tensors = {"draft_ids": torch.tensor([3, 1, -7]), "ends": torch.tensor([2, 3, 6])}
    return {"logits": make_logits(6, 40, torch.bfloat16), **tensors, **lists(requests), **keys(6)}


def test_places_that_are_not_reached_are_not_read() -> None:
    """What follows a rejected draft may lie in memory that nobody may read; here NaN would give another status."""
    arguments = operator_arguments()
    arguments["logits"][4:] = torch.nan
    token_ids, status, accepted = torch.ops.ascend_sample.verify_drafts(
        **arguments | {"draft_ids": torch.full((3,), -1)}
    )
    assert accepted.tolist() == [0, 0, 0]
    assert (token_ids == -1).tolist() == [False, True, False, False, True, True]
    assert status.tolist() == [0] * 6


COUNT = 4
"""Drafts of a request."""
SHAPES = ((None, 10), ((-1, 0, 0, 1, 3), 14 + 3))
"""Parents, and launches that a verification may take beside those of a step; of trees one more for each level."""
OF_PENALTIES_BY_PLACE = 2
"""Launches that it takes to count drafts before places, for penalties."""


@pytest.mark.parametrize("name", BUDGETS)
def test_launches(counting: None, name: str) -> None:
    """Nothing waits, and nothing more is sent than in a step. Kernels are dropped: counts do not depend on numbers."""
    budget, requests, vocab_size = BUDGETS[name], 8, 32_000
    batch, sampler = SamplingBatch(vocab_size, "npu"), Sampler(budget.logprobs_mode)
    batch.extend([params for params, _ in zip(itertools.cycle(budget.requests), range(requests), strict=False)])
    changed = {name for one in budget.requests for name, of in one.to_mapping().items() if of != DEFAULTS.get(name)}
    places = requests * (COUNT + 1)
    bitmask = None if budget.bitmask is None else torch.full((places, words_of(vocab_size)), -1, dtype=torch.int32)
    if bitmask is not None and budget.bitmask == "there":
        bitmask = bitmask.npu()
    with hostcann.null_kernels():
        logits = torch.empty(places, vocab_size, dtype=torch.bfloat16, device="npu")
        drafts = torch.zeros(requests * COUNT, dtype=torch.int64, device="npu")
        for parents, most in SHAPES:
            tree = None if parents is None else [*parents] * requests
            options: dict[str, Any] = {"counts": [COUNT] * requests, "parents": tree, "sampler": sampler}
            verify_drafts(logits, drafts, batch, bitmask=bitmask, **options)
            with hostcann.profile() as counted:
                verify_drafts(logits, drafts, batch, bitmask=bitmask, **options)
            of_penalties = OF_PENALTIES_BY_PLACE * bool(PENALTIES.keys() & changed)
            assert counted.totals.launches <= budget.launches + most + of_penalties, parents
            assert counted.totals.waits == 0
            assert set(counted.copies) <= {"h2d"}
            assert counted.copies.get("h2d", 0) <= MOST_COPIES


def test_texts_are_those_of_plain_decoding(device: str) -> None:
    """Some batches of `make test-drafts`: any requests, grammars, drafters, in chains and in trees."""
    found = [run_drafts.try_batch(number, device) for number in range(20 if device == "cpu" else 6)]
    assert [outcome.wrong for outcome in found] == [[]] * len(found)
    assert sum(outcome.noted for outcome in found) > 0
