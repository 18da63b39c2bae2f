"""Batches that mix all scenarios row by row, and what they must give."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import ascend_sample
from ascend_sample import TopKTopPSample
from ascend_sample.reference import top_k_top_p_sample_reference

SCENARIO_K = (0, 5, 0, 7, -1, 1024, 3000, 40)
SCENARIO_P = (1.0, 1.0, 0.7, 0.8, 0.05, 0.99, 0.0, 2.0)


@dataclass(frozen=True)
class Batch:
    """The operator's arguments, all on one device."""

    logits: torch.Tensor
    k: torch.Tensor
    p: torch.Tensor
    q: torch.Tensor | None

    def to(self, device: str) -> Batch:
        """A copy on a device; None stays None."""
        q = None if self.q is None else self.q.to(device)
        return Batch(self.logits.to(device), self.k.to(device), self.p.to(device), q)

    def sample(self, is_need_logits: bool = True) -> TopKTopPSample:
        """What the public function returns, by the route that is set."""
        return ascend_sample.top_k_top_p_sample(self.logits, self.k, self.p, self.q, is_need_logits=is_need_logits)

    def expected(self) -> TopKTopPSample:
        """What the reference returns, on the CPU."""
        batch = self.to("cpu")
        return top_k_top_p_sample_reference(batch.logits, batch.k, batch.p, batch.q, is_need_logits=True)


def make_batch(
    seed: int = 0,
    batch_size: int = len(SCENARIO_K),
    vocab_size: int = 1500,
    dtype: torch.dtype = torch.bfloat16,
    with_q: bool = True,
) -> Batch:
    """Random logits on the CPU; the rows take the scenarios in turn."""
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(batch_size, vocab_size, generator=generator) * 3).to(dtype)
    repeats = -(-batch_size // len(SCENARIO_K))
    k = torch.tensor(SCENARIO_K * repeats, dtype=torch.int32)[:batch_size]
    p = torch.tensor(SCENARIO_P * repeats).to(dtype)[:batch_size]
    q = torch.empty(batch_size, vocab_size).exponential_(generator=generator) if with_q else None
    return Batch(logits, k, p, q)


def check_equal(actual: TopKTopPSample, expected: TopKTopPSample) -> None:
    """The same ids and, where the result has them, the same kept logits bit for bit."""
    assert actual.logits_select_idx.tolist() == expected.logits_select_idx.tolist()
    if actual.logits_top_kp_select is not None:
        check_same_bits(actual.logits_top_kp_select, expected.logits_top_kp_select)


def check_same_bits(actual: torch.Tensor, expected: torch.Tensor | None) -> None:
    """Equal float32 values, where +0 is not -0."""
    assert expected is not None
    assert torch.equal(actual.cpu().view(torch.int32), expected.cpu().view(torch.int32))
