"""Rules that look at a request's text: n-grams that must not come again, DRY, bad words of several ids."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import NoBadWordsLogitsProcessor, NoRepeatNGramLogitsProcessor

import hostcann
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams, verify_drafts
from ascend_sample.sampling.edits import text_rules
from ascend_sample.sampling.edits.text_rules import TextRules, longest_match, penalty_of
from ascend_sample.sampling.reference.distribution import forbidden_ids, forced_id, process_row, repetitions
from ascend_sample.sampling.static.step import StaticStep

INF = float("inf")


def listed(rules: TextRules) -> dict[int, float]:
    ids, addends = rules.addends()
    assert len(set(ids.tolist())) == len(ids) > 0
    assert ids.dtype == np.int64
    assert addends.dtype == np.float32
    return {token: addend for token, addend in zip(ids.tolist(), addends.tolist(), strict=True) if addend != 0}


def expected(params: SamplingParams, text: list[int]) -> dict[int, float]:
    penalties = {token: -penalty_of(params, length) for token, length in repetitions(text, params).items()}
    of_float32 = {token: float(np.float32(penalty)) for token, penalty in penalties.items()}
    forced = forced_id(text, params)
    return of_float32 | dict.fromkeys(forbidden_ids(text, params), -INF) | ({} if forced is None else {forced: 1e9})


THOUGHT: dict[str, Any] = {"thinking_start_ids": [7], "thinking_end_ids": [8]}


# ---- by hand ----


DRY: dict[str, Any] = {"dry_multiplier": 0.5, "dry_base": 2.0}
BY_HAND: list[tuple[dict[str, Any], list[int], dict[int, float]]] = [
    ({"no_repeat_ngram_size": 2}, [], {}),
    ({"no_repeat_ngram_size": 1}, [3, 4, 3], {3: -INF, 4: -INF}),
    ({"no_repeat_ngram_size": 2}, [1, 2, 3, 1], {2: -INF}),
    ({"no_repeat_ngram_size": 2}, [1, 2, 1, 3, 1], {2: -INF, 3: -INF}),
    ({"no_repeat_ngram_size": 3}, [1, 2, 3, 1, 2], {3: -INF}),
    ({"no_repeat_ngram_size": 2, "no_repeat_ngram_whitelist": [2]}, [1, 2, 1, 3, 1], {3: -INF}),
    # The pair 1 2 begins 4 tokens before the end, and 1 3 two.
    ({"no_repeat_ngram_size": 2, "no_repeat_ngram_window": 5}, [1, 2, 1, 3, 1], {2: -INF, 3: -INF}),
    ({"no_repeat_ngram_size": 2, "no_repeat_ngram_window": 4}, [1, 2, 1, 3, 1], {3: -INF}),
    ({"bad_words": [[1, 2]]}, [], {}),
    ({"bad_words": [[1, 2], [1, 3, 4], [5, 1, 6]]}, [3, 1], {2: -INF}),
    ({"bad_words": [[1, 2], [1, 3, 4], [5, 1, 6]]}, [5, 1], {2: -INF, 6: -INF}),
    (DRY, [1, 2, 3, 4, 1], {}),
    (DRY, [1, 2, 3, 4, 1, 2], {3: -0.5}),
    (DRY, [1, 2, 3, 4, 1, 2, 3], {4: -1.0}),
    (DRY | {"dry_allowed_length": 1}, [1, 2, 3, 4, 1, 2, 3], {4: -2.0}),
    (DRY, [7, 7, 7, 7], {7: -1.0}),
    # 2 3 is followed by 4 and by 5, but 1 2 3 by 4 alone.
    (DRY, [1, 2, 3, 4, 2, 3, 5, 1, 2, 3], {4: -1.0, 5: -0.5}),
    (DRY | {"dry_penalty_last_n": 8}, [1, 2, 3, 4, 9, 8, 1, 2, 3], {4: -0.5}),
    (DRY | {"dry_penalty_last_n": 7}, [1, 2, 3, 4, 9, 8, 1, 2, 3], {}),
    (DRY | {"dry_sequence_breakers": [1]}, [1, 2, 3, 4, 1, 2, 3], {4: -0.5}),
    (DRY | {"dry_sequence_breakers": [3]}, [1, 2, 3, 4, 1, 2, 3], {}),
    (DRY | {"dry_sequence_breakers": [4]}, [1, 2, 3, 4, 1, 2, 3], {}),
    ({"dry_multiplier": 0.5, "dry_sequence_breakers": [[4, 1]]}, [1, 2, 3, 4, 1, 2, 3], {4: -0.5}),
    ({"dry_multiplier": 3.0, "dry_base": 1.0}, [7] * 9, {7: -3.0}),
    (THOUGHT, [7, 1, 2], {}),
    (THOUGHT | {"thinking_token_budget": 0}, [], {}),
    (THOUGHT | {"thinking_token_budget": 0}, [1, 7], {8: 1e9}),
    (THOUGHT | {"thinking_token_budget": 2}, [7, 1], {}),
    (THOUGHT | {"thinking_token_budget": 2}, [7, 1, 2], {8: 1e9}),
    (THOUGHT | {"thinking_token_budget": 2}, [7, 1, 8, 2, 3], {}),
    # The last tag that opens counts, also within a thought.
    (THOUGHT | {"thinking_token_budget": 2}, [7, 1, 7, 2, 3], {8: 1e9}),
    (THOUGHT | {"thinking_token_budget": 2, "thinking_end_message_ids": [5, 6, 8]}, [7, 1, 2], {5: 1e9}),
    (THOUGHT | {"thinking_token_budget": 2, "thinking_end_message_ids": [5, 6, 8]}, [7, 1, 2, 5], {6: 1e9}),
    (THOUGHT | {"thinking_token_budget": 2, "thinking_end_message_ids": [5, 6, 8]}, [7, 5, 6], {8: 1e9}),
    # What the thought does not hold is not part of what closes it.
    (
        THOUGHT | {"thinking_token_budget": 1, "thinking_end_message_ids": [5, 9, 8], "thinking_start_ids": [5]},
        [5, 1],
        {5: 1e9},
    ),
    (THOUGHT | {"thinking_token_budget": 2, "thinking_end_message_ids": [5, 5, 6, 8]}, [7, 5, 5, 5], {6: 1e9}),
    ({"thinking_start_ids": [1, 2], "thinking_end_ids": [3, 4], "thinking_token_budget": 1}, [1, 2, 3], {4: 1e9}),
    ({"thinking_start_ids": [1, 2], "thinking_end_ids": [3, 4], "thinking_token_budget": 1}, [1, 2, 3, 4, 5], {}),
    # A tag that ends where another does: what closes counts.
    ({"thinking_start_ids": [2], "thinking_end_ids": [1, 2], "thinking_token_budget": 0}, [2, 1, 2], {}),
    # Neither a ban of its n-gram, nor DRY, nor a bad word keeps the closing from being drawn.
    (THOUGHT | {"thinking_token_budget": 1, "no_repeat_ngram_size": 2}, [7, 1, 8, 7, 1], {8: 1e9}),
    (THOUGHT | {"thinking_token_budget": 1, "dry_multiplier": 1.0}, [7, 1, 8, 7, 1], {8: 1e9}),
    (THOUGHT | {"thinking_token_budget": 1, "bad_words": [[1, 8]]}, [7, 1], {8: 1e9}),
    (THOUGHT | {"thinking_token_budget": 1, "bad_words": [[1, 3]]}, [7, 1], {3: -INF, 8: 1e9}),
]
"""What is asked for, a text, and what is added to logits behind it."""


def test_rows_that_one_can_check() -> None:
    for asked, text, addends in BY_HAND:
        params = SamplingParams(**asked)
        assert listed(TextRules(params, text, 10)) == addends, (asked, text)
        assert expected(params, text) == addends, (asked, text)
        grown = TextRules(params, [], 10)
        grown.extend(text)
        assert listed(grown) == addends, (asked, text)


def test_a_penalty_is_a_float32_however_long_the_match() -> None:
    params = SamplingParams(dry_multiplier=0.8, dry_base=1e20)
    assert longest_match(params) == 4
    assert [penalty_of(params, length) for length in (2, 3, 4, 5, 10**9)][:2] == [0.8, 0.8e20]
    assert {np.float32(penalty_of(params, length)) for length in (4, 5, 10**9)} == {np.finfo(np.float32).max}
    assert listed(TextRules(params, [1] * 50, 2)) == {1: -float(np.finfo(np.float32).max)}
    assert longest_match(SamplingParams(dry_multiplier=3e38, dry_base=1e38)) == 3


def test_what_is_no_id_equals_nothing() -> None:
    rules = TextRules(SamplingParams(no_repeat_ngram_size=2, dry_multiplier=1.0, dry_allowed_length=1), [1, 2], 5)
    rules.extend([-1, 3, -1])
    assert listed(rules) == {}
    rules.extend([5, 2])
    assert listed(rules) == {}, "2 was followed by what is no id"
    rules.extend([3, 2])
    assert listed(rules) == {3: -INF}


# ---- random texts beside the reference ----


def random_rules(rng: random.Random, vocab_size: int) -> SamplingParams:
    def sequences(most: int, shortest: int) -> set[tuple[int, ...]]:
        lengths = [rng.randrange(shortest, shortest + 3) for _ in range(rng.randrange(most + 1))]
        return {tuple(rng.randrange(vocab_size) for _ in range(length)) for length in lengths}

    size, end = rng.choice((0, 1, 2, 3, 5)), rng.choice(([1], [1, 0]))
    return SamplingParams(
        no_repeat_ngram_size=size,
        no_repeat_ngram_window=rng.choice((None, max(1, size), size + 3, size + 20)),
        no_repeat_ngram_whitelist=rng.sample(range(vocab_size), rng.randrange(2)),
        dry_multiplier=rng.choice((0.0, 0.8, 2.0)),
        dry_base=rng.choice((1.0, 1.75, 1e9, 1e20)),
        dry_allowed_length=rng.randrange(1, 4),
        dry_sequence_breakers=rng.choice(([], [], sequences(2, 1))),
        dry_penalty_last_n=rng.choice((None, 1, 4, 10, 25)),
        bad_words=sequences(2, 2),
        thinking_token_budget=rng.choice((None, 0, 1, 4)),
        thinking_start_ids=[0],
        thinking_end_ids=end,
        thinking_end_message_ids=rng.choice(([], [0, *end], [1, 1, *end])),
    )


def compare_with_reference(number: int) -> None:
    """One text of few ids, token by token; at times drafts are tried and taken back."""
    rng = random.Random(number)
    vocab_size = rng.choice((2, 3, 4, 8))
    params = random_rules(rng, vocab_size)
    text = [rng.randrange(vocab_size) for _ in range(rng.randrange(40))]
    rules = TextRules(params, text, vocab_size)
    for _ in range(rng.randrange(60)):
        assert listed(rules) == expected(params, text), (params, text)
        for _ in range(rng.choice((0, 0, 2))):
            drafts = [rng.randrange(vocab_size) for _ in range(rng.randrange(5))]
            with rules.after(drafts):
                assert listed(rules) == expected(params, text + drafts), (params, text, drafts)
        text.append(rng.randrange(vocab_size))
        rules.extend(text[-1:])


@pytest.mark.parametrize("texts", [250, pytest.param(5000, marks=pytest.mark.long)])
def test_random_texts_are_those_of_the_reference(texts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that are out of range are left behind soon."""
    monkeypatch.setattr(text_rules, "SPARE", 5)
    for number in range(texts):
        compare_with_reference(number)


