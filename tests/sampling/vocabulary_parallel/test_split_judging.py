"""Drafts that were drawn, judged by ranks that have parts of the vocabulary: as whole logits judge them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from mixed_drafts import DraftCase, drawn_drafts, is_same, on_rank, split, whole
from mixed_rows import Case
from shard_ranks import Exchange, on_threads, part_of, shards_of

from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams, verify, verify_drafts
from ascend_sample.sampling.vocabulary_parallel import split_judging, split_steps
from tests.decoding.planting import Trap, noticed

RULES = ("standard", "block")


def check(drafts: DraftCase) -> int:
    """Returns how many drafts stay."""
    expected = whole(drafts)
    for rank, found in enumerate(split(drafts)):
        for step, (one, wanted) in enumerate(zip(found, expected, strict=True)):
            assert is_same(drafts, one, wanted), f"rank {rank}, step {step}: {drafts}"
    return int(expected[0].accepted.sum())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_find_what_whole_logits_give(rule: str, size: int) -> None:
    assert sum(check(drawn_drafts(51_000 + 100 * size + number, size, rule)) for number in range(16)) > 0


FILTERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "top-k": {"top_k": 30, "top_p": 0.95, "temperature": 0.8},
    "no filter": {},
    "min-p": {"min_p": 0.02},
    "top-p": {"top_p": 0.9},
}


def case_of(filters: dict[str, Any], rule: str, is_dense: bool = True, **edits: Any) -> DraftCase:
    """Drafts of eight requests, from a q near p: many of them stay."""
    vocab_size, counts = 2500, [3, 0, 4, 1, 4, 2, 0, 3]
    places, generator = sum(counts) + len(counts), torch.Generator().manual_seed(5)
    logits = (3 * torch.randn(places, vocab_size, generator=generator)).bfloat16()
    params = [SamplingParams(seed=row, **filters, **edits) for row in range(len(counts))]
    case = Case(logits, params, [[5, 6, 7]] * len(counts), None, (1300, 1210), {})
    ends = {sum(counts[: row + 1]) + row for row in range(len(counts))}
    of_drafts = [place for place in range(places) if place not in ends]
    q = (logits[of_drafts].float() + 0.5 * torch.randn(len(of_drafts), vocab_size, generator=generator)).softmax(1)
    ids = torch.multinomial(q, 1, generator=generator)[:, 0] if filters.get("temperature") != 0 else q.argmax(1)
    return DraftCase(case, counts, None, ids, rule, q if is_dense else None)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", FILTERS)
def test_each_kind_of_row_with_penalties_and_without(rule: str, kind: str) -> None:
    assert check(case_of(FILTERS[kind], rule)) > 0
    check(case_of(FILTERS[kind], rule, presence_penalty=1.5, repetition_penalty=1.3, logit_bias={3: 2.0}))
    check(case_of(FILTERS[kind], rule, is_dense=False))


def test_half_precision_rows_have_the_same_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit: a draft stays up to the same q, which is searched by halves of what floats there are."""
    monkeypatch.setattr(verify, "check_law", lambda *arguments: None)  # the search passes numbers beyond 1
    vocab_size, count = 1500, 24
    logits = (3 * torch.randn(2 * count, vocab_size, generator=torch.Generator().manual_seed(1))).half()
    drafts = logits[::2].argmax(1)

    def stays(logits: torch.Tensor, q: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        batch = SamplingBatch(vocab_size)
        batch.extend([SamplingParams(top_k=1024, seed=row) for row in range(count)])
        proposals = {"draft_probabilities": q.int().view(torch.float32)[:, None], "draft_candidates": drafts[:, None]}
        options: Any = {"counts": [1] * count, "rule": "standard", "sampler": sampler, **proposals}
        return verify_drafts(logits, drafts, batch, **options).accepted > 0

    least, most = torch.zeros(count, dtype=torch.int64), torch.full((count,), 0x7F7FFFFF)
    for _ in range(31):
        middle = (least + most) // 2
        is_kept = stays(logits, middle, Sampler())
        least, most = torch.where(is_kept, middle, least), torch.where(is_kept, most, middle)

    def on_rank(exchange: Exchange) -> list[list[bool]]:
        shard = shards_of((700, 800), vocab_size, exchange)
        sampler, part = Sampler(shard=shard), part_of(logits, shard)
        return [stays(part, q, sampler).tolist() for q in (least, least + 1)]

    assert on_threads(2, on_rank) == [[[True] * count, [False] * count]] * 2


def test_ties_that_are_kept() -> None:
    for top_k in (1, 5):
        case = case_of({"top_k": top_k}, "standard")
        equal = case.case._replace(logits=case.case.logits.clamp(max=4), options={"keep_ties": True})
        check(case._replace(case=equal))


@pytest.mark.parametrize("rule", RULES)
def test_requests_without_a_seed_get_the_first_ranks(rule: Any) -> None:
    def run(exchange: Exchange) -> list[list[int]]:
        batch = SamplingBatch(64, generator=torch.Generator().manual_seed(exchange.rank))
        batch.extend([SamplingParams(), SamplingParams(top_k=20)] * 4)
        sampler, found = Sampler(shard=shards_of((32, 32), 64, exchange)), []
        for _ in range(4):
            verified = verify_drafts(
                torch.zeros(24, 32), torch.arange(16), batch, counts=[2] * 8, rule=rule, sampler=sampler
            )
            verified.append_to(batch)
            found += verified.token_ids.tolist()
        return found

    first, second = on_threads(2, run)
    assert first == second


# ---- what travels ----

SAID = {
    # collectives beside the step's, bytes of a draft
    ("top-k", True): (1, 4 * 30),
    ("top-k", False): (0, 0),
    ("greedy", True): (1, 4),
    ("greedy", False): (0, 0),
    ("no filter", True): (1, 4 * 1300),
    ("no filter", False): (1, 0),
}


@pytest.mark.parametrize(("kind", "is_dense"), SAID)
def test_collectives_and_bytes(kind: str, is_dense: bool) -> None:
    collectives, of_draft = SAID[kind, is_dense]
    judged = case_of(FILTERS[kind], "standard", is_dense)
    places = 2 * 1300 * len(judged.case.logits) if kind == "no filter" else 0

    def run(exchange: Exchange, drafts: DraftCase) -> list[int]:
        return on_rank(drafts, exchange, steps=1)[1]

    matched = judged._replace(rule="match", probabilities=None)
    without = on_threads(2, lambda exchange: run(exchange, matched))[0]
    sent = on_threads(2, lambda exchange: run(exchange, judged))[0]
    assert len(sent) - len(without) == collectives
    assert sum(sent) - sum(without) <= len(judged.drafts) * of_draft + places + 8


# ---- wrong calls ----


WIDE = torch.ones(1, 64)


def call(exchange: Exchange, params: SamplingParams = SamplingParams(seed=1), **named: Any) -> None:  # noqa: B008
    batch, sampler = SamplingBatch(64), Sampler(shard=shards_of((32, 32), 64, exchange))
    batch.add(params)
    named = {"rule": "standard", **named}
    verify_drafts(torch.zeros(2, 32), torch.tensor([1]), batch, counts=[1], sampler=sampler, **named)


def test_wrong_calls() -> None:
    for says, params, named in (
        ("logprobs must be None under the rule 'standard' for a sampler", {"logprobs": 2}, {}),
        ("draft_probabilities must have a row for each draft, [1, 32], got [1, 64]", {}, {"draft_probabilities": WIDE}),
        ("parents must be None for the rule 'standard', got a tree", {}, {"parents": [-1, 0]}),
    ):
        with pytest.raises(ValueError, match="^verify_drafts: " + re.escape(says)):
            on_threads(2, lambda exchange, p=params, n=named: call(exchange, SamplingParams(seed=1, **p), **n))  # type: ignore


def test_devices_are_refused(npu: str) -> None:
    def run(exchange: Exchange) -> None:
        batch = SamplingBatch(64, npu)
        batch.add(SamplingParams(seed=1))
        sampler = Sampler(shard=shards_of((32, 32), 64, exchange))
        ids = torch.tensor([1]).to(npu)
        verify_drafts(torch.zeros(2, 32).to(npu), ids, batch, counts=[1], sampler=sampler, rule="block")

    says = "verify_drafts: rule must be 'match' for a sampler with a shard on a device, got 'block'"
    with pytest.raises(ValueError, match=says):
        on_threads(2, run)


LISTED = {"draft_probabilities": torch.full((1, 2), 0.5), "draft_candidates": torch.tensor([[1, 2]])}
DIFFERENT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"rule": "standard"}, {"rule": "block"}),
    ({}, {"draft_probabilities": torch.full((1, 32), 1 / 64)}),
    (LISTED, LISTED | {"draft_probabilities": torch.tensor([[0.25, 0.75]])}),
]


