"""A verification of drafts in a graph: a replay is an eager pass, whatever requests ask for, and faults would show."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch
from test_static_edits import EDITS
from test_static_step import KINDS, RANKED, captured
from torch import Tensor

import hostcann
from ascend_sample.sampling import (
    KeptSets,
    SamplingBatch,
    SamplingParams,
    StaticVerification,
    VerifiedDrafts,
    verify_drafts,
)
from ascend_sample.sampling.edits.processing import words_of
from ascend_sample.sampling.sampler import Sampler

REQUESTS, DRAFTS, VOCAB_SIZE = 4, 3, 300
ROOM: dict[str, Any] = {"largest_k": 64, "addends": 6, "history": 60, "bitmask": True}
FOREIGN = (-1, -5, VOCAB_SIZE, 2**40)


def change(batch: SamplingBatch, choice: random.Random, kinds: list[dict[str, Any]], asks: bool) -> None:
    """Lets requests leave, move and join, and those leave whose history is full."""
    for row in reversed(range(len(batch))):
        if batch.host.position[row] >= 40 or choice.random() < 0.1:
            batch.remove(row)
    if len(batch) > 1 and choice.random() < 0.2:
        batch.reorder(choice.sample(range(len(batch)), len(batch)))
    while len(batch) < REQUESTS and (not len(batch) or choice.random() < 0.5):
        # What every list may have is wide enough: bans of the vocabulary of other tests do not exist here.
        edits = {name: value for name, value in choice.choice(EDITS).items() if name != "suppress_token_ids"}
        biases = {token: bias for token, bias in edits.pop("logit_bias", {}).items() if token < VOCAB_SIZE}
        allowed = {
            "allowed_token_ids": [token for token in edits.pop("allowed_token_ids", ()) if token < VOCAB_SIZE] or None
        }
        asked = {**choice.choice(kinds), **edits, **allowed, "logit_bias": biases}
        prompt = [choice.randrange(9) for _ in range(choice.randrange(9))]
        params = SamplingParams(**asked, seed=choice.getrandbits(64), return_sampling_mask=asks)
        batch.add(params, prompt[:4], output_ids=prompt[4:])


def random_pass(
    requests: int, choice: random.Random, candidates: int | None, is_drawn: bool, device: str
) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Any]]:
    """Logits with few likely tokens, drafts that are often right, what they were drawn from, and a bitmask at times.

    Of the logits some are NaN, +inf, -inf, of the drafts some no ids.
    """
    generator = torch.Generator().manual_seed(choice.getrandbits(32))
    places = requests * (DRAFTS + 1)
    logits = torch.randn(places, VOCAB_SIZE, generator=generator)
    logits[:, :12] += 7  # what requests have seen, too
    for value in (torch.nan, torch.inf, -torch.inf):
        if choice.random() < 0.1:
            logits[choice.randrange(places), choice.randrange(VOCAB_SIZE)] = value
    if choice.random() < 0.1:
        logits[choice.randrange(places)] = -torch.inf
    guessed = logits.nan_to_num(-20, 20, -20).view(requests, DRAFTS + 1, -1)[:, :DRAFTS].flatten(0, 1)
    q = (guessed + 0.5 * torch.randn(guessed.shape, generator=generator)).softmax(1)
    proposals: dict[str, Tensor] = {"draft_probabilities": q} if is_drawn else {}
    if candidates is not None:
        best = q.topk(candidates)
        among = best.values / best.values.sum(1, True)
        proposals = {"draft_candidates": best.indices, "draft_probabilities": among}
        q = torch.zeros_like(q).scatter_(1, best.indices, among)
    drafts = q.multinomial(1, generator=generator).flatten() if is_drawn else q.argmax(1)
    for place in range(len(drafts)):
        if choice.random() < 0.1:
            drafts[place] = choice.choice(FOREIGN)
    bitmask = {}
    if choice.random() < 0.3:
        words = torch.randint(-(2**31), 2**31, (2, places, words_of(VOCAB_SIZE)), generator=generator)
        bitmask = {"bitmask": (words[0] | words[1]).to(torch.int32)}
    there = {name: value.to(device) for name, value in proposals.items()}
    return logits.to(device, torch.bfloat16), drafts.to(device), there, bitmask


def lists_of(verified: VerifiedDrafts) -> list[list[Any]]:
    return [each.tolist() for each in verified[:3]]


def assert_same_sets(replayed: VerifiedDrafts, eager: VerifiedDrafts) -> None:
    """Those of an eager pass, in which a CPU's kernel has divided and added otherwise."""
    if replayed.kept is None or eager.kept is None:
        assert replayed.kept is eager.kept
        return
    found, expected = (KeptSets(*(tensor.cpu() for tensor in each.kept or ())) for each in (replayed, eager))
    assert found.counts.tolist() == expected.counts.tolist()
    for place in range(len(expected.counts)):
        assert found.of_row(place)[0].tolist() == expected.of_row(place)[0].tolist()
        torch.testing.assert_close(found.of_row(place)[1], expected.of_row(place)[1], atol=3e-6, rtol=0)


