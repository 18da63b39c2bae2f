"""Masks, biases and penalties: rows that one can check by hand, and special values."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ascend_sample.sampling.edits.processing import add_bias, apply_penalties, scaled_by_sign, scaling_of

INF, NAN = math.inf, math.nan


def assert_bits(actual: Tensor, expected: list[list[float]]) -> None:
    """Equal bit for bit, so that -0.0 is not 0.0 and NaN is NaN."""
    assert actual.dtype == torch.float32
    wanted = torch.tensor(expected, dtype=torch.float32)
    nan = wanted.isnan()
    actual = actual.cpu()
    assert torch.equal(actual.isnan(), nan), actual
    assert torch.equal(actual[~nan].view(torch.int32), wanted[~nan].view(torch.int32)), actual


def row(device: str, *values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor([values], dtype=dtype).to(device)


ADDENDS = [
    (1.5, 0.25, 1.75),
    (1.5, 0.0, 1.5),
    *((logit, -INF, -INF) for logit in (1.5, INF, NAN, -INF)),
    (INF, -3.0, INF),
    (-INF, 100.0, -INF),
    (NAN, 1.0, NAN),
    (3e38, 3e38, INF),  # beyond float32: reported as +inf by the draw, not hidden
]


def test_addends(device: str) -> None:
    logits, addends, results = zip(*ADDENDS, strict=True)
    assert_bits(add_bias(row(device, *logits), row(device, *addends)), [list(results)])


NEUTRAL = [0.1, -0.0, 0.0, 1e-30, -3e38, INF, -INF, NAN]
PENALIZED: list[tuple[list[float], list[int], list[int], tuple[float, float, float], list[float]]] = [
    # The ids of the prompt (0, 1), of the output (2, 3), of both (4), of none (5, 6).
    ([4, -4, 3, -3, 1, 5, -5], [1, 1, 0, 0, 1, 0, 0], [0, 0, 1, 5, 2, 0, 0], (2, 0, 0), [2, -8, 1.5, -6, 0.5, 5, -5]),
    ([4, -4, 1, 0], [1, 1, 0, 1], [0, 0, 0, 0], (0.5, 0, 0), [8, -2, 1, 0]),  # below 1 it rewards
    ([4, 4, 4], [1, 0, 0], [0, 1, 7], (1, 0.5, 0), [4, 3.5, 3.5]),  # presence counts once, and the prompt never
    ([4, 4, 4], [1, 0, 0], [0, 1, 7], (1, 0, 0.5), [4, 3.5, 0.5]),  # frequency every time
    ([4, 4], [0, 0], [0, 3], (1, -0.5, -0.25), [4, 5.25]),
    ([8], [0], [3], (2, 0.25, 0.5), [2.25]),  # repetition comes first: otherwise (8 - 1.75) / 2
    (NEUTRAL, [1] * 8, [3] * 8, (1, 0, 0), NEUTRAL),
    ([INF, -INF, NAN], [1] * 3, [4] * 3, (1.5, 2, -2), [INF, -INF, NAN]),
    ([INF, -INF, NAN], [1] * 3, [4] * 3, (0.5, -2, 2), [INF, -INF, NAN]),
]


def test_penalties(device: str) -> None:
    for logits, in_prompt, counts, penalties, expected in PENALIZED:
        given = row(device, *logits), row(device, *in_prompt, dtype=torch.bool), row(device, *counts, dtype=torch.int32)
        scales = [torch.tensor([float(penalty)]).to(device) for penalty in penalties]
        assert_bits(apply_penalties(*given, *scales), [expected])
        assert_bits(given[0], [logits])


def test_a_repetition_penalty_in_fewer_launches(device: str) -> None:
    """It has the same bits, whether all of them punish, all reward, or some."""
    logits = torch.tensor([[4.0, -4.0, 0.1, -0.1, 0.0, -0.0, INF, -INF, 3e38, -3e38, 1e-38, -1e-38, NAN]]).expand(3, -1)
    for penalties in ((1.0, 1.5, 3e38), (1.0, 0.75, 2.0**-126), (0.5, 2.0, 1.0)):
        column = torch.tensor(penalties).unsqueeze(1)
        found = scaling_of(column.numpy())(logits.to(device), column.to(device))
        assert_bits(found, scaled_by_sign(logits, column).tolist())
