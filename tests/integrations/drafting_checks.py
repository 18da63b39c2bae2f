"""What must hold of a rejection sampler with vLLM's interface, whose ever it is, once the plugin is installed."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.integrations import vllm_drafts
from tests.integrations import drafting_engine
from tests.integrations.drafting_engine import AT_LEAST, LENGTH, PLAIN, REQUESTS, STOPS, VOCAB_SIZE, Engine, requests
from tests.integrations.vllm_batches import Request

ROWS = 6000
GREEDY = [kind for kind in REQUESTS if kind.get("temperature") == 0]
BEYOND_CHANCE = 60.0
"""A chi-square with 7 degrees of freedom exceeds it with a probability below 1e-9."""


def texts(classes: Any, kinds: Any = REQUESTS, name: str | None = None, wrong: bool = False) -> list[list[int]]:
    """Decodes with a drafter, or plainly, and returns the texts that are always the same."""
    rows = drafting_engine.is_reproducible(kinds)
    plain = Engine(classes, requests(kinds)).decode(LENGTH)
    if name is None:
        return [plain[row] for row in rows]
    drafter = drafting_engine.drafters(plain, kinds)[name]
    if wrong:
        drafter = drafting_engine.with_what_is_no_id(drafter)
    found = Engine(classes, requests(kinds)).decode(LENGTH, drafter)
    return [found[row] for row in rows]


def drawn_drafts(classes: Any) -> float:
    """Returns the largest chi-square of what comes of drafts that were drawn from a known q: two for each request."""
    torch.manual_seed(3)
    engine = Engine(classes, [Request([3, 4], temperature=0.8, top_k=8) for _ in range(ROWS)])
    q = torch.full((VOCAB_SIZE,), 0.2 / VOCAB_SIZE)
    best = target([3, 4]).topk(4).indices
    q[best] += torch.tensor([0.1, 0.1, 0.3, 0.3])  # those that are best are proposed least
    drafts = torch.multinomial(q, 2 * ROWS, replacement=True).view(-1, 2).tolist()
    engine.step(drafts, q.repeat(2 * ROWS, 1))
    return largest_chi_square(engine.requests, drafts)


def largest_chi_square(asked: list[Request], drafts: list[list[int]]) -> float:
    """Compares the tokens of many equal requests with their laws: the first, and those after an accepted draft."""
    found = [chi_square([each.output[0] for each in asked], target([3, 4]))]
    for token in target([3, 4]).topk(4).indices.tolist():
        pairs = zip(asked, drafts, strict=True)
        seconds = [each.output[1] for each, ids in pairs if len(each.output) > 1 and each.output[0] == ids[0] == token]
        assert len(seconds) > 200
        found.append(chi_square(seconds, target([4, token])))
    return max(found)


def target(text: list[int]) -> Tensor:
    """Returns the law of the next token of those requests."""
    logits = (drafting_engine.model(text) / 0.8).double()
    return logits.masked_fill(logits < logits.topk(8).values[-1], -torch.inf).softmax(0)


def chi_square(tokens: list[int], law: Tensor) -> float:
    """Returns the statistic; infinite where a token is impossible."""
    counts, expected = torch.bincount(torch.tensor(tokens), minlength=VOCAB_SIZE), law * len(tokens)
    if counts[law == 0].any():
        return float("inf")
    return float(((counts - expected) ** 2 / expected)[law > 0].sum())


class DraftChecks:
    """Takes the classes from a fixture of this name."""

    @pytest.mark.parametrize(
        ("kinds", "name", "wrong"),
        [
            *((REQUESTS, name, False) for name in ("right", "half right", "n-gram", "nonsense")),
            *((PLAIN, name, True) for name in ("half right", "nonsense")),
            *((AT_LEAST, name, False) for name in ("right", "half right")),
            (GREEDY, "half right", False),
        ],
    )
    def test_texts_are_those_without_speculation(self, classes: Any, kinds: Any, name: str, wrong: bool) -> None:
        plain = texts(classes, kinds)
        assert texts(classes, kinds, name, wrong) == plain
        for text, kind in zip(plain, kinds, strict=False):
            if "least" in kind:  # stops come as soon as they may, and no sooner
                assert not STOPS & {*text[: kind["least"]]}
                assert STOPS & {*text}

    def test_right_drafts_are_accepted(self, classes: Any) -> None:
        plain = Engine(classes, requests()).decode(LENGTH)
        engine = Engine(classes, requests())
        output = engine.step([ids[:3] for ids in plain])
        rows = drafting_engine.is_reproducible(REQUESTS)
        assert [(output.sampled_token_ids[row] != -1).sum().item() for row in rows] == [4] * len(rows)
        assert output.sampled_token_ids.dtype == torch.int32

    @pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", "raw_logits"])
    def test_logprobs_are_those_without_speculation(self, classes: Any, mode: str) -> None:
        plain, engine = (Engine(classes, requests(logprobs=2), mode=mode) for _ in range(2))
        expected = plain.decode(LENGTH)
        engine.decode(LENGTH, drafting_engine.drafters(expected, REQUESTS)["half right"])
        for row in drafting_engine.is_reproducible(REQUESTS):
            found, wanted = (torch.tensor(each.requests[row].reported[:LENGTH]) for each in (engine, plain))
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)

    def test_drawn_drafts_leave_the_law(self, classes: Any) -> None:
        assert drawn_drafts(classes) < BEYOND_CHANCE

    def test_greedy_requests_with_drawn_drafts(self, classes: Any) -> None:
        kinds = [REQUESTS[1], REQUESTS[0]]
        plain = Engine(classes, requests(kinds)).decode(LENGTH)
        engine, step = Engine(classes, requests(kinds)), itertools.count()
        while len(engine.requests[0].output) < LENGTH:
            done = len(engine.requests[0].output)
            right = plain[0][done : done + 2]
            second = drafting_engine.model(kinds[0]["prompt"] + plain[0][: done + 2]).topk(2).indices[1]
            drafts = [[*right, int(second)], [next(step) % VOCAB_SIZE]]
            engine.step(drafts, torch.full((len(drafts[0]) + 1, VOCAB_SIZE), 1 / VOCAB_SIZE))
        assert engine.requests[0].output[:LENGTH] == plain[0]

    def test_what_is_no_rule_of_ours_stays_the_engines(self, classes: Any) -> None:
        kind = type("Own", (classes.RejectionSampler,), {"forward": lambda *arguments: "its own"})
        vllm_drafts.install(kind)
        engine = Engine(classes, requests())
        sampler = kind(engine.sampler)
        sampler.synthetic_mode = True
        drafts = [[1] for _ in REQUESTS]
        arguments = (engine.spec_metadata(drafts), None, torch.zeros(14, VOCAB_SIZE), engine.metadata(drafts))
        with pytest.warns(UserWarning, match="ascend_sample: acceptance is synthetic, so drafts are verified by"):
            assert sampler(*arguments) == "its own"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert sampler(*arguments) == "its own"
