"""Drafts that ranks verify together: what `verify_drafts` gives for logits that are not split, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mixed_drafts import DraftCase, continued, is_same, on_cpu, on_rank, random_drafts, split, whole
from mixed_rows import Case
from shard_ranks import Exchange, on_threads, part_of, shards_of

from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams, verify, verify_drafts
from ascend_sample.sampling.drafts import places as draft_places
from ascend_sample.sampling.vocabulary_parallel import drafted_rows, local_rows
from tests.decoding.planting import Trap, noticed


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("is_tree", [False, True])
def test_ranks_find_what_whole_logits_give(size: int, is_tree: bool) -> None:
    accepted = 0
    for number in range(5):
        drafts = random_drafts(77_000 + 100 * size + number, size, is_tree=is_tree)
        expected = whole(drafts)
        for rank, found in enumerate(split(drafts)):
            for step, (one, wanted) in enumerate(zip(found, expected, strict=True)):
                assert is_same(drafts, one, wanted), f"case {number}, rank {rank}, step {step}: {drafts}"
        accepted += int(expected[0].accepted.sum())
    assert accepted > 0


@pytest.mark.parametrize("is_tree", [False, True])
def test_on_devices(npu: str, is_tree: bool) -> None:
    for number in range(2):
        drafts = random_drafts(88_000 + number, 2, is_tree=is_tree)
        expected = whole(drafts, device=npu)
        for found in split(drafts, device=npu):
            for one, wanted in zip(found, expected, strict=True):
                assert is_same(drafts, on_cpu(one), on_cpu(wanted)), number


SAID = {
    # collectives of a pass, bytes of a place
    "greedy": (SamplingParams(temperature=0), 1, 8),
    "top-k": (SamplingParams(top_k=50, seed=1), 1, 8 * 50),
    "top-k and penalties": (SamplingParams(top_k=50, seed=1, presence_penalty=0.5, repetition_penalty=1.2), 1, 8 * 50),
    "no filter": (SamplingParams(seed=1), 1, 92),
    "min-p": (SamplingParams(min_p=0.1, seed=1), 2, 4 + 92),
}


@pytest.mark.parametrize("kind", SAID)
def test_winners_travel(kind: str) -> None:
    """All places of a pass share the collectives of a step, whatever is accepted."""
    params, collectives, bytes_of_place = SAID[kind]
    counts, vocab_size = [4, 0, 3, 4], 20_000
    places = sum(counts) + len(counts)
    logits = 3 * torch.randn(places, vocab_size, generator=torch.Generator().manual_seed(1)).bfloat16()
    case = Case(logits, [params] * len(counts), [[1]] * len(counts), None, (vocab_size // 2,) * 2, {})
    drafts = DraftCase(case, counts, None, torch.arange(sum(counts)))

    def run(exchange: Exchange) -> list[int]:
        first = len(on_rank(drafts, exchange, steps=1)[1])
        return on_rank(drafts, exchange, steps=2)[1][first:]  # without what is compared when the batch is new

    for sent in on_threads(2, run):
        assert len(sent) <= collectives
        assert sum(sent) <= (60 + 8) * collectives + places * (bytes_of_place + 1)  # a status


def test_ranks_with_other_drafts_are_named() -> None:
    def run(exchange: Exchange, counts: list[list[int]], drafts: list[list[int]], steps: int) -> None:
        shard = shards_of((32, 32), 64, exchange)
        batch, sampler = SamplingBatch(64), Sampler(shard=shard)
        batch.extend([SamplingParams(seed=1)] * 2)
        for step in range(steps):
            own = exchange.rank if step == steps - 1 else 0
            ids = torch.tensor(drafts[own])
            verify_drafts(torch.zeros(len(ids) + 2, 32), ids, batch, counts=counts[own], sampler=sampler)

    for steps in (1, 2):
        with pytest.raises(ValueError, match="another drafts on rank 1 than on rank 0"):
            on_threads(2, lambda exchange, steps=steps: run(exchange, [[2, 1]] * 2, [[3, 4, 5], [3, 4, 6]], steps))  # type: ignore[misc]
    with pytest.raises(ValueError, match="another position and drafts on rank 1 than on rank 0"):
        on_threads(2, lambda exchange: run(exchange, [[2, 1], [1, 2]], [[3, 4, 5]] * 2, 1))


def test_requests_without_a_seed_get_the_first_ranks() -> None:
    def run(exchange: Exchange) -> list[list[int]]:
        batch = SamplingBatch(64, generator=torch.Generator().manual_seed(exchange.rank))
        batch.extend([SamplingParams()] * 8)
        sampler, found = Sampler(shard=shards_of((32, 32), 64, exchange)), []
        for step in range(4):
            if step % 2:  # an ordinary step between passes draws with the same seeds
                found.append(sampler(torch.zeros(8, 32), batch).token_ids.tolist())
                continue
            ids = torch.arange(16)
            verified = verify_drafts(torch.zeros(24, 32), ids, batch, counts=[2] * 8, sampler=sampler)
            verified.append_to(batch)
            found += verified.token_ids.tolist()
        return found

    first, second = on_threads(2, run)
    assert first == second
    assert len({token for tokens in first for token in tokens}) > 15


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_a_rank_alone_judges_drafts_that_were_drawn(rule: Any) -> None:
    generator = torch.Generator().manual_seed(2)
    logits, ids = torch.randn(12, 50, generator=generator), torch.randint(50, (8,), generator=generator)
    proposed = torch.randn(8, 50, generator=generator).softmax(1)

    def verified(sampler: Sampler, logits: torch.Tensor, proposed: torch.Tensor) -> list[list[int]]:
        batch = SamplingBatch(50)
        batch.extend([SamplingParams(seed=row) for row in range(4)])
        found = verify_drafts(
            logits, ids, batch, counts=[2] * 4, rule=rule, draft_probabilities=proposed, sampler=sampler
        )
        return found.token_ids.tolist()

    def run(exchange: Exchange) -> list[list[int]]:
        shard = shards_of((64,), 50, exchange)
        return verified(Sampler(shard=shard), part_of(logits, shard), part_of(proposed, shard))

    assert on_threads(1, run) == [verified(Sampler(), logits, proposed)]


def test_wrong_calls() -> None:
    def run(exchange: Exchange, **named: Any) -> None:
        batch, sampler = SamplingBatch(64), Sampler(shard=shards_of((32, 32), 64, exchange))
        batch.add(SamplingParams(seed=1))
        width = named.pop("width", 32)
        verify_drafts(torch.zeros(2, width), torch.tensor([1]), batch, counts=[1], sampler=sampler, **named)

    with pytest.raises(ValueError, match=r"verify_drafts: logits must have the shape of the places, \[2, 32\]"):
        on_threads(2, lambda exchange: run(exchange, width=64))
    with pytest.raises(ValueError, match="verify_drafts: batch must have the vocabulary of the shard, 64, got 65"):
        on_threads(
            1,
            lambda exchange: verify_drafts(
                torch.zeros(0, 64),
                torch.empty(0, dtype=torch.int64),
                SamplingBatch(65),
                counts=[],
                sampler=Sampler(shard=shards_of((64,), 64, exchange)),
            ),
        )


def check_penalties() -> None:
    """Drafts that repeat themselves and what was seen, of all kinds of rows."""
    vocab_size, counts = 2000, [4] * 8
    places = sum(counts) + len(counts)
    logits = torch.randn(places, vocab_size, generator=torch.Generator().manual_seed(4)).round()
    logits[:, :12] += 6  # what was seen is likely again
    filters: list[dict[str, Any]] = [
        *({"temperature": 0.0}, {"top_k": 30}, {}, {"min_p": 0.05}, {"top_p": 0.9}),
        *({"top_k": 1100, "top_p": 0.8}, {"top_k": 30, "logprobs": 2}, {"temperature": 0.0, "logprobs": 1}),
    ]
    params = [
        SamplingParams(seed=row, presence_penalty=1.5, frequency_penalty=0.5, repetition_penalty=1.3, **each)
        for row, each in enumerate(filters)
    ]
    for widths in ((1000, 1010), (1, 700, 1299)):
        case = Case(logits, params, [[5, 6, 7]] * 8, None, widths, {})
        drafts = DraftCase(case, counts, None, torch.zeros(sum(counts), dtype=torch.int64))
        for _ in range(4):  # until all drafts are right
            drafts = drafts._replace(drafts=continued(drafts, whole(drafts, steps=1)[0]))
        expected = whole(drafts)
        assert int(expected[0].accepted.sum()) == sum(counts)
        for found in split(drafts):
            assert all(is_same(drafts, *each) for each in zip(found, expected, strict=True))


def check_trees() -> None:
    for number in range(4):
        drafts = random_drafts(99_000 + number, 2, is_tree=True)
        for found in split(drafts):
            assert all(is_same(drafts, *each) for each in zip(found, whole(drafts), strict=True))


TRAPS = (
    Trap(
        "penalties without the drafts before a place",
        draft_places,
        "codes = codes + 2 * (ids.unsqueeze(2)",
        "codes = codes + 0 * (ids.unsqueeze(2)",
        check_penalties,
    ),
    Trap(
        "lists end before what they have", draft_places, "order = (codes == 0)", "order = (codes != 0)", check_penalties
    ),
    Trap(
        "gathered rows have no penalties",
        local_rows,
        'return others | {\n        "penalties"',
        'return others if len(held) else {\n        "penalties"',
        check_penalties,
    ),
    Trap(
        "a place has the penalties of its neighbour",
        draft_places,
        'own_slots[torch.from_numpy(places)] = torch.arange(len(places), device="cpu")',
        'own_slots[torch.from_numpy(places)] = torch.arange(len(places), device="cpu").roll(1)',
        check_penalties,
    ),
    Trap(
        "other drafts unnoticed",
        drafted_rows,
        "rows.padded.numpy().tobytes() + rows.layout.before.tobytes() + judging",
        "b''",
        test_ranks_with_other_drafts_are_named,
    ),
    Trap(
        "drafts are compared in another order",
        verify,
        "split.status, places.padded, split",
        "split.status, places.padded.flip(0), split",
        check_trees,
    ),
)

test_trap = noticed(TRAPS)