# ---- beside transformers ----


@pytest.mark.parametrize("count", [60, pytest.param(150, marks=pytest.mark.long)])
def test_forbidden_ids_are_those_of_transformers(count: int) -> None:
    rng = random.Random(5)
    for _ in range(count):
        vocab_size, size = rng.choice((3, 8, 20)), rng.randrange(1, 5)
        text = [rng.randrange(vocab_size) for _ in range(rng.randrange(1, 50))]
        words = {tuple(rng.randrange(vocab_size) for _ in range(rng.randrange(1, 4))) for _ in range(4)}
        if len({word for word in words if len(word) == 1}) >= vocab_size:
            continue
        scores = torch.zeros(1, vocab_size)
        ngrams = NoRepeatNGramLogitsProcessor(size)(torch.tensor([text]), scores.clone())
        of_words = NoBadWordsLogitsProcessor([list(word) for word in words])(torch.tensor([text]), scores.clone())
        for asked, theirs in (({"no_repeat_ngram_size": size}, ngrams), ({"bad_words": words}, of_words)):
            batch = SamplingBatch(vocab_size)
            batch.add(SamplingParams(**asked), text)
            ours = batch.edited(scores)
            assert torch.equal(scores if ours is None else ours, theirs), (asked, text)


# ---- in a batch ----

