"""Scalars, tensors of any width, None: what the public function makes of k and p."""

from __future__ import annotations

import fractions

import numpy as np
import pytest
import torch

import ascend_sample
from ascend_sample._validate import convert_k, convert_p

INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
LOGITS = [torch.float16, torch.bfloat16, torch.float32]


def logits(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(3, 100, dtype=dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_k_of_any_width(dtype: torch.dtype) -> None:
    converted = convert_k(torch.tensor([0, 5, 120]).to(dtype), logits())
    assert converted.dtype == torch.int32
    assert converted.tolist() == [0, 5, 120]


@pytest.mark.parametrize("value", [2**32 + 5, 2**31, -(2**40) + 7, 2**63 - 1])
def test_k_saturates_instead_of_wrapping(value: int) -> None:
    """2**32 + 5 would wrap to 5 and switch top-k on."""
    for k in (value, torch.tensor([value] * 3)):
        converted = convert_k(k, logits())
        assert converted.dtype == torch.int32
        assert all(not 1 <= k <= 1024 for k in converted.tolist())


@pytest.mark.parametrize("k", [7, np.int64(7), np.uint8(7), torch.tensor(7), torch.tensor(7, dtype=torch.uint8)])
def test_scalar_k_is_for_every_row(k: object) -> None:
    assert convert_k(k, logits()).tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    "p",
    [0.5, np.float32(0.5), np.float64(0.5), fractions.Fraction(1, 2), torch.tensor(0.5), torch.tensor(0.5).double()],
)
@pytest.mark.parametrize("dtype", LOGITS)
def test_scalar_p_is_for_every_row(p: object, dtype: torch.dtype) -> None:
    converted = convert_p(p, logits(dtype))
    assert converted.dtype == dtype
    assert converted.tolist() == [0.5, 0.5, 0.5]


def test_integer_p_is_a_number() -> None:
    assert convert_p(1, logits()).tolist() == [1.0] * 3


@pytest.mark.parametrize("dtype", LOGITS)
@pytest.mark.parametrize("source", FLOATS)
def test_p_below_one_never_rounds_up_to_one(dtype: torch.dtype, source: torch.dtype) -> None:
    below_one = (
        torch.nextafter(torch.tensor(1.0).to(source), torch.tensor(0.0).to(source))
        if source != torch.float64
        else torch.tensor(1 - 2**-53, dtype=source)
    )
    candidates = [torch.full((3,), float(below_one), dtype=source), torch.full((3,), 0.999, dtype=source)]
    for p in candidates:
        if float(p[0]) >= 1:
            continue  # it was 1 before we got it
        converted = convert_p(p, logits(dtype))
        assert converted.dtype == dtype
        assert bool((converted < 1).all())
        assert bool((converted > 0.9).all())


@pytest.mark.parametrize("dtype", LOGITS)
@pytest.mark.parametrize("value", [1e-300, 1e-45, 1e-9, 1e-7])
def test_p_above_zero_never_rounds_down_to_zero(dtype: torch.dtype, value: float) -> None:
    for p in (value, torch.tensor([value] * 3, dtype=torch.float64)):
        assert bool((convert_p(p, logits(dtype)) > 0).all())


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0, 1.0001, float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", LOGITS)
def test_p_outside_stays_outside(dtype: torch.dtype, value: float) -> None:
    for p in (value, torch.tensor([value] * 3, dtype=torch.float64)):
        assert not bool(((convert_p(p, logits(dtype)) > 0) & (convert_p(p, logits(dtype)) < 1)).any())


def test_largest_p_below_one_is_the_neighbour_of_one() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        one = torch.ones((), dtype=dtype)
        assert float(convert_p(1 - 1e-12, logits(dtype))[0]) == float(
            torch.nextafter(one, torch.zeros((), dtype=dtype))
        )


def test_bfloat16_p_of_0_999_filters() -> None:
    """bf16(0.999) is 1.0, which would switch top-p off."""
    x = torch.zeros(1, 1000, dtype=torch.bfloat16)
    kept = ascend_sample.top_k_top_p_sample(x, None, 0.999, is_need_logits=True).logits_top_kp_select
    assert int((kept == 0).sum()) == 997  # 0.99609375 of 1000: the sum must exceed it


def test_good_dtypes_are_passed_through() -> None:
    k = torch.tensor([1, 2, 3], dtype=torch.int32)
    p = torch.tensor([0.1, 0.2, 0.3], dtype=torch.bfloat16)
    assert convert_k(k, logits()) is k
    assert convert_p(p, logits()) is p


def test_conversions_do_not_synchronise(npu: str) -> None:
    from ascend_sample import hostcann

    x = logits().to(npu)
    k = torch.tensor([1, 2, 3]).to(npu)
    p = torch.tensor([0.1, 0.2, 0.999]).to(npu)
    with hostcann.profile() as counted:
        ascend_sample.top_k_top_p_sample(x, k, p)
        ascend_sample.top_k_top_p_sample(x, 3, 0.999)
        ascend_sample.top_k_top_p_sample(x, None, None)
    assert counted.synchronizations == {}
