"""Where the seeds of rows come from."""

from __future__ import annotations

import torch

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.requests.params import SamplingParams


def test_rows_without_a_seed_get_theirs_from_the_generator(device: str) -> None:
    def seeds(*requests: SamplingParams) -> list[int]:
        batch = SamplingBatch(10, device, generator=torch.Generator().manual_seed(7))
        batch.extend(requests)
        assert batch.host.seed.tolist() == batch.seed.tolist()
        return list(batch.seed.tolist())

    unseeded = SamplingParams()
    first = seeds(*[unseeded] * 50)
    assert len(set(first)) == 50
    assert first == seeds(*[unseeded] * 50)
    assert min(first) < 0 < max(first), "all 64 bits are drawn"
    # Given seeds take nothing from the generator, wherever they stand.
    mixed = seeds(SamplingParams(seed=5), unseeded, SamplingParams(seed=6), unseeded)
    assert mixed == [5, first[0], 6, first[1]]


def test_one_by_one_or_together_the_same_seeds_are_drawn() -> None:
    together, one_by_one = (SamplingBatch(10, generator=torch.Generator().manual_seed(7)) for _ in range(2))
    together.extend([SamplingParams()] * 20)
    for _ in range(20):
        one_by_one.add(SamplingParams())
    assert together.seed.tolist() == one_by_one.seed.tolist()


def test_torchs_own_generator_is_the_default() -> None:
    torch.manual_seed(3)
    first, second = SamplingBatch(10), SamplingBatch(10)
    first.add(SamplingParams())
    second.add(SamplingParams())
    assert first.seed.tolist() != second.seed.tolist()
    torch.manual_seed(3)
    third = SamplingBatch(10)
    third.add(SamplingParams())
    assert third.seed.tolist() == first.seed.tolist()


def test_a_removed_rows_seed_does_not_come_back(device: str) -> None:
    batch = SamplingBatch(10, device, generator=torch.Generator().manual_seed(7))
    batch.add(SamplingParams(seed=5))
    batch.flush()
    batch.remove(0)
    batch.extend([SamplingParams(), SamplingParams()])
    assert 5 not in batch.seed.tolist()
    assert len(set(batch.seed.tolist())) == 2
    assert batch.position.tolist() == [0, 0]
