"""The rules standard and block: the output's law exactly, and every implementation beside the float64 reference."""

from __future__ import annotations

import contextlib
import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from drafting import new_batch, random_params
from drawn_drafts import KINDS, Case, arguments_of, batch_of, certain
from row_edits import packed

from ascend_sample.sampling import Sampler, SamplingParams, verify, verify_drafts
from ascend_sample.sampling.drafts.arguments import VerificationRule
from ascend_sample.sampling.reference.drafts import chances, chances_of_counts, rest_after

RULES: tuple[VerificationRule, ...] = ("standard", "block")
VOCAB_SIZE, GAMMA = 4, 3


def table(rng: np.random.Generator, depth: int) -> dict[tuple[int, ...], np.ndarray]:
    """A distribution after each text of up to so many tokens; some probabilities are 0."""
    texts = [text for length in range(depth + 1) for text in itertools.product(range(VOCAB_SIZE), repeat=length)]
    found = {}
    for text in texts:
        weights = rng.exponential(size=VOCAB_SIZE) * (rng.random(VOCAB_SIZE) < 0.8)
        found[text] = weights / weights.sum() if weights.sum() > 0 else np.eye(VOCAB_SIZE)[0]
    return found


def probability_of(model: dict[tuple[int, ...], np.ndarray], text: tuple[int, ...]) -> float:
    return float(np.prod([model[text[:place]][token] for place, token in enumerate(text)]))


