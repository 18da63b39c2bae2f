"""What must hold of a rank of an engine that draws from parts of logits: run on threads and on processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.integrations.vllm_split_engine import Engine, Foreign, LogitsProcessors, Request, here

STEPS = 4


def plain_requests() -> list[Request]:
    return [
        Request(temperature=0),
        Request(top_k=20, seed=3),
        Request(temperature=0.7, top_p=0.9, seed=2**63 + 5),
        Request(seed=4),
        Request(temperature=1.3, top_k=5, top_p=0.8, seed=5),
        Request(top_k=290, seed=6),
    ]


def compare(
    make: Callable[[], list[Request]] = plain_requests,
    is_gathered: bool = False,
    has_grammar: bool = False,
    **options: Any,
) -> int:
    """Raises unless tokens are those of the engine that gathers; returns how many bytes this rank sends in a step.

    Args:
        make: the requests, which all have seeds or are greedy.
        is_gathered: whether logits have to be gathered, instead of not at all.
        has_grammar: whether a grammar forbids ids.
        options: of the engines.
    """
    ranks = here.ranks
    gathering, splitting = Engine(False, **options), Engine(True, **options)
    sent = 0
    for engine in (gathering, splitting):
        engine.take(*make())
    for step in range(STEPS):
        ranks.gathered.clear()
        expected = gathering.step(has_grammar)
        gathered = list(ranks.gathered)
        ranks.gathered.clear()
        ranks.cpu_group.sent.clear()
        found = splitting.step(has_grammar)
        sent = sum(ranks.cpu_group.sent)
        assert found == expected, (step, found, expected)
        assert ranks.gathered == (gathered if is_gathered else []), (step, ranks.gathered)
    return sent


def check_plain() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        compare(dtype=dtype)
    compare(lambda: [Request(temperature=0)] * 3)
    compare(lambda: [Request(seed=row) for row in range(4)])
    compare(options={"soft_cap": 4.0, "scale": 1.5})
    compare(lambda: [Request(seed=row) for row in range(4)], broken=[290])


def check_whole() -> None:
    """Whatever needs whole rows gets them."""
    some = plain_requests

    def with_request(**asked: Any) -> Callable[[], list[Request]]:
        return lambda: [*some(), Request(seed=8, **asked)]

    for asked in (
        {"min_p": 0.1},
        {"presence": 1.0},
        {"logprobs": 2},
        {"bias": {299: 9.0}},
        {"bad": [7]},
        {"allowed": [3, 200]},
    ):
        compare(with_request(**asked), is_gathered=True)
    compare(is_gathered=True, has_grammar=True)
    compare(is_gathered=True, forbidden=[5, 290])
    compare(is_gathered=True, broken=[290])  # of greedy rows: vLLM takes the NaN
    compare(lambda: [Request(temperature=0)] * 3, is_gathered=True, broken=[290])
    compare(is_gathered=True, added=20)
    compare(is_gathered=True, processors=LogitsProcessors([], [Foreign()]))
    compare(vocab_size=60, padded=320, is_gathered=True)  # a part is wider than the vocabulary


def check_changes() -> None:
    """Requests come and go, and steps that gather stand among those that do not."""
    engines = Engine(False), Engine(True)
    requests = [[*plain_requests(), Request(seed=9, min_p=0.2)] for _ in engines]
    texts: list[list[list[int]]] = []
    for engine, own in zip(engines, requests, strict=True):
        steps = []
        for rows in ([0, 1, 2], [0, 1, 2], [2, 6, 1], [2, 1, 3, 4], [5], [0], [4, 3, 2, 1, 0, 5], [5, 6]):
            engine.take(*(own[row] for row in rows))
            steps += [engine.step(), engine.step()]
        texts.append(steps)
    assert texts[0] == texts[1]


def check_discarded_draws() -> None:
    """vLLM takes the draw of a prompt's middle part back."""
    found = []
    for is_split in (False, True):
        engine = Engine(is_split)
        engine.take(*plain_requests())
        steps = [engine.step()]
        sampler = engine.runner.sampler.topk_topp_sampler
        generator = engine.batch.requests[1].generator
        assert generator is not None
        sampler.seed_source._draws[generator] -= 1
        found.append([*steps, engine.step(), engine.step()])
    assert found[0] == found[1]


def check_unseeded() -> list[list[int]]:
    """Returns the tokens of requests without a seed, which have to be the same on all ranks."""
    torch.manual_seed(100 + here.ranks.rank_in_group)
    engine = Engine(True)
    engine.take(*(Request(top_k=200) for _ in range(8)), Request(), Request(top_p=0.99))
    here.ranks.gathered.clear()
    found = []
    for _ in range(STEPS):
        engine.hidden.manual_seed(2)  # the same logits, but other noise
        found.append(engine.step())
    assert not here.ranks.gathered
    assert all(found[0] != each for each in found[1:])
    return found


CHECKS = (check_plain, check_whole, check_changes, check_discarded_draws, check_unseeded)
