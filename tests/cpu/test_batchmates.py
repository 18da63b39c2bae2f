"""What a row before left behind decides how the kernel starts on the next one, and must not decide the result.

After a small nucleus the kernel begins top-p with a few candidates and bounds of the sum, after larger ones with what
was in the last one, or with the exact sum.
"""

from __future__ import annotations

import pytest
import torch

from ascend_sample import top_k_top_p_sample
from ascend_sample.reference import top_k_top_p_sample_reference


def sample_rows(rows: torch.Tensor, p: float, q: torch.Tensor, is_need_logits: bool) -> list[torch.Tensor]:
    result = top_k_top_p_sample(rows, None, p, q, is_need_logits=is_need_logits)
    return [each for each in result if each is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_need_logits", [False, True])
@pytest.mark.parametrize(("deviation", "p"), [(8.0, 0.9), (3.0, 0.9), (3.0, 0.3), (0.5, 0.9), (5.0, 0.999)])
def test_alone_and_after_a_flat_row(deviation: float, p: float, is_need_logits: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn((12, 40_000), generator=generator) * deviation
    rows[::2] = torch.randn((6, 40_000), generator=generator) * 0.3
    q = torch.empty(rows.shape).exponential_(generator=generator)
    rows = rows.to(dtype)
    together = sample_rows(rows, p, q, is_need_logits)
    for b in range(1, len(rows), 2):
        alone = sample_rows(rows[b : b + 1], p, q[b : b + 1], is_need_logits)
        for ours, theirs in zip(alone, together, strict=True):
            assert torch.equal(ours[0], theirs[b])


def test_a_boundary_between_bounds_of_the_sum() -> None:
    """32 logits weigh a little more than p, 31 a little less; the rest of the row is a tail of 2^20 small weights."""
    row = torch.full((1, 2**20), -20.14)
    row[0, :32] = 0
    flat = torch.randn((1, 2**20), generator=torch.Generator().manual_seed(1)) * 0.5
    q = torch.ones((2, 2**20))
    p = 0.96872
    _, alone = sample_rows(row, p, q[:1], is_need_logits=True)
    _, together = sample_rows(torch.cat((flat, row)), p, q, is_need_logits=True)
    expected = top_k_top_p_sample_reference(row, None, p, q[:1], is_need_logits=True).logits_top_kp_select
    assert expected is not None
    assert int((expected > -torch.inf).sum()) == 32
    assert torch.equal(alone, expected)
    assert torch.equal(together[1:], expected)
