"""A step in a graph: replayed for a thousand steps of a batch that changes, it draws the tokens of eager steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hostcann
from ascend_sample.bench.launches import GRAPHS
from ascend_sample.sampling import (
    Purpose,
    RowStatus,
    Sampler,
    SamplingBatch,
    SamplingParams,
    StaticVerification,
    sample_rows,
    verify_drafts,
)
from ascend_sample.sampling.static.step import StaticStep

ROWS, VOCAB_SIZE = 6, 700
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"top_k": 1, "temperature": 0.7},
    {"top_k": 20},
    {"top_k": 50, "top_p": 0.9, "temperature": 0.8},
    {"top_k": 5, "min_p": 0.1, "temperature": 1.5},
    {},
    {"temperature": 0.6},
    {"min_p": 0.05},
    {"top_p": 0.8, "temperature": 1.2},
    {"top_p": 0.95},
]


RANKED = [kind for kind in KINDS if kind.get("top_k", 21) <= 20 or kind.get("temperature") == 0]
"""Those of at most 20 candidates, or none but the best."""


def module_of(device: str) -> Any:
    """What torch has of a device."""
    return torch.get_device_module(device)


def new_graph(device: str) -> Any:
    """An empty graph of the device's kind."""
    return getattr(module_of(device), GRAPHS[device])()


def captured(step: StaticStep | StaticVerification) -> Any:
    """Returns a graph that holds the step."""
    step.run()  # what is looked up or allocated once is no part of the graph
    device = step.token_ids.device.type
    module_of(device).synchronize()
    graph = new_graph(device)
    with module_of(device).graph(graph):
        step.run()
    return graph


def change(batch: SamplingBatch, choice: random.Random, kinds: list[dict[str, Any]]) -> None:
    """Lets requests leave and join."""
    while len(batch) and choice.random() < 0.3:
        batch.remove(choice.randrange(len(batch)))
    while len(batch) < ROWS and (not len(batch) or choice.random() < 0.5):
        params = SamplingParams(**choice.choice(kinds), seed=choice.getrandbits(64))
        batch.add(params, position=choice.randrange(1000))


def rows_of(vocab_size: int, dtype: torch.dtype, device: str) -> Tensor:
    """Logits of eight steps, some of them NaN and infinities; with ties within chunks and between them."""
    noise = torch.randn(8, ROWS, vocab_size, generator=torch.Generator().manual_seed(1)).mul_(3)
    noise[::2].round_()
    noise[3, 2, 5], noise[4, 1], noise[5, 0, 9:11] = torch.nan, -torch.inf, torch.inf
    return noise.to(dtype).to(device)


def check_replays(step: StaticStep, logits: Tensor, steps: int, kinds: list[dict[str, Any]]) -> None:
    """Raises unless replays of a step draw what eager steps do, of a batch that changes."""
    device = step.token_ids.device.type
    replay = step.run if device == "cpu" else captured(step).replay
    sampler, batch, choice = Sampler(), SamplingBatch(logits.shape[2], device), random.Random(1)
    replayed, eager = [], []
    for _ in range(steps):
        change(batch, choice, kinds)
        step.logits.copy_(logits[choice.randrange(len(logits))])
        step.prepare(batch)
        replay()
        replayed.append(torch.stack((step.token_ids, step.status.long()))[:, : len(batch)])
        output = sampler(step.logits[: len(batch)], batch)
        eager.append(torch.stack((output.token_ids, output.status.long())))
    assert torch.equal(torch.cat(replayed, 1).cpu(), torch.cat(eager, 1).cpu())
    assert len({int(status) for status in torch.cat(eager, 1)[1].cpu()}) == len(RowStatus)


def test_a_thousand_replays_are_eager_steps(accelerator: str) -> None:
    step = StaticStep(ROWS, VOCAB_SIZE, torch.bfloat16, accelerator, largest_k=64)
    check_replays(step, rows_of(VOCAB_SIZE, torch.bfloat16, accelerator), 1000, KINDS)


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_ranked_rows_alone(device: str, dtype: torch.dtype, is_sorted: bool) -> None:
    """Requests that all have a top_k: with columns for many chunks of which few are looked at, and some beside.

    `is_sorted` is as if the device had no second operator.
    """
    vocab_size = 64 * 128 + 3
    step = StaticStep(ROWS, vocab_size, dtype, device, largest_k=20, only_top_k=True)
    step._is_sorted |= is_sorted
    check_replays(step, rows_of(vocab_size, dtype, device), 60, RANKED)


