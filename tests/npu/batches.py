"""Batches that mix all scenarios row by row, and what they must give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

import ascend_sample
from ascend_sample.npu.operators import OPERATORS
from ascend_sample.reference import top_k_top_p_sample_reference
from ascend_sample.reference_v2 import top_k_top_p_sample_v2_reference

SAMPLE, SAMPLE_V2 = OPERATORS
"""The names of the two operators."""
_REFERENCES: dict[str, Callable[..., Any]] = {
    SAMPLE: top_k_top_p_sample_reference,
    SAMPLE_V2: top_k_top_p_sample_v2_reference,
}
_operator = SAMPLE


@contextmanager
def use_operator(name: str) -> Iterator[None]:
    """The operator that the batches inside are for, in every thread."""
    global _operator
    before, _operator = _operator, name
    try:
        yield
    finally:
        _operator = before


def operator_name() -> str:
    """The operator that tests are for at the moment."""
    return _operator


def aclnn_name() -> str:
    """The operator of CANN behind it."""
    return OPERATORS[_operator].name


def sample(*arguments: Any, **options: Any) -> Any:
    """The public function of that operator."""
    return getattr(ascend_sample, _operator)(*arguments, **options)


SCENARIO_K = (0, 5, 0, 7, -1, 1024, 3000, 40)
SCENARIO_P = (1.0, 1.0, 0.7, 0.8, 0.05, 0.99, 0.0, 2.0)
SCENARIO_MIN_P = (0.1, 0.0, -1.0, 0.2, 0.0, 0.01, 0.5, 0.3)


@dataclass(frozen=True)
class Batch:
    """The operator's arguments, all on one device; the first operator leaves out min_p."""

    logits: torch.Tensor
    k: torch.Tensor
    p: torch.Tensor
    q: torch.Tensor | None
    min_p: torch.Tensor | None = None

    @property
    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        """Those that the operator takes, in its order."""
        return (self.logits, self.k, self.p, self.q, self.min_p)[: 4 if _operator == SAMPLE else 5]

    def to(self, device: str) -> Batch:
        """A copy on a device; None stays None."""
        q, min_p = (None if tensor is None else tensor.to(device) for tensor in (self.q, self.min_p))
        return Batch(self.logits.to(device), self.k.to(device), self.p.to(device), q, min_p)

    def sample(self, is_need_logits: bool = True, **options: Any) -> Any:
        """What the public function returns, by the route that is set."""
        return sample(*self.tensors, is_need_logits=is_need_logits, **options)

    def expected(self, **options: Any) -> Any:
        """What the reference returns, on the CPU."""
        return _REFERENCES[_operator](*self.to("cpu").tensors, is_need_logits=True, **options)


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
    min_p = torch.tensor(SCENARIO_MIN_P * repeats).to(dtype)[:batch_size]
    return Batch(logits, k, p, q, min_p)


def check_equal(actual: Any, expected: Any) -> None:
    """The same ids and, where the result has them, the same kept logits bit for bit."""
    assert actual.logits_select_idx.tolist() == expected.logits_select_idx.tolist()
    if actual.logits_top_kp_select is not None:
        check_same_bits(actual.logits_top_kp_select, expected.logits_top_kp_select)


def check_same_bits(actual: torch.Tensor, expected: torch.Tensor | None) -> None:
    """Equal float32 values, where +0 is not -0."""
    assert expected is not None
    assert torch.equal(actual.cpu().view(torch.int32), expected.cpu().view(torch.int32))
