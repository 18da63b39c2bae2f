"""filter_probabilities on the CPU: the distribution of each row beside the float64 reference, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from ascend_sample.sampling import SamplingParams
from ascend_sample.sampling.reference.distribution import target_distribution
from tests.support.code_paths import assert_same_on_all_code_paths

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
REQUESTS = [
    SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature in (0, 0.3, 1.0, 1.7)
    for top_k in (None, 1, 3, 40)
    for top_p in (1.0, 0.6, 0.95)
    for min_p in (0.0, 0.2)
]
SIZES = (1, 2, 15, 16, 17, 33, 300, 5000)


def filter_probabilities(logits: Tensor, requests: list[SamplingParams]) -> Tensor:
    """The operator with the parameters of requests."""
    lists = {
        "temperature": torch.tensor([float(one.temperature) for one in requests]),
        "k": torch.tensor([one.top_k or 0 for one in requests], dtype=torch.int32),
        "p": torch.tensor([one.top_p for one in requests]),
        "min_p": torch.tensor([one.min_p for one in requests]),
    }
    return torch.ops.ascend_sample.filter_probabilities(logits, **lists)


def make_logits(vocab_size: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """One row a request: spread, with ties, and some with NaN, with +inf, or with hardly anything."""
    generator = torch.Generator().manual_seed(seed + vocab_size)
    logits = torch.randn(len(REQUESTS), vocab_size, generator=generator) * 4
    logits[1::3] = logits[1::3].round()
    logits[2::7, : vocab_size // 2] = float("nan")
    logits[3::11, vocab_size // 3 : vocab_size // 3 + 2] = float("inf")
    logits[4::13, 1:] = -float("inf")
    return logits.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", SIZES)
def test_distributions_are_the_references(vocab_size: int, dtype: torch.dtype) -> None:
    logits = make_logits(vocab_size, dtype)
    before = logits.clone()
    found = filter_probabilities(logits, REQUESTS)
    assert (found.dtype, found.shape) == (torch.float32, logits.shape)
    torch.testing.assert_close(logits, before, rtol=0, atol=0, equal_nan=True)
    has_any = (logits > -torch.inf).any(dim=1)
    assert found[~has_any].isnan().all()
    for row in has_any.nonzero().flatten().tolist():
        request = REQUESTS[row]
        expected = target_distribution(logits[row].float().numpy(), request)
        np.testing.assert_allclose(found[row].numpy(), expected, atol=1e-6, err_msg=str(request))
        assert ((found[row].numpy() > 0) <= (expected > 0)).all(), "what is not kept has exactly 0"


def test_a_row_without_anything_is_nan_and_others_are_not() -> None:
    logits = torch.tensor([[-torch.inf, torch.nan], [0.0, 0.0]])
    found = filter_probabilities(logits, [SamplingParams(top_p=0.9), SamplingParams()])
    assert found[0].isnan().all()
    assert found[1].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_that_is_p_does_not_exceed_it(dtype: torch.dtype) -> None:
    found = filter_probabilities(torch.zeros(1, 4, dtype=dtype), [SamplingParams(top_p=0.5)])
    torch.testing.assert_close(found, torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0]]))


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_what_is_added_to_a_row_changes_nothing(temperature: float) -> None:
    logits = torch.tensor([[0.0, -1.0, -2.5, 0.5]])
    params = [SamplingParams(temperature=temperature)]
    expected = filter_probabilities(logits, params)
    torch.testing.assert_close(expected, torch.softmax(logits / temperature, dim=1))
    for added in (300.0, -300.0):
        torch.testing.assert_close(filter_probabilities(logits + added, params), expected, rtol=0, atol=0)


def test_strides_and_no_rows() -> None:
    logits = make_logits(700, torch.float32)
    expected = filter_probabilities(logits, REQUESTS)
    wide = torch.zeros(2 * len(REQUESTS), 1400)
    wide[::2, 1::2] = logits
    for view in (wide[::2, 1::2], logits.t().contiguous().t()):
        torch.testing.assert_close(filter_probabilities(view, REQUESTS), expected, rtol=0, atol=0, equal_nan=True)
    assert filter_probabilities(torch.zeros(0, 5), []).shape == (0, 5)


PROGRAM = """
import hashlib
from test_filter_probabilities import DTYPES, REQUESTS, SIZES, filter_probabilities, make_logits
digest = hashlib.sha256()
for vocab_size in SIZES:
    for dtype in DTYPES:
        digest.update(filter_probabilities(make_logits(vocab_size, dtype), REQUESTS).numpy().tobytes())
print(digest.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits() -> None:
    assert_same_on_all_code_paths(PROGRAM)
