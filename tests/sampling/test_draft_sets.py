"""Kept sets of verified drafts: by hand, as a trainer uses them, what they cost a device; and of a part of a batch."""

from __future__ import annotations

from typing import Any

import pytest
import run_draft_sets
import torch
from kept_rows import INF, KINDS, new_batch, params_of, rows_of

import hostcann
from ascend_sample.sampling import KeptSets, Sampler, SamplingBatch, SamplingParams, VerifiedDrafts, verify_drafts

GREEDY, TWO = {"temperature": 0.0}, {"top_k": 2}
ROWS = torch.tensor([[1.0, 2, 3, 4], [4, 3, 2, 1], [1, 4, 3, 2], [2, 1, 4, 3], [-INF] * 4, [4, 1, 1, 1]]).log()


def sets_of(verified: VerifiedDrafts) -> KeptSets:
    assert verified.kept is not None
    return KeptSets(*(tensor.cpu() for tensor in verified.kept))


@pytest.mark.parametrize("max_kept", [None, 2])
def test_chains_by_hand(device: str, max_kept: int | None) -> None:
    """The first request keeps one of two drafts, the second has none and does not ask, the last has no distribution."""
    batch = new_batch([params_of(**GREEDY), SamplingParams(seed=1), params_of()], 4, device)
    options: dict[str, Any] = {"counts": [2, 0, 1], "sampler": Sampler(max_kept=max_kept)}
    verified = verify_drafts(ROWS.to(device), torch.tensor([3, 2, 9], device=device), batch, **options)
    assert verified.accepted.tolist() == [1, 0, 0]
    kept = sets_of(verified)
    assert kept.offsets.tolist() == [0, 1, 2, 2, 2, 2, 2]
    assert kept.counts.tolist() == [1, 1, 0, 0, 0, 0]
    assert kept.ids[:2].tolist() == [3, 0]
    assert kept.logprobs[:2].tolist() == [0, 0]


@pytest.mark.parametrize("rule", ["match", "standard", "block"])
def test_every_rule_has_the_sets_of_what_is_reached(device: str, rule: str) -> None:
    """A draft that the filters drop is replaced by one of those that they keep."""
    batch = new_batch([params_of(**TWO), params_of(**TWO, temperature=0.5)], 4, device)
    verified = verify_drafts(ROWS[:4].to(device), torch.tensor([0, 1], device=device), batch, counts=[1, 1], rule=rule)
    assert verified.accepted[0] == 0
    kept = sets_of(verified)
    assert kept.of_row(0)[0].tolist() == [2, 3]
    torch.testing.assert_close(kept.of_row(0)[1].exp(), torch.tensor([3.0, 4]) / 7)
    assert kept.counts.tolist() == [2, 0, 2, 2 * int(verified.accepted[1])]
    assert kept.of_row(2)[0].tolist() == [1, 2]
    torch.testing.assert_close(kept.of_row(2)[1].exp(), torch.tensor([16.0, 9]) / 25)


def test_trees_by_hand(device: str) -> None:
    """The root gives 3, which the second of its drafts is; behind that comes 0, and nothing follows."""
    batch = new_batch([params_of(**GREEDY), params_of(**GREEDY)], 4, device)
    drafts = torch.tensor([2, 3, 1], device=device)
    verified = verify_drafts(ROWS[[0, 2, 1, 3, 2]].to(device), drafts, batch, counts=[3, 0], parents=[-1, 0, 0, 1, -1])
    assert verified.path is not None
    assert verified.path.tolist() == [[0, 2, -1], [0, -1, -1]]
    kept = sets_of(verified)
    assert kept.counts.tolist() == [1, 0, 1, 0, 1]
    assert kept.ids.tolist() == [3, 0, 1]


@pytest.mark.parametrize("number", range(16))
def test_what_a_trainer_makes_of_them(device: str, number: int) -> None:
    """Some batches of `run_draft_sets.py`."""
    if device == "cpu" or number < 6:
        found = run_draft_sets.try_batch(number, device)
        assert found.wrong == []
        assert found.tried > 0


