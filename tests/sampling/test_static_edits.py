"""A step in a graph with everything that requests may ask for: a replay is an eager step, and faults would show."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from test_static_step import KINDS, ROWS, VOCAB_SIZE, captured, rows_of
from torch import Tensor

import hostcann
from ascend_sample.sampling import Sampler, SamplerOutput, SamplingBatch, SamplingParams
from ascend_sample.sampling.edits.processing import words_of
from ascend_sample.sampling.static.step import StaticStep
from tests.support.emulation import assert_same_numbers

ADDENDS, HISTORY, LOGPROBS = 5, 40, 3
STOP_IDS = [3, 4]
EDITS: list[dict[str, Any]] = [
    {},
    {"logit_bias": {0: 9.0, 5: -2.0, 699: 4.0}},
    {"suppress_token_ids": [0, 1, 2, 698]},
    {"logit_bias": {7: 8.0}, "suppress_token_ids": list(range(40, 90))},  # more bans than a mask has words
    {"allowed_token_ids": [0, 31, 32, 400, 699]},
    {"min_tokens": 6, "stop_token_ids": STOP_IDS, "logit_bias": {3: 30.0, 4: 29.0}},
    {"min_tokens": 9, "stop_token_ids": STOP_IDS, "logit_bias": {3: 30.0}},
    {"repetition_penalty": 1.8},
    {"repetition_penalty": 0.6, "presence_penalty": 2.0},
    {"frequency_penalty": 1.5, "logit_bias": {6: 6.0}},
    {"presence_penalty": -1.0, "allowed_token_ids": range(0, 700, 3)},
]
MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")


def change(batch: SamplingBatch, choice: random.Random) -> None:
    """Lets requests leave, move and join, and those leave whose history is full."""
    for row in reversed(range(len(batch))):
        is_full = batch.host.position[row] >= HISTORY
        if is_full or choice.random() < 0.05:
            batch.remove(row)
    if len(batch) > 1 and choice.random() < 0.2:
        batch.reorder(choice.sample(range(len(batch)), len(batch)))
    while len(batch) < ROWS and (not len(batch) or choice.random() < 0.4):
        logprobs = choice.choice([None, 0, 1, LOGPROBS])
        asked = {**choice.choice(KINDS), **choice.choice(EDITS), "logprobs": logprobs, "seed": choice.getrandbits(64)}
        # What occurs where biases are makes what a list has twice show.
        prompt = [choice.choice([0, 3, 6, choice.randrange(VOCAB_SIZE)]) for _ in range(choice.randrange(9))]
        batch.add(SamplingParams(**asked), prompt[:4], output_ids=prompt[4:])


def bitmask_of(batch: SamplingBatch, choice: random.Random, device: str) -> dict[str, Any]:
    """A grammar's bitmask for all rows, for some, or for none, on either side."""
    kind = choice.randrange(4)
    if kind < 2:
        return {}
    rows = sorted(choice.sample(range(len(batch)), choice.randrange(len(batch) + 1)))
    generator = torch.Generator().manual_seed(choice.getrandbits(32))
    count = len(batch) if kind == 2 else len(rows)
    words = torch.randint(-(2**31), 2**31, (2, count, words_of(VOCAB_SIZE)), dtype=torch.int32, generator=generator)
    bitmask = words[0] & words[1]
    bitmask[:, 0] |= 1
    bitmask = bitmask.to(device) if choice.random() < 0.5 else bitmask
    return {"bitmask": bitmask} | ({} if kind == 2 else {"bitmask_rows": rows})


def outputs_of(output: SamplerOutput | StaticStep, batch: SamplingBatch) -> tuple[list[int], list[int], Tensor]:
    """Tokens, statuses, and what the rows that ask for logprobs read of them: numbers in one line."""
    count, read = len(batch), [torch.zeros(0)]
    if output.logprobs is not None:
        for row, *numbers in zip(output.logprobs.rows, *(each.cpu() for each in output.logprobs[1:4]), strict=True):
            asked = int(batch.host.logprobs[row]) if row < count else -1
            if asked >= 0:
                read += [each.float().view(-1)[: asked + 1] for each in numbers]
    return output.token_ids[:count].tolist(), output.status[:count].tolist(), torch.cat(read)


def assert_replays_are_eager_steps(steps: int, mode: str, device: str, **options: Any) -> None:
    """Replays steps of a batch that changes, and compares tokens, statuses and logprobs with those of eager steps."""
    room = {"addends": ADDENDS, "history": HISTORY, "bitmask": True, "logprobs": LOGPROBS, "logprobs_mode": mode}
    step = StaticStep(ROWS, VOCAB_SIZE, torch.bfloat16, device, **({"largest_k": 64} | room | options))
    replay = step.run if device == "cpu" else captured(step).replay
    sampler = Sampler(mode, keep_ties=options.get("keep_ties", False))
    batch, choice = SamplingBatch(VOCAB_SIZE, device), random.Random(1)
    logits = rows_of(VOCAB_SIZE, torch.bfloat16, device)
    for place in range(steps):
        change(batch, choice)
        bitmask = bitmask_of(batch, choice, device)
        step.logits.copy_(logits[choice.randrange(len(logits))])
        step.prepare(batch, **bitmask)
        replay()
        replayed = outputs_of(step, batch)
        output = sampler(step.logits[: len(batch)], batch, advance=False, **bitmask)
        eager = outputs_of(output, batch)
        assert replayed[:2] == eager[:2], place
        assert_same_numbers(replayed[2], eager[2], device)
        batch.append(output.token_ids)


