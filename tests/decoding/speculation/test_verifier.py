"""What becomes of a draft: greedy rows by hand, and the distributions that drafts are drawn from."""

from __future__ import annotations

import numpy as np
import torch

from ascend_sample.decoding.distributions import RowSampling
from ascend_sample.decoding.speculation.drafters import Draft
from ascend_sample.decoding.speculation.verifier import Verifier
from ascend_sample.sampling import SamplingParams
from ascend_sample.sampling.reference.distribution import target_distribution


def test_greedy_rows_by_hand() -> None:
    """By their best tokens alone, the lowest among equals; NaN is no token, and q does not matter."""
    nan = float("nan")
    target = torch.tensor([[[0.0, 2.0, 2.0], [nan, 0.0, 1.0], [5.0, 0.0, 0.0]]]).expand(4, -1, -1)
    draft = Draft(torch.tensor([[1, 2], [2, 2], [1, 0], [1, 2]]), torch.tensor([2, 2, 2, 1]))
    # Rows with penalties go to the sampling layer; without any, best tokens are compared.
    for other in ({}, {"frequency_penalty": 1e-6}):
        params = [SamplingParams(temperature=0, **other)] * 4
        verifier = Verifier(RowSampling(params, 3, target.device), params, "standard")
        for q in (None, torch.full((4, 2, 3), 1 / 3)):
            result = verifier.verify(target, draft._replace(probabilities=q), is_whole=False)
            assert result.accepted.tolist() == [2, 0, 1, 1]
            assert result.tokens.gather(1, result.accepted[:, None]).flatten().tolist() == [0, 1, 2, 2]


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


def test_probabilities_are_those_of_the_reference(device: str) -> None:
    rows = RowSampling(PARAMS, 9, torch.device(device))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        logits = (torch.randn(len(PARAMS), 9, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
        given = logits.to(device, copy=True)
        found = rows.probabilities(given).cpu()
        for row, params in enumerate(PARAMS):
            expected = target_distribution(logits[row].float().numpy(), params)
            np.testing.assert_allclose(found[row].numpy(), expected, atol=2e-6)
        assert given.cpu().equal(logits), "logits stay as they are"


def test_a_row_of_nothing_has_token_0_on_a_cpu() -> None:
    """There a judge refuses what is no distribution."""
    rows = RowSampling([SamplingParams()] * 2, 3, torch.device("cpu"))
    found = rows.probabilities(torch.tensor([[-torch.inf] * 3, [0.0, 0.0, -torch.inf]]))
    assert found.tolist() == [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]
