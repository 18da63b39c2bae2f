"""Mistakes that others have made where ranks share a vocabulary, planted one by one: a test stops each."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
import run_split_rows
import torch
from mixed_rows import Case, differences, same, split, whole
from shard_ranks import on_threads, part_of, shards_of

from ascend_sample.sampling import Sampler, SamplingBatch, SamplingParams
from ascend_sample.sampling.vocabulary_parallel import (
    Exchange,
    agreement,
    chunks,
    cuts,
    device_rows,
    local_part,
    local_rows,
    race,
    step,
    step_plan,
)
from tests.decoding.planting import Trap, assert_caught, noticed, planted

ROWS = 24


def logits_of(vocab_size: int, rounded: bool = False) -> torch.Tensor:
    logits = 2 * torch.randn(ROWS, vocab_size, generator=torch.Generator().manual_seed(vocab_size))
    return (logits.round() if rounded else logits).bfloat16()


def check_rows(
    params: Sequence[SamplingParams], widths: tuple[int, ...], device: str = "cpu", rounded: bool = False
) -> None:
    """Raises unless every rank finds what the step that is not split finds."""
    vocab_size = sum(widths) - 10  # ten columns are padding
    case = Case(logits_of(vocab_size, rounded), list(params), [[]] * ROWS, None, widths, {})
    expected = whole(case, device=device)
    for found in split(case, device):
        for output, wanted in zip(found.outputs, expected, strict=True):
            assert not differences(case, output, wanted)
            assert same(output, wanted)


def rows_of(**params: object) -> list[SamplingParams]:
    return [SamplingParams(seed=row, **params) for row in range(ROWS)]  # type: ignore[arg-type]


def no_filter() -> None:
    check_rows(rows_of(), (300, 310))


def top_k() -> None:
    check_rows(rows_of(top_k=20), (300, 310))


def greedy() -> None:
    check_rows([SamplingParams(temperature=0)] * ROWS, (300, 310))


def several_k() -> None:
    check_rows([SamplingParams(seed=row, top_k=2 + 38 * (row % 2), temperature=2.0) for row in range(ROWS)], (300, 310))


def ties_at_the_cut() -> None:
    check_rows(rows_of(top_k=1100), (1000, 1000, 1010), rounded=True)


def logprobs() -> None:
    check_rows(rows_of(top_k=20, logprobs=3), (2000, 2548))


def k_that_changes() -> None:
    """The batch has other requests in the second step, as many as before."""
    logits, widths = logits_of(600), (300, 300)
    before, after = rows_of(top_k=2), rows_of(top_k=40)

    def steps(sampler: Sampler, logits: torch.Tensor) -> list[int]:
        batch = SamplingBatch(600)
        batch.extend(before)
        sampler(logits, batch)
        for _ in range(ROWS):
            batch.remove(0)
        batch.extend(after)
        return sampler(logits, batch).token_ids.tolist()

    def on_rank(exchange: Exchange) -> list[int]:
        shard = shards_of(widths, 600, exchange)
        return steps(Sampler(shard=shard), part_of(logits, shard))

    assert on_threads(2, on_rank) == [steps(Sampler(), logits)] * 2


def seeds_that_nobody_gave() -> None:
    """Each rank draws its own, and the first one's count: in the step that tells them, and in the next."""

    def on_rank(exchange: Exchange) -> list[list[int]]:
        batch = SamplingBatch(600, generator=torch.Generator().manual_seed(exchange.rank))
        batch.extend([SamplingParams(top_k=40)] * ROWS)
        shard = shards_of((300, 300), 600, exchange)
        sampler, part = Sampler(shard=shard), part_of(logits_of(600), shard)
        return [sampler(part, batch).token_ids.tolist() for _ in range(2)]

    first, second = on_threads(2, on_rank)
    assert first == second


def seeds_that_differ() -> None:
    """The error names them."""

    def on_rank(exchange: Exchange) -> None:
        batch = SamplingBatch(600)
        batch.extend([SamplingParams(top_k=40, seed=exchange.rank)] * ROWS)
        shard = shards_of((300, 300), 600, exchange)
        Sampler(shard=shard)(part_of(logits_of(600), shard), batch)

    with pytest.raises(ValueError, match="another seed on rank 1 than on rank 0"):
        on_threads(2, on_rank)


