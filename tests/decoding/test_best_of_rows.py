"""The best tokens of rows are the same bits in few launches as in many."""

from __future__ import annotations

import pytest
import torch

from ascend_sample.decoding import best_of_rows
from ascend_sample.sampling import best_tokens as expected


def rows_of(vocab_size: int, dtype: torch.dtype) -> torch.Tensor:
    """Random rows, some with ties, NaN, infinities, and nothing at all."""
    logits = torch.randn(12, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * 3
    logits[1] = logits[1].round()
    logits[2, ::2] = torch.nan
    logits[3, ::3] = torch.inf
    logits[4] = -torch.inf
    logits[5, 1:] = -torch.inf
    logits[6] = 0.0
    logits[7] = -3e38
    logits[8, ::2] = -0.0
    return logits.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [1, 7, 60, 2560, 4999, 8192])
def test_devices_find_the_same_bits(device: str, vocab_size: int, dtype: torch.dtype) -> None:
    logits = rows_of(vocab_size, dtype).to(device)
    clean = expected.without_nan(logits)
    for count in (1, 4, 8):
        count = min(count, vocab_size)
        for found, right in zip(
            best_of_rows.best_entries(clean, count), expected.best_entries(clean, count), strict=True
        ):
            assert torch.equal(found, right)
        for smoothing in (1.0, 0.7):
            found, tokens = best_of_rows.best_tokens(logits, count, smoothing)
            right, right_tokens = expected.best_tokens(logits, count, smoothing)
            assert torch.equal(tokens, right_tokens)
            assert torch.equal(expected.without_nan(found), right)
            assert torch.equal(best_of_rows.all_log_probs(logits, smoothing), expected.all_log_probs(logits, smoothing))
