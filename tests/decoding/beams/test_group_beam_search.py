"""Group beam search: by hand, against plain loops with the rules of transformers 4.49, and what is refused."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample.decoding.beams.group_beam import group_beam_search
from ascend_sample.decoding.models.module_model import ModuleModel
from ascend_sample.decoding.output import DecodeOutput
from tests.decoding.table_models import (
    EOS,
    LETTERS,
    START,
    A,
    B,
    TinyCausal,
    table_model,
)

CONFIGURATIONS = (*range(30), 54, 81)
"""In 54 a group is done while others go on; in 81 its best continuation ends, and is what keeps the group going."""


def two_groups(table: Tensor, token: int, **options: Any) -> DecodeOutput:
    """What two groups of one beam each find after a token."""
    return group_beam_search(table_model(table), torch.tensor([[token]]), num_beams=2, num_beam_groups=2, **options)


@pytest.mark.parametrize("allowed", [[EOS], [EOS, B]])
def test_what_only_ends_texts_lowers_nothing(allowed: list[int]) -> None:
    """Where no beam goes on, none has chosen the tokens that fill its place."""

    def only(_: Tensor, scores: Tensor) -> Tensor:
        return scores + torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor(allowed), 0.0)

    options: dict[str, Any] = {"diversity_penalty": 1.0, "num_return_sequences": 2, "logits_processor": [only]}
    found = two_groups(LETTERS, B, max_new_tokens=1, eos_token_id=EOS, **options)
    assert found.to_lists() == [[EOS], [EOS]]
    assert torch.equal(found.sequences_scores[0], found.sequences_scores[1])


def test_two_groups_by_hand() -> None:
    # The first group is greedy: a, then b, then the end. The second group avoids it: with a penalty of 0.5 b has
    # log(0.4), more than log(0.5) - 0.5; then the end, 0.9, which the first group's b does not touch.
    options: dict[str, Any] = {"diversity_penalty": 0.5, "num_return_sequences": 2, "length_penalty": 0.0}
    found = two_groups(LETTERS, START, max_new_tokens=3, eos_token_id=EOS, **options)
    assert found.to_lists() == [[B, EOS], [A, B, EOS]]
    torch.testing.assert_close(found.sequences_scores.exp(), torch.tensor([0.36, 0.225]))
    assert found.beam_indices is not None
    assert found.beam_indices.tolist() == [[1, 1, -1], [0, 0, 0]]


@dataclass
class Group:
    """One group of one prompt, as transformers 4.49 keeps it."""

    beams: list[tuple[list[int], float]]
    pool: list[tuple[float, list[int]]] = field(default_factory=list)
    done: bool = False


def by_loops(model: TinyCausal, prompt: list[int], asked: dict[str, Any]) -> list[tuple[float, list[int]]]:
    """The rules of transformers 4.49 for one prompt, one beam after the other."""
    size = asked["num_beams"] // asked["num_beam_groups"]
    penalty, steps = asked["length_penalty"], asked["max_new_tokens"]
    nothing = [([], -1e9)] * (size - 1)
    groups = [Group([([], 0.0), *nothing]) for _ in range(asked["num_beam_groups"])]

    def add(group: Group, tokens: list[int], total: float) -> None:
        score = total / len(tokens) ** penalty
        if len(group.pool) < size or score > min(group.pool)[0]:
            group.pool.append((score, tokens))
            if len(group.pool) > size:
                group.pool.remove(min(group.pool, key=lambda entry: entry[0]))

    for length in range(1, steps + 1):
        seen: Counter[int] = Counter()
        for group in groups:
            if group.done:
                seen.update([asked["pad_token_id"]] * size)
                continue
            every = []
            for beam, (tokens, total) in enumerate(group.beams):
                with torch.no_grad():
                    log_probs = model(torch.tensor([prompt + tokens]))[0][0, -1].log_softmax(dim=0).double()
                for token, count in seen.items():
                    log_probs[token] -= asked["diversity_penalty"] * count
                if asked["forbidden"] is not None:
                    log_probs[asked["forbidden"]] = -torch.inf
                every += [(total + float(value), beam, token) for token, value in enumerate(log_probs)]
            every.sort(key=lambda entry: -entry[0])
            kept = every[: max(2, 1 + len(asked["eos_token_id"])) * size]
            running = []
            for rank, (total, beam, token) in enumerate(kept):
                tokens = [*group.beams[beam][0], token]
                if token not in asked["eos_token_id"]:
                    running.append((tokens, total))
                elif rank < size:
                    add(group, tokens, total)
            group.beams = running[:size]
            if len(group.pool) == size:
                best_length = length
                if asked["early_stopping"] == "never" and penalty > 0:
                    best_length = steps
                attainable = kept[0][0] / best_length**penalty
                group.done = asked["early_stopping"] is True or min(group.pool)[0] >= attainable
            seen.update(tokens[-1] for tokens, _ in group.beams)
    for group in groups:
        if not group.done:
            for tokens, total in group.beams:
                add(group, tokens, total)
    found = sorted((entry for group in groups for entry in group.pool), key=lambda entry: -entry[0])
    return found[: asked["num_return_sequences"]]


def configuration(number: int) -> dict[str, Any]:
    choice = random.Random(number)
    groups, size = choice.choice([(2, 1), (2, 2), (3, 1), (3, 2), (2, 3), (1, 3)])
    return {
        "num_beams": groups * size,
        "num_beam_groups": groups,
        "diversity_penalty": choice.choice([0.0, 0.3, 1.0, 3.0]),
        "num_return_sequences": choice.randint(1, groups * size),
        "max_new_tokens": choice.choice([1, 3, 6]),
        "length_penalty": choice.choice([0.0, 1.0, -0.5, 2.0]),
        "early_stopping": [False, True, "never"][number % 3],
        "eos_token_id": choice.choice([[2], [2, 5]]),
        "pad_token_id": 7,
        "forbidden": choice.choice([None, 3]),
    }


def test_random_searches_are_those_of_plain_loops() -> None:
    ends = set()
    for number in CONFIGURATIONS:
        asked = configuration(number)
        model = TinyCausal(11, seed=number, sharpness=1.0)
        prompts = torch.randint(0, 11, (2, 3), generator=torch.Generator().manual_seed(number))

        def forbid(input_ids: Tensor, scores: Tensor) -> Tensor:
            return scores.index_fill(1, torch.tensor([3]), -torch.inf)

        options = {key: value for key, value in asked.items() if key != "forbidden"}
        processors = [] if asked["forbidden"] is None else [forbid]
        found = group_beam_search(ModuleModel(model), prompts, logits_processor=processors, **options)
        count = asked["num_return_sequences"]
        for row, prompt in enumerate(prompts.tolist()):
            expected = by_loops(model, prompt, asked)
            rows = slice(row * count, row * count + count)
            assert found.to_lists()[rows] == [tokens for _, tokens in expected], asked
            scores = torch.tensor([score for score, _ in expected])
            torch.testing.assert_close(found.sequences_scores[rows], scores, atol=1e-4, rtol=0)
            ends |= {len(tokens) for _, tokens in expected}
    assert len(ends) > 3, "the searches must have hypotheses that end early"


def test_a_processor_sees_the_rows_of_its_group() -> None:
    seen = []

    def look(input_ids: Tensor, scores: Tensor) -> Tensor:
        seen.append(input_ids.tolist())
        return scores

    options: dict[str, Any] = {"num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 9.0}
    prompts = torch.tensor([[START], [B]])
    group_beam_search(table_model(LETTERS), prompts, max_new_tokens=2, logits_processor=[look], **options)
    start = [[START], [B]]
    assert seen == [start, start, [[START, A], [B, EOS]], [[START, B], [B, A]]]
