"""The draw by segments in torch operators, and the statuses and weights that devices make in few launches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ascend_sample.sampling import RowStatus
from ascend_sample.sampling.draws import weights
from ascend_sample.sampling.draws.segmented import SEGMENT, draw_from_segments, lanes_of, segments_of, whole_segments

SIZES = (1, 2, 255, 256, 257, 512, 600, 1000, 2560)


def by_hand(row: Tensor, noise: Tensor) -> int:
    """Both races in float64, entry by entry."""
    row, noise = row.double(), noise.double()
    best, segment = -1.0, 0
    for number in range(segments_of(len(row))):
        score = float(row[number * SEGMENT : (number + 1) * SEGMENT].sum() / noise[SEGMENT + number])
        if score > best:
            best, segment = score, number
    inside = row[segment * SEGMENT : (segment + 1) * SEGMENT]
    return segment * SEGMENT + int(np.argmax((inside / noise[: len(inside)]).numpy()))


def drawn(device: str, rows: Tensor, noise: Tensor) -> list[int]:
    vocab_size = rows.shape[1]
    segments = whole_segments(len(rows), vocab_size, torch.device(device))
    segments[:, :vocab_size] = rows.to(device)
    found: list[int] = draw_from_segments(segments, vocab_size, noise.to(device)).tolist()
    return found


class TestRaces:
    def test_the_first_of_the_documentation(self, device: str) -> None:
        noise = torch.ones(1, lanes_of(600))
        noise[0, SEGMENT + 1] = 0.1
        noise[0, 9] = 0.5
        assert drawn(device, torch.ones(1, 600), noise) == [SEGMENT + 9]

    @pytest.mark.parametrize("vocab_size", SIZES)
    def test_are_those_by_hand(self, device: str, vocab_size: int) -> None:
        rows = torch.rand(40, vocab_size) ** 9 * (torch.rand(40, vocab_size) < 0.3)
        noise = torch.empty(40, lanes_of(vocab_size)).exponential_()
        assert drawn(device, rows, noise) == [by_hand(*each) for each in zip(rows, noise, strict=True)]

    @pytest.mark.parametrize("vocab_size", SIZES)
    def test_the_first_among_equals_wins_both(self, device: str, vocab_size: int) -> None:
        rows = torch.zeros(1, vocab_size)
        rows[0, vocab_size // 2 :] = 1
        last = vocab_size - vocab_size % SEGMENT
        first = vocab_size // 2
        if 0 < last < vocab_size or first // SEGMENT != (vocab_size - 1) // SEGMENT:
            rows[0, first // SEGMENT * SEGMENT + SEGMENT :] = 0
        assert drawn(device, rows, torch.ones(1, lanes_of(vocab_size))) == [first]

    @pytest.mark.parametrize("vocab_size", SIZES)
    def test_a_row_without_weight_draws_0_and_a_weight_of_0_never_wins(self, device: str, vocab_size: int) -> None:
        rows = torch.zeros(2, vocab_size)
        rows[1, -1] = 1e-30
        noise = torch.full((2, lanes_of(vocab_size)), 1e-19)
        noise[:, (vocab_size - 1) % SEGMENT], noise[:, -1] = 44.0, 44.0
        assert drawn(device, rows, noise) == [0, vocab_size - 1]

    @pytest.mark.parametrize("vocab_size", [600, 32000])
    def test_a_row_alone_draws_what_it_draws_in_a_batch(self, device: str, vocab_size: int) -> None:
        rows = torch.rand(33, vocab_size)
        noise = torch.empty(33, lanes_of(vocab_size)).exponential_()
        together = drawn(device, rows, noise)
        assert together == [drawn(device, rows[row : row + 1], noise[row : row + 1])[0] for row in range(33)]


class TestStatuses:
    DTYPES = (torch.float32, torch.bfloat16, torch.float16)
    ROWS = (
        ([0.0, 1.0], RowStatus.OK),
        ([-math.inf, 0.0], RowStatus.OK),
        ([-math.inf, -math.inf], RowStatus.ALL_MASKED),
        ([math.nan, 1.0], RowStatus.NAN_SEEN),
        ([math.nan, -math.inf], RowStatus.NAN_SEEN),
        ([math.nan, math.inf], RowStatus.NAN_SEEN),
        ([math.inf, -math.inf], RowStatus.INF_SEEN),
    )

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_from_the_largest_logit(self, device: str, dtype: torch.dtype) -> None:
        extremes = [[torch.finfo(dtype).max, 0.0], [torch.finfo(dtype).min] * 2, [torch.finfo(dtype).tiny, 0.0]]
        rows = torch.tensor([row for row, _ in self.ROWS] + extremes).to(dtype).to(device)
        expected = [status for _, status in self.ROWS] + [RowStatus.OK] * len(extremes)
        largest = weights.largest_of(rows)
        assert weights.status_of(largest, weights.StatusConstants.like(rows)).tolist() == expected

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_weights_of_odd_rows(self, device: str, dtype: torch.dtype) -> None:
        rows = torch.tensor([[math.nan, 1.0, 1.0], [math.inf, 0.0, math.inf], [-math.inf] * 3]).to(dtype).to(device)
        values = weights.cleaned_in_float32(rows)
        base = weights.base_of(weights.largest_of(values))
        found = weights.scaled(values, base, torch.full((3, 1), 0.5, device=device)).exp()
        assert found.tolist() == [[0, 1, 1], [1, 0, 1], [0, 0, 0]]
        assert rows[0, 0].isnan(), "logits stay as they are"