@pytest.mark.parametrize(("only_top_k", "calls"), [(True, 1), (False, 2)])
def test_ranked_rows_alone_are_one_call_of_the_operator(counting: None, npu: str, only_top_k: bool, calls: int) -> None:
    step = StaticStep(4, 512, torch.bfloat16, npu, largest_k=50, only_top_k=only_top_k)
    with hostcann.profile() as counted:
        step.run()
    assert counted.launches["aclnnTopKTopPSampleV2"] == calls
    assert counted.totals.launches <= (36 if only_top_k else 59)
    assert counted.totals.read <= (0.4 if only_top_k else 1) * 160_000  # bytes


@pytest.mark.parametrize("name", ["Sampler", "verify_drafts", "StaticStep", "append", "process"])
def test_what_a_graph_must_not_hold_is_refused(accelerator: str, name: str) -> None:
    """Each replay would draw with the noise of the step that was captured, and with requests that may have left."""
    batch, logits = SamplingBatch(64, accelerator), torch.zeros(2, 64, device=accelerator)
    batch.extend([SamplingParams(seed=1, top_k=20, presence_penalty=1.0), SamplingParams(temperature=0)])
    step = StaticStep(2, 64, torch.float32, accelerator, history=4)
    token_ids = torch.zeros(2, dtype=torch.int64, device=accelerator)
    drafts = token_ids[:0]
    calls: dict[str, Callable[[], object]] = {
        "Sampler": lambda: Sampler()(logits, batch),
        "verify_drafts": lambda: verify_drafts(logits, drafts, batch, counts=[0, 0]),
        "StaticStep": lambda: step.prepare(batch),
        "append": lambda: batch.append(token_ids),
        "process": lambda: batch.process(logits),
    }
    calls[name]()
    before = batch.position.tolist()
    owner, argument = "SamplingBatch" if name in ("append", "process") else name, "logits"
    argument = "token_ids" if name == "append" else argument
    says = f"{owner}: {argument} must be on a device whose stream no graph captures, got {accelerator}:0. Capture the"
    with pytest.raises(ValueError, match=says), module_of(accelerator).graph(new_graph(accelerator)):
        calls[name]()
    assert batch.position.tolist() == before


def test_rows_whose_seeds_are_on_the_device_are_captured(accelerator: str) -> None:
    logits = torch.randn(8, 300, generator=torch.Generator().manual_seed(1)).to(accelerator)
    seed, position = (torch.zeros(8, dtype=torch.int64, device=accelerator) for _ in range(2))
    given = {"temperature": torch.ones(8, device=accelerator), "seed": seed, "position": position}
    sample_rows(logits, **given)
    graph = new_graph(accelerator)
    with module_of(accelerator).graph(graph):
        found = sample_rows(logits, **given)
    drawn = []
    for step in range(5):
        seed.copy_(torch.arange(8) + 10 * step)
        position.fill_(step)
        graph.replay()
        drawn.append(found.token_ids.tolist())
        assert drawn[-1] == sample_rows(logits, **given).token_ids.tolist()
    assert len({tuple(tokens) for tokens in drawn}) == 5


def test_requests_without_a_top_k_are_refused_where_all_have_one() -> None:
    step, batch = StaticStep(3, 9, torch.float32, "cpu", only_top_k=True), SamplingBatch(9)
    batch.extend([SamplingParams(temperature=0), SamplingParams(top_k=8)])
    step.prepare(batch)
    for params in (SamplingParams(top_p=0.5), SamplingParams(top_k=9)):
        batch.add(params)
        with pytest.raises(ValueError, match=r"StaticStep: top_k must be on for row 2 of the batch, .* got off"):
            step.prepare(batch)
        batch.remove(2)