RULED = (
    {"no_repeat_ngram_size": 1, "no_repeat_ngram_window": 3},
    {"no_repeat_ngram_size": 2},
    {"dry_multiplier": 30.0, "dry_allowed_length": 1, "dry_penalty_last_n": 6},
    {"bad_words": [[0, 1], [1, 2], [2, 0], [3, 3]], "presence_penalty": 0.5},
    {"logit_bias": {2: 3.0}},
    {"logit_bias": {4: 3.0}},
    {"thinking_token_budget": 2, "thinking_start_ids": 0, "thinking_end_ids": 1, "thinking_end_message_ids": [5, 3, 1]},
    {"repetition_penalty": 1.5, "allowed_token_ids": [0, 1, 2, 4]},
    {"min_tokens": 3, "stop_token_ids": [3], "frequency_penalty": 0.5, "suppress_token_ids": [5]},
    {},
)


def assert_texts_are_the_references(device: str, steps: int) -> None:
    """Greedy requests that join, leave and move: each gets the best id of what the reference makes of its logits.

    Biases, bans and penalties are among what they ask for.
    """
    rng, vocab_size = random.Random(2), 6
    logits = (torch.randn(16, vocab_size, generator=torch.Generator().manual_seed(0)) * 0.5).to(device)
    batch, sampler = SamplingBatch(vocab_size, device, capacity=2), Sampler()
    rows: list[tuple[SamplingParams, list[int], list[int]]] = []
    for step in range(steps):
        if rows and rng.random() < 0.4:
            row = rng.randrange(len(rows))
            batch.remove(row)
            rows[row] = rows[-1]
            rows.pop()
        if len(rows) > 1 and rng.random() < 0.3:
            order = rng.sample(range(len(rows)), len(rows))
            batch.reorder(order)
            rows = [rows[row] for row in order]
        while len(rows) < 4:
            params = SamplingParams(temperature=0, **rng.choice(RULED))  # type: ignore[arg-type]
            prompt = [rng.randrange(vocab_size) for _ in range(rng.randrange(6))]
            batch.add(params, prompt)
            rows.append((params, prompt, []))
        given = logits[step % 13 : step % 13 + 4]
        edited = batch.edited(given)
        edited = given.cpu() if edited is None else edited.cpu()
        drawn = sampler(given, batch).token_ids.tolist()
        for row, (token, (params, prompt, output)) in enumerate(zip(drawn, rows, strict=True)):
            wanted = process_row(given[row].cpu().numpy(), params, prompt, output)
            np.testing.assert_allclose(edited[row].numpy(), wanted, rtol=1e-5, atol=1e-5)
            assert token == int(np.argmax(wanted)), (step, row, params)
            output.append(token)
        if rng.random() < 0.3:  # what somebody else draws
            others = [rng.randrange(4) for _ in range(3)]
            tokens = [rng.randrange(vocab_size) for _ in others]
            batch.append(torch.tensor(tokens, device=device), others)
            for row, token in zip(others, tokens, strict=True):
                rows[row][2].append(token)