@pytest.mark.parametrize("steps", [60, pytest.param(250, marks=pytest.mark.long)])
@pytest.mark.parametrize("mode", MODES)
def test_replays_are_eager_steps(accelerator: str, mode: str, steps: int) -> None:
    assert_replays_are_eager_steps(steps, mode, accelerator)


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("raw_logprobs", {"largest_k": 700}),
        ("raw_logits", {"keep_ties": True}),
        ("processed_logprobs", {"keep_ties": True}),
        ("processed_logits", {"largest_k": 700}),
    ],
)
def test_rows_that_are_sorted(device: str, mode: str, options: dict[str, Any]) -> None:
    assert_replays_are_eager_steps(20, mode, device, **options)


def test_room_for_edits_leaves_every_bit_as_it_is(device: str) -> None:
    """Of rows that use none of it, zeros of either sign, what is infinite and NaN."""
    step = StaticStep(1, 8, torch.float32, device, addends=2, history=2, bitmask=True)
    step.logits.copy_(torch.tensor([[-0.0, 0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, -0.0]]))
    batch = SamplingBatch(8, device)
    batch.add(SamplingParams())
    step.prepare(batch)
    edited = step.draw()
    assert edited.view(torch.int32).tolist() == step.logits.view(torch.int32).tolist()


def test_what_writing_a_step_costs(counting: None, npu: str) -> None:
    """Beside the noise nothing is sent for a batch that stays as it is."""
    step = StaticStep(4, VOCAB_SIZE, torch.bfloat16, npu, addends=2, history=40, bitmask=True, logprobs=5)
    graph = captured(step)
    listed: dict[str, Any] = {
        "logit_bias": {3: 1.0},
        "allowed_token_ids": [3, 5],
        "min_tokens": 5,
        "stop_token_ids": [5],
    }
    for params, launches in ((listed, 0), ({"presence_penalty": 1.0}, 6)):
        batch = SamplingBatch(VOCAB_SIZE, npu)
        batch.extend([SamplingParams(seed=1, **params), SamplingParams(seed=1)])
        step.prepare(batch)
        batch.append(step.token_ids[:2])
        with hostcann.profile() as counted:
            step.prepare(batch)
            graph.replay()
        assert (dict(counted.copies), counted.totals.waits) == ({"h2d": 1}, 0)
        assert counted.totals.launches <= launches


def test_the_longer_history_of_another_request(device: str) -> None:
    """What follows a shorter list is no more penalised."""
    step = StaticStep(1, 99, torch.float32, device, history=40)
    step.logits.copy_(torch.arange(0.99, 0, -0.01))
    drawn = []
    for seen in (range(39, -1, -1), [0]):
        batch = SamplingBatch(99, device)
        batch.add(SamplingParams(temperature=0, presence_penalty=2.0), output_ids=[*seen])
        step.prepare(batch)
        step.run()
        drawn.append(step.token_ids.item())
    assert drawn == [40, 1]


def test_requests_whose_edits_are_done_already(device: str) -> None:
    """The step does nothing of it again, but for the bitmask."""
    batch = SamplingBatch(4, device)
    step = StaticStep(1, 4, torch.float32, device, addends=1, history=8)
    batch.add(SamplingParams(temperature=0, logit_bias={1: -3.0}, presence_penalty=2.0), output_ids=[2])
    step.logits.copy_(torch.tensor([[0.0, 4.0, 3.0, 1.5]]))
    drawn = []
    for is_edited in (False, True, False):
        step.prepare(batch, is_edited=is_edited)
        step.run()
        drawn.append(step.token_ids.item())
    assert drawn == [3, 1, 3]


NO_ROOM: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"suppress_token_ids": [1, 2]}, {"addends": 1}, "addends must be 2 at least, for row 1 of the batch, got 1"),
    ({"min_tokens": 4, "stop_token_ids": [3]}, {}, "addends must be 1 at least, for row 1 of the batch, got 0"),
    ({"presence_penalty": 1.0}, {"history": 2}, "history must be 3 at least, for row 1 of the batch, got 2"),
    ({"allowed_token_ids": [1]}, {}, "bitmask must be True at least, for row 1 of the batch, got False"),
    ({"logprobs": 0}, {}, "logprobs must be at least 0, got None"),
    ({"logprobs": 3}, {"logprobs": 2}, "logprobs must be at least 3, got 2"),
]


def test_the_row_that_needs_most_room_is_named() -> None:
    for params, options, message in NO_ROOM:
        batch = SamplingBatch(99)
        batch.extend([SamplingParams(), SamplingParams(**params)], output_ids=[(), (5, 6, 7)])
        with pytest.raises(ValueError, match=f"StaticStep: {message}"):
            StaticStep(2, 99, torch.float32, "cpu", **options).prepare(batch)
    batch = SamplingBatch(99)
    batch.extend([SamplingParams(suppress_token_ids=ids) for ids in ([1, 2], [1, 2, 3], [1])])
    with pytest.raises(ValueError, match="addends must be 3 at least, for row 1 of the batch, got 1"):
        StaticStep(3, 99, torch.float32, "cpu", addends=1).prepare(batch)


def test_a_bitmask_without_room() -> None:
    batch, words = SamplingBatch(9), torch.zeros(0, 1, dtype=torch.int32)
    step = StaticStep(2, 9, torch.float32, "cpu")
    step.prepare(batch, bitmask=words)  # it is for nobody
    batch.add(SamplingParams())
    with pytest.raises(ValueError, match="bitmask must be left out of a step that has no room for one, got one"):
        step.prepare(batch, bitmask=torch.zeros(1, 1, dtype=torch.int32))