@pytest.mark.long
def test_a_trainer_has_the_log_probabilities_of_100_000_tokens() -> None:
    tried = number = 0
    while tried < 100_000:
        found = run_draft_sets.try_batch(number, "cpu")
        assert found.wrong == []
        tried, number = tried + found.tried, number + 1


def test_nobody_asks(device: str) -> None:
    batch = new_batch([SamplingParams(seed=1)], 4, device)
    assert (
        verify_drafts(ROWS[:1].to(device), torch.tensor([], dtype=torch.int64, device=device), batch, counts=[0]).kept
        is None
    )
    empty = SamplingBatch(4, device)
    no_drafts = torch.empty(0, dtype=torch.int64, device=device)
    assert verify_drafts(torch.zeros(0, 4, device=device), no_drafts, empty, counts=[]).kept is None


@pytest.mark.parametrize(("parents", "launches"), [(None, 37), ((-1, 0, 0, 1), 41)])
def test_what_they_cost_a_device(counting: None, npu: str, parents: tuple[int, ...] | None, launches: int) -> None:
    """Launches beside a verification without them; with a bound nothing waits, and nothing more is sent."""
    totals, copies = [], []
    for asks in (False, True):
        params = [params_of(top_k=50, top_p=0.9, temperature=0.7, return_sampling_mask=asks) for _ in range(8)]
        batch, sampler = new_batch(params, 32_000, npu), Sampler(max_kept=50)
        tree = None if parents is None else [*parents] * 8
        with hostcann.null_kernels():
            logits = torch.empty(32, 32_000, dtype=torch.bfloat16, device=npu)
            drafts = torch.zeros(24, dtype=torch.int64, device=npu)
            options: dict[str, Any] = {"counts": [3] * 8, "parents": tree, "sampler": sampler}
            verify_drafts(logits, drafts, batch, **options)
            with hostcann.profile() as counted:
                verify_drafts(logits, drafts, batch, **options)
        assert counted.totals.waits == 0
        totals.append(counted.totals.launches)
        copies.append(dict(counted.copies))
    assert copies[0] == copies[1]
    assert totals[1] - totals[0] == launches, totals


def test_without_a_bound_a_verification_waits_once(counting: None, npu: str) -> None:
    batch, drafts = new_batch([params_of(top_k=50)], 3000, npu), torch.tensor([5], device=npu)
    logits = rows_of(2, 3000).to(npu)
    with hostcann.profile() as counted:
        verify_drafts(logits, drafts, batch, counts=[1])
    assert counted.totals.waits == 1


@pytest.mark.parametrize("with_drafts", [False, True])
def test_ranks_that_share_a_batch(device: str, with_drafts: bool) -> None:
    """Each rank samples every third request. Tables of a fixed size are what ranks gather, and then put in order."""
    names, most, ranks = [name for name in KINDS for _ in range(2)], 60, 3
    params = [params_of(seed=seed, **KINDS[name]) for seed, name in enumerate(names)]
    rows, count = (2 if with_drafts else 1), len(params)
    logits = rows_of(rows * count, 700).view(count, rows, 700).to(device)
    drafts = logits[:, 0].argmax(1)

    def tables(own: list[int]) -> list[torch.Tensor]:
        batch, sampler = new_batch([params[row] for row in own], 700, device), Sampler(max_kept=most)
        if with_drafts:
            options: dict[str, Any] = {"counts": [1] * len(own), "sampler": sampler}
            kept = verify_drafts(logits[own].flatten(0, 1), drafts[own], batch, **options).kept
        else:
            kept = sampler(logits[own, 0], batch).kept
        assert kept is not None
        return [each.view(len(own), rows, -1).cpu() for each in (*kept.padded(most), kept.counts)]

    owned = [[row for row in range(count) if row % ranks == rank] for rank in range(ranks)]
    gathered = [torch.cat(parts) for parts in zip(*map(tables, owned), strict=True)]
    order = torch.tensor([row for own in owned for row in own]).argsort()
    for found, expected in zip(gathered, tables([*range(count)]), strict=True):
        torch.testing.assert_close(found[order], expected, atol=0 if device == "cpu" else 1e-6, rtol=0)