def test_requests_that_come_and_go(device: str) -> None:
    assert_texts_are_the_references(device, steps=60)


def test_a_thought_is_closed_whatever_is_drawn(device: str) -> None:
    """With filters, temperatures, logprobs and states, the budget's end is drawn for certain."""
    asked: list[dict[str, Any]] = [
        {"temperature": 2.5},
        {"top_k": 3, "logprobs": 2},
        {"top_p": 0.5, "top_n_sigma": 1.0, "return_sampling_mask": True},
        {"typical_p": 0.2, "min_p": 0.1, "repetition_penalty": 1.9, "frequency_penalty": 2.0},
        {"mirostat_tau": 0.5},
        {"adaptive_target": 0.1, "min_p": 0.01},
        {"xtc_probability": 1.0, "xtc_threshold": 0.01},
    ]
    budget = {
        "thinking_token_budget": 3,
        "thinking_start_ids": [1, 2],
        "thinking_end_ids": [3],
        "thinking_end_message_ids": [4, 4, 3],
    }
    batch, sampler = SamplingBatch(40, device), Sampler()
    batch.extend(
        [SamplingParams(seed=7, suppress_token_ids=[1], **budget, **one) for one in asked], [[5, 1, 2]] * len(asked)
    )
    logits = torch.randn(len(asked), 40, generator=torch.Generator().manual_seed(1))
    logits[:, 3:5] = -9.0  # nobody would draw them by himself
    drawn = torch.stack([sampler(logits.to(device), batch).token_ids.cpu() for _ in range(8)], 1)
    assert drawn[:, 3:6].tolist() == [[4, 4, 3]] * len(asked)
    assert not torch.isin(drawn[:, [0, 1, 2, 6, 7]], torch.tensor([3, 4])).any()


