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

SAMPLERS = SAMPLE, SAMPLE_V2 = list(OPERATORS)[:2]
"""The names of the two operators that draw."""
SAMPLE_RESULT = "sample result of probabilities"


@dataclass(frozen=True)
class Variant:
    """A way to call an operator with a batch."""

    operator: str
    of_probabilities: bool = False
    with_sample_result: bool = False

    @property
    def options(self) -> dict[str, bool]:
        """Those that the function takes for it."""
        chosen = {"input_is_logits": not self.of_probabilities, "is_need_sample_result": self.with_sample_result}
        return {} if self.operator == SAMPLE else chosen


VARIANTS = {
    SAMPLE: Variant(SAMPLE),
    SAMPLE_V2: Variant(SAMPLE_V2),
    SAMPLE_RESULT: Variant(SAMPLE_V2, of_probabilities=True, with_sample_result=True),
}
"""By name, which for plain calls is the operator's."""
_REFERENCES: dict[str, Callable[..., Any]] = {
    SAMPLE: top_k_top_p_sample_reference,
    SAMPLE_V2: top_k_top_p_sample_v2_reference,
}
_variant = VARIANTS[SAMPLE]


@contextmanager
def use_variant(name: str) -> Iterator[None]:
    """What the batches inside are for, in every thread."""
    global _variant
    before, _variant = _variant, VARIANTS[name]
    try:
        yield
    finally:
        _variant = before


def operator_name() -> str:
    """The operator that tests are for at the moment."""
    return _variant.operator


def aclnn_name() -> str:
    """The operator of CANN behind it."""
    return OPERATORS[_variant.operator].name


def launches() -> int:
    """How often a call launches it: a sample result comes without an id, which takes another launch."""
    return 2 if _variant.with_sample_result else 1


def sample(*arguments: Any, **options: Any) -> Any:
    """The public function of that operator."""
    return getattr(ascend_sample, _variant.operator)(*arguments, **_variant.options | options)


SCENARIO_K = (0, 5, 0, 7, -1, 1024, 3000, 40)
SCENARIO_P = (1.0, 1.0, 0.7, 0.8, 0.05, 0.99, 0.0, 2.0)
SCENARIO_MIN_P = (0.1, 0.0, -1.0, 0.2, 0.0, 0.01, 0.5, 0.3)


@dataclass(frozen=True)
class Batch:
    """The operator's arguments, all on one device. The first operator leaves out min_p, a sample result q.

    Either may be None.
    """

    logits: torch.Tensor
    k: torch.Tensor
    p: torch.Tensor
    q: Any
    min_p: Any = None

    @property
    def noise(self) -> torch.Tensor | None:
        """The q that the operator takes."""
        return None if _variant.with_sample_result else self.q

    @property
    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        """Those that the operator takes, in its order."""
        return (self.logits, self.k, self.p, self.noise, self.min_p)[: 4 if _variant.operator == SAMPLE else 5]

    def result_sizes(self, is_need_logits: bool = True) -> list[int]:
        """The bytes of each result."""
        ids, values = torch.int64.itemsize, torch.float32.itemsize
        a_logit = [values] * is_need_logits + [ids, values] * _variant.with_sample_result
        return [ids * len(self.logits), *(size * self.logits.numel() for size in a_logit)]

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        """All tensors changed; None stays None."""
        q, min_p = (None if tensor is None else change(tensor) for tensor in (self.q, self.min_p))
        return Batch(change(self.logits), change(self.k), change(self.p), q, min_p)

    def to(self, device: str) -> Batch:
        """A copy on a device."""
        return self.each(lambda tensor: tensor.to(device))

    def sample(self, is_need_logits: bool = True, **options: Any) -> Any:
        """What the public function returns, by the route that is set."""
        return sample(*self.tensors, is_need_logits=is_need_logits, **options)

    def expected(self, **options: Any) -> Any:
        """What the reference returns, on the CPU."""
        options = _variant.options | options
        return _REFERENCES[_variant.operator](*self.to("cpu").tensors, is_need_logits=True, **options)


def make_batch(
    seed: int = 0,
    batch_size: int = len(SCENARIO_K),
    vocab_size: int = 1500,
    dtype: torch.dtype = torch.bfloat16,
    with_q: bool = True,
) -> Batch:
    """Random logits, or probabilities, on the CPU; the rows take the scenarios in turn."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch_size, vocab_size, generator=generator) * 3
    logits = (logits.softmax(dim=1) if _variant.of_probabilities else logits).to(dtype)
    repeats = -(-batch_size // len(SCENARIO_K))
    k = torch.tensor(SCENARIO_K * repeats, dtype=torch.int32)[:batch_size]
    p = torch.tensor(SCENARIO_P * repeats).to(dtype)[:batch_size]
    q = torch.empty(batch_size, vocab_size).exponential_(generator=generator) if with_q else None
    min_p = torch.tensor(SCENARIO_MIN_P * repeats).to(dtype)[:batch_size]
    return Batch(logits, k, p, q, min_p)


def every_other(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as every other element of a wider tensor."""
    wide = tensor.new_zeros(*tensor.shape[:-1], 2 * tensor.shape[-1])
    wide[..., ::2] = tensor
    return wide[..., ::2]


def check_equal(actual: Any, expected: Any) -> None:
    """The same ids and, where the result has them, the same kept logits bit for bit and the same sample result."""
    assert actual.logits_select_idx.tolist() == expected.logits_select_idx.tolist()
    if actual.logits_top_kp_select is not None:
        check_same_bits(actual.logits_top_kp_select, expected.logits_top_kp_select)
    if _variant.with_sample_result:
        torch.testing.assert_close(actual.logits_sort_masked.cpu(), expected.logits_sort_masked, rtol=1e-5, atol=0.0)
        kept = expected.logits_sort_masked > 0
        assert torch.equal(actual.logits_idx.cpu()[kept], expected.logits_idx[kept])


def check_same_bits(actual: torch.Tensor, expected: torch.Tensor | None) -> None:
    """Equal float32 values, where +0 is not -0."""
    assert expected is not None
    assert torch.equal(actual.cpu().view(torch.int32), expected.cpu().view(torch.int32))