@pytest.mark.parametrize("seed", range(3))
def test_the_law_of_the_output_is_the_targets(seed: int) -> None:
    """Exactly, by enumeration of all drafts and all numbers of them that stay; plain decoding goes on from there."""
    rng = np.random.default_rng(seed)
    target, drafter = table(rng, GAMMA), table(rng, GAMMA)
    texts = list(itertools.product(range(VOCAB_SIZE), repeat=GAMMA + 1))
    laws, means = {rule: dict.fromkeys(texts, 0.0) for rule in RULES}, dict.fromkeys(RULES, 0.0)
    for rule, drafts in itertools.product(RULES, itertools.product(range(VOCAB_SIZE), repeat=GAMMA)):
        drawn = probability_of(drafter, drafts)
        if drawn == 0:
            continue
        targets = np.stack([target[drafts[:place]] for place in range(GAMMA + 1)])
        proposals = np.stack([drafter[drafts[:place]] for place in range(GAMMA)])
        of_counts = chances_of_counts(rule, chances(rule, targets, drafts, proposals))
        means[rule] += drawn * float(np.dot(of_counts, range(GAMMA + 1)))
        for accepted, chance in enumerate(of_counts):
            rest = rest_after(rule, targets, drafts, proposals, accepted)
            for behind in itertools.product(range(VOCAB_SIZE), repeat=GAMMA + 1 - accepted):
                text = (*drafts[:accepted], *behind)
                goes_on = [target[text[:place]][text[place]] for place in range(accepted + 1, GAMMA + 1)]
                laws[rule][text] += drawn * chance * rest[behind[0]] * float(np.prod(goes_on))
    for law in laws.values():
        assert sum(abs(found - probability_of(target, text)) for text, found in law.items()) / 2 < 1e-12
    assert means["block"] >= means["standard"] - 1e-12


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets in what leaves no target anything, or accepts all drafts: a distribution does so by rounding alone."""
    monkeypatch.setattr(verify, "check_law", lambda *arguments: None)


def random_case(rng: random.Random, kind: str, vocab_size: int, most: int, with_masks: bool) -> Case:
    count = rng.randrange(most + 1)
    generator = torch.Generator().manual_seed(rng.randrange(2**62))
    logits = torch.randn(count + 1, vocab_size, generator=generator) * 2
    near = logits[:count] + torch.randn(count, vocab_size, generator=generator) * rng.choice((0.1, 0.7, 2.0))
    kept = torch.where(
        torch.rand(near.shape, generator=generator) < 0.6, near / rng.choice((0.6, 1.0, 1.0)), -torch.inf
    )
    kept[:, 0] = near[:, 0]
    proposals = kept.softmax(1)
    drafts = torch.multinomial(proposals, 1, generator=generator).view(-1).tolist() if count else []
    if kind == "certain" or rng.randrange(6) == 0:
        pairs = zip(drafts, near.argmax(1).tolist(), strict=True)
        drafts = [rng.choice((token, best, best, rng.randrange(vocab_size))) for token, best in pairs]
    drafts = [rng.choice((-1, vocab_size, vocab_size + 5)) if rng.randrange(20) == 0 else token for token in drafts]
    if rng.randrange(8) == 0:
        proposals = torch.ones_like(proposals)  # no target has more: what replaces a draft is drawn from that itself
    params = replace(random_params(rng, vocab_size), seed=rng.randrange(2**62))
    if rng.randrange(3):  # many edits and low temperatures make drafts rare
        params = SamplingParams(temperature=1.0, top_k=rng.choice((None, 5, 9)), seed=params.seed)
    prompt = [rng.randrange(vocab_size) for _ in range(rng.randrange(4))]
    masks = torch.rand(count + 1, vocab_size, generator=generator).numpy() < 0.7
    masks[:, 0] = True
    proposals = certain(drafts, vocab_size) if kind == "certain" else proposals.float().double()
    return Case(params, prompt, len(prompt), logits, drafts, proposals, masks if with_masks else None)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_judged_as_the_reference_does(rule: VerificationRule, kind: str, device: str) -> None:
    """With a bitmask in every other batch."""
    rng = random.Random(f"{rule} {kind}")
    judged, accepted, replaced = 0, 0, 0
    for number in range(16 if device == "cpu" else 4):
        vocab_size = rng.choice((13, 70))
        cases = [random_case(rng, kind, vocab_size, 5, number % 2 == 1) for _ in range(20)]
        keep_ties = rng.randrange(4) == 0
        masks = [torch.from_numpy(mask) for case in cases if case.masks is not None for mask in case.masks]
        verified = verify_drafts(
            **arguments_of(cases, kind, device),
            batch=batch_of(cases, device),
            rule=rule,
            sampler=Sampler(keep_ties=keep_ties),
            bitmask=packed(masks, vocab_size).to(device) if masks else None,
        )
        tokens, counts = verified.token_ids.tolist(), verified.accepted.tolist()
        for case, got, count in zip(cases, tokens, counts, strict=True):
            assert got[:count] == case.drafts[:count]
            assert 0 <= got[count] < vocab_size
            assert set(got[count + 1 :]) <= {-1}
            expected = case.judged(rule, keep_ties)
            if expected is None:
                continue
            judged += 1
            accepted += expected[0]
            assert count == expected[0]
            if expected[1] is not None:
                replaced += 1
                assert got[count] == expected[1]
    assert judged > (200 if device == "cpu" else 50)
    assert accepted > judged / 9
    assert replaced > judged / 8


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rule", RULES)
def test_what_follows_accepted_drafts_is_the_steps_token(rule: VerificationRule, device: str) -> None:
    """All drafts stay where q is p: bit for bit what a request without drafts gets at that place."""
    rng = random.Random(7)
    params = [replace(random_params(rng, 40), seed=rng.randrange(2**62), temperature=1.0) for _ in range(12)]
    logits = torch.randn(12, 3, 40).to(device)
    plain = new_batch(params, [[1]] * 12, 40, device)
    steps = [Sampler()(logits[:, place].contiguous(), plain) for place in range(3)]
    drafts = torch.stack([step.token_ids for step in steps[:2]], 1)
    differs = (steps[1].token_ids != steps[2].token_ids).tolist().index(True)
    drafts[differs, 1] = -1
    tiny = torch.full((24, 40), 1e-30, device=device)
    verified = verify_drafts(
        logits.flatten(0, 1),
        drafts.flatten(),
        new_batch(params, [[1]] * 12, 40, device),
        counts=[2] * 12,
        rule=rule,
        draft_probabilities=tiny,
    )
    expected = torch.stack([step.token_ids for step in steps], 1)
    expected[differs, 2] = -1  # a placeholder ends the drafts, and the step's token is behind the first
    assert torch.equal(verified.token_ids, expected)
    assert verified.accepted.tolist() == [1 if row == differs else 2 for row in range(12)]


@pytest.mark.parametrize("rule", RULES)
def test_a_top_k_of_1_is_judged_without_ties(device: str, rule: VerificationRule) -> None:
    """It is greedy with `keep_ties` too, so a draft that is only as good as the best is never drawn."""
    rows = 16
    batch = new_batch([SamplingParams(top_k=1, seed=row) for row in range(rows)], [[]] * rows, 8, device)
    logits = torch.zeros(2 * rows, 8, device=device)
    logits[:, 3:5] = 1.0
    drafts = torch.full((rows,), 4, dtype=torch.int64, device=device)
    verified = verify_drafts(logits, drafts, batch, counts=[1] * rows, rule=rule, sampler=Sampler(keep_ties=True))
    assert verified.token_ids[:, 0].tolist() == [3] * rows
    assert verified.accepted.tolist() == [0] * rows


Q = [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]]
"""What three drafts, 0, 1 and 2, were drawn from."""


def judge_three(
    q: list[list[float]], drafts: list[int], is_sparse: bool, rule: VerificationRule, device: str = "cpu"
) -> Any:
    """Two requests, of which the first has two drafts."""
    batch = new_batch([SamplingParams(seed=1), SamplingParams(seed=2)], [[], []], 3, device)
    given = torch.tensor(q, device=device)
    listed = torch.tensor([2, 0, 1], device=device).expand(3, 3)
    proposals: dict[str, Any] = {"draft_probabilities": given}
    if is_sparse:
        proposals = {"draft_probabilities": given.gather(1, listed), "draft_candidates": listed.contiguous()}
    ids = torch.tensor(drafts, device=device)
    return verify_drafts(torch.zeros(5, 3, device=device), ids, batch, counts=[2, 1], rule=rule, **proposals)


@pytest.mark.parametrize(
    ("row", "numbers", "got"),
    [
        (0, [0.0, 1.0, -1.0], "-1.0"),
        (1, [0.3, 0.3, 0.3], "0.9"),
        (2, [0.5, 0.5, 0.02], "1.0[12]"),
        (2, [torch.nan, 0.5, 0.5], "nan"),
        (1, [0.0, 3.0, 0.0], "3.0"),
        (1, [0.0, torch.inf, 0.0], "inf"),
    ],
)
def test_what_is_no_distribution_is_refused(row: int, numbers: list[float], got: str) -> None:
    q = [numbers if number == row else own for number, own in enumerate(Q)]
    says = rf"draft_probabilities must be probabilities, .* got {got}.* in row {row}\. Give the softmax"
    for is_sparse, rule in itertools.product((False, True), RULES):
        with pytest.raises(ValueError, match=f"^verify_drafts: {says}"):
            judge_three(q, [0, 1, 2], is_sparse, rule)
        if row == 1:  # a placeholder: nobody drew it
            assert judge_three(q, [0, -1, 2], is_sparse, rule).accepted[0] <= 1


@pytest.mark.parametrize("rule", RULES)
def test_numbers_of_no_distribution_on_a_device(rule: VerificationRule, accelerator: str) -> None:
    """Nobody looks. All tokens are of the vocabulary, NaN accepts nothing, and a negative number what p has."""
    for is_sparse, (numbers, accepted) in itertools.product((False, True), ((torch.nan, 0), (-1.0, 1), (torch.inf, 0))):
        found = judge_three([[numbers] * 3] * 3, [0, -1, 2], is_sparse, rule, accelerator)
        assert found.accepted.tolist() == [accepted] * 2
        assert all(0 <= token < 3 for row in found.token_ids.tolist() for token in row[: 1 + accepted])


def test_probabilities_that_were_rounded_are_taken() -> None:
    """The float16 of most of 151,936 ids is 0, or a multiple of 2^-24; the bfloat16 of each is moved by 2^-9 of it."""
    ids = torch.zeros(2, dtype=torch.int64)
    for dtype, scale in itertools.product((torch.bfloat16, torch.float16), (0.0, 0.05, 1.0, 4.0)):
        x = torch.randn(3, 151_936, generator=torch.Generator().manual_seed(0)) * scale
        batch = new_batch([SamplingParams(seed=1, top_k=3)], [[]], 151_936)
        q = x.to(dtype).softmax(1)[:2].float()
        verify_drafts(x, ids, batch, counts=[2], rule="standard", draft_probabilities=q)


@pytest.mark.parametrize(
    ("row", "column", "number", "temperature", "is_refused"),
    [(0, 9, 0.5, 1.0, True), (1, 9, 0.5, 1.0, False), (1, 0, 1.5, 1.0, True), (1, 0, 1.5, 0.0, False)],
)
def test_of_a_large_vocabulary_the_first_row_is_added_up(
    row: int, column: int, number: float, temperature: float, is_refused: bool
) -> None:
    """And the probability of each draft is looked at. Greedy requests get the same whatever their q is."""
    vocab_size = 2**16
    q = torch.zeros(2, vocab_size)
    q[:, 1], q[row, column] = 1.0, number
    rows = [SamplingParams(seed=1), SamplingParams(temperature=temperature)]
    ids, batch = torch.zeros(2, dtype=torch.int64), new_batch(rows, [[]] * 2, vocab_size)
    refused = pytest.raises(ValueError, match=f"in row {row}") if is_refused else contextlib.nullcontext()
    with refused:
        verify_drafts(torch.zeros(4, vocab_size), ids, batch, counts=[1, 1], rule="standard", draft_probabilities=q)
