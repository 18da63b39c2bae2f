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


def test_k_of_any_width() -> None:
    for dtype in INTEGERS:
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


def test_a_number_is_for_every_row() -> None:
    for k in (7, np.int64(7), np.uint8(7), torch.tensor(7), torch.tensor(7, dtype=torch.uint8)):
        assert convert_k(k, logits()).tolist() == [7, 7, 7]
    half = torch.tensor(0.5)
    for p in (0.5, np.float32(0.5), np.float64(0.5), fractions.Fraction(1, 2), half, half.double()):
        for dtype in LOGITS:
            assert convert_p(p, logits(dtype)).dtype == dtype
            assert convert_p(p, logits(dtype)).tolist() == [0.5, 0.5, 0.5]
    assert convert_p(1, logits()).tolist() == [1.0] * 3


@pytest.mark.parametrize("dtype", LOGITS)
def test_p_below_one_never_rounds_up_to_one(dtype: torch.dtype) -> None:
    """But where it was 1 before we got it; the largest is the neighbour of 1."""
    for source in FLOATS:
        below_one = (
            torch.nextafter(torch.ones((), dtype=source), torch.zeros((), dtype=source))
            if (source != torch.float64)
            else torch.tensor(1 - 2**-53, dtype=source)
        )
        for p in (below_one.expand(3), torch.full((3,), 0.999, dtype=source)):
            if float(p[0]) < 1:
                converted = convert_p(p, logits(dtype))
                assert converted.dtype == dtype
                assert bool(((converted < 1) & (converted > 0.9)).all())
    neighbour = torch.nextafter(torch.ones((), dtype=dtype), torch.zeros((), dtype=dtype))
    assert float(convert_p(1 - 1e-12, logits(dtype))[0]) == float(neighbour)


@pytest.mark.parametrize("dtype", LOGITS)
def test_p_stays_on_its_side_of_zero_and_one(dtype: torch.dtype) -> None:
    for value in (1e-300, 1e-45, 1e-9, 1e-7, -1.0, 0.0, 1.0, 1.0001, float("inf"), float("nan")):
        for p in (value, torch.tensor([value] * 3, dtype=torch.float64)):
            converted = convert_p(p, logits(dtype))
            assert ((converted > 0) & (converted < 1)).tolist() == [0 < value < 1] * 3


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
    import hostcann

    x = logits().to(npu)
    k = torch.tensor([1, 2, 3]).to(npu)
    p = torch.tensor([0.1, 0.2, 0.999]).to(npu)
    with hostcann.profile() as counted:
        ascend_sample.top_k_top_p_sample(x, k, p)
        ascend_sample.top_k_top_p_sample(x, 3, 0.999)
        ascend_sample.top_k_top_p_sample(x, None, None)
    assert counted.synchronizations == {}
