"""Masks, biases and penalties: rows that one can check by hand, and special values."""

from __future__ import annotations

import math

import pytest
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


@pytest.mark.parametrize(
    ("logit", "addend", "result"),
    [
        (1.5, 0.25, 1.75),
        (1.5, -100.0, -98.5),
        (1.5, 0.0, 1.5),
        (1.5, -INF, -INF),
        (INF, -INF, -INF),
        (NAN, -INF, -INF),
        (-INF, -INF, -INF),
        (INF, -3.0, INF),
        (-INF, 100.0, -INF),
        (NAN, 1.0, NAN),
        (3e38, 3e38, INF),  # beyond float32: reported as +inf by the draw, not hidden
    ],
)
def test_one_addend(device: str, logit: float, addend: float, result: float) -> None:
    assert_bits(add_bias(row(device, logit, 7.0), row(device, addend, 0.0)), [[result, 7.0]])


def test_a_bias_does_not_change_its_inputs(device: str) -> None:
    logits, addend = row(device, 1.0, 2.0), row(device, 1.0, -INF)
    add_bias(logits, addend)
    assert_bits(logits, [[1.0, 2.0]])
    assert_bits(addend, [[1.0, -INF]])


def penalize(
    device: str, logits: list[float], in_prompt: list[int] | None, counts: list[int], *penalties: float
) -> Tensor:
    prompt = None if in_prompt is None else row(device, *in_prompt, dtype=torch.bool)
    scales = [torch.tensor([penalty]).to(device) for penalty in penalties]
    return apply_penalties(row(device, *logits), prompt, row(device, *counts, dtype=torch.int32), *scales)


def test_repetition_divides_positive_logits_and_multiplies_the_others(device: str) -> None:
    # r = 2: the ids of the prompt (0, 1), of the output (2, 3), of both (4), of none (5, 6).
    logits = [4.0, -4.0, 3.0, -3.0, 1.0, 5.0, -5.0]
    penalized = penalize(device, logits, [1, 1, 0, 0, 1, 0, 0], [0, 0, 1, 5, 2, 0, 0], 2.0, 0.0, 0.0)
    assert_bits(penalized, [[2.0, -8.0, 1.5, -6.0, 0.5, 5.0, -5.0]])


@pytest.mark.parametrize("penalties", [(1.0, 1.5, 3e38), (1.0, 0.75, 2.0**-126), (0.5, 2.0, 1.0)])
def test_a_repetition_penalty_in_fewer_launches(device: str, penalties: tuple[float, ...]) -> None:
    """It has the same bits, whether all of them punish, all reward, or some."""
    logits = torch.tensor([[4.0, -4.0, 0.1, -0.1, 0.0, -0.0, INF, -INF, 3e38, -3e38, 1e-38, -1e-38, NAN]]).expand(3, -1)
    column = torch.tensor(penalties).unsqueeze(1)
    wanted = scaled_by_sign(logits, column)
    found = scaling_of(column.numpy())(logits.to(device), column.to(device))
    assert_bits(found, wanted.tolist())


def test_repetition_below_1_rewards(device: str) -> None:
    assert_bits(penalize(device, [4.0, -4.0, 1.0], [1, 1, 0], [0, 0, 0], 0.5, 0.0, 0.0), [[8.0, -2.0, 1.0]])


def test_presence_counts_once_and_the_prompt_never(device: str) -> None:
    assert_bits(penalize(device, [4.0, 4.0, 4.0], [1, 0, 0], [0, 1, 7], 1.0, 0.5, 0.0), [[4.0, 3.5, 3.5]])


def test_frequency_counts_every_time_and_the_prompt_never(device: str) -> None:
    assert_bits(penalize(device, [4.0, 4.0, 4.0], [1, 0, 0], [0, 1, 7], 1.0, 0.0, 0.5), [[4.0, 3.5, 0.5]])


def test_negative_penalties_reward(device: str) -> None:
    assert_bits(penalize(device, [4.0, 4.0], None, [0, 3], 1.0, -0.5, -0.25), [[4.0, 5.25]])


def test_repetition_comes_before_the_others(device: str) -> None:
    # (8 / 2) - 3 * 0.5 - 0.25; subtracting first would give (8 - 1.75) / 2.
    assert_bits(penalize(device, [8.0], [0], [3], 2.0, 0.25, 0.5), [[2.25]])


def test_a_logit_of_0_is_multiplied(device: str) -> None:
    assert_bits(penalize(device, [0.0], [1], [0], 3.0, 0.0, 0.0), [[0.0]])


def test_neutral_penalties_leave_every_bit(device: str) -> None:
    logits = [0.1, -0.0, 0.0, 1e-30, -3.7e38, INF, -INF, NAN]
    logits[4] = -3e38
    for counts in ([0] * 8, [3] * 8):
        assert_bits(penalize(device, logits, [1] * 8, counts, 1.0, 0.0, 0.0), [logits])


@pytest.mark.parametrize("logit", [INF, -INF, NAN])
def test_special_values_stay(device: str, logit: float) -> None:
    assert_bits(penalize(device, [logit], [1], [4], 1.5, 2.0, -2.0), [[logit]])
    assert_bits(penalize(device, [logit], [1], [4], 0.5, -2.0, 2.0), [[logit]])


def test_a_forbidden_id_stays_forbidden_with_rewards(device: str) -> None:
    masked = add_bias(row(device, INF, 1.0), row(device, -INF, 0.0))
    penalized = apply_penalties(
        masked,
        row(device, 1, 1, dtype=torch.bool),
        row(device, 9, 0, dtype=torch.int32),
        *(torch.tensor([value]).to(device) for value in (0.5, -2.0, -2.0)),
    )
    assert_bits(penalized, [[-INF, 2.0]])


def test_rows_have_penalties_of_their_own(device: str) -> None:
    logits = torch.tensor([[2.0, -2.0], [2.0, -2.0], [2.0, -2.0]]).to(device)
    penalized = apply_penalties(
        logits,
        torch.tensor([[True, True], [False, False], [False, False]]).to(device),
        torch.tensor([[0, 0], [1, 2], [1, 2]], dtype=torch.int32).to(device),
        torch.tensor([2.0, 1.0, 1.0]).to(device),
        torch.tensor([0.0, 1.0, 0.0]).to(device),
        torch.tensor([0.0, 0.0, 1.0]).to(device),
    )
    assert_bits(penalized, [[1.0, -4.0], [1.0, -3.0], [1.0, -4.0]])
    assert_bits(logits, [[2.0, -2.0], [2.0, -2.0], [2.0, -2.0]])
