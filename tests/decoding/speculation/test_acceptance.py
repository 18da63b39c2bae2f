"""What becomes of a draft: greedy rows by hand, and what the joint distribution of texts does not show."""

from __future__ import annotations

import numpy as np
import torch

from ascend_sample.decoding.distributions import RowSampling
from ascend_sample.decoding.speculation.acceptance import Draft, judge_draft
from ascend_sample.sampling import SamplingParams
from ascend_sample.sampling.reference.distribution import target_distribution
from tests.decoding.chi_square import SMALLEST_P_VALUE, p_value


def test_greedy_rows_by_hand() -> None:
    """By their best tokens alone, the lowest among equals; NaN is no token, and q does not matter."""
    nan = float("nan")
    target = torch.tensor([[[0.0, 2.0, 2.0], [nan, 0.0, 1.0], [5.0, 0.0, 0.0]]]).expand(4, -1, -1)
    draft = Draft(torch.tensor([[1, 2], [2, 2], [1, 0], [1, 2]]), torch.tensor([2, 2, 2, 1]))
    rows = RowSampling([SamplingParams(temperature=0)] * 4, 3, target.device)
    for q in (None, torch.full((4, 2, 3), 1 / 3)):
        accepted, token = judge_draft(target, draft._replace(probabilities=q), rows, torch.zeros(4).long())
        assert accepted.tolist() == [2, 0, 1, 1]
        assert token.tolist() == [0, 1, 2, 2]


def test_an_empty_residual_gives_a_draw_from_the_target() -> None:
    """Rounding can make p <= q everywhere though the draft was rejected; here it is q that says too much."""
    count, target = 3000, torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.0, 0.25, 0.25]])
    draft = Draft(torch.zeros(count, 1).long(), torch.ones(count).long(), torch.ones(count, 1, 4))
    rows = RowSampling([SamplingParams(seed=seed) for seed in range(count)], 4, torch.device("cpu"))
    accepted, token = judge_draft(target.log().expand(count, -1, -1), draft, rows, torch.zeros(count).long())
    counts = torch.bincount(token[accepted == 0], minlength=4).numpy()
    assert p_value(counts, target[0].double().numpy()) > SMALLEST_P_VALUE


PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0),
    SamplingParams(temperature=1e-6),
    SamplingParams(temperature=0.7, top_k=3),
    SamplingParams(top_p=0.6),
    SamplingParams(top_k=5, top_p=0.5, min_p=0.1, temperature=1.5),
    SamplingParams(min_p=0.3),
    SamplingParams(top_k=100),
]


def test_probabilities_of_all_places_at_once_are_those_of_each(device: str) -> None:
    rows = RowSampling(PARAMS, 9, torch.device(device))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        logits = (torch.randn(len(PARAMS), 3, 9, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
        given = logits.to(device, copy=True)
        found = rows.probabilities(given).cpu()
        for row, params in enumerate(PARAMS):
            for place in range(3):
                expected = target_distribution(logits[row, place].float().numpy(), params)
                np.testing.assert_allclose(found[row, place].numpy(), expected, atol=2e-6)
        assert given.cpu().equal(logits), "logits stay as they are"