def assert_replays_are_eager_passes(passes: int, device: str, rule: str = "match", **options: Any) -> Counter[int]:
    """Replays passes of a batch that changes; returns how often so many drafts stayed."""
    is_drawn, candidates = options.get("is_drawn", False), options.get("candidates")
    step = StaticVerification(REQUESTS, DRAFTS, VOCAB_SIZE, torch.bfloat16, device, rule=rule, **(ROOM | options))
    replay = step.run if device == "cpu" else captured(step).replay
    sampler = Sampler(keep_ties=options.get("keep_ties", False), max_kept=options.get("max_kept"))
    batch, choice, stayed = SamplingBatch(VOCAB_SIZE, device), random.Random(1), Counter[int]()
    kinds = RANKED if options.get("only_top_k") else KINDS
    for number in range(passes):
        change(batch, choice, kinds, "max_kept" in options)
        logits, drafts, proposals, bitmask = random_pass(len(batch), choice, candidates, is_drawn, device)
        step.logits[: len(logits)].copy_(logits)
        step.draft_ids[: len(drafts)].copy_(drafts)
        for name, value in proposals.items():
            getattr(step, name)[: len(drafts)].copy_(value)
        step.prepare(batch, **bitmask)
        replay()
        replayed = step.verified(batch)
        given: dict[str, Any] = {"rule": rule, "sampler": sampler, **proposals, **bitmask}
        eager = verify_drafts(logits, drafts, batch, counts=[DRAFTS] * len(batch), **given)
        assert lists_of(replayed) == lists_of(eager), number
        assert_same_sets(replayed, eager)
        stayed.update(eager.accepted.tolist())
        replayed.append_to(batch)
    return stayed


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("match", {}),
        ("standard", {}),
        ("standard", {"is_drawn": True}),
        ("standard", {"is_drawn": True, "candidates": 5}),
        ("block", {"is_drawn": True}),
        ("match", {"only_top_k": True}),
        ("match", {"max_kept": 40}),
        ("standard", {"max_kept": 40}),
        ("standard", {"only_top_k": True}),
    ],
)
def test_replays_are_eager_passes(accelerator: str, rule: str, options: dict[str, Any]) -> None:
    stayed = assert_replays_are_eager_passes(60, accelerator, rule, **options)
    assert set(stayed) == set(range(DRAFTS + 1))


@pytest.mark.parametrize(
    ("rule", "options"),
    [("match", {"largest_k": VOCAB_SIZE}), ("standard", {}), ("match", {}), ("standard", {"keep_ties": True})],
)
def test_rows_that_are_sorted(device: str, rule: str, options: dict[str, Any]) -> None:
    assert_replays_are_eager_passes(20, device, rule, **options)


@pytest.mark.parametrize("rule", ["match", "standard"])
def test_copies_that_are_late(late: str, rule: str) -> None:
    assert_replays_are_eager_passes(8, late, rule)


def test_ties_are_kept(accelerator: str) -> None:
    """Of ten equal logits all are kept beside a top_k of 2: a draft stays once in ten times, not every second time."""
    batch = SamplingBatch(10, accelerator)
    batch.extend([SamplingParams(top_k=2, seed=seed) for seed in range(100)])
    step = StaticVerification(100, 1, 10, torch.float32, accelerator, rule="standard", keep_ties=True)
    step.draft_ids.zero_()
    step.prepare(batch)
    step.run()
    assert 2 <= int(step.accepted.sum()) <= 25


@pytest.mark.parametrize("rule", ["match", "standard", "block"])
def test_requests_with_fewer_drafts(device: str, rule: str) -> None:
    """What -1 ends gets what it gets with so many drafts, and a request that comes later gets its own noise."""
    counts = [3, 0, 2, 1]
    batch = SamplingBatch(VOCAB_SIZE, device)
    batch.extend([SamplingParams(top_k=4, seed=row) for row in range(4)])
    step = StaticVerification(4, DRAFTS, VOCAB_SIZE, torch.float32, device, rule=rule)
    logits = torch.randn(4, DRAFTS + 1, VOCAB_SIZE, generator=torch.Generator().manual_seed(2)).to(device)
    best = logits.argmax(2)
    is_draft = torch.arange(DRAFTS, device=device) < torch.tensor(counts, device=device).unsqueeze(1)
    is_place = torch.arange(DRAFTS + 1, device=device) <= torch.tensor(counts, device=device).unsqueeze(1)
    stayed = 0
    for position in range(20):
        batch.append(best[:, 0])
        step.prepare(batch)
        step.logits.copy_(logits.flatten(0, 1))
        step.draft_ids.copy_(torch.where(is_draft, best[:, :DRAFTS], -1).flatten())
        step.run()
        drafts = best[:, :DRAFTS][is_draft]
        expected = verify_drafts(logits[is_place], drafts, batch, counts=counts, rule=rule)
        assert lists_of(step.verified(batch)) == lists_of(expected), position
        stayed += int(expected.accepted.sum())
    assert 0 < stayed < 20 * sum(counts)


