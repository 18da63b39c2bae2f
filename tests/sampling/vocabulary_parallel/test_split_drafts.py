"""Drafts that ranks verify together: what `verify_drafts` gives for logits that are not split, bit for bit."""

from __future__ import annotations

import re
from typing import Any

import pytest
import run_split_rows
import torch
from mixed_drafts import DraftCase, check_split, continued, drawn_drafts, on_rank, random_drafts, whole
from mixed_rows import Case
from shard_ranks import on_threads, shards_of

from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams, verify_drafts
from ascend_sample.sampling.vocabulary_parallel import Exchange


def test_ranks_find_what_whole_logits_give() -> None:
    """Some passes of `make test-shards`, of chains and of trees, on 1 to 8 ranks."""
    for number in range(10):
        assert run_split_rows.try_drafts(number).wrong == []


@pytest.mark.parametrize("is_tree", [False, True])
def test_on_devices(npu: str, is_tree: bool) -> None:
    check_split(random_drafts(88_000, 2, is_tree=is_tree), npu)


@pytest.mark.parametrize("widths", [(1000, 1010), (1, 700, 1299)])
def test_penalties(widths: tuple[int, ...]) -> None:
    """Drafts that repeat themselves and what was seen, of all kinds of rows."""
    vocab_size, counts = 2000, [4] * 8
    logits = torch.randn(40, vocab_size, generator=torch.Generator().manual_seed(4)).round()
    logits[:, :12] += 6  # what was seen is likely again
    filters: list[dict[str, Any]] = [
        *({"temperature": 0.0}, {"top_k": 30}, {}, {"min_p": 0.05}, {"top_p": 0.9}),
        *({"top_k": 1100, "top_p": 0.8}, {"top_k": 30, "logprobs": 2}, {"temperature": 0.0, "logprobs": 1}),
    ]
    penalties = {"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.3}
    params = [SamplingParams(**{"seed": row, **penalties, **each}) for row, each in enumerate(filters)]
    case = Case(logits, params, [[5, 6, 7]] * 8, None, widths, {})
    drafts = DraftCase(case, counts, None, torch.zeros(sum(counts), dtype=torch.int64))
    for _ in range(4):  # until all drafts are right
        drafts = drafts._replace(drafts=continued(drafts, whole(drafts, steps=1)[0]))
    assert check_split(drafts) == sum(counts)


def test_winners_travel() -> None:
    """All places of a pass share the collectives of a step, whatever is accepted."""
    counts, vocab_size = [4, 0, 3, 4], 20_000
    places = sum(counts) + len(counts)
    logits = 3 * torch.randn(places, vocab_size, generator=torch.Generator().manual_seed(1)).bfloat16()
    for asked, collectives, bytes_of_place in (
        ({"temperature": 0.0}, 1, 8),
        ({"top_k": 50, "presence_penalty": 0.5, "repetition_penalty": 1.2}, 1, 8 * 50 + 4),
        ({}, 2, 2 * 255 + 18),
        ({"min_p": 0.1}, 2, 2 * 255 + 18),
    ):
        params = SamplingParams(**{"seed": 1, **asked})  # type: ignore[arg-type]
        case = Case(logits, [params] * len(counts), [[1]] * len(counts), None, (vocab_size // 2,) * 2, {})
        drafts = DraftCase(case, counts, None, torch.arange(sum(counts)))

        def run(exchange: Exchange, drafts: DraftCase = drafts) -> list[int]:
            first = len(on_rank(drafts, exchange, steps=1)[1])
            return on_rank(drafts, exchange, steps=2)[1][first:]  # without what is compared when the batch is new

        for sent in on_threads(2, run):
            assert len(sent) <= collectives
            assert sum(sent) <= (60 + 8) * collectives + places * bytes_of_place


def seedless(exchange: Exchange, rule: Any) -> list[list[int]]:
    batch = SamplingBatch(64, generator=torch.Generator().manual_seed(exchange.rank))
    batch.extend([SamplingParams(), SamplingParams(top_k=20)] * 4)
    sampler, found = Sampler(shard=shards_of((32, 32), 64, exchange)), []
    for step in range(4):
        if step % 2:  # an ordinary step between passes draws with the same seeds
            found.append(sampler(torch.zeros(8, 32), batch).token_ids.tolist())
            continue
        options: Any = {"counts": [2] * 8, "rule": rule, "sampler": sampler}
        verified = verify_drafts(torch.zeros(24, 32), torch.arange(16), batch, **options)
        verified.append_to(batch)
        found += verified.token_ids.tolist()
    return found


@pytest.mark.parametrize("rule", ["match", "standard"])
def test_requests_without_a_seed_get_the_first_ranks(rule: str) -> None:
    first, second = on_threads(2, lambda exchange: seedless(exchange, rule))
    assert first == second
    assert len({token for tokens in first for token in tokens}) > 15


# ---- drafts that were drawn ----

FILTERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "top-k": {"top_k": 30, "top_p": 0.95, "temperature": 0.8},
    "no filter": {},
    "min-p": {"min_p": 0.02},
    "top-p": {"top_p": 0.9},
}


def case_of(filters: dict[str, Any], rule: str) -> DraftCase:
    """Drafts of eight requests, from a q near p: many of them stay."""
    vocab_size, counts = 2500, [3, 0, 4, 1, 4, 2, 0, 3]
    places, generator = sum(counts) + len(counts), torch.Generator().manual_seed(5)
    logits = (3 * torch.randn(places, vocab_size, generator=generator)).bfloat16()
    params = [SamplingParams(seed=row, **filters) for row in range(len(counts))]
    case = Case(logits, params, [[5, 6, 7]] * len(counts), None, (1300, 1210), {})
    drafts = DraftCase(case, counts, None, torch.zeros(sum(counts), dtype=torch.int64), rule)
    of_drafts = [place for place in range(places) if place not in drafts.ends]
    q = (logits[of_drafts].float() + 0.5 * torch.randn(len(of_drafts), vocab_size, generator=generator)).softmax(1)
    ids = torch.multinomial(q, 1, generator=generator)[:, 0] if filters.get("temperature") != 0 else q.argmax(1)
    return drafts._replace(drafts=ids, probabilities=q)


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_ranks_judge_as_whole_logits_do(rule: str) -> None:
    accepted = sum(check_split(drawn_drafts(51_000 + number, 1 + number % 4, rule)) for number in range(12))
    assert accepted > 0


def test_drafts_that_were_drawn_on_devices(npu: str) -> None:
    """Chains of which whole logits are gathered there, too."""
    check_split(drawn_drafts(51_001, 2, "standard"), npu)
    assert check_split(case_of(FILTERS["top-k"] | {"logprobs": 2}, "block"), npu) > 0


@pytest.mark.parametrize("kind", FILTERS)
def test_each_kind_of_row_is_judged(kind: str) -> None:
    """With penalties and without, from a q of all ids and from none; rows that have ties kept."""
    dense = case_of(FILTERS[kind], "standard")
    assert check_split(dense) > 0
    check_split(dense._replace(probabilities=None))
    check_split(case_of(FILTERS[kind] | {"presence_penalty": 1.5, "repetition_penalty": 1.3}, "block"))
    equal = dense.case._replace(logits=dense.case.logits.clamp(max=4), options={"keep_ties": True})
    check_split(dense._replace(case=equal))


# ---- ranks that differ, and wrong calls ----

LISTED = {"draft_probabilities": torch.full((3, 2), 0.5), "draft_candidates": torch.tensor([[1, 2]] * 3)}


def call(exchange: Exchange, steps: int = 1, **named: Any) -> None:
    """Two requests of 64 ids with three drafts; the last of several steps has what is named, the others do not."""
    batch, sampler = SamplingBatch(64), Sampler(shard=shards_of((32, 32), 64, exchange))
    batch.extend([SamplingParams(seed=1)] * 2)
    for step in range(steps):
        own: dict[str, Any] = {"counts": [2, 1], "drafts": [3, 4, 5], "width": 32}
        own |= named if step == steps - 1 else {}
        ids, logits = torch.tensor(own.pop("drafts")), torch.zeros(5, own.pop("width"))
        verify_drafts(logits, ids, batch, sampler=sampler, **own)


@pytest.mark.parametrize(
    ("what", "steps", "asked"),
    [
        ("drafts", 1, ({}, {"drafts": [3, 4, 6]})),
        ("drafts", 2, ({}, {"drafts": [3, 4, 6]})),
        ("position and drafts", 1, ({}, {"counts": [1, 2]})),
        ("drafts", 1, ({"rule": "standard"}, {"rule": "block"})),
        ("drafts", 1, ({"rule": "block"}, {"rule": "block", "draft_probabilities": torch.full((3, 32), 1 / 64)})),
        (
            "drafts",
            1,
            [{"rule": "block", **LISTED, "draft_candidates": torch.tensor([[1, 2 + r]] * 3)} for r in (0, 1)],
        ),
    ],
)
def test_ranks_that_verify_something_else_are_named(what: str, steps: int, asked: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match=f"another {what} on rank 1 than on rank 0"):
        on_threads(2, lambda exchange: call(exchange, steps, **asked[exchange.rank]))


@pytest.mark.parametrize(
    ("says", "named"),
    [
        ("logits must have the shape of the places, [5, 32]", {"width": 64}),
        (
            "draft_probabilities must have a row for each draft, [3, 32], got [3, 64]",
            {"rule": "standard", "draft_probabilities": torch.ones(3, 64)},
        ),
        ("parents must be None for the rule 'block', got a tree", {"rule": "block", "parents": [-1, 0, 0, -1, 0]}),
    ],
)
def test_wrong_calls(says: str, named: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="^verify_drafts: " + re.escape(says)):
        on_threads(2, lambda exchange: call(exchange, **named))
