"""Ranks whose logits are on an NPU: the bits of the step that is not split there, in few launches, without waits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from mixed_rows import Case, check_split, random_case
from one_of_two import OneOfTwo
from shard_ranks import on_threads, part_of, shards_of

import hostcann
from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams
from ascend_sample.sampling.vocabulary_parallel import Exchange, VocabularyShard
from tests.support.warm_python import run_warm


def test_a_split_step_is_the_step_of_the_device(accelerator: str) -> None:
    for number in range(12):
        size = 2 + number % 3
        check_split(random_case(7000 * size + number // 3, size), accelerator)


def test_borders_within_segments(accelerator: str) -> None:
    """Segments of which three ranks have a piece, and parts of one id."""
    generator = torch.Generator().manual_seed(4)
    params = [SamplingParams(seed=row, min_p=0.01 * (row % 3), temperature=0.5 + row % 2) for row in range(24)]
    for widths in ((100, 100, 800), (1, 1, 998), (255, 257, 488), (1003, 5, 5)):
        logits = torch.randn(24, 1000, generator=generator).bfloat16()
        logits[3] = -torch.inf
        logits[4, 300], logits[5, 301] = torch.inf, torch.nan
        check_split(Case(logits, params, [[]] * 24, None, widths, {}), accelerator)


def step_of(make: object, **options: object) -> list[int]:
    """A step on two ranks, of the batch that is made for each."""

    def run(exchange: Exchange) -> list[int]:
        sampler = Sampler(shard=VocabularyShard(32 * exchange.rank, 32, 64, exchange), **options)
        batch = SamplingBatch(64, "cpu" if options else "npu")
        batch.extend(make(exchange.rank))  # type: ignore[operator]
        return sampler(torch.zeros(len(batch), 32, device="npu"), batch).token_ids.tolist()

    first, second = on_threads(2, run)
    assert first == second
    return first


def test_ranks_agree_on_requests_and_seeds(npu: str) -> None:
    assert len(set(step_of(lambda rank: [SamplingParams()] * 16))) > 4  # of unlike seeds on the two ranks
    with pytest.raises(ValueError, match="another top_k and request on rank 1 than on rank 0"):
        step_of(lambda rank: [SamplingParams(seed=1, top_k=5 + rank)])
    with pytest.raises(ValueError, match="must be left out with host=True for logits on a device"):
        step_of(lambda rank: [SamplingParams(seed=1)], host=True)


def test_samplers_that_share_a_batch(npu: str) -> None:
    """Each has its own borders, and its own agreement on seeds."""
    logits = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))

    def run(exchange: Exchange) -> list[list[int]]:
        batch = SamplingBatch(64, "npu", generator=torch.Generator().manual_seed(exchange.rank))
        batch.extend([SamplingParams(top_k=20)] * 8)
        found = []
        for widths in ((32, 32), (10, 54)):
            shard = shards_of(widths, 64, exchange)
            part = part_of(logits, shard).npu()
            found.append(Sampler(shard=shard)(part, batch, advance=False).token_ids.tolist())
        return found

    (one, other), second = on_threads(2, run)
    assert [one, other] == second
    assert one == other


def test_a_sampler_edits_logits_of_any_dtype(npu: str) -> None:
    """What is as good as the best in one is not in the next."""
    logits = torch.zeros(1, 64)
    logits[0, [10, 40]] = torch.tensor([5.0, 5.001])

    def found(sampler: Sampler, part: torch.Tensor) -> list[int]:
        batch = SamplingBatch(64, npu)
        batch.add(SamplingParams(temperature=0, logit_bias={3: 1.0}))
        return [sampler(part.to(npu, dtype), batch).token_ids.item() for dtype in (torch.bfloat16, torch.float32)]

    def run(exchange: Exchange) -> list[int]:
        shard = shards_of((32, 32), 64, exchange)
        return found(Sampler(shard=shard), part_of(logits, shard))

    assert [found(Sampler(), logits), *on_threads(2, run)] == [[10, 40]] * 3


# ---- processes ----

LIMITS = {
    # launches, collectives, bytes a row: as docs/vocabulary_parallel.md has them
    "greedy": (22, 1, 6 + 2),
    "top-k": (26, 1, 6 * 50 + 2),
    "top-k, top-p, temperature": (37, 1, 6 * 20 + 2),
    "no filter": (43, 2, 2 * 255 + 4 + 2 + 8),
    "min-p": (46, 2, 2 * 255 + 4 + 2 + 8),
    "penalty": (42, 1, 8 * 50 + 4),
    "top-p": (24, 1, 2 * 10000),
    "logprobs": (35, 1, 2 * 10000),
}
ROWS = 8


def on_processes(*options: str) -> str:
    program = str(Path(__file__).with_name("hccl_ranks.py"))
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", program, *options)
    hidden = ("HOSTCANN_", "TORCH_DEVICE_BACKEND")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    strict = hostcann.environment() | {"HOSTCANN_STRICT": "1"}
    finished = run_warm(command, kept | strict, Path.cwd(), seconds=150)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.long
def test_hccl_and_what_a_step_costs(counting: None) -> None:
    printed = on_processes("--rows", "60", "--costs")
    assert printed.count("rows are the same") == 2
    found = json.loads(printed.split("costs ", 1)[1].splitlines()[0])
    assert found.keys() == LIMITS.keys()
    for name, (launches, collectives, bytes_of_row) in LIMITS.items():
        cost = found[name]
        assert cost["launches"] <= launches, (name, cost)
        assert cost["waits"] == 0, (name, cost)
        assert cost["copies"] in ({}, {"h2d": 1}), (name, cost)
        assert cost["collectives"] == collectives, (name, cost)
        assert cost["bytes"] <= ROWS * bytes_of_row + 8 * collectives, (name, cost)


def test_a_step_is_not_captured(npu: str) -> None:
    batch, logits = SamplingBatch(64, npu), torch.zeros(1, 32, device=npu)
    batch.add(SamplingParams(seed=1))
    sampler = Sampler(shard=VocabularyShard(0, 32, 64, OneOfTwo()))
    says = "Sampler: logits must be on a device whose stream no graph captures, got npu:0"
    with pytest.raises(ValueError, match=says), torch.npu.graph(torch.npu.NPUGraph()):
        sampler(logits, batch)