@pytest.mark.parametrize(
    ("rule", "copies", "launches"), [("match", {"h2d": 1}, {}), ("standard", {"h2d": 2}, {"aclnnInplaceCopy": 2})]
)
def test_nobody_waits(counting: None, npu: str, rule: str, copies: dict[str, int], launches: dict[str, int]) -> None:
    step, batch = StaticVerification(4, 2, 512, torch.bfloat16, npu, rule=rule), SamplingBatch(512, npu)
    batch.extend([SamplingParams(**kind, seed=1) for kind in KINDS[2:6]])
    graph = captured(step)
    step.prepare(batch)
    with hostcann.profile() as counted:
        step.prepare(batch)
        graph.replay()
    assert (dict(counted.launches), dict(counted.copies), counted.synchronizations) == (launches, copies, {})


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"logprobs": 0}, "batch must hold no request that asks for logprobs, got row 1. Verify its drafts outside of"),
        ({"return_sampling_mask": True}, "max_kept must be given where requests ask for kept sets, got None"),
        ({"no_repeat_ngram_size": 2}, "batch must hold no request with rules that look at its text, .*, got row 1"),
        ({"typical_p": 0.5}, "batch must have no .* that is on, got one on row 1. .* verify its drafts outside of"),
        ({"presence_penalty": 1.0}, "history must be 1 at least, for row 1 of the batch, got 0"),
        (
            {"suppress_token_ids": [1]},
            "addends must be 1 at least, for row 1 of the batch, got 0. .* verify its drafts outside",
        ),
        ({"allowed_token_ids": [1]}, "bitmask must be True at least, for row 1 of the batch, got False"),
        ({"top_k": 5}, "top_k must be at most 4, got 5"),
        (None, "batch must have at most 2 rows of 9 ids, got 3 of 9"),
    ],
)
def test_requests_that_are_refused(params: dict[str, Any] | None, message: str) -> None:
    batch = SamplingBatch(9)
    requests = [SamplingParams()] * 3 if params is None else [SamplingParams(), SamplingParams(**params)]
    batch.extend(requests, output_ids=[(), (5, 6, 7), ()][: len(requests)])
    with pytest.raises(ValueError, match=f"StaticVerification: {message}"):
        StaticVerification(2, 1, 9, torch.float32, "cpu", largest_k=4).prepare(batch)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"requests": 0}, ValueError, "requests must be at least 1, got 0"),
        ({"drafts": 0}, ValueError, "drafts must be at least 1, got 0"),
        ({"rule": "any"}, ValueError, "rule must be one of match, standard, block, got 'any'"),
        ({"is_drawn": 1}, TypeError, "is_drawn must be True or False, got int 1"),
        ({"is_drawn": True}, ValueError, "is_drawn must be False for the rule 'match'"),
        ({"rule": "block", "candidates": 3}, ValueError, "candidates must be None for drafts that were not drawn"),
        ({"rule": "block", "is_drawn": True, "candidates": 0}, ValueError, "candidates must be at least 1, got 0"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    given: dict[str, Any] = {"requests": 2, "drafts": 2, "vocab_size": 9, "dtype": torch.float32, "device": "cpu"}
    with pytest.raises(error, match=f"StaticVerification: {message}"):
        StaticVerification(**(given | arguments))


def test_no_requests(device: str) -> None:
    step, batch = StaticVerification(1, 3, 9, torch.float32, device, rule="block"), SamplingBatch(9, device)
    step.prepare(batch)
    step.run()
    verified = step.verified(batch)
    assert lists_of(verified) == [[], [], []]
    verified.append_to(batch)


def test_what_is_refused_while_a_graph_is_captured_leaves_nothing_behind(npu: str) -> None:
    """Places that were made then would never have been written."""
    batch, step = SamplingBatch(9, npu), StaticVerification(1, 3, 9, torch.float32, npu)
    batch.add(SamplingParams(temperature=0))
    says = "StaticVerification: logits must be on a device whose stream no graph captures"
    with pytest.raises(ValueError, match=says), torch.npu.graph(torch.npu.NPUGraph()):
        step.prepare(batch)
    drafts = torch.tensor([8, 7, 6], device=npu)
    logits = torch.eye(9)[[8, 7, 6, 5]].to(npu)
    assert verify_drafts(logits, drafts, batch, counts=[3]).token_ids.tolist() == [[8, 7, 6, 5]]