def test_close_logits_are_ranked_as_they_are(accelerator: str) -> None:
    """Less the largest of their row they would be equal by twos, and then in the order of their ids."""
    logits = (1 + torch.arange(VOCAB_SIZE) * 2.0**-23).expand(64, -1).contiguous()
    logits[:, 0] = 5.0
    batch, step = SamplingBatch(VOCAB_SIZE, accelerator), StaticStep(64, VOCAB_SIZE, torch.float32, accelerator)
    batch.extend([SamplingParams(top_k=64, seed=seed) for seed in range(64)])
    step.prepare(batch)
    step.logits.copy_(logits)
    step.run()
    assert torch.equal(step.token_ids, Sampler()(step.logits, batch).token_ids)


def test_other_purposes_draw_other_tokens(device: str) -> None:
    batch, step = SamplingBatch(VOCAB_SIZE, device), StaticStep(32, VOCAB_SIZE, torch.float32, device)
    batch.extend([SamplingParams(seed=seed) for seed in range(32)])
    drawn: list[Tensor] = []
    for purpose in (Purpose.DRAW, Purpose.RESAMPLING, Purpose.DRAW):
        step.prepare(batch, purpose=purpose)
        step.run()
        drawn.append(step.token_ids.clone())
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])


def test_a_step_is_one_copy_and_one_replay(counting: None, npu: str) -> None:
    step, batch = StaticStep(4, 512, torch.bfloat16, npu), SamplingBatch(512, npu)
    batch.extend([SamplingParams(**kind, seed=1) for kind in KINDS[2:6]])
    graph = captured(step)
    with hostcann.profile() as counted:
        step.prepare(batch)
        graph.replay()
    assert (counted.launches, dict(counted.copies), counted.synchronizations) == ({}, {"h2d": 1}, {})


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"rows": 0}, ValueError, "rows must be at least 1, got 0."),
    ({"vocab_size": 2**21}, ValueError, "vocab_size must be in"),
    ({"largest_k": "5"}, TypeError, "largest_k must be an int, got str '5'."),
    ({"keep_ties": 1}, TypeError, "keep_ties must be True or False, got int 1."),
    ({"only_top_k": True, "keep_ties": True}, ValueError, "only_top_k must be False with keep_ties"),
    ({"addends": -1}, ValueError, "addends must be at least 0, got -1."),
    ({"history": "5"}, TypeError, "history must be an int, got str '5'."),
    ({"logprobs": 10}, ValueError, r"logprobs must be in \[0, 9\], got 10."),
    ({"logprobs_mode": "raw"}, ValueError, "logprobs_mode must be one of raw_logprobs"),
    ({"dtype": "float32"}, TypeError, "dtype must be a dtype, got str 'float32'."),
    ({"device": "gpu"}, ValueError, "device must be one of torch's, as 'cpu'"),
    ({"dtype": torch.float64}, TypeError, "logits must be float32, float16 or bfloat16"),
]


def test_steps_that_cannot_be_made() -> None:
    given = {"rows": 2, "vocab_size": 9, "dtype": torch.float32, "device": "cpu"}
    for arguments, error, message in REFUSED:
        with pytest.raises(error, match=f"StaticStep: {message}"):
            StaticStep(**(given | arguments))


def test_batches_that_do_not_fit() -> None:
    step, three = StaticStep(2, 9, torch.float32, "cpu", largest_k=4), SamplingBatch(9)
    three.extend([SamplingParams(top_k=2)] * 3)
    for batch, message in (
        (SamplingBatch(8), "batch must have at most 2 rows of 9 ids, got 0 of 8."),
        (three, "batch must have at most 2 rows of 9 ids, got 3 of 9."),
        (SamplingBatch(9, "meta"), "batch must be on the device of the step, cpu, got meta."),
    ):
        with pytest.raises(ValueError, match=f"StaticStep: {message}"):
            step.prepare(batch)
    three.remove(2)
    three.remove(1)
    three.add(SamplingParams(top_k=5))
    with pytest.raises(ValueError, match=r"StaticStep: top_k must be at most 4, got 5\. Make the step"):
        step.prepare(three)
    with pytest.raises(TypeError, match="StaticStep: batch must be a SamplingBatch, got NoneType None"):
        step.prepare(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="StaticStep: purpose must be a Purpose, got str 'DRAW'"):
        step.prepare(SamplingBatch(9), purpose="DRAW")  # type: ignore[arg-type]
