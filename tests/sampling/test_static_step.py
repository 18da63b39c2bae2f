"""A step in a graph: replayed for a thousand steps of a batch that changes, it draws the tokens of eager steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sample import hostcann
from ascend_sample.report import GRAPHS
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
from tests.decoding.planting import faults_beside, planted

ROWS, VOCAB_SIZE, STEPS = 6, 700, 1000
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


def change(batch: SamplingBatch, choice: random.Random, kinds: list[dict[str, Any]] = KINDS) -> None:
    """Lets requests leave and join."""
    while len(batch) and choice.random() < 0.3:
        batch.remove(choice.randrange(len(batch)))
    while len(batch) < ROWS and (not len(batch) or choice.random() < 0.5):
        params = SamplingParams(**choice.choice(kinds), seed=choice.getrandbits(64))
        batch.add(params, position=choice.randrange(1000))


def test_a_thousand_replays_are_eager_steps(accelerator: str) -> None:
    step = StaticStep(ROWS, VOCAB_SIZE, torch.bfloat16, accelerator, largest_k=64)
    graph, sampler, batch, choice = captured(step), Sampler(), SamplingBatch(VOCAB_SIZE, accelerator), random.Random(1)
    noise = (torch.randn(8, ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(1)) * 3).to(torch.bfloat16)
    noise[3, 2, 5], noise[4, 1] = torch.nan, -torch.inf
    noise[5, 0, 9:11] = torch.inf
    logits = noise.to(accelerator)
    replayed, eager = [], []
    for _ in range(STEPS):
        change(batch, choice)
        step.logits.copy_(logits[choice.randrange(len(logits))])
        step.prepare(batch)
        graph.replay()
        replayed.append(torch.stack((step.token_ids, step.status.long()))[:, : len(batch)])
        output = sampler(step.logits[: len(batch)], batch)
        eager.append(torch.stack((output.token_ids, output.status.long())))
    assert torch.equal(torch.cat(replayed, 1).cpu(), torch.cat(eager, 1).cpu())
    assert len({int(status) for status in torch.cat(eager, 1)[1].cpu()}) == len(RowStatus)


def assert_ranked_replays_are_eager_steps(device: str, steps: int, dtype: torch.dtype, is_sorted: bool = False) -> None:
    """Of requests that all have a top_k: with columns for many chunks of which few are looked at, and some beside.

    Args:
        device: where.
        steps: how many.
        dtype: of the logits.
        is_sorted: as if the device had no second operator.
    """
    vocab_size = 64 * 128 + 3
    step = StaticStep(ROWS, vocab_size, dtype, device, largest_k=20, only_top_k=True)
    step._is_sorted |= is_sorted
    replay = step.run if device == "cpu" else captured(step).replay
    sampler, batch, choice = Sampler(), SamplingBatch(vocab_size, device), random.Random(1)
    noise = torch.randn(8, ROWS, vocab_size, generator=torch.Generator().manual_seed(1)).mul_(2).round_().to(dtype)
    noise[3, 2, 5], noise[4, 1] = torch.nan, -torch.inf
    noise[5, 0, 9:11] = torch.inf
    logits = noise.to(device)  # with ties within chunks and between them
    for place in range(steps):
        change(batch, choice, RANKED)
        step.logits.copy_(logits[choice.randrange(len(logits))])
        step.prepare(batch)
        replay()
        output = sampler(step.logits[: len(batch)], batch)
        assert step.token_ids[: len(batch)].tolist() == output.token_ids.tolist(), place
        assert step.status[: len(batch)].tolist() == output.status.tolist(), place


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_ranked_rows_alone(device: str, dtype: torch.dtype, is_sorted: bool) -> None:
    assert_ranked_replays_are_eager_steps(device, 60, dtype, is_sorted)


FAULTS = faults_beside(__file__)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_of_ranked_rows_show(npu: str, fault: str) -> None:
    with planted(*FAULTS[fault]), pytest.raises((AssertionError, RuntimeError)):
        assert_ranked_replays_are_eager_steps(npu, 40, torch.float32, is_sorted=True)


@pytest.mark.parametrize(("only_top_k", "calls"), [(True, 1), (False, 2)])
def test_ranked_rows_alone_are_one_call_of_the_operator(counting: None, npu: str, only_top_k: bool, calls: int) -> None:
    step = StaticStep(4, 512, torch.bfloat16, npu, largest_k=50, only_top_k=only_top_k)
    with hostcann.profile() as counted:
        step.run()
    assert counted.launches["aclnnTopKTopPSampleV2"] == calls
    assert counted.totals.launches <= (36 if only_top_k else 59)
    assert counted.totals.read <= (0.4 if only_top_k else 1) * 160_000  # bytes


@pytest.mark.parametrize("kind", [{}, {"temperature": 0}, {"top_k": 20, "presence_penalty": 1.0}], ids=str)
@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("Sampler", "logits"),
        ("verify_drafts", "logits"),
        ("StaticStep", "logits"),
        ("append", "token_ids"),
        ("process", "logits"),
    ],
)
def test_what_a_graph_must_not_hold_is_refused(
    accelerator: str, name: str, argument: str, kind: dict[str, Any]
) -> None:
    """Each replay would draw with the noise of the step that was captured, and with requests that may have left."""
    batch, logits = SamplingBatch(64, accelerator), torch.zeros(2, 64, device=accelerator)
    batch.extend([SamplingParams(seed=1, **kind), SamplingParams(seed=2)])
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
    owner = "SamplingBatch" if name in ("append", "process") else name
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


@pytest.mark.parametrize("options", [{"largest_k": 2000}, {"keep_ties": True}])
def test_rows_that_are_sorted(device: str, options: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(64, 3000, generator=generator).mul_(4).round_().div_(2).to(device)
    batch = SamplingBatch(3000, device)
    kinds = [{"top_k": 1500, "top_p": 0.99}, {"top_k": 40}, {"top_k": 3}, {}, {"top_p": 0.7}]
    batch.extend([SamplingParams(**kinds[row % 5], seed=row) for row in range(50)])
    step = StaticStep(64, 3000, torch.float32, device, **({"largest_k": 2000} | options))
    step.prepare(batch)
    step.logits.copy_(logits)
    step.run()
    eager = Sampler(keep_ties=options.get("keep_ties", False))(logits[:50], batch)
    assert torch.equal(step.token_ids[:50].cpu(), eager.token_ids.cpu())


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


def test_edited_logits(device: str) -> None:
    batch, step = SamplingBatch(4, device), StaticStep(2, 4, torch.float32, device)
    batch.add(SamplingParams(temperature=0, bad_ids=[2]))
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]], device=device)
    step.prepare(batch, is_edited=True)
    processed = batch.process(logits)
    assert processed is not None
    step.logits[:1] = processed.logits
    step.run()
    assert step.token_ids[:1].tolist() == [1]


def test_a_step_is_one_copy_and_one_replay(counting: None, npu: str) -> None:
    step, batch = StaticStep(4, 512, torch.bfloat16, npu), SamplingBatch(512, npu)
    batch.extend([SamplingParams(**kind, seed=1) for kind in KINDS[2:6]])
    graph = captured(step)
    with hostcann.profile() as counted:
        step.prepare(batch)
        graph.replay()
    assert (counted.launches, dict(counted.copies), counted.synchronizations) == ({}, {"h2d": 1}, {})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rows": 0}, ValueError, "StaticStep: rows must be at least 1, got 0."),
        ({"vocab_size": 2**21}, ValueError, "StaticStep: vocab_size must be in"),
        ({"largest_k": "5"}, TypeError, "StaticStep: largest_k must be an int, got str '5'."),
        ({"keep_ties": 1}, TypeError, "StaticStep: keep_ties must be True or False, got int 1."),
        ({"only_top_k": 1}, TypeError, "StaticStep: only_top_k must be True or False, got int 1."),
        ({"only_top_k": True, "keep_ties": True}, ValueError, "StaticStep: only_top_k must be False with keep_ties"),
        ({"bitmask": 1}, TypeError, "StaticStep: bitmask must be True or False, got int 1."),
        ({"addends": -1}, ValueError, "StaticStep: addends must be at least 0, got -1."),
        ({"history": "5"}, TypeError, "StaticStep: history must be an int, got str '5'."),
        ({"logprobs": 10}, ValueError, r"StaticStep: logprobs must be in \[0, 9\], got 10."),
        ({"logprobs_mode": "raw"}, ValueError, "StaticStep: logprobs_mode must be one of raw_logprobs"),
        ({"dtype": "float32"}, TypeError, "StaticStep: dtype must be a dtype, got str 'float32'."),
        ({"device": "gpu"}, ValueError, "StaticStep: device must be one of torch's, as 'cpu'"),
        ({"dtype": torch.float64}, TypeError, "StaticStep: logits must be float32, float16 or bfloat16"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"rows": 2, "vocab_size": 9, "dtype": torch.float32, "device": "cpu"}
    with pytest.raises(error, match=message):
        StaticStep(**(given | arguments))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (SamplingBatch(8), "StaticStep: batch must have at most 2 rows of 9 ids, got 0 of 8."),
        ([{}, {}, {}], "StaticStep: batch must have at most 2 rows of 9 ids, got 3 of 9."),
        (SamplingBatch(9, "meta"), "StaticStep: batch must be on the device of the step, cpu, got meta."),
        ([{"top_k": 5}], "StaticStep: top_k must be at most 4, got 5. Make the step with that largest_k."),
        ([{}, {"bad_ids": [1]}], "StaticStep: addends must be 1 at least, for row 1 of the batch, got 0."),
    ],
)
def test_batches_that_do_not_fit(batch: SamplingBatch | list[dict[str, Any]], message: str) -> None:
    if isinstance(batch, list):
        params = [SamplingParams(**kind) for kind in batch]
        batch = SamplingBatch(9)
        batch.extend(params)
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        StaticStep(2, 9, torch.float32, "cpu", largest_k=4).prepare(batch)


def test_batches_that_are_none() -> None:
    step = StaticStep(2, 9, torch.float32, "cpu")
    with pytest.raises(TypeError, match="StaticStep: batch must be a SamplingBatch, got NoneType None"):
        step.prepare(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="StaticStep: purpose must be a Purpose, got str 'DRAW'"):
        step.prepare(SamplingBatch(9), purpose="DRAW")  # type: ignore[arg-type]
