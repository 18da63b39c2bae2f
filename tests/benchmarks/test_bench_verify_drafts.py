"""The benchmark of verified drafts: what it times is what it says, and its promises are judged."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from ascend_sample.sampling.reference.drafts import chances
from benchmarks import rejection_peer, step_rows
from benchmarks import verify_drafts as bench
from benchmarks.rejection_peer import Requests
from benchmarks.verify_drafts import CELLS, JUDGE, PEER, READ, REQUESTS, VERIFY


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "VOCAB_SIZE", 300)

    def rows(name: str, count: int, vocab_size: int) -> torch.Tensor:
        return 3 * torch.randn(count, vocab_size, generator=torch.Generator().manual_seed(5))

    monkeypatch.setattr(bench.distributions, "make", rows)
    monkeypatch.setattr(step_rows, "COLD_BYTES", 200_000)


def test_drafts_are_as_right_as_the_cell_says() -> None:
    for cell in CELLS:
        case = bench.make_case(cell)
        accepted = bench.call_of(cell, case)(case.logits).accepted
        if cell.rule == "match":
            assert accepted.tolist() == [cell.right] * REQUESTS
        else:
            assert REQUESTS < int(accepted.sum()) < bench.GAMMA * REQUESTS


def test_every_call_finds_the_rows_that_it_reaches_in_memory() -> None:
    """No two copies that calls take in turns are one, and together they are more than a cache holds."""
    logits = bench.make_case(CELLS[0]).logits
    for reached in (REQUESTS, 5 * REQUESTS):
        copies = step_rows.cold_copies(logits, reached)
        assert len({copy.data_ptr() for copy in copies}) == len(copies)
        assert (len(copies) + 1) * reached * logits[0].nbytes > step_rows.COLD_BYTES
        assert all(torch.equal(copy, logits) for copy in copies)


def test_cells_are_timed_and_judged() -> None:
    found = bench.run(seconds=0.01)
    assert json.loads(json.dumps(found)) == found
    records = {record["cell"]: record for record in found["records"]}
    assert set(records["match, all stay"]["results"]) == {VERIFY, READ, JUDGE, PEER}
    assert records["match, all stay"]["reached"] == 5 * REQUESTS
    assert set(records["block, dense q"]["results"]) == {VERIFY, READ}
    assert set(records["match, two stay in a tree of 8"]["results"]) == {VERIFY, READ}
    assert [gate["value"] is not None for gate in found["gates"]] == [True] * 4


def test_promises() -> None:
    def record(rule: str, **seconds: float) -> dict[str, Any]:
        names = {"verify": VERIFY, "read": READ, "judge": JUDGE, "peer": PEER}
        results = {names[name]: {"median": value} for name, value in seconds.items()}
        return {"cell": rule, "rule": rule, "disturbed": 0.0, "results": results}

    good = [
        record("match", verify=1.5, read=1.0, judge=9.0, peer=150.0),
        record("standard", verify=2.9, read=1.0, judge=20.0, peer=300.0),
    ]
    assert [gate.verdict for gate in bench.judge(good)] == ["pass"] * 4
    bad = [
        record("match", verify=1.7, read=1.0, judge=8.0, peer=150.0),
        record("standard", verify=3.1, read=1.0, judge=20.0, peer=400.0),
    ]
    assert [gate.verdict for gate in bench.judge(bad)] == ["FAIL"] * 4


def test_of_greedy_requests_the_peer_keeps_the_best_alone() -> None:
    """By hand: all stay, the second does not, and the first does not."""
    best = torch.tensor([[3, 1, 4], [3, 1, 4], [3, 1, 4]])
    logits = torch.nn.functional.one_hot(best.flatten(), 6) * 5.0
    drafts = torch.tensor([[3, 1], [3, 2], [0, 1]])
    requests = Requests(torch.zeros(3), torch.full((3,), 6))
    for proposals in (None, torch.full((6, 6), 1 / 6)):
        verified = rejection_peer.verify(logits, drafts.flatten(), proposals, requests)
        assert verified.tolist() == [[3, 1, 4], [3, 1, -1], [3, -1, -1]]


def test_the_peer_accepts_all_that_is_drawn_from_the_target_itself() -> None:
    logits = torch.randn(90, 40, generator=torch.Generator().manual_seed(1))
    requests = Requests(torch.full((30,), 0.7), torch.full((30,), 5))
    p = rejection_peer.probabilities(logits, Requests(*(each.repeat_interleave(3) for each in requests)))
    assert (p > 0).sum(1).tolist() == [5] * 90
    torch.testing.assert_close(p, logits.div(0.7).masked_fill(p == 0, -torch.inf).softmax(1))
    proposals = p.view(30, 3, 40)[:, :2].flatten(0, 1).contiguous()
    drafts = proposals.multinomial(1).flatten()
    verified = rejection_peer.verify(logits, drafts, proposals, requests)
    assert torch.equal(verified[:, :2].flatten(), drafts)
    assert (p.view(30, 3, 40)[:, 2].gather(1, verified[:, 2:]) > 0).all()


@pytest.mark.parametrize("is_drawn", [True, False])
def test_the_peers_tokens_have_the_targets_distribution(is_drawn: bool) -> None:
    """Of 40,000 requests with one draft: how often it stays, and the tokens at both places."""
    torch.manual_seed(3)
    count, p = 40_000, torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]])
    q = torch.tensor([0.2, 0.2, 0.3, 0.3]) if is_drawn else torch.tensor([0.0, 1.0, 0.0, 0.0])
    drafts = q.expand(count, -1).multinomial(1).flatten()
    proposals = q.expand(count, -1).contiguous() if is_drawn else None
    requests = Requests(torch.ones(count), torch.full((count,), 4))
    verified = rejection_peer.verify(p.log().repeat(count, 1), drafts, proposals, requests)
    first, second = ((verified[:, place].unsqueeze(1) == torch.arange(4)).float() for place in (0, 1))
    stays = float((verified[:, 1] >= 0).float().mean())
    expected = [
        q[x] * min(1.0, chances("standard", p.double().numpy(), [x], q[None].double().numpy())[0]) for x in range(4)
    ]
    assert stays == pytest.approx(float(sum(expected)), abs=0.015)  # six standard deviations are 0.015
    torch.testing.assert_close(first.mean(0), p[0], rtol=0, atol=0.015)
    torch.testing.assert_close(second.mean(0) / stays, p[1], rtol=0, atol=0.02)