@pytest.mark.parametrize("asked", DIFFERENT)
def test_ranks_that_judge_by_something_else_are_named(asked: tuple[dict[str, Any], dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="another drafts on rank 1 than on rank 0"):
        on_threads(2, lambda exchange: call(exchange, **asked[exchange.rank]))


# ---- planted faults ----


def judges() -> None:
    for kind in FILTERS:
        check(case_of(FILTERS[kind], "standard"))
        check(case_of(FILTERS[kind], "block", presence_penalty=1.5))


def other_rules() -> None:
    test_ranks_that_judge_by_something_else_are_named(DIFFERENT[0])


def unseeded() -> None:
    test_requests_without_a_seed_get_the_first_ranks("standard")


OWN_SEEDS = "parameters.seed[some.places],"
TRAPS = (
    Trap("q of the rank's own ids", split_judging, "ids - own.start, torch", "ids, torch", judges),
    Trap("q of the first rank", split_judging, ".gather(0, owners.unsqueeze(0))[0]", "[0]", judges),
    Trap("q of other drafts", split_judging, "dense[whole.drafts, :", "dense[whole.drafts.flip(0), :", judges),
    Trap("drafts count twice", split_steps, "places.native_edits(", "split_edits_of(places, ", judges),
    Trap("the rule is not told", split_judging, "{self.rule} {", "{", other_rules),
    Trap("a rank's own seeds", split_judging, "seeds[some.places],", OWN_SEEDS, unseeded),
    Trap("drafts are matched", verify, 'if sampler.split is not None and rule != "match"', "if False", judges),
)

test_trap = noticed(TRAPS)