def test_a_late_device(late: str) -> None:
    assert_texts_are_the_references(late, steps=15)


def test_only_rows_with_rules_wait(counting: None, npu: str) -> None:
    """A step reads the tokens of the one before, which the device has had a step's time for."""
    sampler, logits = Sampler(), torch.randn(2, 50).to(npu)
    for ruled, copied, waited in (({}, 0, 0), ({"no_repeat_ngram_size": 3}, 1, 1)):
        batch = SamplingBatch(50, npu)
        batch.extend([SamplingParams(seed=1, logit_bias={3: 1.0}, **ruled), SamplingParams(seed=2)])
        for _ in range(2):
            sampler(logits, batch)
        with hostcann.profile() as counted:
            sampler(logits, batch)
        assert counted.copies.get("d2h", 0) == copied
        assert counted.totals.waits <= waited


def test_a_step_in_a_graph_has_the_lists_of_its_step(device: str) -> None:
    batch, eager = SamplingBatch(8, device), SamplingBatch(8, device)
    step = StaticStep(4, 8, torch.float32, device, addends=8, history=40)
    params = [SamplingParams(temperature=0, **ruled) for ruled in RULED[:4]]  # type: ignore[arg-type]
    for each in (batch, eager):
        each.extend(params, [[0, 1]] * 4)
    step.logits.copy_(torch.tensor([[5.0, 4.5, 4.0, 3.5, 3.0, 2.5, 2.0, 1.5]]))
    for _ in range(12):
        step.prepare(batch)
        step.run()
        assert step.token_ids.tolist() == Sampler()(step.logits, eager).token_ids.tolist()
        batch.append(step.token_ids)
    assert len(set(step.token_ids.tolist())) > 1


def test_drafts_are_seen_by_the_places_behind_them(device: str) -> None:
    batch = SamplingBatch(5, device)
    batch.extend([SamplingParams(temperature=0, no_repeat_ngram_size=1), SamplingParams(temperature=0)], [[4], [4]])
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]).repeat(8, 1).to(device)
    drafts = torch.tensor([3, 2, 2, 4, 4, 3], device=device)
    verified = verify_drafts(logits, drafts, batch, counts=[3, 3])
    assert verified.token_ids.tolist() == [[3, 2, 1, -1], [4, 4, 4, -1]]
    before = batch.slot_bytes
    for _ in range(20):
        verify_drafts(logits, drafts, batch, counts=[3, 3])
    assert batch.slot_bytes <= 2 * before, "the places' lists are given back"