DRAWN_WITH = "self._seeds, self._unknown = torch.from_numpy(seeds), unknown"
OF_EACH_RANK = "self._seeds, self._unknown = torch.from_numpy(seeds) ^ self._exchange.rank, unknown"
OF_FIRST = "of_first.tolist(), strict"
TRAPS = (
    Trap("a generator for each rank", step, DRAWN_WITH, OF_EACH_RANK, no_filter),
    Trap("a generator for each rank, top-k", step, DRAWN_WITH, OF_EACH_RANK, top_k),
    Trap("ids of the rank", local_part, "[plan.candidates] + self._ids.start", "[plan.candidates]", top_k),
    Trap("ids of the rank, leads", race, "token_ids + first_id", "token_ids", no_filter),
    Trap("ties counted twice at the cut", cuts, "of_rank.cumsum(0) - of_rank", "0 * of_rank", ties_at_the_cut),
    Trap(
        "a stale k",
        step,
        "plan: StepPlan = batch.plans[key]",
        'plan: StepPlan = self.__dict__.setdefault("_first", batch.plans[key])',
        k_that_changes,
    ),
    Trap("cut at another row's k", step_plan, "(self.most) < k[:, None]", "(self.most) < k[::-1, None]", several_k),
    Trap(
        "the logsumexp of one shard",
        chunks,
        "= of_ranks[rank, :, : len(whole)]",
        "= of_ranks[rank, :, : len(whole)] if rank == 0 or numbers is of_rows[1] else -torch.inf",
        logprobs,
    ),
    Trap(
        "a border piece dropped",
        race,
        "shared.setdefault((end - 1) // SEGMENT, []).append((rank, 2))",
        "shared.setdefault((end - 1) // SEGMENT, [])",
        no_filter,
    ),
    Trap(
        "a border piece dropped, logprobs",
        chunks,
        "for piece in of_rank:",
        "for piece in of_rank[1:]:",
        logprobs,
    ),
    Trap("padding drawn", local_rows, "own = logits[:, : len(ids)]", "own = logits", greedy),
    Trap("each rank's own seeds", agreement, OF_FIRST, "own[rows].tolist(), strict", seeds_that_nobody_gave),
    Trap(
        "other seeds unnoticed", agreement, "np.where(is_seeded, batch.host.seed, 0)", "np.zeros(1)", seeds_that_differ
    ),
)

test_trap = noticed(TRAPS)


def no_filter_on_device() -> None:
    check_rows(rows_of(), (300, 310), "npu")


def top_k_on_device() -> None:
    check_rows(rows_of(top_k=20), (300, 310), "npu")


ON_DEVICE = (
    Trap("ids of the rank", device_rows, "ids + own.ids.start", "ids", top_k_on_device),
    Trap(
        "a border piece dropped",
        device_rows,
        "filled = torch.cat([*pieces, logits.new_zeros(len(logits), missing)], 1)",
        "filled = logits.new_full((len(logits), self._chunks.most_in_pieces), -torch.inf)",
        no_filter_on_device,
    ),
    Trap(
        "weighed by the maximum of the part",
        device_rows,
        'told[f"{self.name}_maximum"].amax(0)',
        'told[f"{self.name}_maximum"][own.rank]',
        no_filter_on_device,
    ),
    Trap(
        "a generator for each rank",
        device_rows,
        "[KnownNoise(keys.of_rows(self.rows),",
        "[KnownNoise(DrawKeys(keys.seed[self.rows] ^ own.rank, keys.position[self.rows]),",
        no_filter_on_device,
    ),
)


@pytest.mark.parametrize("trap", ON_DEVICE, ids=lambda trap: trap.name)
def test_trap_on_device(npu: str, trap: Trap) -> None:
    assert_caught(trap)


def test_the_runner_of_many_rows_names_what_is_another() -> None:
    """A batch on each number of ranks; with a fault, those on more than one."""
    assert all(not run_split_rows.try_batch(number).wrong for number in range(len(run_split_rows.SIZES)))
    with planted(step, DRAWN_WITH, OF_EACH_RANK):
        found = [run_split_rows.try_batch(number) for number in range(len(run_split_rows.SIZES))]
    assert [bool(outcome.wrong) for outcome in found[:4]] == [False, True, True, True]
    assert re.match(r"batch 1, rank \d of 2: row \d+: ", found[1].wrong[0])
